"""Data sets by name, for the command line.

Data are `digits`, a folder of images, an .npz file, texts in a .txt, .jsonl or .parquet file, tar
shards or Parquet files (a folder or a pattern), a data set of Hugging Face's (a folder, or
`hf:NAME-OR-FOLDER`, or `hf-stream:` of it), a probe that ships with the package (`probe:images`,
`probe:noise`, `probe:text`), or `FILE.py:FUNCTION`. Texts become tokens by the tokenizer of the
model.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from ..errors import DataError, FormatError, first_line, optional
from . import probe_samples
from .batches import size as batch_size
from .batches import take
from .hugging_face import loading, longest_sequence, text_config, tokenizer_at
from .images import IMAGES, normalised, read_image, to_tensor
from .named_streams import rows_named
from .stream_rows import plain_sample
from .streams import BUFFER
from .text_files import SUFFIXES, Texts, texts_in, texts_of
from .tokenized_text import LENGTH, TextOptions, tokenized
from .user_files import call_function

_PICTURES = {"probe:images": probe_samples.image, "probe:noise": probe_samples.noise}
_SAVED = ("dataset_dict.json", "dataset_info.json")  # by which a saved data set is known


def load_data(
    spec: str,
    *,
    size: int = 224,  # to which images are resized by their shorter side and cropped in the centre
    raw: bool = False,  # leave pixels in [0, 1], not normalised as for ImageNet
    skip_bad: bool = False,  # an unreadable image is a bad sample and does not end the pass
    model: str = "",  # the model's specification, whose tokenizer makes tokens of text
    text: TextOptions | None = None,  # how texts are read and cut
    limit: int = 0,  # samples, of the first of which there are no more; 0 for all
    buffer: int = BUFFER,  # samples of a stream that wait
) -> Any:
    """The data that a specification names, as something `record` takes."""
    text, path = text or TextOptions(), Path(spec)
    if spec.startswith("probe:"):
        return _probe(spec, size=size, raw=raw, model=model, text=text, limit=limit)
    if (rows := rows_named(spec)) is not None:
        field = rows.text_field(text.field)
        if field is not None:
            return _tokens(rows.texts(field), model, text, limit)
        sample = partial(plain_sample, size=size, raw=raw)
        return rows.streamed(sample, buffer=buffer, skip_bad=skip_bad, limit=limit)
    if path.suffix in SUFFIXES and path.is_file():
        texts = texts_in(path, text.field, lines=text.packing == "each")
        return _tokens(texts, model, text, limit)
    if spec.startswith("hf:") or any((path / name).is_file() for name in _SAVED):
        table, name = _table(spec.removeprefix("hf:"))
        column = _first_of(("image", "img"), table.column_names)
        if column is None or text.field is not None:
            return _tokens(texts_of(table, name, text.field), model, text, limit)
        return _first(Mapped(table, lambda row: to_tensor(row[column], size, raw)), limit)
    return _first(_of_numbers(spec, size, raw, skip_bad), limit)


def _of_numbers(spec: str, size: int, raw: bool, skip_bad: bool) -> Any:
    """Data that are no text."""
    if spec == "digits":
        return digits()
    if ".py:" in spec:
        return call_function(spec)
    path = Path(spec)
    if path.is_dir():
        return _image_folder(path, size, raw, skip_bad)
    if path.suffix == ".npz" and path.is_file():
        return _arrays(path)
    raise DataError(
        f"no data at {spec!r}; expected digits, a folder of images, an .npz, .txt, .jsonl or "
        ".parquet file, tar shards, hf:NAME, hf-stream:NAME, probe:images, probe:text or "
        "FILE.py:FUNCTION"
    )


def named_samples(spec: str, text: TextOptions) -> str | None:
    """The name by which samples are known however large they are made; None if they have none.

    An image of the probe is the same one in any size, and a text of it with any tokenizer, unless
    texts are packed into sequences.
    """
    known = spec in _PICTURES or (spec == "probe:text" and text.packing != "packed")
    return spec if known else None


def _probe(spec: str, *, size: int, raw: bool, model: str, text: TextOptions, limit: int) -> Any:
    if spec in _PICTURES:
        sample = partial(_of_probe, made=_PICTURES[spec], size=size, raw=raw)
        return Mapped(range(min(limit or probe_samples.IMAGES, probe_samples.IMAGES)), sample)
    if spec == "probe:text":
        every = Texts(spec, probe_samples.texts())
        return _tokens(every, model, replace(text, packing=text.packing or "each"), limit)
    raise DataError(f"no probe {spec!r}; expected probe:images, probe:noise or probe:text")


def _of_probe(number: int, *, made: Callable[[int, int], Tensor], size: int, raw: bool) -> Tensor:
    pixels = made(number, size)
    return pixels if raw else normalised(pixels)


def digits() -> tuple[Tensor, Tensor]:
    """The 1,797 handwritten digits of scikit-learn: images (n, 1, 8, 8) in [0, 1], and labels."""
    bunch = optional("sklearn.datasets", "scikit-learn", "demo").load_digits()
    images = torch.from_numpy(bunch.images).float()[:, None] / 16
    return images, torch.from_numpy(bunch.target).long()


@dataclass(frozen=True)
class Mapped(Dataset[Any]):
    """Rows of a table turned into samples one by one."""

    rows: Any
    sample: Callable[[Any], Any]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.sample(self.rows[index])


def _image_folder(root: Path, size: int, raw: bool, skip_bad: bool) -> Mapped:
    """Images below a folder, sorted by path; the first folder level is the class."""
    found = (p for p in root.rglob("*") if p.suffix.lower() in IMAGES)
    paths = sorted(p for p in found if not p.is_dir())
    if not paths:
        raise DataError(f"no images below {root}; expected files such as {', '.join(IMAGES)}")
    folders = [path.relative_to(root).parts[0] for path in paths]
    classes = {name: i for i, name in enumerate(sorted(set(folders)))}
    rows = [(path, classes[name]) for path, name in zip(paths, folders, strict=True)]
    return Mapped(rows, partial(_read_image, size=size, raw=raw, skip_bad=skip_bad))


def _read_image(
    row: tuple[Path, int], *, size: int, raw: bool, skip_bad: bool
) -> tuple[Tensor, int]:
    path, label = row
    try:
        return to_tensor(read_image(path), size, raw), label
    except Exception as error:  # a damaged file makes its decoder raise whatever it likes
        if skip_bad:  # not finite, so the pass leaves it out and counts it
            return torch.full((3, size, size), torch.nan), label
        raise DataError(
            f"cannot read the image {path} ({first_line(error)}); repair or remove it, or "
            "leave such images out with --on-bad skip"
        ) from error


def _arrays(path: Path) -> tuple[Any, ...]:
    """Inputs and, if there, labels of an .npz: x and y, or xte and yte, or its only array."""
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except Exception as error:  # of zip, zlib or NumPy, as the damage has it
        raise FormatError(
            f"{path} is not a readable .npz file ({first_line(error)}); write arrays of numbers "
            "with numpy.savez"
        ) from error
    content = {name: array for name, array in found.items() if isinstance(array, np.ndarray)}
    known = {"x": "y", "xte": "yte", "images": "labels", "xtr": "ytr"}
    key = _first_of([*known, *content] if len(content) == 1 else known, content)
    if key is None:
        raise DataError(
            f"{path} holds {', '.join(content) or 'nothing'}; expected x (and y), xte (and yte) or "
            "a single array"
        )
    if content[key].dtype.kind not in "biufc":
        raise DataError(f"{path} holds {content[key].dtype} as {key!r}; expected numbers")
    native = {
        name: array.astype(array.dtype.newbyteorder("="), copy=False)
        for name, array in content.items()
    }
    x = torch.from_numpy(native[key])
    if x.dtype == torch.uint8:  # images as they are usually stored: (n, height, width, channels)
        x = x.float() / 255
        x = x.permute(0, 3, 1, 2).contiguous() if x.ndim == 4 and x.shape[-1] in (1, 3, 4) else x
    elif x.is_floating_point():
        x = x.float()
    label = known.get(key)
    if label not in native:
        return (x,)
    y = native[label]  # numbers, or names of classes
    return (x, torch.from_numpy(y) if y.dtype.kind in "biuf" else y)


def _table(name: str) -> tuple[Any, str]:
    """A data set of Hugging Face's, one split of it, and how to call it."""
    datasets = optional("datasets", "datasets", "text")
    remedy = "expected a folder written by save_to_disk, or a name on the hub"
    with loading(name, "Hugging Face data set", remedy):
        if Path(name).is_dir():
            table = datasets.load_from_disk(name)
        else:
            table = datasets.load_dataset(name, trust_remote_code=False)
    if not isinstance(table, Mapping):
        return table, name
    split = _first_of(("test", "validation", "train", *table), table)
    return table[split], f"{name}, {split}"


