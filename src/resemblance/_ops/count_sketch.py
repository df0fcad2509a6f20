"""CountSketch: many samples, or features, added with random signs into few buckets.

A sketch S has one ±1 in the column of each sample, so streaming `table[h(n)] += s(n) · f_n` gives
`S F` with `E[SᵀS] = I`. The bucket h and the sign s are a pure function of the seed and the
sample's index: the same on every device, in every batch size, order and shard. Two networks can be
compared through their buckets only because of that.

The two-sided sketch Y = S X P has few rows of samples and few columns of features. S and P depend
only on the seed, the sample's index and the feature's logical index, which for images is (channel,
row, column). So Y_a − Y_b is the sketch of X_a − X_b for two networks of one shape that were
recorded separately: unlike a kernel, it keeps the coordinates of a layer. S has 128 buckets. P
folds wide vectors to 8,192 slots, as is done for buckets, and adds the slots into 256 columns.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from .._utils.hashing import BUCKET, COLUMN, SIGN, random_bits, scale_below
from .._utils.validation import check_integer, check_seed
from ..errors import DataError
from .devices import copy_to_device_async
from .fold import Fold, fold_signs
from .gram import gram
from .packing import pack24

ROWS, COLUMNS = 128, 256  # of the two-sided sketch
WIDTH = 8192  # slots that it folds wider vectors to
_CPU_ROWS = 8  # rows that a CPU folds together, in its cache


@dataclass(frozen=True)
class CountSketch:
    """The map from sample indices to (bucket, sign) pairs.

    Reference: Clarkson and Woodruff 2013; Kane and Nelson 2014 for t > 1.

    Args:
        buckets: number of buckets M, a multiple of `per_sample`.
        seed: seed of the map, which depends on it and on sample indices alone.
        per_sample: number of buckets t of each sample. t > 1 is the sparse Johnson-Lindenstrauss
            transform, which lowers the variance of collisions: t stacked sketches of M / t buckets,
            each scaled by 1/√t.

    Example:
        >>> h, s = CountSketch(buckets=8, seed=1).assign([0, 1, 2])
        >>> h.shape, sorted(set(s.abs().flatten().tolist()))
        (torch.Size([3, 1]), [1.0])
    """

    buckets: int = 512
    seed: int = 0
    per_sample: int = 1

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for name in ("buckets", "per_sample"):
            check_integer(name, getattr(self, name), 1)
        if self.buckets % self.per_sample:
            raise DataError(
                "`buckets` must be a positive multiple of `per_sample`; "
                f"found {self.buckets} and {self.per_sample}"
            )

    def assign(self, indices: ArrayLike) -> tuple[Tensor, Tensor]:
        """Buckets and signs of some samples.

        Args:
            indices: indices of n samples.

        Returns:
            Buckets (int64) and signs (float32, scaled by 1/√t), each (n, per_sample).
        """
        index = np.atleast_1d(np.asarray(indices))
        if index.ndim > 1:
            raise DataError(f"sample indices must be a list of them; found shape {index.shape}")
        if index.size and index.dtype.kind not in "iu":
            raise DataError(f"sample indices must be whole numbers; found {index.dtype}")
        if index.size and index.min() < 0:
            raise DataError(f"sample indices must not be negative; found {index.min()}")
        rows = self.buckets // self.per_sample
        h = np.empty((len(index), self.per_sample), np.int64)
        s = np.empty(h.shape, np.float32)
        for t in range(self.per_sample):
            h[:, t] = t * rows + scale_below(random_bits(self.seed, BUCKET + 16 * t, index), rows)
            s[:, t] = 1.0 - 2.0 * (random_bits(self.seed, SIGN + 16 * t, index) >> np.uint64(63))
        return torch.from_numpy(h), torch.from_numpy(s / np.float32(self.per_sample**0.5))

    def matrix(self, indices: ArrayLike) -> Tensor:
        """The sketch as a dense matrix, for tests and small problems.

        Args:
            indices: indices of n samples.

        Returns:
            The matrix S (buckets, n).
        """
        h, s = self.assign(indices)
        return torch.zeros(self.buckets, len(h), dtype=s.dtype).scatter_(0, h.T, s.T)


def add_to_buckets(
    table: Tensor, rows: Tensor, buckets: Tensor, signs: Tensor, *, deterministic: bool = False
) -> None:
    """table (M, d) += S · rows (n, d), in place; buckets and signs are (n, t).

    A GPU adds rows of one bucket in any order; with `deterministic`, S is a dense matrix instead.
    """
    if deterministic and rows.is_cuda:
        dense = rows.new_zeros(len(table), len(rows)).scatter_(0, buckets.T, signs.T)
        table += dense @ rows
        return
    for t in range(buckets.shape[1]):
        table.index_add_(0, buckets[:, t], rows * signs[:, t : t + 1])


def bucket_kernel(
    table: Tensor,  # (..., M, D): F̃
    total: Tensor,  # (..., D): the sum of all samples
    count: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """F̃F̃ᵀ as packed triangle and diagonal, F̃ f̄ and ‖f̄‖² with f̄ the mean, where they lie."""
    mean = total.double() / count
    if table.is_cuda:  # which may round float32 products
        wide = table.double()
        kernel = wide @ wide.mT
    else:
        tables = table.view(-1, *table.shape[-2:])
        kernel = torch.stack([gram(each) for each in tables]).view(*table.shape[:-1], -1)
    along = (table @ mean.float()[..., None])[..., 0]
    return *pack24(kernel), along, mean.square().sum(-1)


# -- the two-sided sketch -----------------------------------------------------------------------


def row_sketch(seed: int) -> CountSketch:
    """S: which row a sample is added to, and with which sign.

    Of M buckets, a multiple of 128, each lies in one row: bucket h belongs to row h // (M / 128).
    """
    return CountSketch(ROWS, seed)


def rows_from_buckets(table: Tensor) -> Tensor:  # (M, w) -> (128, w)
    """What the rows hold, from buckets that nest in them."""
    return table.unflatten(0, (ROWS, -1)).sum(1)


def project_columns(
    table: Tensor,  # (m, w) with w = min(dim, WIDTH) slots
    dim: int,
    seed: int,
) -> Tensor:  # (m, COLUMNS) float64
    """X P from vectors that are folded already, if they are wider than that."""
    width = table.shape[1]
    signed = COLUMNS < dim <= WIDTH  # a fold has given wider vectors their signs
    if table.is_cuda:  # which would add in any order
        return table.double() @ _dense_projection(width, dim > COLUMNS, signed, seed, table.device)
    at, signs = _slot_assignment(width, dim > COLUMNS, signed, seed)
    out = torch.zeros(len(table), COLUMNS, dtype=torch.float64)
    for some, to in zip(table.split(_CPU_ROWS), out.split(_CPU_ROWS), strict=True):
        to.index_add_(1, at, some.double() * signs)
    return out


def column_assignment(dim: int, seed: int, channels: int = 1) -> tuple[Tensor, Tensor]:
    """P: the column that each feature is added into, and with which sign; `channels` of an image.

    Up to 256 features, each has a column of its own.
    """
    mixed, signed = dim > COLUMNS, COLUMNS < dim <= WIDTH
    if dim <= WIDTH:
        return _slot_assignment(dim, mixed, signed, seed)
    fold = Fold(dim, WIDTH, seed, channels=channels)
    row, along = np.divmod(np.arange(dim), fold.length)
    chunk, along = np.divmod(along, fold.run)
    shift = np.array(fold.shifts)[chunk]
    slot = (row + shift[:, 0]) % fold.rows * fold.run + (along + shift[:, 1]) % fold.run
    column, sign = (
        x[torch.from_numpy(slot)] for x in _slot_assignment(fold.width, mixed, signed, seed)
    )
    return column, sign * fold.packed[0]


def _slot_assignment(width: int, mixed: bool, signed: bool, seed: int) -> tuple[Tensor, Tensor]:
    """The column of each slot, and its sign."""
    slots = np.arange(width)
    column = scale_below(random_bits(seed, COLUMN, slots), COLUMNS) if mixed else slots
    sign = torch.ones(width, dtype=torch.float64)
    if signed:
        sign *= fold_signs(width, seed, sign.device)
    return torch.from_numpy(column), sign


def clear_projection_cache() -> None:
    """Let go of what the layers of a pass share on a GPU: up to 33 MB, kept until then."""
    _dense_projection.cache_clear()


@functools.lru_cache(maxsize=2)  # most layers share one
def _dense_projection(
    width: int, mixed: bool, signed: bool, seed: int, device: torch.device
) -> Tensor:
    at, signs = (
        copy_to_device_async(x, device) for x in _slot_assignment(width, mixed, signed, seed)
    )
    dense = torch.zeros(width, COLUMNS, dtype=torch.float64, device=device)
    return dense.scatter_(1, at[:, None], signs[:, None])
