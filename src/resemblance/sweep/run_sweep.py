"""Run a sweep: make the recordings that are missing in its result folder.

`sweep_status` says what exists and what is missing, `run_sweep` has an engine record what is
missing. The folder holds recordings, error messages, checkpoints and locks of pairs:

    NAME.rsm            the recording of a pair
    NAME.error.txt      why there is none
    NAME.checkpoint     the progress of its pass
    .sweep/NAME.json    locked while a process records the pair; then its options
    .sweep/NAME.holder  which process holds the lock

An existing recording is never replaced: it matches the pair, or an error names the difference.
Locks end with the process that holds them, so several sweeps can share a folder and none waits for
a dead process.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

from .._utils.atomic_files import make_folder, write_atomically
from ..errors import DataError, FormatError, MismatchError, ResemblanceError, warn
from ..recording import checkpoints
from ..recording.config import FILE_OPTIONS
from ..representation.file_format import load
from ..representation.representation import Representation
from .job_file import Jobs, Pair
from .progress import Event, Outcome, failed_outcome

try:
    import fcntl
except ImportError:  # a system without these locks
    fcntl = None  # type: ignore[assignment]

Engine = Callable[[Sequence[Pair], "SweepLocation"], Generator[Event, None, None]]
PairState = Literal["missing", "there", "recorded", "failed"]
_STATE_FOLDER = ".sweep"
_POLL_SECONDS = 0.3  # seconds, while another process is at a pair
_COMPARED_SETTINGS = (
    "seed",
    "buckets",
    "blocks",
    "pool",
    "elementwise",
)  # kept as they were asked for
_ROUND_OFF_OPTIONS = ("batch_size", "compile")  # but for round-off
_MSG_NO_LOCKS = (
    "the file system of {} does not support locks, so two concurrent sweeps would record pairs "
    "twice; run one sweep at a time"
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

    def _state(self, name: str, ending: str = "json") -> Path:
        return self.folder / _STATE_FOLDER / f"{name}.{ending}"

    def make(self) -> None:
        """Create the folder, unless it exists."""
        make_folder(self.folder / _STATE_FOLDER)

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
        """Take the lock of a pair for the block; yields whether this process has it.

        Args:
            pair: which pair.
            wait: wait until whoever holds the lock is done, or dead.
        """
        path = self._state(pair.name)
        try:
            file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - closed below
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "free disk space" if full else "set out: to a writable folder"
            raise DataError(f"cannot write {path}: {error.strerror}; {remedy}") from None
        with file:
            while not (own := _try_lock(file)) and wait:
                time.sleep(_POLL_SECONDS)
            holder = self._state(pair.name, "holder")
            if not own:
                yield False
                return
            try:
                with contextlib.suppress(OSError):  # it is for messages alone
                    holder.write_text(f"process {os.getpid()} on {socket.gethostname()}")
                yield True
            finally:
                with contextlib.suppress(OSError):
                    holder.unlink()

    def holder(self, name: str) -> str:
        """Which process holds the lock of a pair, in words; empty if it has not said."""
        try:
            return self._state(name, "holder").read_text("utf-8", errors="replace")[:200]
        except OSError:
            return ""

    def keep(self, pair: Pair, found: Representation) -> None:
        """Write the recording of a pair, whole or not at all, and what it was asked for."""
        found.save(self.result(pair.name))
        if pair.checkpoint:
            checkpoints.remove_checkpoints(self.checkpoint(pair.name))
        with contextlib.suppress(OSError):  # without it, the recording speaks for itself
            # in place: it is locked
            self._state(pair.name).write_text(json.dumps(pair.asked), encoding="utf-8")

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
            found = json.loads(self._state(name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        whole = isinstance(found, dict) and isinstance(found.get("options"), dict)
        return found if whole else {}


@dataclass(frozen=True)
class SweepLocation:
    """Where a sweep happens, which every worker must be able to reach."""

    base: Path  # that addresses are relative to
    results: ResultFolder


def _try_lock(file: IO[str]) -> bool:
    """Take the lock of an open file, if no one has it."""
    try:
        if fcntl is None:
            raise OSError(errno.ENOLCK, "")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        warn(_MSG_NO_LOCKS.format(os.path.dirname(os.path.dirname(file.name))))
    return True


def _difference(asked: Mapping[str, Any], pair: Pair, found: Representation) -> str:
    """What a recording has other than a pair asks for, in words; empty if nothing."""
    now = _flat_options(json.loads(json.dumps(pair.asked)))
    if asked:
        then = _flat_options(asked)
    else:  # as far as the recording itself knows
        then = {key: getattr(found.settings, key) for key in _COMPARED_SETTINGS}
        then |= {"address": found.model.address, "gradients": found.settings.gradients}
        now |= {"address": pair.wanted.address}
    for key in then:
        if key in now and then[key] != now[key]:
            return f"{key} {then[key]!r}, and the jobs say {now[key]!r}"
    return ""


def _flat_options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """All that was asked for, with what holds where nothing was, but for what leaves no mark."""
    own = {key: x for key, x in asked.items() if key != "options"}
    defaults = {name: each.default for name, each in FILE_OPTIONS.items()}
    every = {**defaults, **own, **asked.get("options", {})}
    return {key: x for key, x in every.items() if key not in _ROUND_OFF_OPTIONS}


@dataclass(frozen=True)
class PairStatus:
    """How things stand with one pair."""

    pair: Pair
    file: Path
    state: PairState
    seconds: float | None = None  # that it took now
    error: str | None = None  # why it failed, now or the last time
    error_file: Path | None = None  # with more of that
    warnings: tuple[str, ...] = ()


def sweep_status(jobs: Jobs) -> list[PairStatus]:
    """What is there and what is missing, in the order of the file."""
    results = ResultFolder(jobs.out)
    return [_pair_status(pair, results) for pair in jobs.pairs]


def run_sweep(
    jobs: Jobs, before: Sequence[PairStatus], engine: Engine, watch: Callable[[Event], None]
) -> list[PairStatus]:
    """Record what is missing; the events that are watched say when a pair begins and ends."""
    results = ResultFolder(jobs.out)
    results.make()
    found = {status.pair.name: status for status in before}
    for name, status in found.items():
        if status.state == "there":
            results.forget_error(name)
        elif status.state == "failed":  # something else has its name
            found[name] = replace(status, error_file=results.keep_error(name, f"{status.error}\n"))
    missing = [status.pair for status in found.values() if status.state == "missing"]
    if missing:
        with contextlib.closing(engine(missing, SweepLocation(jobs.base, results))) as events:
            for event in events:
                if isinstance(event, Outcome):
                    found[event.name] = _status_after(found[event.name], event, results)
                watch(event)
    return list(found.values())


def _pair_status(pair: Pair, results: ResultFolder) -> PairStatus:
    file = results.result(pair.name)
    try:
        if results.holds(pair):
            return PairStatus(pair, file, "there")
    except ResemblanceError as error:
        return PairStatus(pair, file, "failed", error=failed_outcome(pair.name, error).error)
    before = results.last_error(pair.name)
    path = None if before is None else results.error(pair.name)
    return PairStatus(pair, file, "missing", error=before, error_file=path)


def _status_after(status: PairStatus, outcome: Outcome, results: ResultFolder) -> PairStatus:
    """The standing of a pair after an attempt; the error of the last is kept beside its name."""
    if outcome.state == "busy" or outcome.state == "again":
        return status
    ended = PairStatus(
        status.pair, status.file, outcome.state, outcome.seconds, warnings=outcome.warnings
    )
    if outcome.state == "failed":
        kept = results.keep_error(outcome.name, outcome.text)
        return replace(ended, error=outcome.error, error_file=kept)
    results.forget_error(outcome.name)
    return ended
