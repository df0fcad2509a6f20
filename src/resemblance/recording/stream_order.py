"""Warning about sorted streams, by an analysis of variance over blocks of samples (`OrderCheck`).

Estimates from blocks are good only if samples come in random order. Then means of blocks of n
samples have a variance of 1/n of that among samples; in a sorted stream it is larger. Blocks after
those that are stored are examined too, because a stream may begin in random order and change later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import warn

_MAX_SHARE_BETWEEN = 0.02  # of the variance between blocks: a stream above this is warned about
_MAX_SHARE_APART = 0.01  # of the variance between the blocks that are kept and later ones: as well
_MSG_SORTED_STREAM = (
    "the stream looks sorted: {:.0%} of the variance at {!r} lies between blocks of successive "
    "samples, where random order gives none. Scores from blocks will be biased; shuffle it in a "
    "larger `buffer`, or pass a data set, which is visited in random "
    "order"
)
_MSG_FIRST_BLOCKS_DIFFER = (
    "the stream changes as it goes on: {:.0%} of the variance at {!r} lies between the samples of "
    "the blocks that are kept, which came first, and later ones, where random order gives none. "
    "Scores from blocks will be biased, those from buckets not; shuffle it in a larger buffer "
    "(`buffer`), or pass a data set, which is visited in random order"
)
_MAX_COLUMNS = 4096  # of the features, read
_MAX_BLOCKS = 256  # read at most, evenly spaced


class _BlockStatistics(NamedTuple):
    number: int  # in the stream
    mean: Tensor
    samples: int
    within: float  # their squared distances to the mean, added up


class OrderCheck:
    """The variance between and within blocks of one layer's features, as they stream by."""

    def __init__(self) -> None:
        self._blocks: list[_BlockStatistics] = []  # that were read
        self._number, self._every = 0, 1  # blocks that came, and of how many one is read
        self._begun = False  # whether there is a block that is not whole yet
        self._waiting: list[Tensor] = []  # its parts, if it is read

    def add(
        self, features: Tensor, blocks: Sequence[tuple[int, int]], *, ends: bool = True
    ) -> None:
        """Take in a batch (n, d) whose rows [start, stop) form blocks, or a part, if not `ends`."""
        for start, stop in blocks:
            self._begun = True
            if self._number % self._every == 0:
                rows = features[start:stop, :_MAX_COLUMNS].float()
                # the network may write over what waits
                self._waiting.append(rows if ends else rows.clone())
            if ends:
                self.end_block()

    def end_block(self) -> None:
        """The parts that wait are a whole block."""
        number, self._number = self._number, self._number + self._begun
        self._begun = False
        if not self._waiting:
            return
        rows, self._waiting = torch.cat(self._waiting), []
        if len(rows) > 1:
            mean = rows.mean(0)
            within = float((rows - mean).square().sum())
            self._blocks.append(_BlockStatistics(number, mean.cpu(), len(rows), within))
        if len(self._blocks) == _MAX_BLOCKS:  # from now on, half as many
            self._blocks, self._every = self._blocks[::2], 2 * self._every

    def share_between(self) -> float:
        """The share of variance between blocks, or 0 where random order could give as much.

        With k blocks and F the ratio of the mean squares between and within, random order gives
        F = 1 with a standard deviation of at most √(2/(k−1)); five of them are allowed for.
        """
        k = len(self._blocks)
        counts, means, variance = self._pooled()
        if k < 4 or not variance:
            return 0.0
        spread = (means - counts @ means / counts.sum()).square().sum(1)
        excess = float(counts @ spread) / (k - 1) / variance - 1
        if excess < 5 * math.sqrt(2 / (k - 1)):
            return 0.0
        return excess / (excess + float(counts.mean()))

    def share_apart(self, kept: int) -> float:
        """The share of variance between the first blocks, which are `kept`, and all later ones.

        Random order gives a squared distance of their means of the variance times 1/n₁ + 1/n₂, and
        0 is said up to five standard deviations more, as it has with a single direction.
        """
        counts, means, variance = self._pooled()
        first = sum(block.number < kept for block in self._blocks)
        if min(first, len(counts) - first) < 2 or not variance:
            return 0.0
        parts = [slice(None, first), slice(first, None)]
        one, two = (counts[part] @ means[part] / counts[part].sum() for part in parts)
        apart = float((one - two).square().sum()) / variance
        by_chance = sum(1 / float(counts[part].sum()) for part in parts)
        if apart < by_chance * (1 + 5 * math.sqrt(2)):
            return 0.0
        return apart / (1 + apart)

    def _pooled(self) -> tuple[Tensor, Tensor, float]:
        """Samples (k,) and means (k, d) of blocks in float64, and the variance within them."""
        counts = torch.tensor([block.samples for block in self._blocks], dtype=torch.float64)
        means = [block.mean.double() for block in self._blocks]
        within = sum(block.within for block in self._blocks)
        freedom = max(float(counts.sum()) - len(counts), 1.0)
        return counts, torch.stack(means) if means else counts[:, None], within / freedom

    def warn_if_sorted(self, layer: str, kept: int) -> None:
        """Warn if blocks differ, or the first ones, which are `kept`, from later ones."""
        if (share := self.share_between()) > _MAX_SHARE_BETWEEN:
            warn(_MSG_SORTED_STREAM.format(share, layer))
        elif (share := self.share_apart(kept)) > _MAX_SHARE_APART:
            warn(_MSG_FIRST_BLOCKS_DIFFER.format(share, layer))
