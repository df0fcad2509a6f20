"""The progress of a sweep: what becomes of each pair, and how long the rest will take.

Workers yield events, `PairStarted` and `Outcome`. `SweepProgress` follows them and estimates the
remaining time from the pairs that are finished.
"""

from __future__ import annotations

import itertools
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal

from ..errors import ResemblanceError

OutcomeState = Literal["recorded", "there", "failed", "busy", "again"]


@dataclass(frozen=True)
class PairStarted:
    """A worker took a pair."""

    name: str
    where: str  # which worker


@dataclass(frozen=True)
class Outcome:
    """How it ended: recorded now, there already, or failed; or not yet: another process is at it
    (busy), or it raised an error that may not come again."""

    name: str
    state: OutcomeState
    seconds: float = 0.0
    error: str = ""  # in a line
    trace: str = ""  # the traceback
    warnings: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Of a failure, what is kept beside the name of the pair."""
        return f"{self.error}\n\n{self.trace}".rstrip() + "\n"


Event = PairStarted | Outcome


def failed_outcome(name: str, error: BaseException) -> Outcome:
    """A pair that raised. What this package refuses it would refuse again; the rest may pass."""
    known = isinstance(error, ResemblanceError)
    text = " ".join(str(error).split())
    line = text if known else f"{type(error).__name__}: {text}" if text else type(error).__name__
    trace = "".join(traceback.format_exception(error))
    return Outcome(name, "failed" if known else "again", error=line, trace=trace)


class Attempts:
    """How often each pair has failed.

    Args:
        retries: how often a pair is tried again whose worker died or whose error may pass.
    """

    def __init__(self, retries: int) -> None:
        self.retries = retries
        self._failures: Counter[str] = Counter()

    def judged(self, outcome: Outcome) -> Outcome:
        """What to report: a pair that has had all its attempts has failed."""
        if outcome.state == "again":
            self._failures[outcome.name] += 1
            if self._failures[outcome.name] > self.retries:
                return replace(outcome, state="failed")
        return outcome


@dataclass
class SweepProgress:
    """The pairs that were missing: waiting, under way, or through. Times are of one clock."""

    data: Mapping[str, str]  # of each pair, the name of its data
    running: dict[str, tuple[float, str]] = field(default_factory=dict)  # since when, and where
    ended: dict[str, Outcome] = field(default_factory=dict)
    workers: int = 1  # most pairs that were under way at once
    _times: dict[str, list[float]] = field(default_factory=dict)  # of recordings, by their data

    def told(self, event: Event, now: float) -> None:
        """Take note of what happened."""
        if isinstance(event, PairStarted):
            if event.name not in self.ended:
                self.running[event.name] = now, event.where
                self.workers = max(self.workers, len(self.running))
            return
        self.running.pop(event.name, None)
        if event.state not in ("busy", "again"):
            self.ended[event.name] = event
        if event.state == "recorded":
            self._times.setdefault(self.data[event.name], []).append(event.seconds)

    @property
    def waiting(self) -> list[str]:
        return [name for name in self.data if name not in self.running and name not in self.ended]

    def left_of(self, name: str, now: float) -> float | None:
        """Seconds that a pair under way will still take; None if nothing is known to go by."""
        expected = self._expected(self.data[name])
        return None if expected is None else max(0.0, expected - (now - self.running[name][0]))

    def left(self, now: float) -> float | None:
        """Seconds to the end, with all workers at it; None if nothing is known to go by."""
        if not self.waiting and not self.running:
            return 0.0
        if not self._times:
            return None
        begun = [self.left_of(name, now) or 0.0 for name in self.running]
        waiting = Counter(self.data[name] for name in self.waiting)
        to_come = sum(count * (self._expected(of) or 0.0) for of, count in waiting.items())
        return max((sum(begun) + to_come) / self.workers, *begun, 0.0)

    def _expected(self, data: str) -> float | None:
        """What recordings on the same data took on average, or else all of them."""
        times = self._times.get(data) or list(itertools.chain(*self._times.values()))
        return fmean(times) if times else None


def format_duration(seconds: float) -> str:
    """A time as people say it.

    >>> format_duration(0.42), format_duration(75), format_duration(7500)
    ('0.4 s', '1 min 15 s', '2 h 5 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
