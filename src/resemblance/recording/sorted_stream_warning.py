"""Whether a stream looks sorted: an analysis of variance over its blocks.

Blocks estimate well only when samples come in random order. Then the means of blocks of n samples
differ by a variance of 1/n of that among samples; in a sorted stream they differ by more. Blocks of
the whole stream are looked at, also beyond those that are kept: those at its beginning may be in
random order and yet not be like the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_COLUMNS = 4096  # of the features, read
_BLOCKS = 256  # read at most, evenly spaced


class _Block(NamedTuple):
    number: int  # in the stream
    mean: Tensor
    samples: int
    within: float  # their squared distances to the mean, added up


class OrderCheck:
    """The variance between and within blocks of one layer's features, as they stream by."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []  # that were read
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
                rows = features[start:stop, :_COLUMNS].float()
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
            self._blocks.append(_Block(number, mean.cpu(), len(rows), within))
        if len(self._blocks) == _BLOCKS:  # from now on, half as many
            self._blocks, self._every = self._blocks[::2], 2 * self._every

    def share_between(self) -> float:
        """The share of variance between blocks, or 0 where random order could give as much.

        With k blocks and F the ratio of the mean squares between and within, random order gives
        F = 1 with a standard deviation of at most √(2/(k−1)); five of them are allowed for.
        """
        k, n = len(self._blocks), sum(block.samples for block in self._blocks)
        if k < 4 or not self._variance:
            return 0.0
        counts = [block.samples for block in self._blocks]
        grand = _mean(self._blocks)
        between = sum(
            float((block.mean.double() - grand).square().sum()) * count
            for block, count in zip(self._blocks, counts, strict=True)
        )
        excess = between / (k - 1) / self._variance - 1
        if excess < 5 * math.sqrt(2 / (k - 1)):
            return 0.0
        return excess / (excess + n / k)

    def share_apart(self, kept: int) -> float:
        """The share of variance between the first blocks, which are `kept`, and all later ones.

        Random order gives a squared distance of their means of the variance times 1/n₁ + 1/n₂, and
        0 is said up to five standard deviations more, as it has with a single direction.
        """
        first = [block for block in self._blocks if block.number < kept]
        rest = [block for block in self._blocks if block.number >= kept]
        if len(first) < 2 or len(rest) < 2 or not self._variance:
            return 0.0
        apart = float((_mean(first) - _mean(rest)).square().sum()) / self._variance
        by_chance = sum(1 / sum(block.samples for block in part) for part in (first, rest))
        if apart < by_chance * (1 + 5 * math.sqrt(2)):
            return 0.0
        return apart / (1 + apart)

    @property
    def _variance(self) -> float:
        """Of samples within blocks."""
        freedom = sum(block.samples - 1 for block in self._blocks)
        return sum(block.within for block in self._blocks) / max(freedom, 1)


def _mean(blocks: Sequence[_Block]) -> Tensor:
    total = sum(block.mean.double() * block.samples for block in blocks)
    assert isinstance(total, Tensor)  # of one block or more
    return total / sum(block.samples for block in blocks)
