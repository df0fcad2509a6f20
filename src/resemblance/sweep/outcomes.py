"""What becomes of a pair, as a worker tells it and a sweep reports it."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Literal

from ..errors import ResemblanceError

State = Literal["recorded", "there", "failed", "busy", "again"]


@dataclass(frozen=True)
class Began:
    """A worker took a pair."""

    name: str
    where: str  # which worker


@dataclass(frozen=True)
class Outcome:
    """How it ended: recorded now, there already, or failed; or not yet: another process is at it
    (busy), or it failed and is tried again."""

    name: str
    state: State
    seconds: float = 0.0
    error: str = ""  # in a line
    trace: str = ""  # the traceback
    again: bool = False  # whether it may go well another time
    warnings: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Of a failure, what is kept beside the name of the pair."""
        return f"{self.error}\n\n{self.trace}".rstrip() + "\n"


Event = Began | Outcome


def failed(name: str, error: BaseException, seconds: float = 0.0) -> Outcome:
    """A pair that raised. What this package refuses it would refuse again; the rest may pass."""
    known = isinstance(error, ResemblanceError)
    text = " ".join(str(error).split())
    line = text if known else f"{type(error).__name__}: {text}" if text else type(error).__name__
    trace = "".join(traceback.format_exception(error))
    return Outcome(name, "failed", seconds, line, trace, again=not known)


def lost(name: str, why: str) -> Outcome:
    """A pair whose worker died with it."""
    return Outcome(name, "failed", error=f"its worker died: {why}", again=True)
