"""A pass in segments: what came since the last checkpoint is added to what came before it.

Without a checkpoint there is one segment. With one, its sums are written after a block, once there
is something worth writing: not more often than asked for, nor so often that writing takes more than
a fiftieth of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from .._data.sources import Batch
from ..representation.merging import joined
from ..representation.representation import Representation
from .checkpoint_files import CheckpointFiles, Progress, together
from .pass_sums import PassSums

_TIMES = 49  # as long as writing takes, a pass must have gone on for its share to be a fiftieth
_RATE = 5e7  # bytes of accumulators a second, until one was timed


class Segments:
    """What sees a pass for `record`: begin a batch, see its logits, consume layers, end it."""

    def __init__(
        self,
        begun: Callable[[], PassSums],  # the sums of a new segment
        ended: Callable[[PassSums], Representation],  # what they came to
        files: CheckpointFiles | None = None,
        before: Progress | None = None,  # from an earlier start
        every: float = 60.0,  # seconds
    ) -> None:
        self._begun, self._ended, self._files, self._before = begun, ended, files, before
        self._every, self._began = every, time.monotonic()
        self._since = self._began  # the last checkpoint
        self._cost: float | None = None  # seconds that writing it took
        self._spent = 0.0  # seconds that writing took in all
        self._blocks: list[int] = []  # of this segment, that are whole
        self.sums = begun()

    def begin(self, batch: Batch, samples: Any) -> None:
        self._batch = batch
        self.sums.begin(batch, samples)

    def see(self, logits: Tensor) -> None:
        """The logits of the present batch's rows."""
        if self.sums.outputs is not None:
            self.sums.outputs.see(logits)

    def consume(self, i: int, features: Tensor, gradients: Tensor | None) -> None:
        self.sums.consume(i, features, gradients)

    def end(self) -> None:
        self.sums.end()
        pieces = self._batch.pieces
        self._blocks += [piece.block for piece in pieces if piece.ends]
        if self._files is not None and pieces[-1].ends and self._due() and self.sums.samples:
            began = time.monotonic()
            self._save()
            self._since = time.monotonic()
            self._cost = self._since - began
            self._spent += self._cost

    def _save(self) -> None:
        """End the segment, write all so far, and begin another."""
        self._close()
        assert self._files is not None
        assert self._before is not None
        self._files.write(self._before)
        order, self.sums = self.sums.order, self._begun()
        self.sums.order = order  # which is of the whole stream

    def _due(self) -> bool:
        now, spent = time.monotonic(), self._spent
        cost = self.sums.nbytes / _RATE if self._cost is None else self._cost
        paid_for = now - self._began >= _TIMES * (spent + cost) + spent
        return paid_for and now - self._since >= self._every

    def _close(self) -> None:
        """Add the segment to what came before."""
        done = np.zeros(max(self._blocks, default=-1) + 1, bool)
        done[self._blocks] = True
        part = self._ended(self.sums)
        if self._before is not None:
            part = joined([self._before.part, part])
            done = together([self._before.done, done])
        self._before, self._blocks = Progress(part, done), []

    def finish(self) -> None:
        """Have a GPU form what it holds, without waiting for it."""
        self.sums.finish()

    def result(self) -> Representation | None:
        """All of the pass, with its accumulators where parts were joined; None of no blocks."""
        if self.sums.samples or (self._before is None and self._blocks):
            self._close()
        elif self._before is not None and self.sums.skipped:
            data = self._before.part.data
            data = replace(data, skipped=data.skipped + self.sums.skipped)
            return replace(self._before.part, data=data)
        return None if self._before is None else self._before.part
