"""Loading of data by name (`load_data`), as the command line takes it.

A name is `digits`, a folder of images, an .npz or .npy file, a .txt, .jsonl or .parquet file of
texts, tar shards or Parquet files (a folder or a pattern), a Hugging Face data set (a folder, or
`hf:NAME-OR-FOLDER`, or `hf-stream:` to stream it), a probe that ships with the package
(`probe:images`, `probe:noise`, `probe:text`), or `FILE.py:FUNCTION`, the user's own code and the
only code that is run. Text is tokenised with the model's tokenizer.

Streamed rows of images or numbers become a `Stream`. Streamed text is read to its end and cut like
text from files, so its sequences are visited in the seeded order of all of them.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import Dataset, Subset

from ..errors import DataError, FormatError, close_matches, first_line, import_optional
from . import probe_samples
from .batches import as_tensor, num_samples, take_samples
from .decoding import (
    IMAGE_SUFFIXES,
    LABEL_FIELDS,
    FieldKind,
    Row,
    default_sample,
    image_to_tensor,
    normalise_pixels,
    read_image,
    scale_pixels,
)
from .hugging_face import (
    convert_load_errors,
    load_text_config,
    load_tokenizer,
    max_sequence_length,
    own_tokenizer,
)
from .sample_hashes import KEY_FIELD
from .shard_files import find_shards, is_shards, shard_rows
from .streams import DEFAULT_BUFFER, Stream
from .text import (
    DEFAULT_LENGTH,
    TEXT_SUFFIXES,
    TextOptions,
    Texts,
    choose_text_field,
    texts_from_file,
    texts_from_table,
    tokenize_texts,
)


def call_user_function(spec: str) -> Any:
    file, _, name = spec.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise DataError(f"no file at {file}; expected FILE.py:FUNCTION")
    module_spec = importlib.util.spec_from_file_location(f"_user_{path.stem}", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module  # data loader workers look it up by name
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        module_spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    function = getattr(module, name, None)
    if not callable(function):
        known = [n for n, _ in inspect.getmembers(module, inspect.isroutine)]
        raise DataError(
            f"{file} has no function {name!r}; it has {close_matches(name, known) or 'none'}"
        )
    return function()


STREAM_PREFIX = "hf-stream:"
_PREFERRED_SPLITS = ("test", "validation", "train")  # that are looked for, in this order


Rows = Callable[[int | None], Iterator[Row]]  # in an order by seed, or in their own without one


def named_rows(spec: str) -> tuple[str, Rows] | None:
    """A name for people and the rows of shards or of a streaming data set; None for all else."""
    if spec.startswith(STREAM_PREFIX):
        remedy = (
            "expected a folder written by save_to_disk, a folder of its files, or a name on the hub"
        )
        name = spec.removeprefix(STREAM_PREFIX)
        table, name = _load_split(name, _is_saved_dataset(name), remedy, streaming=True)
        streamed = table if hasattr(table, "n_shards") else table.to_iterable_dataset()

        def rows(_: int | None) -> Iterator[Row]:
            for number, values in enumerate(streamed):
                key = values.get(KEY_FIELD)
                fields = {name: (_value_kind(name, value), value) for name, value in values.items()}
                yield Row(key if isinstance(key, str) else None, str(key or number), fields)

        return name, rows
    if spec.startswith("hf:") or ".py:" in spec or not is_shards(spec):
        return None
    return spec, partial(shard_rows, find_shards(spec))


def _text_field(name: str, rows: Rows, wanted: str | None) -> str | None:
    """The field of rows that holds text; None where the rows are of images or numbers."""
    row = next(rows(None), None)
    if row is None:
        raise DataError(f"{name} holds no samples: expected at least one")
    kinds = {field: row.kind(field) for field in row if field != KEY_FIELD}
    if wanted is None and not {"image", "array"}.isdisjoint(kinds.values()):
        return None
    of_text = [field for field, kind in kinds.items() if kind == "text"]
    return choose_text_field(wanted, of_text, list(kinds), name)


def _load_split(name: str, saved: bool, remedy: str, **options: Any) -> tuple[Any, str]:
    """One split of a data set of Hugging Face's, saved to disk or not, and how to call it."""
    datasets = import_optional("datasets", "datasets", "text")
    with convert_load_errors(name, "Hugging Face data set", remedy):
        table = datasets.load_from_disk(name) if saved else datasets.load_dataset(name, **options)
    if not isinstance(table, Mapping):
        return table, name
    split = next(x for x in (*_PREFERRED_SPLITS, *table) if x in table)
    return table[split], f"{name}, {split}"


def _is_saved_dataset(folder: str) -> bool:
    saved = ("dataset_dict.json", "dataset_info.json")
    return any(Path(folder, file).is_file() for file in saved)


def _value_kind(name: str, value: Any) -> FieldKind:
    if name in LABEL_FIELDS and isinstance(value, int | str):
        return "label"
    if isinstance(value, str):
        return "text"
    if isinstance(value, list | np.ndarray):
        return "array" if np.asarray(value).dtype.kind in "biuf" else "other"
    return "image" if hasattr(value, "convert") else "other"  # of PIL


