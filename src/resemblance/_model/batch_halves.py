"""Batches that do not fit into memory, in halves: a pass goes on with smaller ones.

How large a batch is counts in *cells*: samples, or for sequences positions, padding among them, as
memory grows with those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from .._data.batches import take
from .._data.sources import Batch, Piece
from ..errors import DataError, warn


def cells(batch: Batch) -> int:
    """Samples in a batch, or positions of its sequences."""
    return len(batch.indices) * (1 if batch.drawn is None else batch.drawn.length)


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """A batch of two or more samples in two: between blocks, or inside the only one."""
    middle = len(batch.pieces) // 2
    first, second = batch.pieces[:middle], batch.pieces[middle:]
    if not middle:
        (whole,) = batch.pieces
        cut = len(whole.indices) // 2
        first = [Piece(whole.block, whole.indices[:cut], whole.starts, ends=False)]
        second = [Piece(whole.block, whole.indices[cut:], starts=False, ends=whole.ends)]
    at = sum(len(piece.indices) for piece in first)
    return (
        Batch(first, take(batch.samples, slice(0, at)), names=batch.names[:at]),
        Batch(second, take(batch.samples, slice(at, None)), names=batch.names[at:]),
    )


class Halving:
    """Which batches are tried, and what becomes of one for which memory did not do."""

    def __init__(self, limit: int | None, prepare: Callable[[Batch], Batch]) -> None:
        self.limit = limit  # cells of the largest batch to try
        self.proven = 0  # cells of the largest that ran
        self._prepare = prepare  # draws tokens, anew for each half
        self._waiting: deque[Batch] = deque()

    def batches(self, source: Iterator[Batch]) -> Iterator[Batch]:
        """The batches of a source, in halves where they are over the limit by then."""
        for whole in source:
            self._waiting.append(whole)
            while self._waiting:
                batch = self._prepare(self._waiting.popleft())
                if self.limit is None or cells(batch) <= self.limit or len(batch.indices) == 1:
                    yield batch
                else:
                    self._again(batch)

    def _again(self, batch: Batch) -> None:
        self._waiting.extendleft(reversed([replace(x, drawn=None) for x in halves(batch)]))

    def ran(self, batch: Batch) -> None:
        self.proven = max(self.proven, cells(batch))

    def did_not_fit(self, batch: Batch, error: BaseException) -> None:
        """Have a batch come again in halves, and no larger one after it; say so once a size."""
        count = len(batch.indices)
        if count == 1:
            raise DataError(
                "the device's memory does not do for a single sample; use shorter samples, "
                "lower precision, fewer layers, gradient checkpointing or gradients=False"
            ) from error
        self.limit = max(1, cells(batch) // 2)
        warn(
            f"memory did not do for a batch of {count} samples; going on with {count // 2} at a "
            "time"
        )
        self._again(batch)
        torch.cuda.empty_cache()
