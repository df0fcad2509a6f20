"""Rows of streams: fields that are decoded when they are asked for, and the sample they make.

A tar shard has a row for each key, a Parquet file and a Hugging Face data set for each row. What
nobody asks for is never decoded: not the samples of other shards, nor fields that no one uses.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .._shown_text import shown
from ..errors import DataError, first_line
from .images import read_image, to_tensor
from .sample_keys import KEY, index_of

Kind = Literal["image", "array", "text", "label", "json", "other"]

LABELS = ("label", "labels", "cls")  # fields that hold a label, of a row or of its JSON
_INPUTS: tuple[Kind, ...] = ("image", "array", "text")  # what a model is shown, in this order
_USUAL = ("image", "img", "jpg", "jpeg", "png", "x", "features", "text", "txt")
_TOKENS = ("input_ids", "attention_mask")


class Row(Mapping[str, Any]):
    """A row by the names of its fields: images are PIL's, arrays NumPy's, and so on.

    Its key is there as `__key__`, where it has one; else it is known by its running number.
    """

    def __init__(
        self,
        key: str | int,
        where: str,  # file and key, for people
        fields: Mapping[str, tuple[Kind, Any]],  # not decoded
    ) -> None:
        self.key, self.where, self._fields = key, where, fields

    @property
    def index(self) -> int:
        """What stands for the sample in sketches and fingerprints."""
        return self.key if isinstance(self.key, int) else index_of(self.key)

    @property
    def weight(self) -> int:
        """About how many bytes it takes while it waits."""
        return sum(size_of(value) for _, value in self._fields.values())

    def kind(self, name: str) -> Kind:
        """What a field is, told without decoding it."""
        return self._fields[name][0]

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self._fields if name != KEY)
        if isinstance(self.key, str):
            yield KEY

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Any:
        if name == KEY and isinstance(self.key, str):
            return self.key
        kind, value = self._fields[name]
        try:
            return _decoded(kind, value)
        except Exception as error:  # a damaged field makes its decoder raise whatever it likes
            raise DataError(
                f"cannot read {shown(name)!r} of sample {shown(self.where)} ({first_line(error)}); "
                "repair or remove it, or leave such samples out with --on-bad skip"
            ) from error


def size_of(value: Any) -> int:
    """About how many bytes a value takes: those of what is not decoded, or of an array."""
    if isinstance(value, Mapping):
        return sum(map(size_of, value.values()))
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    return len(value) if isinstance(value, bytes | str) else 8


def _decoded(kind: Kind, value: Any) -> Any:
    if isinstance(value, Mapping) and kind == "image":  # as the library datasets stores them
        value = value["bytes"]
    if isinstance(value, bytes):
        if kind == "image":
            return read_image(io.BytesIO(value))
        if kind == "array":
            return np.load(io.BytesIO(value), allow_pickle=False)
        if kind == "json":
            return json.loads(value)
        if kind in ("text", "label"):
            value = value.decode("utf-8")
    if kind == "array":
        return np.asarray(value)
    if kind == "label" and isinstance(value, str):
        value = value.strip()
        return int(value) if value.removeprefix("-").isdecimal() else value
    return value


def input_field(row: Row, wanted: str | None = None) -> str:
    """The field that a model is shown: of images if there are any, else of numbers, else text."""
    if wanted is not None and wanted in row:
        return wanted
    for kind in _INPUTS:
        names = [name for name in row if name != KEY and row.kind(name) == kind]
        usual = next((name for name in _USUAL if name in names), None)
        if usual or len(names) == 1:
            return usual or names[0]
        if names:
            raise DataError(
                f"sample {shown(row.where)} has several fields of one kind: "
                f"{', '.join(map(shown, names))}; say what is shown to the model with the function "
                "of resemblance.stream(data, sample=...)"
            )
    held = ", ".join(shown(name) for name in row if name != KEY) or "nothing"
    raise DataError(
        f"sample {shown(row.where)} holds {held}; expected an image, an array of numbers or text"
    )


def plain_sample(row: Row, size: int = 224, raw: bool = False) -> Any:
    """The sample that a row is without further ado: its inputs, and its label if it has one.

    Images are resized and cropped to `size`, and normalised unless `raw`; of tokens that were
    made before, a dict.
    """
    if _TOKENS[0] in row:
        return {name: torch.as_tensor(row[name]) for name in _TOKENS if name in row}
    name = input_field(row)
    if row.kind(name) == "text":
        raise DataError(
            f"sample {shown(row.where)} is text; make tokens of it with the function of "
            "resemblance.stream(data, sample=...)"
        )
    found = row[name]
    inputs = to_tensor(found, size, raw) if row.kind(name) == "image" else _numbers(found, row)
    label = label_of(row)
    return inputs if label is None else (inputs, label)


def label_of(row: Row) -> Any:
    """A class by number or name: of the field that holds it, or of the row's JSON; else None."""
    for name in LABELS:
        if name in row:
            return row[name]
    for name in row:
        content: Any = row[name] if name != KEY and row.kind(name) == "json" else None
        for label in LABELS if isinstance(content, dict) else ():
            if isinstance(content.get(label), int | str):
                return content[label]
    return None


def _numbers(array: np.ndarray, row: Row) -> Tensor:
    """Numbers as models take them: bytes are pixels, whose channels come first and end at one."""
    if array.dtype.kind not in "biuf" or not array.ndim:
        raise DataError(
            f"expected an array of numbers in sample {shown(row.where)}, found {array.dtype} of "
            f"shape {array.shape}"
        )
    x = torch.from_numpy(np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))))
    if x.dtype == torch.uint8:
        x = x.float() / 255
        return x.permute(2, 0, 1).contiguous() if x.ndim == 3 and x.shape[-1] in (1, 3, 4) else x
    return x.float() if x.is_floating_point() else x
