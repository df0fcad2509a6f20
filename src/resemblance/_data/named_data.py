"""Data sets by name, for the command line.

Data are `digits`, a folder of images, an .npz file, `hf:NAME-OR-FOLDER` or `FILE.py:FUNCTION`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import DataError, FormatError, first_line, optional
from .user_files import call_function

IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
# Per-channel mean and standard deviation of ImageNet, which published image models expect.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

OWN_CODE = (
    "{!r} on Hugging Face needs code of its own, and such code is never run; read it, then load it "
    "yourself in FILE.py:FUNCTION"
)


def load_data(
    spec: str,
    *,
    size: int = 224,  # to which images are resized by their shorter side and cropped in the centre
    raw: bool = False,  # leave pixels in [0, 1], not normalised as for ImageNet
    skip_bad: bool = False,  # an unreadable image is a bad sample and does not end the pass
    model: str = "",  # the model's specification, which tells how text is tokenised
) -> Any:
    """The data that a specification names, as something `record` takes."""
    if spec == "digits":
        return digits()
    if ".py:" in spec:
        return call_function(spec)
    if spec.startswith("hf:"):
        return _hugging_face(spec.removeprefix("hf:"), size, raw, model)
    path = Path(spec)
    if path.is_dir():
        return _image_folder(path, size, raw, skip_bad)
    if path.suffix == ".npz" and path.is_file():
        return _arrays(path)
    raise DataError(
        f"no data at {spec!r}; expected digits, a folder of images, an .npz file, hf:NAME or "
        "FILE.py:FUNCTION"
    )


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
    from PIL import Image

    path, label = row
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                return _to_tensor(image, size, raw), label
    except Exception as error:  # a damaged file makes its decoder raise whatever it likes
        if skip_bad:  # not finite, so the pass leaves it out and counts it
            return torch.full((3, size, size), torch.nan), label
        raise DataError(
            f"cannot read the image {path} ({first_line(error)}); repair or remove it, or "
            "leave such images out with --on-bad skip"
        ) from error


def _to_tensor(image: Any, size: int, raw: bool) -> Tensor:  # -> (3, size, size)
    """A PIL image, resized and cropped to a square, in [0, 1] or normalised."""
    from PIL import Image, ImageOps

    fitted = ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.asarray(fitted).copy()).permute(2, 0, 1).float() / 255
    if raw:
        return pixels
    return (pixels - torch.tensor(_MEAN)[:, None, None]) / torch.tensor(_STD)[:, None, None]


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


def _hugging_face(name: str, size: int, raw: bool, model: str) -> Any:
    datasets = optional("datasets", "datasets", "text")
    try:
        if Path(name).is_dir():
            table = datasets.load_from_disk(name)
        else:
            table = datasets.load_dataset(name, trust_remote_code=False)
    except Exception as error:
        if "trust_remote_code" in str(error) or "scripts" in str(error):
            raise DataError(OWN_CODE.format(name)) from error
        raise DataError(
            f"no Hugging Face data set at {name!r} ({first_line(error)}); expected a folder "
            "written by save_to_disk, or a name on the hub"
        ) from error
    if isinstance(table, Mapping):
        table = table[_first_of(("test", "validation", "train", *table), table)]
    columns = list(table.column_names)
    if image := _first_of(("image", "img"), columns):
        return Mapped(table, lambda row: _to_tensor(row[image], size, raw))
    text = _first_of(("text", "sentence", "content"), columns)
    if text is None or not model.startswith("hf:"):
        raise DataError(
            f"found columns {', '.join(columns)} in {name!r}; expected image, or text together "
            "with a model hf:NAME that brings its tokeniser; for others use FILE.py:FUNCTION"
        )
    transformers = optional("transformers", "transformers", "text")
    at = model.removeprefix("hf:")
    try:
        tokeniser = transformers.AutoTokenizer.from_pretrained(at, trust_remote_code=False)
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise DataError(OWN_CODE.format(at)) from error
        raise DataError(
            f"no tokeniser at {at!r} ({first_line(error)}); save it beside the model, or tokenise "
            "in FILE.py:FUNCTION"
        ) from error
    if tokeniser.pad_token is None:
        tokeniser.pad_token = tokeniser.eos_token
    shape = {"padding": True, "truncation": True, "max_length": 128}
    return dict(tokeniser(list(table[text]), return_tensors="pt", **shape))


def _first_of(names: Iterable[str], there: Container[str]) -> str | None:
    return next((name for name in names if name in there), None)
