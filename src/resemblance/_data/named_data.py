"""Data sets by name, for the command line.

Data are `digits`, a folder of images, an .npz file, `hf:NAME-OR-FOLDER` or `FILE.py:FUNCTION`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def load_data(
    spec: str, *, size: int = 224, raw: bool = False, skip_bad: bool = False, model: str = ""
) -> Any:
    """The data that a specification names, as something `record` takes.

    Args:
        size: images in a folder are resized so that their shorter side has this length, then
            cropped in the centre.
        raw: leave pixels in [0, 1]; otherwise they are normalised by ImageNet's mean and deviation.
        skip_bad: an unreadable image counts as a bad sample instead of ending the pass.
        model: the model's specification, which tells how text is tokenised.
    """
    if spec == "digits":
        return digits()
    if ".py:" in spec:
        return call_function(spec)
    if spec.startswith("hf:"):
        return _hugging_face(spec.removeprefix("hf:"), size, raw, model)
    path = Path(spec)
    if path.is_dir():
        return ImageFolder(path, size=size, raw=raw, skip_bad=skip_bad)
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


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """Images below a folder, sorted by path; the first folder level is the class."""

    def __init__(self, root: Path, *, size: int, raw: bool, skip_bad: bool) -> None:
        self.paths = sorted(p for p in root.rglob("*") if p.suffix.lower() in IMAGES)
        if not self.paths:
            raise DataError(f"no images below {root}; expected files such as {', '.join(IMAGES)}")
        self.size, self.raw, self.skip_bad = size, raw, skip_bad
        folders = [path.relative_to(root).parts[0] for path in self.paths]
        classes = {name: i for i, name in enumerate(sorted(set(folders)))}
        self.labels = [classes[name] for name in folders]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        path = self.paths[index]
        try:
            with Image.open(path) as image:
                return to_tensor(image, self.size, self.raw), self.labels[index]
        except (OSError, SyntaxError, ValueError) as error:
            if self.skip_bad:  # not finite, so the pass leaves it out and counts it
                return torch.full((3, self.size, self.size), torch.nan), self.labels[index]
            raise DataError(
                f"cannot read the image {path} ({first_line(error)}); repair or remove it, or "
                "leave such images out with --on-bad skip"
            ) from error


def to_tensor(image: Any, size: int, raw: bool) -> Tensor:  # -> (3, size, size)
    """A PIL image, resized and cropped to a square, in [0, 1] or normalised."""
    from PIL import Image, ImageOps

    fitted = ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.asarray(fitted).copy()).permute(2, 0, 1).float() / 255
    if raw:
        return pixels
    return (pixels - torch.tensor(_MEAN)[:, None, None]) / torch.tensor(_STD)[:, None, None]


def _arrays(path: Path) -> tuple[Tensor, ...]:
    """Inputs and, if there, labels of an .npz: x and y, or xte and yte, or its only array."""
    try:
        with np.load(path, allow_pickle=False) as file:
            content = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise FormatError(f"{path} is not a readable .npz file ({first_line(error)})") from error
    known = {"x": "y", "xte": "yte", "images": "labels", "xtr": "ytr"}
    key = next((name for name in known if name in content), "")
    if not key and len(content) == 1:
        key = next(iter(content))
    if not key:
        raise DataError(
            f"{path} holds {', '.join(content) or 'nothing'}; expected x (and y), xte (and yte) or "
            "a single array"
        )
    label = known.get(key, "")
    x = torch.from_numpy(content[key])
    if x.dtype == torch.uint8:  # images as they are usually stored: (n, height, width, channels)
        x = x.float() / 255
        x = x.permute(0, 3, 1, 2).contiguous() if x.ndim == 4 and x.shape[-1] in (1, 3, 4) else x
    elif x.is_floating_point():
        x = x.float()
    return (x, torch.from_numpy(content[label])) if label in content else (x,)


class _Mapped(Dataset[Any]):
    """Rows of a table turned into samples one by one."""

    def __init__(self, rows: Any, sample: Callable[[Any], Any]) -> None:
        self.rows, self.sample = rows, sample

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.sample(self.rows[index])


def _hugging_face(name: str, size: int, raw: bool, model: str) -> Any:
    datasets = optional("datasets", "datasets", "text")
    try:
        table = (
            datasets.load_from_disk(name) if Path(name).is_dir() else datasets.load_dataset(name)
        )
    except Exception as error:
        raise DataError(
            f"no Hugging Face data set at {name!r} ({first_line(error)}); expected a folder "
            "written by save_to_disk, or a name on the hub"
        ) from error
    if isinstance(table, Mapping):
        split = next((s for s in ("test", "validation", "train") if s in table), next(iter(table)))
        table = table[split]
    columns = list(table.column_names)
    if "image" in columns or "img" in columns:
        column = "image" if "image" in columns else "img"
        return _Mapped(table, lambda row: to_tensor(row[column], size, raw))
    text = next((c for c in ("text", "sentence", "content") if c in columns), None)
    if text is None or not model.startswith("hf:"):
        raise DataError(
            f"found columns {', '.join(columns)} in {name!r}; expected image, or text together "
            "with a model hf:NAME that brings its tokeniser; for others use FILE.py:FUNCTION"
        )
    tokeniser = optional("transformers", "transformers", "text").AutoTokenizer.from_pretrained(
        model.removeprefix("hf:")
    )
    if tokeniser.pad_token is None:
        tokeniser.pad_token = tokeniser.eos_token
    encoded = tokeniser(
        list(table[text]), padding=True, truncation=True, max_length=128, return_tensors="pt"
    )
    return dict(encoded)
