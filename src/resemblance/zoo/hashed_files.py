"""Files that go by their own hash: written once, never changed, read without a lock.

ab/abcdef….rsm   a recording; its name is the SHA-256 of its bytes
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .._atomic_files import write_atomically
from ..errors import DataError

_NAME = re.compile(r"[0-9a-f]{64}\.rsm")
_HALF_WRITTEN = re.compile(r"\.resemblance-[0-9a-f]{16}\.part")
_CHUNK = 1 << 20  # bytes read at a time
_LENGTH = 8  # bytes that say how long a file's header is


@dataclass(frozen=True)
class File:
    """A recording's file: the hash of all of it, which is its name, and of its header."""

    digest: str
    head: str
    size: int


class HashedFiles:
    """The recordings in a folder."""

    def __init__(self, top: Path) -> None:
        self.top = top

    def path(self, digest: str) -> Path:
        return self.top / digest[:2] / f"{digest}.rsm"

    def write(self, text: bytes) -> File:
        """Write a file; its folder has yet to be brought to the disk."""
        file = File(hashlib.sha256(text).hexdigest(), _of_head(text), len(text))
        path = self.path(file.digest)
        if not path.parent.exists():
            make(path.parent)
            sync_folder(path.parent.parent)
        write_atomically(path, text)
        return file

    def sync(self, files: Iterable[File]) -> None:
        """Bring the names of files to the disk."""
        for folder in {self.path(file.digest).parent for file in files}:
            sync_folder(folder)

    def intact(self, file: File) -> bool:
        """Whether it is there, with all its bytes."""
        try:
            return self.is_whole(file)
        except OSError:
            return False

    def is_whole(self, file: File) -> bool:
        """Whether its bytes are those that were written."""
        return _digest(self.path(file.digest)) == file.digest

    def has_its_head(self, file: File) -> bool:
        """Whether it has its length and its header still."""
        with open(self.path(file.digest), "rb") as opened:
            if os.fstat(opened.fileno()).st_size != file.size:
                return False
            start = opened.read(_LENGTH)
            return _of_head(start + opened.read(min(_head_length(start), file.size))) == file.head

    def listed(self) -> list[Path]:
        """Whatever lies there, also what is none of these files."""
        found = self.top.rglob("*") if self.top.exists() else ()
        return sorted(path for path in found if not path.is_dir())

    def is_half_written(self, path: Path) -> bool:
        return path.parent.parent == self.top and bool(_HALF_WRITTEN.fullmatch(path.name))

    def is_one(self, path: Path) -> bool:
        """Whether a path is that of a recording, by its name."""
        return bool(_NAME.fullmatch(path.name)) and path == self.path(path.stem)


def make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot make the folder {folder} ({error.strerror}); expected a place that may be "
            "written to: name another"
        ) from None


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the system has a call for it."""
    if os.name != "posix":
        return
    try:
        opened = os.open(folder, os.O_RDONLY)
    except PermissionError:  # it may be entered, but not read
        return
    try:
        os.fsync(opened)
    except OSError as error:
        raise DataError(
            f"cannot write {folder}: {error.strerror}; expected a disk that works"
        ) from None
    finally:
        os.close(opened)


def _digest(path: Path) -> str:
    """The hash of all bytes of a file."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def _of_head(text: bytes) -> str:
    """The hash of the header that a file begins with."""
    return hashlib.sha256(text[: _LENGTH + _head_length(text)]).hexdigest()


def _head_length(text: bytes) -> int:
    return int.from_bytes(text[:_LENGTH], "little")
