"""Packed symmetric matrices: a correlation triangle in fixed point, a diagonal in float32.

Exact kernels inside blocks of samples are the accurate estimator of this package, and they are
what fills its files, so they are stored small. A kernel is K = D C D with D the root of its
diagonal and |C| ≤ 1; the strict lower triangle of C is kept as int16 (blocks) or as a 24-bit
integer (buckets, whose roots are taken). Fixed point suits numbers bounded by one: near ±1, where
features with a large mean live, int16 is 16 times finer than float16 of the same size.

Rows come first in the packing, so the triangle of a smaller block is a prefix of a larger one's
and a short last block needs no format of its own.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

# torch can sum half-precision products in float32 and keep the sum so, from 2.8 on
_WIDE_PRODUCTS = tuple(int(v) for v in torch.__version__.split(".")[:2]) >= (2, 8)
_ONE16 = 2**15 - 1
_ONE24 = 2**23 - 1


@functools.lru_cache(maxsize=8)
def lower(size: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Rows and columns of a strict lower triangle, row by row."""
    rows, columns = torch.tril_indices(size, size, -1, device=device or "cpu")
    return rows, columns


@functools.lru_cache(maxsize=4)
def square_places(size: int, device: torch.device | None = None) -> Tensor:  # (n, n)
    """Where each entry of a symmetric matrix lies in its strict lower triangle; 0 on the diagonal.

    >>> square_places(3).tolist()
    [[0, 0, 1], [0, 0, 2], [1, 2, 0]]
    """
    out = torch.zeros(size, size, dtype=torch.long)
    rows, columns = lower(size)
    out[rows, columns] = out[columns, rows] = torch.arange(len(rows))
    return out.to(device or "cpu")


@functools.lru_cache(maxsize=4)
def others(size: int, device: torch.device | None = None) -> Tensor:  # (n · (n-1),)
    """`square_places` row by row, without the diagonal."""
    return square_places(size)[~torch.eye(size, dtype=torch.bool)].to(device or "cpu")


def picked(x: Tensor, which: Tensor) -> Tensor:  # (k, n), (t,) -> (k, t)
    """x[:, which], laid out in memory as the transpose: an index copies k neighbours at once.

    Several times faster than a gather row by row; what is combined with it should lie so as well.
    """
    return x.T.contiguous().index_select(0, which).T


def gram(x: Tensor) -> Tensor:  # (n, d) -> (n, n)
    """The kernel of the rows of x, in float32 whatever the dtype of x.

    On a GPU, half-precision rows are multiplied as they are: their products are exact in float32,
    in which they are summed. On a CPU a quarter of a large kernel is copied across its diagonal
    instead of computed.
    """
    if x.is_cuda and x.dtype in (torch.float16, torch.bfloat16) and _WIDE_PRODUCTS:
        return torch.mm(x, x.T, out_dtype=torch.float32)
    x = x.detach().float()
    n, d = x.shape
    if x.is_cuda or n < 32 or d < 2048:  # two products take longer to begin than they save
        return x @ x.T
    half, out = n // 2, x.new_empty(n, n)
    torch.mm(x, x[:half].T, out=out[:, :half])
    torch.mm(x[half:], x[half:].T, out=out[half:, half:])
    out[:half, half:] = out[half:, :half].T
    return out


def _correlations(kernel: Tensor) -> tuple[Tensor, Tensor]:  # (..., n, n) -> (..., t), (..., n)
    """The strict lower triangle of the correlation matrix in float64, and the diagonal."""
    diagonal = kernel.diagonal(dim1=-2, dim2=-1).double().clamp_min(0)
    # A row of zeros has no direction: its correlations are zero, and so are its kernel entries.
    inverse = torch.where(diagonal > 0, diagonal.rsqrt(), 0.0)
    square = (kernel.double() * inverse[..., None]).mul_(inverse[..., None, :])
    triangle = square.flatten(-2).index_select(-1, _flat_lower(kernel.shape[-1], kernel.device))
    return triangle.clamp_(-1, 1), diagonal.float()


@functools.lru_cache(maxsize=4)
def _flat_lower(size: int, device: torch.device) -> Tensor:
    rows, columns = lower(size, device)
    return rows * size + columns


def without_mean(kernel: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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
    triangle, diagonal = _correlations(kernel)
    packed = triangle.mul_(_ONE16).round_().short()
    missing = size * (size - 1) // 2 - packed.shape[-1]
    return F.pad(packed, (0, missing)), F.pad(diagonal, (0, size - diagonal.shape[-1]))


def unpack16(triangle: Tensor, diagonal: Tensor) -> Tensor:
    """The entries K_ij, i > j, of packed blocks (k, t), (k, n), in the diagonal's dtype."""
    entries, roots = triangle.to(diagonal.dtype).mul_(1 / _ONE16), diagonal.sqrt()
    # a gather of both roots, where they lie as `picked` lays them out or there are few blocks
    if entries.is_cuda or entries.stride(0) == 1 or len(entries) <= 32:
        rows, columns = lower(diagonal.shape[-1], entries.device)
        return entries.mul_(picked(roots, rows)).mul_(picked(roots, columns))
    for i in range(1, diagonal.shape[-1]):  # which would take longer
        row = entries[:, i * (i - 1) // 2 : i * (i + 1) // 2]
        row.mul_(roots[:, i : i + 1]).mul_(roots[:, :i])
    return entries


def squares(triangles: Tensor, diagonal: Tensor) -> Tensor:
    """Full symmetric matrices (k, n, n) from lower triangles (k, t) and diagonals (k, n)."""
    size = diagonal.shape[-1]
    rows, columns = lower(size, triangles.device)
    out = torch.diag_embed(diagonal.to(triangles.dtype))
    out[..., rows, columns] = out[..., columns, rows] = triangles
    return out


def pack24(kernel: Tensor) -> tuple[Tensor, Tensor]:
    """Kernels (..., n, n) as three little-endian bytes an entry (..., t, 3) and diagonals."""
    triangle, diagonal = _correlations(kernel)
    fixed = triangle.mul_(_ONE24).round_().int()
    return torch.stack([fixed, fixed >> 8, fixed >> 16], -1).to(torch.uint8), diagonal


def unpack24(triangle: Tensor, diagonal: Tensor) -> Tensor:
    """The kernel (n, n) in float64 that `pack24` stored."""
    low, middle, high = triangle.int().unbind(-1)
    fixed = (low << 8 | middle << 16 | high << 24) >> 8  # the topmost bit is the sign
    rows, columns = lower(len(diagonal))
    scale = diagonal.double().sqrt()
    return squares(fixed.double() / _ONE24 * scale[rows] * scale[columns], diagonal)
