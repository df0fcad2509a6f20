"""A budget: how many candidates may be run, or for how long."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

from .._whole_numbers import is_whole
from ..errors import DataError

_UNITS = {"s": 1, "m": 60, "h": 3600}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([smh])")


@dataclass(frozen=True)
class Budget:
    """Either, or neither, which is no limit."""

    candidates: int | None = None
    seconds: float | None = None
    began: float = field(default_factory=time.perf_counter)

    @staticmethod
    def of(given: int | str | None) -> Budget:
        """A whole number is candidates; a number with s, m or h is a time.

        >>> Budget.of(8).candidates, Budget.of("1.5m").seconds
        (8, 90.0)
        """
        if given is None:
            return Budget()
        if isinstance(given, str) and given.strip().isdigit():
            given = int(given)
        if is_whole(given) and int(given) > 0:
            return Budget(candidates=int(given))
        found = _TIME.fullmatch(given.strip()) if isinstance(given, str) else None
        if found is None or float(found[1]) == 0:
            raise DataError(
                "budget must be a number of candidates, such as 8, or a time, such as '90s', "
                f"'10m' or '2h'; found {given!r}"
            )
        return Budget(seconds=float(found[1]) * _UNITS[found[2]])

    def spent(self, run: int) -> bool:
        """Whether no further candidate may be begun, after so many."""
        if self.candidates is not None:
            return run >= self.candidates
        over = self.seconds is not None and time.perf_counter() - self.began >= self.seconds
        return over and run > 0

    def __str__(self) -> str:
        if self.candidates is not None:
            return f"{self.candidates} candidate{'s' if self.candidates > 1 else ''}"
        return "none" if self.seconds is None else f"{self.seconds:g} seconds"
