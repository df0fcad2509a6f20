"""Which rows of a layer's output are recorded, and in what order: all samples, or drawn tokens.

A window of sequences makes as many blocks as tokens are drawn from each: the b-th block holds the
b-th token of every sequence, so that no block holds two tokens of one. Rows come window by window,
in each block by block. Where samples are recorded whole this is their own order.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor

from .._data.sources import Batch
from .._ops.device_copies import without_waiting


class Rows:
    """The rows of one batch: which sample each is of, and which of its tokens."""

    def __init__(self, batch: Batch) -> None:
        self.drawn = batch.drawn
        tokens = 1 if batch.drawn is None else batch.drawn.positions.shape[1]
        sample, token, start = [], [], 0
        for piece in batch.pieces:
            n = len(piece.indices)
            sample.append(np.tile(np.arange(start, start + n), tokens))
            token.append(np.repeat(np.arange(tokens), n))
            start += n
        self.samples = start
        self.sample = np.concatenate(sample)  # (rows,) in the batch
        self.token = np.concatenate(token)  # (rows,) the first, second … drawn from it
        self._at: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def pick(self, x: Tensor) -> Tensor | None:  # (n, length, ...) -> (rows, ...)
        """The rows of an output; None if it has no axis of such positions."""
        if self.drawn is None:
            return x
        if x.ndim < 3 or tuple(x.shape[:2]) != (len(self.drawn.positions), self.drawn.length):
            return None
        return x[self.at(x.device)]

    def at(self, device: torch.device) -> tuple[Tensor, Tensor]:  # (rows,), (rows,)
        """The sample and the position of each token drawn, on a device."""
        assert self.drawn is not None
        if device not in self._at:
            at = (self.sample, self.drawn.positions[self.sample, self.token])
            i, j = (without_waiting(torch.from_numpy(one), device) for one in at)
            self._at[device] = i, j
        return self._at[device]

    def found_at(self, sample: Tensor, position: Tensor) -> Rows:
        """Rows of the same shape, which lie where these tensors say."""
        rows = copy.copy(self)
        rows._at = {sample.device: (sample, position)}
        return rows
