"""Comparing recordings with those of a base, in processes of their own.

A comparison takes a core some ten seconds; meanwhile the network that comes next is trained and
recorded. Each process has one thread: comparing is many small operations, and threads that wait
for each other on a busy machine take ten times as long. A recording travels as a file, and a
process reads those of a base once.
"""

from __future__ import annotations

import functools
import multiprocessing
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

import resemblance as rs

from .scores import Recordings, compared, concentration

Found = dict[str, Any]
Keep = Callable[[Found], None]
_OF_TOKENS = ("tokens", "masked", "not masked")


def found_in(base: Recordings, own: Recordings) -> Found:
    """What a network's recordings say, in each way that both were recorded in."""
    return {
        "scores": compared(base, own),
        "concentration": {way: concentration(rep) for way, rep in own.items() if way in _OF_TOKENS},
    }


class Comparing:
    """Compares at once where there are no `workers`, else when one of them has time."""

    def __init__(self, workers: int, folder: Path) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._waiting: list[tuple[str, Future[Found], Keep]] = []
        self._base: tuple[str, Path] | None = None
        if workers:
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(workers, spawn, torch.set_num_threads, (1,))
            self._folder = Path(tempfile.mkdtemp(prefix="comparing-", dir=folder))

    def __enter__(self) -> Comparing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        where: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            shutil.rmtree(self._folder, ignore_errors=True)

    def begin(
        self, name: str, base_name: str, base: Recordings, own: Recordings, keep: Keep
    ) -> None:
        """Have `keep` called with what is found, now or in a later call of this or `collect`."""
        if self._pool is None:
            try:
                keep(found_in(base, own))
            except rs.ResemblanceError as error:
                _left_out(name, error)
            return
        if self._base is None or self._base[0] != base_name:
            self._base = base_name, self._saved(base_name, base)
        path = self._base[1] if name == base_name else self._saved(name, own)
        self._waiting.append((name, self._pool.submit(_compared, self._base[1], path), keep))
        self.collect(wait=False)

    def collect(self, *, wait: bool = True) -> None:
        """Keep what is there; with `wait`, all that was begun."""
        waiting, self._waiting = self._waiting, []
        for name, future, keep in waiting:
            if not wait and not future.done():
                self._waiting.append((name, future, keep))
                continue
            try:
                keep(future.result())
            except rs.ResemblanceError as error:
                _left_out(name, error)

    def _saved(self, name: str, reps: Recordings) -> Path:
        place = self._folder / name.replace("/", "_")
        place.mkdir(exist_ok=True)
        for i, (way, rep) in enumerate(reps.items()):
            rep.save(place / f"{i}-{way}.rsm")  # the first is the one that most is said about
        return place


def _left_out(name: str, error: rs.ResemblanceError) -> None:
    """A ruined copy may have no gradient at all."""
    print(f"{name} is left out: {error}", flush=True)


def _compared(base: Path, own: Path) -> Found:
    mine = _loaded(base) if own == base else _read(own)
    found = found_in(_loaded(base), mine)
    if own != base:
        shutil.rmtree(own)
    return found


@functools.lru_cache(maxsize=1)
def _loaded(base: Path) -> Recordings:
    return _read(base)


def _read(place: Path) -> Recordings:
    return {path.stem.split("-", 1)[1]: rs.load(path) for path in sorted(place.glob("*.rsm"))}
