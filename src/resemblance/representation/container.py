"""The file: named tensors and a JSON header in one safetensors file, whole or not at all.

docs/format.md specifies it byte by byte. Nothing in a file is ever executed.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from .._atomic_files import write_atomically
from ..errors import FormatError

FORMAT = 1


def write(
    path: str | os.PathLike[str], header: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Path:
    """Write a file in which everything is under a checksum."""
    text = json.dumps({"format": FORMAT, **header})
    tensors = {key: value.contiguous() for key, value in tensors.items()}
    metadata = {"resemblance": text, "crc32": f"{_checksum(text, tensors):08x}"}
    return write_atomically(path, to_safetensors(tensors, metadata))


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors of a file, or an error that says what is wrong with it."""
    path = Path(path)
    if not path.is_file():
        raise FormatError(f"no file at {path}; expected one written by Representation.save")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FormatError(
            f"{path} is damaged, truncated or not a Representation ({error}); copy or record it "
            "again"
        ) from error
    if "resemblance" not in metadata:
        raise FormatError(
            f"{path} is a safetensors file, but not one of this package's; expected one written by "
            "Representation.save"
        )
    text = metadata["resemblance"]
    version = _version(text)
    if version is not None and version > FORMAT:
        raise FormatError(
            f"{path} has format {version}, newer than this version reads ({FORMAT}); "
            "upgrade resemblance"
        )
    if version is None or metadata.get("crc32") != f"{_checksum(text, tensors):08x}":
        raise FormatError(
            f"{path} is damaged: its checksum does not match; copy or record it again"
        )
    return json.loads(text), tensors


def _version(text: str) -> int | None:
    """The format that a header claims, or None if it is not one."""
    try:
        return int(json.loads(text)["format"])
    except (ValueError, TypeError, KeyError):
        return None


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> int:
    """CRC-32 of the header, then of each tensor's name, shape and bytes, by name."""
    crc = zlib.crc32(text.encode())
    for key in sorted(tensors):
        crc = zlib.crc32(f"{key} {list(tensors[key].shape)}".encode(), crc)
        crc = zlib.crc32(tensors[key].contiguous().reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc
