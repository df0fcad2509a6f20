"""How a pass is shared out and kept safe: shards, processes, and a checkpoint to go on from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import nn

from .._data.shares import Share
from .._data.sources import Source
from .._model.spread_weights import is_spread
from ..errors import DataError, warn
from ..representation.representation import Representation
from . import several_processes
from .checkpoint_files import CheckpointFiles, Progress

Shard = tuple[int, int] | Literal["ranks"]
Checkpoint = str | os.PathLike[str] | tuple[str | os.PathLike[str], float]

_SECONDS = 60.0  # between checkpoints, unless asked otherwise
_AGAIN = (
    "a stream keeps no place in it: it is read again from its beginning, and the {:,} blocks that "
    "the checkpoint holds are passed over"
)
_SPREAD = (
    'shard="ranks" gives every process a share of the data, but the network\'s weights are spread '
    "over them, so that all must run every sample together; leave shard out"
)


@dataclass(frozen=True)
class Job:
    """What this process does of a pass."""

    shard: tuple[int, int] = (0, 1)
    ranks: bool = False  # whether processes share it
    path: str | os.PathLike[str] | None = None  # of the checkpoint
    every: float = _SECONDS

    @classmethod
    def of(cls, shard: tuple[int, int], ranks: bool, checkpoint: Checkpoint | None) -> Job:
        """As `record` was asked, checked."""
        path: Any = checkpoint
        every: Any = _SECONDS
        if isinstance(checkpoint, tuple) and len(checkpoint) == 2:
            path, every = checkpoint
        if path is not None and not isinstance(path, str | os.PathLike):
            raise DataError(
                f"checkpoint must be the path of a file, or (path, seconds); found {checkpoint!r}"
            )
        if isinstance(every, bool) or not isinstance(every, int | float) or not every >= 0:
            raise DataError(f"seconds between checkpoints must be 0 or more; found {every!r}")
        if ranks:
            several_processes.rank_and_count()  # refuses where there is no group
        return cls(shard, ranks, path, float(every))

    @property
    def process(self) -> tuple[int, int]:
        """Its rank, of so many."""
        return several_processes.rank_and_count() if self.ranks else (0, 1)

    @property
    def joins(self) -> bool:
        """Whether its result is put together from parts, which must have their accumulators."""
        return self.path is not None or self.process[1] > 1

    def check(self, model: nn.Module) -> None:
        """Refuse to share the data of a network that runs in all processes at once."""
        if self.ranks and any(map(is_spread, model.parameters())):
            raise DataError(_SPREAD)

    def share(
        self, source: Source, key: Callable[[], Mapping[str, Any]], *, whole: bool
    ) -> tuple[Share, CheckpointFiles | None, Progress | None]:
        """The blocks to run, where to save how far it came, and what was done before.

        Data whose kernels are kept whole are run by the first process alone, in one go.
        """
        rank, count = self.process
        files = None
        if self.path is not None:  # what lies there must be this pass's, whether it is used or not
            files = CheckpointFiles(self.path, json.loads(json.dumps(key())), (rank, count))
            before, done = files.take_over()
        if whole:
            nothing = np.ones(source.count or 0, bool)
            return Share(self.shard, done=nothing if rank else None), None, None
        share = Share(self.shard, (rank, count))
        source.check(share)
        if files is None:
            return share, None, None
        if self.ranks:
            several_processes.agree()  # before anyone writes, so that all read the same
        if done.any() and not source.ordered:
            warn(_AGAIN.format(int(done.sum())))
        return Share(self.shard, (rank, count), done), files, before

    def result(
        self, part: Callable[[], Representation | None], *, keep_sums: bool
    ) -> Representation:
        """All of the pass, in every process that took part in it."""
        if self.process[1] > 1:
            return several_processes.in_all(part, keep_sums=keep_sums)
        found = part()
        if found is None:
            raise DataError("nothing was recorded: there was no sample")
        return found if keep_sums or not self.joins else found.without_sums()
