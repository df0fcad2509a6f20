"""Checksummed safetensors files: named tensors and a JSON header, written atomically.

docs/reference/format.md specifies the format byte by byte. The header has a checksum of its own and
stores one checksum per group of tensors (one group per layer, and those that layers share), so that
groups can be read one at a time. Nothing in a file is ever executed. Representations and task
embeddings are both stored this way. `read_arrays` reads what a file says of itself without torch.
"""

from __future__ import annotations

import json
import os
import reprlib
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
from safetensors import SafetensorError, safe_open

from .._utils.atomic_files import write_atomically
from ..errors import DataError, FormatError

if TYPE_CHECKING:
    from torch import Tensor

GroupFilter = Callable[[Mapping[str, Any], Collection[str]], Collection[str]]

DEFAULT_FORMAT = 2  # which is written, unless the header asks for a newer one
NEWEST_FORMAT = 3  # which is read
_MSG_RECORDING = "a recording, which `resemblance record` and Representation.save write"
_DTYPE_NAMES = {
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "int16": "I16",
    "int64": "I64",
    "uint8": "U8",
}


def dtype_name(dtype: object) -> str | None:
    """What safetensors calls a dtype of NumPy or torch; None for one that no file has.

    >>> dtype_name(np.dtype("float32"))
    'F32'
    """
    return _DTYPE_NAMES.get(str(dtype).removeprefix("torch."))


def write_tensors(
    path: str | os.PathLike[str], header: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Path:
    """Write a file in which everything is under a checksum."""
    return write_atomically(path, tensor_file_bytes(header, tensors, path))


def tensor_file_bytes(
    header: Mapping[str, Any], tensors: Mapping[str, Tensor], path: object = "a recording"
) -> bytes:
    """What `write` writes; the path is for its error."""
    from safetensors.torch import save as to_safetensors

    tensors = {key: value.contiguous() for key, value in tensors.items()}
    header = {"format": DEFAULT_FORMAT, **header, "checksums": _group_checksums(tensors)}
    try:
        text = json.dumps(header, allow_nan=False)
    except ValueError as error:
        raise DataError(
            f"cannot write {path}: expected finite numbers, found NaN or Inf among the sums over "
            "samples; repair the data or the model and record again"
        ) from error
    metadata = {"resemblance": text, "crc32": f"{zlib.crc32(text.encode()):08x}"}
    return _with_sorted_metadata(to_safetensors(tensors, metadata))


def _with_sorted_metadata(file: bytes) -> bytes:
    """The same file with its metadata in one order; safetensors writes them in a random one.

    Equal recordings are equal files only so, and a zoo names files by the hash of their bytes.
    """
    end = 8 + int.from_bytes(file[:8], "little")
    header = json.loads(file[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight bytes
    return b"".join((len(text).to_bytes(8, "little"), text, memoryview(file)[end:]))


def read_tensors(
    path: str | os.PathLike[str],
    wanted: GroupFilter | None = None,  # which groups, by the header and those that there are
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors of a file, or an error that says what is wrong with it."""
    return _read(path, wanted, "pt")


def read_arrays(
    path: str | os.PathLike[str], wanted: GroupFilter | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The same with arrays, without torch."""
    return _read(path, wanted, "np")


def _read(
    path: str | os.PathLike[str], wanted: GroupFilter | None, library: Literal["pt", "np"]
) -> tuple[dict[str, Any], dict[str, Any]]:
    if not isinstance(path, str | os.PathLike):
        raise FormatError(f"expected the path of a file, found {type(path).__name__}")
    path = Path(path)
    if not path.is_file():
        raise _missing_file(path)
    try:
        with safe_open(path, library) as file:
            names = list(file.keys())
            header = _read_header(path, file.metadata() or {})
            present = set(map(tensor_group, names))
            groups = present if wanted is None else wanted(header, present)
            chosen = [key for key in names if tensor_group(key) in groups]
            if header["format"] == 1:  # in which one checksum covers all, but for dtypes
                every = {key: file.get_tensor(key) for key in names}
                crc = zlib.crc32(file.metadata()["resemblance"].encode())
                if file.metadata().get("crc32") != _checksum(every, crc, with_dtypes=False):
                    _raise_damaged(path)
                return header, {key: every[key] for key in chosen}
            tensors = {key: file.get_tensor(key) for key in chosen}
    # torch, which safetensors opens files with, raises a RuntimeError where there is none, and
    # NumPy a TypeError of a dtype that it does not have
    except (SafetensorError, OSError, RuntimeError, TypeError) as error:
        if not path.exists():  # removed since it was found, by another process
            raise _missing_file(path) from error
        raise FormatError(
            f"{path} is damaged, truncated or not a Representation ({error}); copy or record it "
            "again"
        ) from error
    sums = header.get("checksums")
    if not isinstance(sums, dict) or set(sums) != present:
        _raise_damaged(path)
    if not _group_checksums(tensors).items() <= sums.items():
        _raise_damaged(path)
    return header, tensors


def _missing_file(path: Path) -> FormatError:
    return FormatError(f"no file at {path}; expected {_MSG_RECORDING}")


def tensor_group(name: str) -> str:
    """What a tensor belongs to: a layer's number, or "" for what layers share.

    >>> tensor_group("3.features.norms"), tensor_group("signs")
    ('3', '')
    """
    return name.partition(".")[0] if "." in name else ""


def _read_header(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    if "resemblance" not in metadata:
        raise FormatError(
            f"{path} is a safetensors file, but not one of this package's; expected "
            f"{_MSG_RECORDING}"
        )
    text = metadata["resemblance"]
    try:
        header = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        _raise_damaged(path, "its header is not JSON that can be read")
    version = header.get("format") if isinstance(header, dict) else None
    if type(version) is not int or version < 1:
        found = f"expected a format from 1 to {NEWEST_FORMAT}, found {reprlib.repr(version)}"
        _raise_damaged(path, found)
    if version > NEWEST_FORMAT:
        raise FormatError(
            f"{path} has format {version}, newer than this version reads ({NEWEST_FORMAT}); "
            "upgrade resemblance"
        )
    if version > 1 and metadata.get("crc32") != f"{zlib.crc32(text.encode()):08x}":
        _raise_damaged(path)
    return header


def _raise_damaged(path: Path, why: str = "its checksum does not match") -> NoReturn:
    raise FormatError(f"{path} is damaged: {why}; copy or record it again")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON knows")


def _group_checksums(tensors: Mapping[str, Tensor | np.ndarray]) -> dict[str, str]:
    groups: dict[str, dict[str, Tensor | np.ndarray]] = {}
    for name in sorted(tensors):
        groups.setdefault(tensor_group(name), {})[name] = tensors[name]
    return {group: _checksum(members) for group, members in groups.items()}


def _checksum(
    tensors: Mapping[str, Tensor | np.ndarray], crc: int = 0, *, with_dtypes: bool = True
) -> str:
    """CRC-32 of each tensor's name, dtype, shape and bytes, by name."""
    for name, x in sorted(tensors.items()):
        dtype = f"{dtype_name(x.dtype)} " if with_dtypes else ""
        crc = zlib.crc32(f"{name} {dtype}{list(x.shape)}".encode(), crc)
        crc = zlib.crc32(_bytes_of(x), crc)
    return f"{crc:08x}"


def _bytes_of(x: Tensor | np.ndarray) -> memoryview:
    if isinstance(x, np.ndarray):
        return np.ascontiguousarray(x).reshape(-1).view(np.uint8).data
    import torch

    return x.contiguous().reshape(-1).view(torch.uint8).numpy().data
