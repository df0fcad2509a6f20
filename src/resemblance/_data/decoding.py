"""Decoding of images and rows into tensors.

Images are read by Pillow, resized and cropped to a square, in [0, 1] or normalised as for ImageNet.

A `Row` decodes a field only when it is accessed, so samples of other shards and unused fields are
never decoded. A tar shard has one row per key; Parquet files and Hugging Face data sets have one
per row. `default_sample` turns a row into inputs and, if there is one, a label.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from torch import Tensor

from .._utils.formatting import printable
from ..errors import DataError, first_line
from .batches import as_tensor
from .sample_hashes import KEY_FIELD

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
# Per-channel mean and standard deviation of ImageNet, which published image models expect.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def read_image(file: Path | IO[bytes]) -> Any:
    """A PIL image, read to its end; one that is far too large to be one is an error."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(file) as image:
            image.load()
            return image


def image_to_tensor(image: Any, size: int, raw: bool) -> Tensor:  # -> (3, size, size)
    """A PIL image, resized and cropped to a square, in [0, 1] or normalised."""
    from PIL import Image, ImageOps

    fitted = ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.asarray(fitted).copy()).permute(2, 0, 1).float() / 255
    return pixels if raw else normalise_pixels(pixels)


def normalise_pixels(pixels: Tensor) -> Tensor:  # (3, height, width) in [0, 1]
    """Pixels as published image models expect them."""
    mean, std = (pixels.new_tensor(x)[:, None, None] for x in (_MEAN, _STD))
    return (pixels - mean) / std


FieldKind = Literal["image", "array", "text", "label", "json", "other"]

LABEL_FIELDS = ("label", "labels", "cls")  # fields that hold a label, of a row or of its JSON
_INPUT_KINDS: tuple[FieldKind, ...] = ("image", "array", "text")  # of inputs, in this order
_COMMON_INPUT_FIELDS = ("image", "img", "jpg", "jpeg", "png", "x", "features", "text", "txt")
_TOKEN_FIELDS = ("input_ids", "attention_mask")
_DECODERS: dict[FieldKind, Callable[[bytes], Any]] = {
    "image": lambda content: read_image(io.BytesIO(content)),
    "array": lambda content: np.load(io.BytesIO(content), allow_pickle=False),
    "json": json.loads,
    "text": bytes.decode,
    "label": bytes.decode,
}


class Row(Mapping[str, Any]):
    """A row by the names of its fields: images are PIL's, arrays NumPy's, and so on.

    Its key is there as `__key__`, if it has one.
    """

    def __init__(
        self,
        key: str | None,
        where: str,  # file and key, for people
        fields: Mapping[str, tuple[FieldKind, Any]],  # not decoded
    ) -> None:
        self.key, self.where = key, where
        self.encoded = {name: value for name, (_, value) in fields.items() if name != KEY_FIELD}
        self._kinds = {name: kind for name, (kind, _) in fields.items()}

    def kind(self, name: str) -> FieldKind:
        """What a field is, told without decoding it."""
        return self._kinds[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.encoded
        if self.key is not None:
            yield KEY_FIELD

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Any:
        if name == KEY_FIELD and self.key is not None:
            return self.key
        kind, value = self._kinds[name], self.encoded[name]
        try:
            if kind == "image" and isinstance(value, Mapping):  # as the library datasets has them
                value = value["bytes"]
            if isinstance(value, bytes) and kind in _DECODERS:
                value = _DECODERS[kind](value)
            if kind == "array":
                return np.asarray(value)
            if kind == "label" and isinstance(value, str):
                value = value.strip()
                return int(value) if value.removeprefix("-").isdecimal() else value
            return value
        except Exception as error:  # a damaged field makes its decoder raise whatever it likes
            raise DataError(
                f"cannot read {printable(name)!r} of sample {printable(self.where)} "
                f"({first_line(error)}); repair or remove it, or skip such samples with "
                '`on_bad="skip"`'
            ) from error


def approximate_bytes(value: Any) -> int:
    """About how many bytes a value takes: those of what is not decoded, or of an array."""
    if isinstance(value, Mapping):
        return sum(map(approximate_bytes, value.values()))
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    return len(value) if isinstance(value, bytes | str) else 8


def input_field(row: Row) -> str:
    """The field that a model is shown: of images if there are any, else of numbers, else text."""
    for kind in _INPUT_KINDS:
        names = [name for name in row if name != KEY_FIELD and row.kind(name) == kind]
        usual = next((name for name in _COMMON_INPUT_FIELDS if name in names), None)
        if usual or len(names) == 1:
            return usual or names[0]
        if names:
            raise DataError(
                f"sample {printable(row.where)} has several fields of one kind: "
                f"{', '.join(map(printable, names))}; choose what the model sees with "
                "`sample=<function of a row>`"
            )
    held = ", ".join(printable(name) for name in row if name != KEY_FIELD) or "nothing"
    raise DataError(
        f"sample {printable(row.where)} holds {held}; expected an image, an array of "
        "numbers or text"
    )


def default_sample(row: Row, size: int = 224, raw: bool = False) -> Any:
    """The sample that a row is without further ado: its inputs, and its label if it has one.

    Images are resized and cropped to `size`, and normalised unless `raw`; of tokens that were
    made before, a dict.
    """
    if _TOKEN_FIELDS[0] in row:
        return {name: torch.as_tensor(row[name]) for name in _TOKEN_FIELDS if name in row}
    name = input_field(row)
    if row.kind(name) == "text":
        raise DataError(
            f"sample {printable(row.where)} is text; tokenize it with `sample=<function of a row>`"
        )
    inputs = row[name]
    if row.kind(name) == "image":
        inputs = image_to_tensor(inputs, size, raw)
    elif inputs.dtype.kind in "biuf" and inputs.ndim:
        inputs = scale_pixels(as_tensor(inputs.copy()), image_axes=3)
    else:
        raise DataError(
            f"expected an array of numbers in sample {printable(row.where)}, found {inputs.dtype} "
            f"of shape {inputs.shape}"
        )
    label = row_label(row)
    return inputs if label is None else (inputs, label)


def row_label(row: Row) -> Any:
    """A class by number or name: of the field that holds it, or of the row's JSON; else None."""
    for name in LABEL_FIELDS:
        if name in row:
            return row[name]
    for name in row:
        content: Any = row[name] if name != KEY_FIELD and row.kind(name) == "json" else None
        for label in LABEL_FIELDS if isinstance(content, dict) else ():
            if isinstance(content.get(label), int | str):
                return content[label]
    return None


def scale_pixels(x: Tensor, image_axes: int) -> Tensor:
    """Numbers as models take them: bytes are pixels, of images in [0, 1] with channels first."""
    if x.dtype == torch.uint8:
        x = x.float() / 255
        channels_last = x.ndim == image_axes and x.shape[-1] in (1, 3, 4)
        return x.movedim(-1, -3).contiguous() if channels_last else x
    return x.float() if x.is_floating_point() else x