def _tokens(texts: Texts, model: str, text: TextOptions, limit: int) -> Any:
    """Texts as sequences of a model's tokens."""
    name = model.removeprefix("hf:")
    if name == model:
        raise DataError(
            f"{texts.name} holds text, which needs a model hf:NAME that brings its tokenizer; for "
            f"{model or 'another model'} make tokens in FILE.py:FUNCTION"
        )
    tokenizer, config = tokenizer_at(name), text_config(name)
    longest = longest_sequence(config, tokenizer)
    length = text.length or min(LENGTH, longest or LENGTH)
    if longest is not None and length > longest:
        raise DataError(f"--length {length} is more than the {longest} tokens that {name!r} takes")
    found = tokenized(texts, tokenizer, length=length, packing=text.packing, limit=limit)
    known, largest = getattr(config, "vocab_size", None), int(found.dataset.tokens.max())  # type: ignore[attr-defined]
    if known is not None and largest >= known:
        raise DataError(
            f"the tokenizer at {name!r} makes token {largest}, and the model there knows {known}; "
            "save a model with its own tokenizer"
        )
    return found


def _first(samples: Any, limit: int) -> Any:
    """The first so many samples."""
    if not limit:
        return samples
    if isinstance(samples, tuple | dict):
        return take(samples, slice(0, limit))
    if hasattr(samples, "__getitem__") and hasattr(samples, "__len__"):
        return Subset(samples, range(min(limit, len(samples))))
    if hasattr(samples, "__iter__"):
        return _head(samples, limit)
    raise DataError(f"--limit cannot cut {type(samples).__name__}; expected data of known length")


def _head(batches: Iterable[Any], limit: int) -> Iterator[Any]:
    for batch in batches:
        yield take(batch, slice(0, limit))
        limit -= batch_size(batch)
        if limit <= 0:
            return


def _first_of(names: Iterable[str], there: Container[str]) -> str | None:
    return next((name for name in names if name in there), None)
