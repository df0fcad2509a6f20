"""How far a sweep is, and how long it will take: from what pairs took that are through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from .outcomes import Began, Event, Outcome


@dataclass
class Course:
    """The pairs that were missing: waiting, under way, or through. Times are of one clock."""

    data: Mapping[str, str]  # of each pair, the name of its data
    running: dict[str, tuple[float, str]] = field(default_factory=dict)  # since when, and where
    ended: dict[str, Outcome] = field(default_factory=dict)
    workers: int = 1  # most pairs that were under way at once
    _seconds: dict[str, float] = field(default_factory=dict)  # that recordings took, by their data
    _recorded: Counter[str] = field(default_factory=Counter)  # how many those are

    def told(self, event: Event, now: float) -> None:
        """Take note of what happened."""
        if isinstance(event, Began):
            if event.name not in self.ended:
                self.running[event.name] = now, event.where
                self.workers = max(self.workers, len(self.running))
            return
        self.running.pop(event.name, None)
        if event.state not in ("busy", "again"):
            self.ended[event.name] = event
        if event.state == "recorded":
            of = self.data[event.name]
            self._seconds[of] = self._seconds.get(of, 0.0) + event.seconds
            self._recorded[of] += 1

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
        if not self._recorded:
            return None
        begun = [self.left_of(name, now) or 0.0 for name in self.running]
        waiting = Counter(self.data[name] for name in self.waiting)
        to_come = sum(count * (self._expected(of) or 0.0) for of, count in waiting.items())
        return max((sum(begun) + to_come) / self.workers, *begun, 0.0)

    def _expected(self, data: str) -> float | None:
        """What recordings on the same data took on average, or else all of them."""
        if not self._recorded:
            return None
        if self._recorded[data]:
            return self._seconds[data] / self._recorded[data]
        return sum(self._seconds.values()) / self._recorded.total()


def in_words(seconds: float) -> str:
    """A time as people say it.

    >>> in_words(0.42), in_words(75), in_words(7500)
    ('0.4 s', '1 min 15 s', '2 h 5 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
