"""Atomic file writes: a file appears complete or not at all, and only ever replaces a file.

Content is written to a hidden temporary file in the same folder, synced to disk, then renamed to
its final name. The writer holds a lock on the temporary file that ends with its process, so the
next writer in that folder can tell the leftovers of a crashed process from a file that is still
being written, and removes them.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from functools import partial
from pathlib import Path

from ..errors import DataError

try:
    import fcntl
except ImportError:  # a system without these locks: what dead writers left stays
    fcntl = None  # type: ignore[assignment]

PART_NAME = re.compile(r"\.resemblance-[0-9a-f]{16}\.part")
_KIND_NAMES = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, unless it exists."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot create the folder {folder} ({error.strerror}); choose a writable location"
        ) from None


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise what `write_atomically` would, before the work whose result is to be written."""
    write_atomically(path, None)


def write_atomically(path: str | os.PathLike[str], content: bytes | None) -> Path:
    """Write to a hidden file, fsync, rename: readers see the old file or the new one, whole.

    Links are followed. A file that was there keeps its mode; a new one gets the process's umask.
    Without content, it goes as far as it can and writes nothing.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        found = "an empty one" if isinstance(path, str) else type(path).__name__
        raise DataError(f"expected the path of a file to write, found {found}")
    try:
        mode = _existing_mode(path)
        target = Path(os.path.realpath(path))  # a link stays, and what it leads to is replaced
        _remove_stale_parts(target.parent)
        for _ in range(3):
            if _write_and_rename(target, mode, content):
                return Path(path)
        raise OSError("it was removed again and again while it was being written")
    except OSError as error:  # which names the hidden file, if any
        missing = isinstance(error, FileNotFoundError)
        found = "its folder does not exist" if missing else error.strerror or str(error)
        raise DataError(
            f"cannot write {os.fspath(path)}: {found[0].lower()}{found[1:]}; expected a place that "
            "exists, may be written to and has room: make one, or name another"
        ) from None
    except ValueError as error:  # a NUL in it, or what no file system can spell
        raise DataError(f"cannot write {os.fspath(path)!r}: {error}; name another file") from None


def _existing_mode(path: str | os.PathLike[str]) -> int | None:
    """The permissions of the file that is there, or None if nothing is."""
    try:
        found = os.stat(path).st_mode
        if stat.S_ISREG(found):
            os.close(os.open(path, os.O_WRONLY))  # what may not be written to is not replaced
    except FileNotFoundError:  # also a link that leads to nothing yet
        return None
    if not stat.S_ISREG(found):
        kind = _KIND_NAMES.get(stat.S_IFMT(found), "something else")
        raise DataError(
            f"cannot write {os.fspath(path)}: expected a file or a new name, found {kind}; name a "
            f"file{' in it' if stat.S_ISDIR(found) else ''} instead"
        )
    return stat.S_IMODE(found) & 0o777


def _write_and_rename(target: Path, mode: int | None, content: bytes | None) -> bool:
    """Write, and say whether the hidden file was still there to take the name of the target.

    It is not if somebody took it for a dead writer's: one that came before the lock, or that cannot
    see locks made on another machine.
    """
    hidden = target.with_name(f".resemblance-{secrets.token_hex(8)}.part")
    try:
        # a file for its owner alone is never readable by others, not while it is written either
        opener = partial(os.open, mode=0o666 if mode is None else 0o600)
        with open(hidden, "xb", opener=opener) as file:
            if fcntl is not None:
                with contextlib.suppress(OSError):  # a file system without locks
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if content is None:
                return True
            if mode is not None and fcntl is not None:
                with contextlib.suppress(PermissionError):  # a file system without modes
                    os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if fcntl is None:
                file.close()  # where there are no such locks, an open file cannot be renamed
            try:
                os.replace(hidden, target)
            except FileNotFoundError:
                return False
        return True
    finally:
        hidden.unlink(missing_ok=True)


def _remove_stale_parts(folder: Path) -> None:
    """Remove what dead writers of this user left in a folder: hidden files that nobody locks."""
    if fcntl is None:
        return
    left = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        left = [entry for entry in entries if PART_NAME.fullmatch(entry.name)]
    for entry in left:
        with contextlib.suppress(OSError):  # it is gone, locked, or cannot be
            found = entry.stat(follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                continue
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
            with open(os.open(entry.path, flags), "r+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(entry.path)  # no name is used twice, so this is still that file or none
