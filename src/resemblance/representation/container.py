"""The file: named tensors and a JSON header in one safetensors file, whole or not at all.

docs/format.md specifies it byte by byte. The header is under one checksum and each group of tensors
(those of a layer, and those that layers share) under another, which the header holds: so groups can
be read one at a time. Nothing in a file is ever executed.
"""

from __future__ import annotations

import json
import os
import reprlib
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from .._atomic_files import write_atomically
from ..errors import DataError, FormatError

Wanted = Callable[[Mapping[str, Any], Collection[str]], Collection[str]]

FORMAT = 2
DTYPES = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int16: "I16",
    torch.int64: "I64",
    torch.uint8: "U8",
}


def write(
    path: str | os.PathLike[str], header: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Path:
    """Write a file in which everything is under a checksum."""
    return write_atomically(path, content(header, tensors, path))


def content(
    header: Mapping[str, Any], tensors: Mapping[str, Tensor], path: object = "a recording"
) -> bytes:
    """What `write` writes; the path is for its error."""
    tensors = {key: value.contiguous() for key, value in tensors.items()}
    sums = {group: _of_tensors(tensors, group) for group in sorted(set(map(group_of, tensors)))}
    try:
        text = json.dumps({"format": FORMAT, **header, "checksums": sums}, allow_nan=False)
    except ValueError as error:
        raise DataError(
            f"cannot write {path}: expected finite numbers, found NaN or Inf among the sums over "
            "samples; repair the data or the model and record again"
        ) from error
    metadata = {"resemblance": text, "crc32": f"{zlib.crc32(text.encode()):08x}"}
    return to_safetensors(tensors, metadata)


def read(
    path: str | os.PathLike[str],
    wanted: Wanted | None = None,  # which groups, by the header and those that there are
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors of a file, or an error that says what is wrong with it."""
    if not isinstance(path, str | os.PathLike):
        raise FormatError(f"expected the path of a file, found {type(path).__name__}")
    path = Path(path)
    if not path.is_file():
        raise FormatError(f"no file at {path}; expected one written by Representation.save")
    try:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            header = _header(path, file.metadata() or {})
            present = set(map(group_of, names))
            groups = present if wanted is None else wanted(header, present)
            chosen = [key for key in names if group_of(key) in groups]
            if header["format"] == 1:  # in which one checksum covers all
                every = {key: file.get_tensor(key) for key in names}
                if not _as_in_format_1(file.metadata(), every):
                    _refuse_damage(path)
                return header, {key: every[key] for key in chosen}
            tensors = {key: file.get_tensor(key) for key in chosen}
    except (SafetensorError, OSError) as error:
        raise FormatError(
            f"{path} is damaged, truncated or not a Representation ({error}); copy or record it "
            "again"
        ) from error
    sums = header.get("checksums")
    if not isinstance(sums, dict) or set(sums) != present:
        _refuse_damage(path)
    for group in set(map(group_of, chosen)):
        if sums[group] != _of_tensors(tensors, group):
            _refuse_damage(path)
    return header, tensors


def group_of(name: str) -> str:
    """What a tensor belongs to: a layer's number, or "" for what layers share.

    >>> group_of("3.features.norms"), group_of("signs")
    ('3', '')
    """
    return name.partition(".")[0] if "." in name else ""


def _header(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    if "resemblance" not in metadata:
        raise FormatError(
            f"{path} is a safetensors file, but not one of this package's; expected one written by "
            "Representation.save"
        )
    text = metadata["resemblance"]
    try:
        header = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        _refuse_damage(path, "its header is not JSON that can be read")
    version = header.get("format") if isinstance(header, dict) else None
    if type(version) is not int or version < 1:
        found = f"expected a format from 1 to {FORMAT}, found {reprlib.repr(version)}"
        _refuse_damage(path, found)
    if version > FORMAT:
        raise FormatError(
            f"{path} has format {version}, newer than this version reads ({FORMAT}); "
            "upgrade resemblance"
        )
    if version > 1 and metadata.get("crc32") != f"{zlib.crc32(text.encode()):08x}":
        _refuse_damage(path)
    return header


def _refuse_damage(path: Path, why: str = "its checksum does not match") -> NoReturn:
    raise FormatError(f"{path} is damaged: {why}; copy or record it again")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON knows")


def _of_tensors(tensors: Mapping[str, Tensor], group: str) -> str:
    """CRC-32 of each tensor's name, dtype, shape and bytes, by name."""
    names = (key for key in tensors if group_of(key) == group)
    return _checksum(tensors, names, lambda x: f"{DTYPES.get(x.dtype)} {list(x.shape)}")


def _as_in_format_1(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> bool:
    """Whether the checksum is right: of the header, then of all tensors without their dtypes."""
    crc = zlib.crc32(metadata["resemblance"].encode())
    found = _checksum(tensors, tensors, lambda x: f"{list(x.shape)}", crc)
    return metadata.get("crc32") == found


def _checksum(
    tensors: Mapping[str, Tensor],
    names: Iterable[str],
    described: Callable[[Tensor], str],
    crc: int = 0,
) -> str:
    for key in sorted(names):
        crc = zlib.crc32(f"{key} {described(tensors[key])}".encode(), crc)
        crc = zlib.crc32(tensors[key].contiguous().reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"
