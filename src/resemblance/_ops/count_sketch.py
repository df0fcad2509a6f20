"""CountSketch: many samples added, with random signs, into few buckets.

A sketch S has one ±1 in the column of each sample, so streaming `table[h(n)] += s(n) · f_n`
gives `S F` with `E[SᵀS] = I`. The bucket h and the sign s are a pure function of the seed and the
sample's index: equal on every device, in every batch size, order and shard. Two networks
are comparable through their buckets only because of that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from .._seeded_random import BUCKET, SIGN, below, bits
from .._whole_numbers import checked_seed, whole_number
from ..errors import DataError
from .packed_kernels import pack24


@dataclass(frozen=True)
class CountSketch:
    """The map from sample indices to (bucket, sign) pairs.

    `per_sample` = t > 1 is the sparse Johnson-Lindenstrauss transform: t stacked sketches of
    buckets / t rows, each scaled by 1/√t, which lowers the variance of collisions.

    Reference: Clarkson and Woodruff 2013; Kane and Nelson 2014 for t > 1.

    >>> h, s = CountSketch(buckets=8, seed=1).assign([0, 1, 2])
    >>> h.shape, sorted(set(s.abs().flatten().tolist()))
    (torch.Size([3, 1]), [1.0])
    """

    buckets: int = 512
    seed: int = 0
    per_sample: int = 1

    def __post_init__(self) -> None:
        checked_seed(self.seed)
        for name in ("buckets", "per_sample"):
            whole_number(name, getattr(self, name), 1)
        if self.buckets % self.per_sample:
            raise DataError(
                "buckets must be a positive multiple of per_sample; "
                f"found buckets={self.buckets}, per_sample={self.per_sample}"
            )

    def assign(self, indices: ArrayLike) -> tuple[Tensor, Tensor]:
        """Buckets (int64) and signs (float32, scaled by 1/√t), each (n, per_sample)."""
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
            h[:, t] = t * rows + below(bits(self.seed, BUCKET + 16 * t, index), rows)
            s[:, t] = 1.0 - 2.0 * (bits(self.seed, SIGN + 16 * t, index) >> np.uint64(63))
        return torch.from_numpy(h), torch.from_numpy(s / np.float32(self.per_sample**0.5))

    def matrix(self, indices: ArrayLike) -> Tensor:
        """The sketch as a dense (buckets, n) matrix: for tests and small problems."""
        h, s = self.assign(indices)
        return torch.zeros(self.buckets, len(h)).scatter_(0, h.T, s.T)


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
    wide = table.double() if table.is_cuda else table  # a GPU may round float32 products
    along = (table @ mean.float()[..., None])[..., 0]
    return *pack24(wide @ wide.mT), along, mean.square().sum(-1)
