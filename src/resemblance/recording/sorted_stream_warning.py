"""Whether a stream looks sorted: an analysis of variance over its blocks.

Blocks estimate well only when samples come in random order. Then the means of blocks of n samples
differ by a variance of 1/n of that among samples; in a sorted stream they differ by more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_COLUMNS = 4096  # of the features, read
_BLOCKS = 256  # read


class OrderCheck:
    """The variance between and within blocks of one layer's features, as they stream by."""

    def __init__(self) -> None:
        self._means: list[Tensor] = []
        self._counts: list[int] = []
        self._within = 0.0
        self._waiting: list[Tensor] = []  # parts of a block that is not whole yet

    def add(
        self, features: Tensor, blocks: Sequence[tuple[int, int]], *, ends: bool = True
    ) -> None:
        """Take in a batch (n, d) whose rows [start, stop) form blocks, or a part, if not `ends`."""
        for start, stop in blocks if len(self._means) < _BLOCKS else ():
            rows = features[start:stop, :_COLUMNS].float()
            # the network may write over what waits
            self._waiting.append(rows if ends else rows.clone())
            if ends:
                self.end_block()

    def end_block(self) -> None:
        """The parts that wait are a whole block."""
        if not self._waiting:
            return
        rows, self._waiting = torch.cat(self._waiting), []
        if len(rows) > 1 and len(self._means) < _BLOCKS:
            mean = rows.mean(0)
            self._within += float((rows - mean).square().sum())
            self._means.append(mean.cpu())
            self._counts.append(len(rows))

    def share_between(self) -> float:
        """The share of variance between blocks, or 0 where random order could give as much.

        With k blocks and F the ratio of the mean squares between and within, random order gives
        F = 1 with a standard deviation of at most √(2/(k−1)); five of them are allowed for.
        """
        k, n = len(self._means), sum(self._counts)
        if k < 4 or self._within <= 0:
            return 0.0
        means = torch.stack(self._means).double()
        counts = torch.tensor(self._counts, dtype=torch.float64)[:, None]
        grand = (means * counts).sum(0) / n
        between = float((counts * (means - grand).square()).sum()) / (k - 1)
        excess = between / (self._within / (n - k)) - 1
        if excess < 5 * math.sqrt(2 / (k - 1)):
            return 0.0
        return excess / (excess + n / k)
