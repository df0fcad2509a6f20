"""The folder of a sweep: which pairs are there, whose turn it is, and what became of the others.

    NAME.rsm            the recording of a pair
    NAME.error.txt      why there is none
    NAME.checkpoint     how far its pass came
    .sweep/NAME.json    locked while a process is at it; then what it was asked for

A recording that is there is never replaced: it is what was asked for, or an error says what is not.
Locks end with the process that holds them, so that several sweeps can share a folder and none waits
for the dead.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .._atomic_files import write_atomically
from ..errors import DataError, FormatError, MismatchError, ResemblanceError, warn
from ..recording import checkpoint_files
from ..representation.file_format import load
from ..representation.representation import Representation
from .option_values import defaults_of_record
from .pairs import Pair

try:
    import fcntl
except ImportError:  # a system without these locks
    fcntl = None  # type: ignore[assignment]

_HIDDEN = ".sweep"
_BETWEEN_LOOKS = 0.3  # seconds, while another process is at a pair
_SETTINGS = ("seed", "buckets", "blocks", "pool", "elementwise")  # kept as they were asked for
_WITHOUT_A_MARK = ("batch_size", "compile")  # but for round-off
_NO_LOCKS = (
    "the file system of {} has no locks, so that two sweeps at once would record pairs twice; "
    "start one at a time"
)


@dataclass(frozen=True)
class ResultFolder:
    """Where the files of each pair are."""

    folder: Path

    def result(self, name: str) -> Path:
        return self.folder / f"{name}.rsm"

    def error(self, name: str) -> Path:
        return self.folder / f"{name}.error.txt"

    def checkpoint(self, name: str) -> Path:
        return self.folder / f"{name}.checkpoint"

    def make(self) -> None:
        """The folder, if it is not there."""
        try:
            (self.folder / _HIDDEN).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(
                f"cannot make the folder {self.folder} ({error.strerror}); expected a place that "
                "may be written to: name another with out:"
            ) from None

    def holds(self, pair: Pair) -> bool:
        """Whether the recording of a pair is there, or an error if it is of something else."""
        path = self.result(pair.name)
        if not path.exists():
            return False
        try:
            found = load(path, layers=[0])
        except ResemblanceError as error:
            raise FormatError(f"{error}; delete it, and the next sweep records it") from None
        differs = _difference(self._asked(pair.name), pair, found)
        if differs:
            raise MismatchError(
                f"{path} was recorded with {differs}; delete it, or choose another folder with out:"
            )
        return True

    @contextlib.contextmanager
    def claimed(self, pair: Pair, *, wait: bool = False) -> Iterator[bool]:
        """Whether this process may record a pair now: it holds the pair's lock in the block.

        With `wait`, it waits until whoever holds the lock is done, or dead.
        """
        path = self.folder / _HIDDEN / f"{pair.name}.json"
        try:
            file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - closed below
        except OSError as error:
            raise DataError(f"cannot write {path}: {error.strerror}; make room for it") from None
        with file:
            while not (own := _locked(file)) and wait:
                time.sleep(_BETWEEN_LOOKS)
            yield own

    def keep(self, pair: Pair, found: Representation) -> None:
        """Write the recording of a pair, whole or not at all, and what it was asked for."""
        found.save(self.result(pair.name))
        if pair.checkpoint:
            checkpoint_files.remove(self.checkpoint(pair.name))
        with contextlib.suppress(OSError):  # without it, the recording speaks for itself
            path = self.folder / _HIDDEN / f"{pair.name}.json"
            path.write_text(json.dumps(pair.asked), encoding="utf-8")  # in place: it is locked

    def keep_error(self, name: str, text: str) -> Path | None:
        """Write why there is no recording; None if there is no room for that either."""
        try:
            return write_atomically(self.error(name), text.encode("utf-8", "backslashreplace"))
        except DataError:
            return None

    def last_error(self, name: str) -> str | None:
        """What was said of a pair, in a line; None if nothing was."""
        try:
            with open(self.error(name), encoding="utf-8", errors="replace") as file:
                return file.readline().strip()
        except OSError:
            return None

    def forget_error(self, name: str) -> None:
        """Remove what was said of a pair that is there now."""
        with contextlib.suppress(OSError):
            self.error(name).unlink()

    def _asked(self, name: str) -> dict[str, Any]:
        """What a pair's recording was asked for, as far as that was kept."""
        try:
            text = (self.folder / _HIDDEN / f"{name}.json").read_text(encoding="utf-8")
            found = json.loads(text)
        except (OSError, ValueError):
            return {}
        whole = isinstance(found, dict) and isinstance(found.get("options"), dict)
        return found if whole else {}


def _locked(file: IO[str]) -> bool:
    """Take the lock of an open file, if no one has it."""
    try:
        if fcntl is None:
            raise OSError(errno.ENOLCK, "")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        warn(_NO_LOCKS.format(os.path.dirname(os.path.dirname(file.name))))
    return True


def _difference(asked: Mapping[str, Any], pair: Pair, found: Representation) -> str:
    """What a recording has other than a pair asks for, in words; empty if nothing."""
    now = _flat(json.loads(json.dumps(pair.asked)))
    if asked:
        then = _flat(asked)
    else:  # as far as the recording itself knows
        then = {key: getattr(found.settings, key) for key in _SETTINGS}
        then |= {"address": found.model.address, "gradients": found.settings.gradients}
        now |= {"address": pair.wanted.address}
    for key in then:
        if key in now and then[key] != now[key]:
            return f"{key} {then[key]!r}, and the jobs say {now[key]!r}"
    return ""


def _flat(asked: Mapping[str, Any]) -> dict[str, Any]:
    """All that was asked for, with what holds where nothing was, but for what leaves no mark."""
    own = {key: x for key, x in asked.items() if key != "options"}
    every = {**defaults_of_record(), **own, **asked.get("options", {})}
    return {key: x for key, x in every.items() if key not in _WITHOUT_A_MARK}
