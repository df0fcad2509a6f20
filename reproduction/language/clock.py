"""How long a run may take: it stops between two pieces of work, and a later one goes on."""

from __future__ import annotations

import time


class OutOfTime(Exception):  # noqa: N818  # nothing went wrong
    """The minutes are over."""


class Clock:
    """Minutes since it was made."""

    def __init__(self, minutes: float | None = None) -> None:
        self._start, self._minutes = time.monotonic(), minutes

    def check(self) -> None:
        """An exception once the time is over."""
        if self._minutes is not None and time.monotonic() - self._start > 60 * self._minutes:
            raise OutOfTime