_PROBE_IMAGES = {
    "probe:images": probe_samples.probe_image,
    "probe:noise": probe_samples.noise_image,
}


def load_data(
    spec: str,
    *,
    size: int = 224,  # to which images are resized by their shorter side and cropped in the centre
    raw: bool = False,  # leave pixels in [0, 1], not normalised as for ImageNet
    skip_bad: bool = False,  # an unreadable image is a bad sample and does not end the pass
    model: str = "",  # the model's specification, whose tokenizer makes tokens of text
    text: TextOptions | None = None,  # how texts are read and cut
    limit: int = 0,  # samples, of the first of which there are no more; 0 for all
    buffer: int = DEFAULT_BUFFER,  # samples of a stream that wait
) -> Any:
    """The data that a specification names, as something `record` takes."""
    text, path = text or TextOptions(), Path(spec)
    if spec in _PROBE_IMAGES:
        make = partial(_probe_sample, image=_PROBE_IMAGES[spec], size=size, raw=raw)
        return MappedDataset(range(probe_samples.NUM_IMAGES)[: limit or None], make)
    if spec == "probe:text":
        texts = Texts(spec, map(probe_samples.probe_text, range(probe_samples.NUM_TEXTS)))
        return _load_tokens(texts, model, replace(text, packing=text.packing or "each"), limit)
    if spec.startswith("probe:"):
        raise DataError(f"no probe {spec!r}; expected probe:images, probe:noise or probe:text")
    if (named := named_rows(spec)) is not None:
        name, rows = named
        field = _text_field(name, rows, text.field)
        if field is not None:
            texts = Texts(f"{name} ({field})", (row.get(field) or "" for row in rows(None)))
            return _load_tokens(texts, model, text, limit)
        return Stream(rows, partial(default_sample, size=size, raw=raw), buffer, skip_bad, limit)
    if path.suffix in TEXT_SUFFIXES and path.is_file():
        texts = texts_from_file(path, text.field, lines=text.packing == "each")
        return _load_tokens(texts, model, text, limit)
    if spec.startswith("hf:") or _is_saved_dataset(spec):
        name = spec.removeprefix("hf:")
        remedy = "expected a folder written by save_to_disk, or a name on the hub"
        table, name = _load_split(name, Path(name).is_dir(), remedy, trust_remote_code=False)
        if "input_ids" in table.column_names and text.field is None:  # tokenised already
            return table.select(range(min(limit, len(table)))) if limit else table
        column = next((x for x in ("image", "img") if x in table.column_names), None)
        if column is None or text.field is not None:
            return _load_tokens(texts_from_table(table, name, text.field), model, text, limit)
        images = MappedDataset(table, lambda row: image_to_tensor(row[column], size, raw))
        return _limit_samples(images, limit)
    return _limit_samples(_load_samples(spec, size, raw, skip_bad), limit)


def _load_samples(spec: str, size: int, raw: bool, skip_bad: bool) -> Any:
    """Data that are no text."""
    path = Path(spec)
    if spec == "digits":
        return load_digits_data()
    if ".py:" in spec:
        return call_user_function(spec)
    if path.is_dir():
        return _image_folder(path, size, raw, skip_bad)
    if path.suffix in (".npz", ".npy") and path.is_file():
        return _load_arrays(path)
    what = "unknown kind of data" if path.exists() else "no data"
    raise DataError(
        f"{what} at {spec!r}; expected digits, a folder of images, an .npz, .npy, .txt, .jsonl or "
        ".parquet file, tar shards, hf:NAME, hf-stream:NAME, probe:images, probe:text or "
        "FILE.py:FUNCTION"
    )


def samples_name(spec: str, text: TextOptions) -> str | None:
    """The name by which samples are known however large they are made; None if they have none.

    An image of the probe is the same one in any size, and a text of it with any tokenizer, unless
    texts are packed into sequences.
    """
    one_each = spec == "probe:text" and text.packing != "packed"
    return spec if spec in _PROBE_IMAGES or one_each else None


def _probe_sample(
    number: int, *, image: Callable[[int, int], Tensor], size: int, raw: bool
) -> Tensor:
    pixels = image(number, size)
    return pixels if raw else normalise_pixels(pixels)


def load_digits_data() -> tuple[Tensor, Tensor]:
    """The 1,797 handwritten digits of scikit-learn: images (n, 1, 8, 8) in [0, 1], and labels."""
    bunch = import_optional("sklearn.datasets", "scikit-learn", "demo").load_digits()
    images = torch.from_numpy(bunch.images).float()[:, None] / 16
    return images, torch.from_numpy(bunch.target).long()


@dataclass(frozen=True)
class MappedDataset(Dataset[Any]):
    """Rows of a table turned into samples one by one."""

    rows: Any
    sample: Callable[[Any], Any]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.sample(self.rows[index])


