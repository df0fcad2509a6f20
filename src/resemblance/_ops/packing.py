"""Packed storage of symmetric matrices: the correlations in fixed point, the diagonal in float32.

Exact kernels inside blocks of samples are this package's accurate estimator and take most of the
space in its files, so they are stored compactly. A kernel is K = D C D, where D is the square root
of its diagonal and |C| ≤ 1. The strict lower triangle of C is stored as int16 (blocks) or as a
24-bit integer (buckets, whose square roots are taken). Fixed point suits numbers bounded by one:
near ±1, where features with a large mean lie, int16 is 16 times finer than float16 of equal size.

The triangle is packed row by row, so that of a smaller block is a prefix of a larger one's, and a
short last block needs no format of its own.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

_ONE16 = 2**15 - 1
_ONE24 = 2**23 - 1


@functools.lru_cache(maxsize=8)
def lower_triangle(size: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Rows and columns of a strict lower triangle, row by row."""
    rows, columns = torch.tril_indices(size, size, -1, device=device or "cpu")
    return rows, columns


@functools.lru_cache(maxsize=4)
def triangle_positions(size: int, device: torch.device | None = None) -> Tensor:  # (n, n)
    """Where each entry of a symmetric matrix lies in its strict lower triangle; 0 on the diagonal.

    >>> triangle_positions(3).tolist()
    [[0, 0, 1], [0, 0, 2], [1, 2, 0]]
    """
    out = torch.zeros(size, size, dtype=torch.long)
    rows, columns = lower_triangle(size)
    out[rows, columns] = out[columns, rows] = torch.arange(len(rows))
    return out.to(device or "cpu")


@functools.lru_cache(maxsize=4)
def off_diagonal_positions(size: int, device: torch.device | None = None) -> Tensor:  # (n · (n-1),)
    """`triangle_positions` row by row, without the diagonal."""
    return triangle_positions(size)[~torch.eye(size, dtype=torch.bool)].to(device or "cpu")


def select_columns(x: Tensor, which: Tensor) -> Tensor:  # (k, n), (t,) -> (k, t)
    """x[:, which], laid out in memory as the transpose: an index copies k neighbours at once.

    Several times faster than a gather row by row; what is combined with it should lie so as well.
    """
    return x.T.contiguous().index_select(0, which).T


def _correlation_triangle(
    kernel: Tensor,
) -> tuple[Tensor, Tensor]:  # (..., n, n) -> (..., t), (..., n)
    """The strict lower triangle of the correlation matrix in float64, and the diagonal."""
    diagonal = kernel.diagonal(dim1=-2, dim2=-1).double().clamp_min(0)
    # A row of zeros has no direction: its correlations are zero, and so are its kernel entries.
    inverse = torch.where(diagonal > 0, diagonal.rsqrt(), 0.0)
    square = (kernel.double() * inverse[..., None]).mul_(inverse[..., None, :])
    triangle = square.flatten(-2).index_select(
        -1, _flat_lower_triangle(kernel.shape[-1], kernel.device)
    )
    return triangle.clamp_(-1, 1), diagonal.float()


@functools.lru_cache(maxsize=4)
def _flat_lower_triangle(size: int, device: torch.device) -> Tensor:
    rows, columns = lower_triangle(size, device)
    return rows * size + columns


def subtract_block_mean(kernel: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Kernels (k, n, n) of vectors with their block's mean m taken off, where it is most of them.

    Returns L with K_ij = L_ij + u_i + u_j, then u = f·m − ½‖m‖² (k, n), zero where m carries no
    more than half of the trace, and that share of it (k,). `counts` (k,) are the rows in use; the
    others are zero. Packed, L keeps the differences of samples that a large mean would leave no
    bits for, and it is a kernel still. What float32 products have lost does not come back.
    """
    wide, n = kernel.double(), counts.double()[:, None]
    rows = wide.sum(-1) / n
    mean = rows.sum(-1, keepdim=True) / n  # ‖m‖²
    trace = wide.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True) / n
    share = torch.where(trace > 0, mean / trace, 0.0)
    used = torch.arange(kernel.shape[-1], device=kernel.device) < n
    offset = (rows - mean / 2) * (used & (share > 0.5) & (n > 1))
    if not offset.is_cuda and not offset.any():  # which a GPU would have to be waited for to say
        return wide, offset, share[:, 0]
    taken = (offset[:, :, None] + offset[:, None, :]) * (used[:, :, None] & used[:, None, :])
    return wide - taken, offset, share[:, 0]


def pack16(kernel: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Blocks (..., n, n), n ≤ size, as int16 triangles (..., size·(size-1)/2) and diagonals."""
    triangle, diagonal = _correlation_triangle(kernel)
    packed = triangle.mul_(_ONE16).round_().short()
    missing = size * (size - 1) // 2 - packed.shape[-1]
    return F.pad(packed, (0, missing)), F.pad(diagonal, (0, size - diagonal.shape[-1]))


def unpack16(triangle: Tensor, diagonal: Tensor) -> Tensor:
    """The entries K_ij, i > j, of packed blocks (k, t), (k, n), in the diagonal's dtype."""
    entries, roots = triangle.to(diagonal.dtype).mul_(1 / _ONE16), diagonal.sqrt()
    # a gather of both roots, if they lie as `select_columns` lays them out or blocks are few
    if entries.is_cuda or entries.stride(0) == 1 or len(entries) <= 32:
        rows, columns = lower_triangle(diagonal.shape[-1], entries.device)
        return entries.mul_(select_columns(roots, rows)).mul_(select_columns(roots, columns))
    for i in range(1, diagonal.shape[-1]):  # which would take longer
        row = entries[:, i * (i - 1) // 2 : i * (i + 1) // 2]
        row.mul_(roots[:, i : i + 1]).mul_(roots[:, :i])
    return entries


def symmetric_matrices(triangles: Tensor, diagonal: Tensor) -> Tensor:
    """Full symmetric matrices (k, n, n) from lower triangles (k, t) and diagonals (k, n)."""
    size = diagonal.shape[-1]
    rows, columns = lower_triangle(size, triangles.device)
    out = torch.diag_embed(diagonal.to(triangles.dtype))
    out[..., rows, columns] = out[..., columns, rows] = triangles
    return out


def pack24(kernel: Tensor) -> tuple[Tensor, Tensor]:
    """Kernels (..., n, n) as three little-endian bytes an entry (..., t, 3) and diagonals."""
    triangle, diagonal = _correlation_triangle(kernel)
    fixed = triangle.mul_(_ONE24).round_().int()
    return torch.stack([fixed, fixed >> 8, fixed >> 16], -1).to(torch.uint8), diagonal


def unpack24(triangle: Tensor, diagonal: Tensor) -> Tensor:
    """The kernel (n, n) in float64 that `pack24` stored."""
    low, middle, high = triangle.int().unbind(-1)
    fixed = (low << 8 | middle << 16 | high << 24) >> 8  # the topmost bit is the sign
    rows, columns = lower_triangle(len(diagonal))
    scale = diagonal.double().sqrt()
    return symmetric_matrices(fixed.double() / _ONE24 * scale[rows] * scale[columns], diagonal)
