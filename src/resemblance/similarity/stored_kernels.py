"""Kernels of blocks as numbers: read from what Representations store, and how fine that is.

Storage has 16-bit correlations; `read` makes entries of a named kernel of them, for all layers of
some blocks at once, and `round_off` says below what nothing can be told from rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from .._ops import packed_kernels as packing
from ..representation.layer import Blocks, Kind, Layer
from . import kernels
from .combinations import Kernel
from .pair_sums import FINEST_FLOAT, FINEST_SQUARE

_ROWS = {"cpu": 64, "cuda": 2048}  # kernels of blocks at a time: what a cache holds, or fills a GPU


def runs(sizes: Sequence[int], at_once: int) -> list[tuple[int, int]]:
    """Successive blocks [start, stop) of one size, at most `at_once` of them.

    >>> runs([8, 8, 8, 8, 8, 5], at_once=3)
    [(0, 3), (3, 5), (5, 6)]
    """
    out: list[tuple[int, int]] = []
    for b, n in enumerate(sizes):
        if out and n == sizes[b - 1] and b - out[-1][0] < at_once:
            out[-1] = (out[-1][0], b + 1)
        else:
            out.append((b, b + 1))
    return out


def at_once(layers: int, device: str | torch.device) -> int:
    """How many blocks of so many layers to work on at a time."""
    return max(1, _ROWS.get(torch.device(device).type, _ROWS["cpu"]) // layers)


def read(
    layers: Sequence[Layer],
    kernel: Kernel,
    which: slice,  # blocks of one size
    n: int,  # their samples
    device: str | torch.device,
    unit: float | None = None,
    *,
    loose: bool = False,
    whole: bool = False,
) -> tuple[Tensor, Tensor]:
    """Blocks of a named kernel: strict lower triangles (g·L, n(n-1)/2), diagonals (g·L, n).

    Rows come block by block, all layers of each, in float64. With `unit`, what the kernel is made
    of is divided by its trace over that: at entries of about one float32 will do, on a CPU. With
    `loose`, K_ij may come as K_ij − u_i − u_j, which centring cannot tell apart, and which keeps
    the differences that a large mean would drown; with `whole`, `which` is the one block of all.
    """
    entries, diagonals = {}, {}
    keep_loose = loose and kernel not in ("product", "transport")  # those are no sums of kernels
    for kind in kernels.needs(kernel):
        stored = [layer.packed_blocks(kind, whole=whole) for layer in layers]
        packed = torch.stack([x.triangle[which, : n * (n - 1) // 2] for x in stored], 1)
        diagonal = torch.stack([x.diagonal[which, :n] for x in stored], 1).double()
        over = diagonal.new_ones(1, 1)
        if unit is not None or kernel in kernels.OF_TRACES:
            over = ((unit or 1.0) / kernels.traces(layers, kind))[:, None]
        packed = packed.flatten(0, 1).to(device)
        if unit is None:  # laid out as `packing.picked` does what it is combined with
            packed = packed.T.contiguous().T
        dtype = torch.float64 if unit is None or packed.is_cuda else torch.float32
        diagonals[kind] = (diagonal * over).flatten(0, 1).to(packed.device, dtype)
        entries[kind] = packing.unpack16(packed, diagonals[kind])
        if not keep_loose and any(x.offset is not None for x in stored):
            none = diagonal.new_zeros(len(stored[0].diagonal), n)
            u = [none if x.offset is None else x.offset[:, :n].double() for x in stored]
            offset = (torch.stack([x[which] for x in u], 1) * over).flatten(0, 1).to(packed.device)
            i, j = packing.lower(n, packed.device)
            entries[kind] += (packing.picked(offset, i) + packing.picked(offset, j)).to(dtype)
            diagonals[kind] = (diagonals[kind] + 2 * offset).to(dtype)
    if kernel == "transport":
        square = kernels.transport(*(packing.squares(entries[k], diagonals[k]) for k in entries))
        i, j = packing.lower(n, square.device)
        return square[:, i, j], square.diagonal(dim1=-2, dim2=-1).clone()
    return kernels.entries(kernel, entries), kernels.entries(kernel, diagonals)


def stacked(
    layers: Iterable[Layer],
    kernel: Kernel,
    sizes: Sequence[int],
    device: str | torch.device = "cpu",
    *,
    at_once: int = 1,
    loose: bool = False,
    whole: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """All blocks of a named kernel, as `read` has them, in `runs`."""
    layers = list(layers)
    for start, stop in runs(sizes, at_once):
        which = slice(start, stop)
        yield read(layers, kernel, which, sizes[start], device, loose=loose, whole=whole)


def kernel_blocks(
    layer: Layer, kernel: Kernel, sizes: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Each block of one layer: strict lower triangle (n(n-1)/2,) and diagonal (n,), float64."""
    for triangles, diagonals in stacked([layer], kernel, sizes):
        yield triangles[0], diagonals[0]


def round_off(
    layers: Iterable[Layer],
    kernel: Kernel,
    which: slice,
    n: int,
    unit: float | None = None,
    *,
    whole: bool = False,
) -> Tensor:  # (g·L,)
    """What ⟨K, K⟩ / n² of each block, as `read` has it, must exceed to be more than round-off.

    Of features and gradients that is the rounding of 16-bit correlations, relative to the diagonal
    they were packed with; where a mean was taken off first, also that of float32 vectors. In a
    product, the error of either factor is multiplied by the other's entries, which in wide layers
    lie far below its diagonal.
    """
    layers = list(layers)
    errors, squares = [], []
    diagonals: dict[Kind, Tensor] = {}
    for kind in kernels.needs(kernel):
        stored = [layer.packed_blocks(kind, whole=whole) for layer in layers]
        over = torch.ones(1, 1).double()
        if unit is not None or kernel in kernels.OF_TRACES:
            over = ((unit or 1.0) / kernels.traces(layers, kind))[:, None]
        packed = torch.stack([x.diagonal[which, :n] for x in stored], 1).double() * over
        none = torch.zeros_like(stored[0].diagonal)
        u = [none if x.offset is None else x.offset for x in stored]
        full = packed + 2 * over * torch.stack([x[which, :n] for x in u], 1).double()
        least = FINEST_SQUARE * _of_pairs(packed) + FINEST_FLOAT * _of_pairs(full)
        errors.append(least / _of_pairs(full).clamp_min(1e-300))
        diagonals[kind] = full
        if kernel == "product":
            squares.append(torch.stack([_correlated(x, which, n) for x in stored], 1))
    if kernel in kernels.OF_TRACES:
        of_kinds = zip(errors, diagonals.values(), strict=True)
        return torch.stack([e * _of_pairs(d) for e, d in of_kinds]).sum(0).flatten()
    relative = errors[0]
    if kernel == "product":  # the error of each factor, times the other
        relative = errors[0] * squares[1] + errors[1] * squares[0]
    return (relative * _of_pairs(kernels.entries(kernel, diagonals))).flatten()


def _correlated(packed: Blocks, which: slice, n: int) -> Tensor:  # (g,)
    """The mean square of correlations; where a mean was taken off them, all that it may be."""
    found = packed.triangle[which, : n * (n - 1) // 2].float().square().mean(-1) / 2**30
    return (found if packed.offset is None else torch.ones_like(found)).double()


def _of_pairs(diagonal: Tensor) -> Tensor:  # (..., n) -> (...)
    """The mean of d_i d_j over pairs i ≠ j."""
    n = diagonal.shape[-1]
    return (diagonal.sum(-1) ** 2 - diagonal.square().sum(-1)) / max(1, n * (n - 1))