def _image_folder(root: Path, size: int, raw: bool, skip_bad: bool) -> MappedDataset:
    """Images below a folder, sorted by path; the first folder level is the class."""
    found = (p for p in root.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
    paths = sorted(p for p in found if not p.is_dir())
    if not paths:
        raise DataError(
            f"no images below {root}; expected files such as {', '.join(IMAGE_SUFFIXES)}"
        )
    folders = [path.relative_to(root).parts[0] for path in paths]
    _, labels = np.unique(folders, return_inverse=True)
    rows = list(zip(paths, labels.tolist(), strict=True))
    return MappedDataset(rows, partial(_read_image, size=size, raw=raw, skip_bad=skip_bad))


def _read_image(
    row: tuple[Path, int], *, size: int, raw: bool, skip_bad: bool
) -> tuple[Tensor, int]:
    path, label = row
    try:
        return image_to_tensor(read_image(path), size, raw), label
    except Exception as error:  # a damaged file makes its decoder raise whatever it likes
        if skip_bad:  # not finite, so the pass leaves it out and counts it
            return torch.full((3, size, size), torch.nan, dtype=torch.float32), label
        raise DataError(
            f"cannot read the image {path} ({first_line(error)}); repair or remove it, or "
            'skip such images with `on_bad="skip"`'
        ) from error


def load_named_arrays(path: Path) -> dict[str, Any]:
    """The arrays of an .npz file (of an .npy as x), or the tensors of a .safetensors, by name."""
    if not path.is_file():
        raise DataError(f"no file at {path}; expected an .npz or .safetensors file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with open(path, "rb") as opened:
            file = np.load(opened, allow_pickle=False)
            return {"x": file} if isinstance(file, np.ndarray) else dict(file)
    except Exception as error:  # of zip, zlib, NumPy or safetensors, as the damage has it
        raise FormatError(
            f"{path} is not a readable {path.suffix} file ({first_line(error)}); write arrays of "
            "numbers with numpy.savez, or tensors as safetensors"
        ) from error


def _load_arrays(path: Path) -> tuple[Any, ...]:
    """Inputs and, if there, labels of a file: x and y, or xte and yte, or its only array."""
    arrays = load_named_arrays(path)
    content = {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}
    label_names = {"x": "y", "xte": "yte", "images": "labels", "xtr": "ytr"}
    only = [*content] if len(content) == 1 else []
    key = next((name for name in (*label_names, *only) if name in content), None)
    if key is None:
        raise DataError(
            f"{path} holds {', '.join(content) or 'nothing'}; expected x (and y), xte (and yte) or "
            "a single array"
        )
    if content[key].dtype.kind not in "biufc":
        raise DataError(f"{path} holds {content[key].dtype} as {key!r}; expected numbers")
    x = scale_pixels(as_tensor(content[key]), image_axes=4)
    y = content.get(label_names.get(key, ""))  # numbers, or names of classes
    if y is None:
        return (x,)
    return (x, as_tensor(y) if y.dtype.kind in "biuf" else y)


def _load_tokens(texts: Texts, model: str, text: TextOptions, limit: int) -> Any:
    """Texts as sequences of a model's tokens."""
    name = own_tokenizer(model)
    if name is None and text.tokenizer is None:
        raise DataError(
            f"{texts.name} is text, and only models hf:NAME and gguf:FILE have a tokenizer. Pass a "
            "folder or a Hugging Face name as `tokenizer`, or tokenize in FILE.py:FUNCTION"
        )
    tokenizer = load_tokenizer(text.tokenizer or str(name))
    config = None if name is None else load_text_config(name)
    longest = max_sequence_length(config, tokenizer)
    length = text.length or min(DEFAULT_LENGTH, longest or DEFAULT_LENGTH)
    if longest is not None and length > longest:
        raise DataError(f"`length={length}` is more than the {longest} tokens that {name!r} takes")
    loader = tokenize_texts(texts, tokenizer, length=length, packing=text.packing, limit=limit)
    known, largest = getattr(config, "vocab_size", None), int(loader.dataset.tokens.max())  # type: ignore[attr-defined]
    if known is not None and largest >= known:
        raise DataError(
            f"the tokenizer at {text.tokenizer or name!r} produces token {largest}, but the "
            f"vocabulary of {model} has {known} tokens; use the tokenizer the model was trained "
            "with"
        )
    return loader


def _limit_samples(samples: Any, limit: int) -> Any:
    """The first so many samples."""
    if not limit:
        return samples
    if isinstance(samples, tuple | dict):
        return take_samples(samples, slice(0, limit))
    if hasattr(samples, "__getitem__") and hasattr(samples, "__len__"):
        return Subset(samples, range(min(limit, len(samples))))
    if hasattr(samples, "__iter__"):
        return _limit_batches(samples, limit)
    raise DataError(f"`limit` cannot cut {type(samples).__name__}; expected data of known length")


def _limit_batches(batches: Iterable[Any], limit: int) -> Iterator[Any]:
    for batch in batches:
        yield take_samples(batch, slice(0, limit))
        limit -= num_samples(batch)
        if limit <= 0:
            return
