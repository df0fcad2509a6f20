"""A sweep: what is there already, an engine for what is not, and what became of each pair."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..errors import ResemblanceError
from .job_files import Jobs
from .outcomes import Event, Outcome, failed
from .pairs import Pair
from .result_folder import ResultFolder
from .worker import Place

Engine = Callable[[Sequence[Pair], Place], Generator[Event, None, None]]
State = Literal["missing", "there", "recorded", "failed"]


@dataclass(frozen=True)
class Status:
    """How things stand with one pair."""

    pair: Pair
    file: Path
    state: State
    seconds: float | None = None  # that it took now
    error: str | None = None  # why it failed, now or the last time
    error_file: Path | None = None  # with more of that
    warnings: tuple[str, ...] = ()


def standing(jobs: Jobs) -> list[Status]:
    """What is there and what is missing, in the order of the file."""
    results = ResultFolder(jobs.out)
    return [_standing(pair, results) for pair in jobs.pairs]


def swept(
    jobs: Jobs, before: Sequence[Status], engine: Engine, watch: Callable[[Event], None]
) -> list[Status]:
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
        with contextlib.closing(engine(missing, Place(jobs.base, results))) as events:
            for event in events:
                if isinstance(event, Outcome):
                    found[event.name] = _after(found[event.name], event, results)
                watch(event)
    return list(found.values())


def _standing(pair: Pair, results: ResultFolder) -> Status:
    file = results.result(pair.name)
    try:
        if results.holds(pair):
            return Status(pair, file, "there")
    except ResemblanceError as error:
        return Status(pair, file, "failed", error=failed(pair.name, error).error)
    before = results.last_error(pair.name)
    path = None if before is None else results.error(pair.name)
    return Status(pair, file, "missing", error=before, error_file=path)


def _after(status: Status, outcome: Outcome, results: ResultFolder) -> Status:
    """The standing of a pair after an attempt; the error of the last is kept beside its name."""
    name, state = outcome.name, outcome.state
    if state == "busy" or state == "again":
        return status
    error, kept = None, None
    if state == "failed":
        error, kept = outcome.error, results.keep_error(name, outcome.text)
    else:
        results.forget_error(name)
    took, said = outcome.seconds, outcome.warnings
    return Status(status.pair, status.file, state, took, error, kept, said)
