"""What a worker does, whichever engine it is of: pairs, one after the other, in one process.

A pair that raises ends in a failure that says so, never in the end of the worker.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..errors import DataError, ResemblanceWarning
from ..recording.by_name import record_named
from .outcomes import Outcome, failed
from .pairs import Pair
from .result_folder import ResultFolder
from .shared_data import SharedData


@dataclass(frozen=True)
class Place:
    """Where a sweep happens, which every worker must be able to reach."""

    base: Path  # that addresses are relative to
    results: ResultFolder


class Worker:
    """A process that records pairs; it keeps the data of the last one open for the next."""

    def __init__(self, place: Place, device: str = "") -> None:
        self.place, self.device = place, device
        self.data = SharedData()

    def done(self, pair: Pair, *, wait: bool = False) -> Outcome:
        """Record a pair, unless it is there; with `wait`, once no other process is at it."""
        began, said = time.monotonic(), []  # type: tuple[float, list[str]]
        try:
            with _gathered(said):
                state = self._recorded(pair, wait)
        except Exception as error:
            return replace(failed(pair.name, error, time.monotonic() - began), warnings=tuple(said))
        finally:
            gc.collect()  # a network's hooks and graphs may refer to each other
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()  # for other processes on the same device
        return Outcome(pair.name, state, time.monotonic() - began, warnings=tuple(said))

    def _recorded(self, pair: Pair, wait: bool) -> Any:
        results = self.place.results
        try:
            os.chdir(self.place.base)
        except OSError as error:
            raise DataError(
                f"there is no folder {self.place.base} on this machine ({error.strerror}); a sweep "
                "over several machines needs a file system that all of them have"
            ) from error
        results.make()
        with results.claimed(pair, wait=wait) as own:
            if not own:
                return "busy"
            if results.holds(pair):
                return "there"
            options = dict(pair.options)
            if pair.checkpoint:
                options["checkpoint"] = results.checkpoint(pair.name)
            wanted = replace(pair.wanted, device=self.device)
            found = record_named(wanted, self.data.of(pair), **options, progress=False)
            results.keep(pair, found)
        return "recorded"


@contextlib.contextmanager
def _gathered(said: list[str]) -> Iterator[None]:
    """This package's warnings into a list, each once; others as they are shown."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def showwarning(message: Any, category: Any, *rest: Any, **more: Any) -> None:
            if not issubclass(category, ResemblanceWarning):
                show(message, category, *rest, **more)
            elif str(message) not in said:
                said.append(str(message))

        warnings.showwarning = showwarning
        warnings.simplefilter("always", ResemblanceWarning)
        yield
