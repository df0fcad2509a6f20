"""Kernels of very many layers, a few of their rows at a time, straight from 16-bit storage.

All layers of all networks that are compared do not fit into memory as numbers of 64 bits, nor need
they: sums over pairs of samples add up strip by strip. A *strip* is some rows of the strict lower
triangles of all kernels, which lie side by side in storage.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..representation.layer import Kind, Layer
from . import kernels
from .combinations import Kernel

SHARED: tuple[Kernel, ...] = ("features", "gradients", "product", "sum", "elementwise")
_ONE16 = 2**15 - 1


def effects(rows: Tensor) -> Tensor:  # (L, n) row sums off the diagonal -> (L, n)
    """u, with which K_ij − u_i − u_j sums to zero in every row."""
    n = rows.shape[1]
    if n < 3:
        return torch.zeros_like(rows)
    return rows / (n - 2) - rows.sum(1, keepdim=True) / (2 * (n - 1) * (n - 2))


class _Part(NamedTuple):
    """One factor of a kernel: entries are packed_ij · roots_i · roots_j + offset_i + offset_j."""

    packed: list[Tensor]  # of each layer, the triangle (t,) int16
    roots: Tensor  # (L, n)
    offset: Tensor | None  # (L, n)


class Strips:
    """One block of n samples of all layers, whose kernels are divided by a unit each."""

    def __init__(
        self,
        layers: Sequence[Layer],
        kernel: Kernel,
        block: int,
        n: int,
        *,
        loose: bool,  # whether K_ij − u_i − u_j will do, which centring cannot tell apart
        whole: bool,  # whether the block is that of all samples
        unit: Tensor | None = None,  # (L, 1); None: the mean diagonal
    ) -> None:
        self.n = n
        self._parts: list[_Part] = []
        self._rooms: dict[int, Tensor] = {}
        diagonals: dict[Kind, Tensor] = {}
        for kind in kernels.needs(kernel):
            stored = [layer.packed_blocks(kind, whole=whole) for layer in layers]
            diagonal = torch.stack([x.diagonal[block, :n] for x in stored]).double()
            offset = None
            if any(x.offset is not None for x in stored) and not (loose and kernel != "product"):
                none = torch.zeros(n)
                u = [none if x.offset is None else x.offset[block, :n] for x in stored]
                offset = torch.stack(u).double()
            if kernel in kernels.OF_TRACES:
                over = kernels.traces(layers, kind)[:, None]
                diagonal, offset = diagonal / over, None if offset is None else offset / over
            packed = [x.triangle[block] for x in stored]
            self._parts.append(_Part(packed, (diagonal / _ONE16).sqrt(), offset))
            diagonals[kind] = diagonal if offset is None else diagonal + 2 * offset
        raw = kernels.entries(kernel, diagonals)
        mean = raw.mean(1, keepdim=True)
        self.unit = torch.where(mean > 0, mean, 1.0) if unit is None else unit
        self.diagonal = raw / self.unit
        self._adds = kernel in kernels.OF_TRACES
        for i in range(len(self._parts) if self._adds else 1):  # of a product, one factor
            packed, roots, offset = self._parts[i]
            offset = None if offset is None else offset / self.unit
            self._parts[i] = _Part(packed, roots / self.unit.sqrt(), offset)

    def levelled(self) -> Strips:
        """The same of K_ij − u_i − u_j, whose rows sum to zero off the diagonal.

        Centring cannot tell them apart; see `pair_sums.level`. Of kernels of one factor.
        """
        [(packed, roots, offset)] = self._parts
        below = self.rows(0, self.n)
        u = effects(below.sum(1) + below.sum(2))
        out = copy.copy(self)
        out._rooms = {}
        out.diagonal = self.diagonal - 2 * u
        out._parts = [_Part(packed, roots, -u if offset is None else offset - u)]
        return out

    def rows(self, start: int, stop: int) -> Tensor:  # (L, stop - start, stop) float64
        """Rows of the kernels up to the diagonal, which is zero here, as is what lies beyond it.

        They stay as they are until rows are asked for again: the memory they lie in is used anew.
        """
        out: Tensor | None = None
        begin, end = start * (start - 1) // 2, stop * (stop - 1) // 2
        below = np.arange(stop) < np.arange(start, stop)[:, None]  # in the order of storage
        for k, (packed, roots, offset) in enumerate(self._parts):
            strip = self._room(k, len(packed) * (stop - start) * stop)
            strip = strip.view(len(packed), stop - start, stop)
            for into, triangle in zip(strip.numpy(), packed, strict=True):
                into[below] = triangle[begin:end].numpy()
            strip *= roots[:, start:stop, None]
            strip *= roots[:, None, :stop]
            if offset is not None:
                strip += offset[:, start:stop, None]
                strip += offset[:, None, :stop]
            strip[:, :, start:].tril_(-1)
            out = strip if out is None else (out.add_ if self._adds else out.mul_)(strip)
        assert out is not None
        return out

    def _room(self, part: int, size: int) -> Tensor:
        if part not in self._rooms or len(self._rooms[part]) < size:
            self._rooms[part] = torch.empty(size, dtype=torch.float64)
        return self._rooms[part][:size]
