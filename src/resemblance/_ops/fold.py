"""The fold: a seeded sketch along features that shrinks very wide vectors, with random signs.

It keeps inner products in expectation and limits the width that accumulators have to hold.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from .._utils.hashing import FOLD_SHIFT, FOLD_SIGN, random_bits, scale_below
from .devices import copy_to_device_async


class Fold:
    """A seeded sketch along features: (n, dim) to (n, width), inner products kept on average.

    A vector is one row, or an image's `channels` rows, of `length` features each. Every row is cut
    into chunks of `run` features; a chunk is turned by a random shift along its rows, and its rows
    among themselves by another, and chunks are added with a random sign for each feature. Signs
    alone make `E⟨fold(x), fold(y)⟩ = ⟨x, y⟩`; the random shifts keep features that recur at a fixed
    stride (one channel at every token) from meeting in one slot. The standard error of an inner
    product is about ‖x‖‖y‖ / √width. Cost: one read of the input.

    Channels are folded apart so that the slot of a feature does not depend on whether an image lies
    in memory row by row or, with `channels_last`, channels side by side: slots lie alike.
    """

    def __init__(
        self,
        dim: int,
        width: int,  # at the most
        seed: int,
        device: torch.device | None = None,
        *,
        channels: int = 1,
        channels_last: bool = False,
    ) -> None:
        self.dim, self._seed = dim, seed
        self._device = device or torch.device("cpu")
        self.rows, self.run = fold_shape(dim, width, channels)
        self.length, self.width = dim // self.rows, self.rows * self.run
        self.channels_last = channels_last and self.rows > 1
        chunks = -(-self.length // self.run)
        down, along = self._shifts(chunks, self.rows, 2**32), self._shifts(chunks, self.run)
        self.shifts = list(zip(down, along, strict=True))

    def _shifts(self, chunks: int, size: int, first: int = 0) -> list[int]:
        """A shift of each chunk below a size: a multiple of eight where that divides the size.

        So a GPU can read eight features at a time.
        """
        if chunks == 1:
            return [0]
        step = 8 if size % 8 == 0 else 1
        words = random_bits(self._seed, FOLD_SHIFT, first + np.arange(chunks))
        return (step * scale_below(words, size // step)).tolist()

    @functools.cached_property
    def packed(self) -> tuple[Tensor, Tensor]:
        """Signs (dim,) in int8, as vectors lie in memory, and shifts (chunks, 2) in int32."""
        if len(self.shifts) > 1:
            signs = fold_signs(self.dim, self._seed, self._device)
        else:
            signs = torch.ones(self.dim, dtype=torch.int8, device=self._device)
        if self.channels_last:
            signs = signs.view(self.rows, self.length).T.flatten()
        return signs, copy_to_device_async(
            torch.tensor(self.shifts, dtype=torch.int32), self._device
        )

    @functools.cached_property
    def _signs(self) -> Tensor:  # (rows, length)
        return self._by_row(self.packed[0].float())

    def _by_row(self, x: Tensor) -> Tensor:  # (..., dim or width) -> (..., rows, length or run)
        if self.channels_last:
            return x.unflatten(-1, (-1, self.rows)).mT
        return x.unflatten(-1, (self.rows, -1))

    def in_order(self, table: Tensor) -> Tensor:  # (..., width)
        """Slots row by row, of a table in which they lie as in memory."""
        return self._by_row(table).flatten(-2) if self.channels_last else table

    def __call__(self, x: Tensor) -> Tensor:  # (n, dim) -> (n, width)
        if len(self.shifts) == 1:
            return x.float()
        folded = x.new_empty(len(x), self.width, dtype=torch.float32)
        out, rows = self._by_row(folded), self._by_row(x)
        for chunk, (down, along) in enumerate(self.shifts):
            start = chunk * self.run
            here = min(self.run, self.length - start)
            for i, to_i, n in _shifted_runs(self.rows, down, self.rows):
                for j, to_j, m in _shifted_runs(here, along, self.run):
                    part = (slice(i, i + n), slice(start + j, start + j + m))
                    to, some = out[:, to_i : to_i + n, to_j : to_j + m], rows[:, part[0], part[1]]
                    if chunk:
                        to.addcmul_(some, self._signs[part])
                    else:  # which fills every slot
                        torch.mul(some, self._signs[part], out=to)
        return folded


def fold_signs(dim: int, seed: int, device: torch.device) -> Tensor:  # (dim,) int8
    """The random sign of each feature: a bit of a 64-bit word that 64 features share."""
    words = random_bits(seed, FOLD_SIGN, np.arange(-(-dim // 64)))
    octets = copy_to_device_async(torch.from_numpy(words.view(np.uint8)), device)
    shifts = torch.arange(8, dtype=torch.uint8, device=device)
    return 1 - 2 * (octets[:, None] >> shifts & 1).flatten()[:dim].to(torch.int8)


def fold_shape(dim: int, width: int, channels: int) -> tuple[int, int]:
    """Into how many rows of how many slots a vector is folded, `width` at the most.

    >>> fold_shape(9245, 8192, channels=5)
    (5, 1638)
    """
    rows = channels if channels <= width else 1
    return rows, min(dim // rows, width // rows)


def _shifted_runs(count: int, shift: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Where runs of [0, count) go when turned by a shift in [0, size): from, to, how many.

    >>> list(_shifted_runs(5, 2, 6))
    [(0, 2, 4), (4, 0, 1)]
    """
    before = min(count, size - shift)
    yield 0, shift, before
    if count > before:
        yield before, 0, count - before
