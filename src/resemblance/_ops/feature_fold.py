"""The fold: a very wide vector shrunk, with random signs, to a width that accumulators can hold."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from .._seeded_random import FOLD_SHIFT, FOLD_SIGN, below, bits
from .device_copies import without_waiting


class Fold:
    """A seeded sketch along features: (n, dim) to (n, width), inner products kept on average.

    Feature j of chunk r = ⌊j / width⌋ goes, with a random sign, to slot (j + shift_r) mod width,
    where shift_r is a random multiple of eight (of one, if width is not a multiple of eight).
    Signs alone make `E⟨fold(x), fold(y)⟩ = ⟨x, y⟩`; the random shift of each chunk keeps
    features that recur at a fixed stride (one channel at every token) from meeting in one slot.
    The standard error of an inner product is about ‖x‖‖y‖ / √width. Cost: one read of the input.
    """

    def __init__(self, dim: int, width: int, seed: int, device: torch.device | None = None) -> None:
        self.dim, self.width = dim, width
        self._device = device or torch.device("cpu")
        words = bits(seed, FOLD_SIGN, np.arange(-(-dim // 64)))  # a bit of them a feature
        self._bits = without_waiting(torch.from_numpy(words.view(np.uint8)), self._device)
        step = 8 if width % 8 == 0 else 1  # so that a GPU can read eight features at a time
        shifts = below(bits(seed, FOLD_SHIFT, np.arange(-(-dim // width))), width // step)
        self.shifts = (step * shifts).tolist() if dim > width else [0]

    @functools.cached_property
    def packed(self) -> tuple[Tensor, Tensor]:
        """Signs (dim,) in int8 and shifts (chunks,) in int32 on the device, for `fused`."""
        eight = torch.arange(8, dtype=torch.uint8, device=self._device)
        negative = (self._bits[:, None] >> eight & 1).flatten()[: self.dim].to(torch.int8)
        signs = 1 - 2 * negative if self.dim > self.width else torch.ones_like(negative)
        shifts = torch.tensor(self.shifts, dtype=torch.int32)
        return signs, without_waiting(shifts, self._device)

    @functools.cached_property
    def _signs(self) -> Tensor:
        return self.packed[0].float()

    def __call__(self, x: Tensor) -> Tensor:  # (n, dim) -> (n, width)
        if self.dim <= self.width:
            return x.float()
        out = x.new_zeros(len(x), self.width, dtype=torch.float32)
        for r, shift in enumerate(self.shifts):
            start, stop = r * self.width, min((r + 1) * self.width, self.dim)
            turn = min(start + self.width - shift, stop)  # where the chunk wraps around
            out[:, shift : shift + turn - start].addcmul_(x[:, start:turn], self._signs[start:turn])
            if turn < stop:
                out[:, : stop - turn].addcmul_(x[:, turn:stop], self._signs[turn:stop])
        return out
