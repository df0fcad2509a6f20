"""Kernels as numbers, read from stored 16-bit Gram matrices; centring and factors of square ones.

There are two readers. `read_blocks` unpacks whole blocks of some layers; `round_off_level` is the
value below which their norms are only rounding. `KernelStrips` unpacks a few rows at a time of the
kernels of very many layers, which do not fit in memory in float64. A *strip* is some rows of the
strict lower triangles of all kernels.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._ops import packing
from ..errors import DataError
from ..representation.layer import Blocks, Kind, Layer
from .kernels import KERNEL_TABLE, TRANSPORT_FLOOR, Kernel, required_kinds
from .pair_statistics import FLOAT32_ROUND_OFF, INT16_ROUND_OFF, row_effects


def has_full_gram(layer: Layer, kernel: Kernel) -> bool:
    """Whether a layer holds the kernel of all samples."""
    return all(layer.recorded(kind).whole is not None for kind in required_kinds(kernel))


def kernel_traces(layers: Iterable[Layer], kind: Kind) -> Tensor:  # (L,)
    """Tr K_f or Tr K_g of each layer over all samples, to the precision of float32, never zero."""
    traces = [x.recorded(kind).trace for x in layers]
    return torch.tensor(traces, dtype=torch.float32).double().clamp_min(1e-300)


def combine_entries(kernel: Kernel, parts: Mapping[Kind, Tensor]) -> Tensor:
    """Entries of an entrywise kernel from those of K_f and K_g, over their traces if need be."""
    spec = KERNEL_TABLE[kernel]
    return spec.of_matrices(*(parts[kind] for kind in spec.kinds))


def transport_kernel(kf: Tensor, kg: Tensor) -> Tensor:  # (..., n, n)
    """(½I + ½T) K_f (½I + ½T) with T = K_f^-½ (K_f^½ K_g K_f^½)^½ K_f^-½.

    K_f is inverted on its range alone: eigenvalues below `TRANSPORT_FLOOR` times their mean count
    as zero, so on a rank-deficient K_f the part of K_g outside that range does not enter.

    >>> k = torch.diag(torch.tensor([4.0, 1.0])).double()
    >>> torch.allclose(transport_kernel(k, k), k)
    True
    """
    values, vectors = torch.linalg.eigh(kf)
    floor = TRANSPORT_FLOOR * kf.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
    on_range = values > floor
    root = torch.where(on_range, values, 0.0).sqrt()
    inverse = torch.where(on_range, root.clamp_min(1e-300).reciprocal(), 0.0)
    half = vectors * root[..., None, :] @ vectors.mT
    back = vectors * inverse[..., None, :] @ vectors.mT
    t = back @ psd_sqrt(half @ kg @ half) @ back
    middle = (torch.eye(kf.shape[-1], dtype=kf.dtype, device=kf.device) + t) / 2
    out = middle @ kf @ middle
    return (out + out.mT) / 2


_KERNELS_AT_ONCE = {
    "cpu": 64,
    "cuda": 2048,
}  # kernels of blocks at a time: what a cache holds, or fills a GPU


def equal_size_runs(sizes: Sequence[int], at_once: int) -> list[tuple[int, int]]:
    """Successive blocks [start, stop) of one size, at most `at_once` of them.

    >>> equal_size_runs([8, 8, 8, 8, 8, 5], at_once=3)
    [(0, 3), (3, 5), (5, 6)]
    """
    out: list[tuple[int, int]] = []
    for b, n in enumerate(sizes):
        if out and n == sizes[b - 1] and b - out[-1][0] < at_once:
            out[-1] = (out[-1][0], b + 1)
        else:
            out.append((b, b + 1))
    return out


def blocks_at_once(layers: int, device: str | torch.device) -> int:
    """How many blocks of so many layers to work on at a time."""
    return max(
        1, _KERNELS_AT_ONCE.get(torch.device(device).type, _KERNELS_AT_ONCE["cpu"]) // layers
    )


class _StoredPart(NamedTuple):
    """One factor or term of a kernel in blocks of n samples, of each layer, as it is stored."""

    blocks: list[Blocks]
    diagonal: Tensor  # (g, L, n) that the entries were packed with
    offset: Tensor | None  # (g, L, n): u, with which entries are the packed ones + u_i + u_j


def _stored_parts(
    layers: Sequence[Layer],
    kernel: Kernel,
    which: slice,
    n: int,
    unit: float | None = None,
    *,
    whole: bool = False,
) -> dict[Kind, _StoredPart]:
    """What a kernel is made of, over its traces (and times `unit`) where the kernel asks for it."""
    out = {}
    for kind in required_kinds(kernel):
        blocks = [layer.packed_blocks(kind, whole=whole) for layer in layers]
        diagonal = torch.stack([x.diagonal[which, :n] for x in blocks], 1).double()
        offset = None
        if any(x.offset is not None for x in blocks):
            none = torch.zeros_like(blocks[0].diagonal)
            every = [none if x.offset is None else x.offset for x in blocks]
            offset = torch.stack([x[which, :n] for x in every], 1).double()
        if unit is not None or KERNEL_TABLE[kernel].over_traces:
            over = (unit or 1.0) / kernel_traces(layers, kind)[:, None]
            diagonal, offset = diagonal * over, None if offset is None else offset * over
        out[kind] = _StoredPart(blocks, diagonal, offset)
    return out


def read_blocks(
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
    keep_loose = loose and KERNEL_TABLE[kernel].linear
    for kind, part in _stored_parts(layers, kernel, which, n, unit, whole=whole).items():
        packed = torch.stack([x.triangle[which, : n * (n - 1) // 2] for x in part.blocks], 1)
        packed = packed.flatten(0, 1).to(device)
        if unit is None:  # laid out as `packing.select_columns` does what it is combined with
            packed = packed.T.contiguous().T
        dtype = torch.float64 if unit is None or packed.is_cuda else torch.float32
        diagonals[kind] = part.diagonal.flatten(0, 1).to(packed.device, dtype)
        entries[kind] = packing.unpack16(packed, diagonals[kind])
        if part.offset is not None and not keep_loose:
            offset = part.offset.flatten(0, 1).to(packed.device)
            i, j = packing.lower_triangle(n, packed.device)
            entries[kind] += (
                packing.select_columns(offset, i) + packing.select_columns(offset, j)
            ).to(dtype)
            diagonals[kind] = (diagonals[kind] + 2 * offset).to(dtype)
    if not KERNEL_TABLE[kernel].entrywise:
        square = KERNEL_TABLE[kernel].of_matrices(
            *(packing.symmetric_matrices(entries[k], diagonals[k]) for k in entries)
        )
        i, j = packing.lower_triangle(n, square.device)
        return square[:, i, j], square.diagonal(dim1=-2, dim2=-1).clone()
    return combine_entries(kernel, entries), combine_entries(kernel, diagonals)


def iter_blocks(
    layers: Iterable[Layer],
    kernel: Kernel,
    sizes: Sequence[int],
    device: str | torch.device = "cpu",
    *,
    at_once: int = 1,
    loose: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """All blocks of a named kernel, as `read_blocks` has them, in `equal_size_runs`."""
    layers = list(layers)
    for start, stop in equal_size_runs(sizes, at_once):
        which = slice(start, stop)
        yield read_blocks(layers, kernel, which, sizes[start], device, loose=loose)


def round_off_level(
    layers: Iterable[Layer],
    kernel: Kernel,
    which: slice,
    n: int,
    unit: float | None = None,
    *,
    whole: bool = False,
) -> Tensor:  # (g·L,)
    """What ⟨K, K⟩ / n² of each block of `read_blocks` must exceed to be more than round-off.

    Of features and gradients that is the rounding of 16-bit correlations, relative to the diagonal
    they were packed with; where a mean was taken off first, also that of float32 vectors. In a
    product, the error of either factor is multiplied by the other's entries, which in wide layers
    lie far below its diagonal.
    """
    layers, spec = list(layers), KERNEL_TABLE[kernel]
    errors, squares, diagonals = [], [], {}
    factors = len(spec.kinds) == 2 and not spec.over_traces
    for kind, part in _stored_parts(layers, kernel, which, n, unit, whole=whole).items():
        full = part.diagonal if part.offset is None else part.diagonal + 2 * part.offset
        packed, every = (_mean_pair_product(x) for x in (part.diagonal, full))
        least = INT16_ROUND_OFF * packed + FLOAT32_ROUND_OFF * every
        errors.append(least / every.clamp_min(1e-300))
        diagonals[kind] = full
        if factors:
            correlations = [_mean_squared_correlation(x, which, n) for x in part.blocks]
            squares.append(torch.stack(correlations, 1))
    if spec.over_traces:
        of_kinds = zip(errors, diagonals.values(), strict=True)
        return torch.stack([e * _mean_pair_product(d) for e, d in of_kinds]).sum(0).flatten()
    relative = errors[0]
    if factors:  # the error of each factor, times the other
        relative = errors[0] * squares[1] + errors[1] * squares[0]
    return (relative * _mean_pair_product(combine_entries(kernel, diagonals))).flatten()


def _mean_squared_correlation(packed: Blocks, which: slice, n: int) -> Tensor:  # (g,)
    """The mean square of correlations; where a mean was taken off them, all that it may be."""
    found = packed.triangle[which, : n * (n - 1) // 2].float().square().mean(-1) / 2**30
    return (found if packed.offset is None else torch.ones_like(found)).double()


def mean_diagonal(diagonal: Tensor) -> Tensor:  # (L, n) -> (L, 1)
    mean = diagonal.mean(1, keepdim=True)
    return torch.where(mean > 0, mean, 1.0)


def _mean_pair_product(diagonal: Tensor) -> Tensor:  # (..., n) -> (...)
    """The mean of d_i d_j over pairs i ≠ j."""
    n = diagonal.shape[-1]
    return (diagonal.sum(-1) ** 2 - diagonal.square().sum(-1)) / max(1, n * (n - 1))


STRIP_KERNELS: tuple[Kernel, ...] = tuple(x for x, spec in KERNEL_TABLE.items() if spec.strips)
_INT16_SCALE = 2**15 - 1


class _StripFactor(NamedTuple):
    """One factor of a kernel: entries are packed_ij · roots_i · roots_j + offset_i + offset_j."""

    packed: list[Tensor]  # of each layer, the triangle (t,) int16
    roots: Tensor  # (L, n)
    offset: Tensor | None  # (L, n)


class KernelStrips:
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
        self._parts: list[_StripFactor] = []
        self._rooms: dict[int, Tensor] = {}
        diagonals: dict[Kind, Tensor] = {}
        which = slice(block, block + 1)
        for kind, part in _stored_parts(layers, kernel, which, n, whole=whole).items():
            diagonal, offset = part.diagonal[0], None
            if part.offset is not None and not (loose and KERNEL_TABLE[kernel].linear):
                offset = part.offset[0]
            packed = [x.triangle[block] for x in part.blocks]
            self._parts.append(_StripFactor(packed, (diagonal / _INT16_SCALE).sqrt(), offset))
            diagonals[kind] = diagonal if offset is None else diagonal + 2 * offset
        raw = combine_entries(kernel, diagonals)
        self.unit = mean_diagonal(raw) if unit is None else unit
        self.diagonal = raw / self.unit
        self._adds = KERNEL_TABLE[kernel].over_traces
        for i in range(len(self._parts) if self._adds else 1):  # of a product, one factor
            packed, roots, offset = self._parts[i]
            offset = None if offset is None else offset / self.unit
            self._parts[i] = _StripFactor(packed, roots / self.unit.sqrt(), offset)

    def levelled(self) -> KernelStrips:
        """The same of K_ij − u_i − u_j, whose rows sum to zero off the diagonal.

        Centring cannot tell them apart; see `u_centred_block`. Of kernels of one factor.
        """
        [(packed, roots, offset)] = self._parts
        below = self.rows(0, self.n)
        u = row_effects(below.sum(1) + below.sum(2))
        out = copy.copy(self)
        out._rooms = {}
        out.diagonal = self.diagonal - 2 * u
        out._parts = [_StripFactor(packed, roots, -u if offset is None else offset - u)]
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


# -- kernels as square matrices --

# A kernel computed in float32 may have eigenvalues this far below zero, relative to the largest;
# anything lower is not a kernel.
_NEGATIVE_TOLERANCE = 1e-5


def centre_kernel(k: Tensor) -> Tensor:
    """HKH: the kernel of features with their mean over these items taken off."""
    return k - k.mean(-1, keepdim=True) - k.mean(-2, keepdim=True) + k.mean((-1, -2), keepdim=True)


def centred_or_zero(k: Tensor) -> Tensor:
    """HKH, and exactly zero where only round-off is left: a constant layer has no direction."""
    out = centre_kernel(k)
    return out if out.norm() > 1e-14 * len(k) * k.norm() else torch.zeros_like(k)


def visible_spectrum(k: Tensor, floor: float) -> tuple[Tensor, Tensor]:  # (n, n) -> (r,), (n, r)
    """Eigenvalues in ascending order, and eigenvectors, of those above a level of round-off."""
    values, vectors = torch.linalg.eigh(k)
    seen = values > max(floor, 1e-12 * float(values[-1]))
    return values[seen], vectors[:, seen]


def psd_factor(k: Tensor) -> Tensor:  # (..., n, n) -> (..., n, n) with k = factor factorᵀ
    """A factor of a positive semi-definite matrix: eigenvectors times roots of eigenvalues.

    Negative eigenvalues are round-off, of the kernel or of its storage, and count as zero.
    """
    values, vectors = torch.linalg.eigh(k)
    return vectors * values.clamp_min(0).sqrt()[..., None, :]


def psd_sqrt(k: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh((k + k.mT) / 2)
    return vectors * values.clamp_min(0).sqrt()[..., None, :] @ vectors.mT


def nuclear_norm(a: Tensor, b: Tensor) -> Tensor:  # (..., n, r), (..., n, s) -> (...)
    """The nuclear norm of aᵀb: Tr(K1^½ K2 K1^½)^½ for K1 = aaᵀ, K2 = bbᵀ."""
    return torch.linalg.svdvals(a.mT @ b).sum(-1)


def checked_kernels(k1: Any, k2: Any) -> tuple[Tensor, Tensor]:
    a, b = _as_matrix(k1), _as_matrix(k2)
    for k in (a, b):
        if k.ndim != 2 or k.shape[0] != k.shape[1] or not len(k):
            raise DataError(f"expected a square kernel matrix, found shape {tuple(k.shape)}")
        if not torch.isfinite(k).all():
            raise DataError("expected finite kernels, found NaN or Inf; fix the features")
    if a.shape != b.shape:
        raise DataError(
            f"expected kernels of the same samples, found {len(a)} and {len(b)} samples; compare "
            "recordings of different data by their buckets"
        )
    return a, b


def _as_matrix(given: Any) -> Tensor:
    if isinstance(given, np.ndarray):
        given = given.astype(given.dtype.newbyteorder("="), copy=False)
    try:
        found = torch.as_tensor(given).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"expected a kernel matrix of numbers, found {type(given).__name__}; for recordings "
            "use compare"
        ) from error
    if found.is_complex():
        raise DataError(f"expected a kernel matrix of real numbers, found {found.dtype}")
    return found.double()


def check_semi_definite(k: Tensor) -> Tensor:
    values = torch.linalg.eigvalsh(k)
    lowest, highest = float(values[0]), float(values[-1])
    if lowest < -_NEGATIVE_TOLERANCE * max(highest, 0.0):
        raise DataError(
            f"expected a positive semi-definite kernel, found eigenvalues from {lowest:.3g} to "
            f"{highest:.3g}; pass a kernel, such as features @ features.T"
        )
    return k


def clamped_ratio(numerator: Tensor, denominator: Tensor) -> float:
    """A similarity, with round-off beyond ±1 taken off; undefined for a kernel of zeros."""
    if not denominator > 0:
        raise DataError("a kernel is zero (a constant or dead layer): its similarity is undefined")
    return float((numerator / denominator).clamp(-1, 1))
