"""The two-sided sketch Y = S X P: few rows of samples and few columns of features.

It is linear on both sides, and S and P are functions of the seed, the sample's index and the
feature's logical index alone, which of an image is (channel, row, column). So Y_a − Y_b is the
sketch of X_a − X_b for two networks of one shape, recorded apart: unlike a kernel, it keeps the
coordinates of a layer. S is a CountSketch of 128 buckets; P folds wide vectors to 8,192 slots, as
buckets may be, and adds slots into 256 columns.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from .._seeded_random import COLUMN, FOLD_SIGN, below, bits
from .count_sketch import CountSketch
from .device_copies import without_waiting
from .feature_fold import Fold

ROWS, COLUMNS = 128, 256
WIDTH = 8192  # slots that wider vectors are folded to
_AT_ONCE = 8  # rows that a CPU folds together, in its cache


def rows(seed: int) -> CountSketch:
    """S: which row a sample is added to, and with which sign.

    Of M buckets, a multiple of 128, each lies in one row: bucket h belongs to row h // (M / 128).
    """
    return CountSketch(ROWS, seed)


def from_buckets(table: Tensor) -> Tensor:  # (M, w) -> (128, w)
    """What the rows hold, from buckets that nest in them."""
    return table.unflatten(0, (ROWS, -1)).sum(1)


def columns(
    table: Tensor,  # (m, w) with w = min(dim, WIDTH) slots
    dim: int,
    seed: int,
) -> Tensor:  # (m, COLUMNS) float64
    """X P from vectors that are folded already, if they are wider than that."""
    width = table.shape[1]
    signed = COLUMNS < dim <= WIDTH  # a fold has given wider vectors their signs
    if table.is_cuda:  # which would add in any order
        return table.double() @ _dense(width, dim > COLUMNS, signed, seed, table.device)
    at, signs = _places(width, dim > COLUMNS, signed, seed)
    out = torch.zeros(len(table), COLUMNS, dtype=torch.float64)
    for some, to in zip(table.split(_AT_ONCE), out.split(_AT_ONCE), strict=True):
        to.index_add_(1, at, some.double() * signs)
    return out


def places(dim: int, seed: int, channels: int = 1) -> tuple[Tensor, Tensor]:
    """P: the column that each feature is added into, and with which sign; `channels` of an image.

    Up to 256 features, each has a column of its own.
    """
    mixed, signed = dim > COLUMNS, COLUMNS < dim <= WIDTH
    if dim <= WIDTH:
        return _places(dim, mixed, signed, seed)
    fold = Fold(dim, WIDTH, seed, channels=channels)
    feature = np.arange(dim)
    row, along = np.divmod(feature, fold.length)
    chunk, along = np.divmod(along, fold.run)
    shift = np.array(fold.shifts)[chunk]
    slot = (row + shift[:, 0]) % fold.rows * fold.run + (along + shift[:, 1]) % fold.run
    column, sign = (x[torch.from_numpy(slot)] for x in _places(fold.width, mixed, signed, seed))
    return column, sign * fold.packed[0]


def _places(width: int, mixed: bool, signed: bool, seed: int) -> tuple[Tensor, Tensor]:
    """The column of each slot, and its sign."""
    slots = np.arange(width)
    column, sign = slots, np.ones(width)
    if mixed:
        column = below(bits(seed, COLUMN, slots), COLUMNS)
    if signed:
        words = bits(seed, FOLD_SIGN, slots // 64)
        sign = 1.0 - 2.0 * (words >> (slots % 64).astype(np.uint64) & np.uint64(1))
    return torch.from_numpy(column), torch.from_numpy(np.asarray(sign, float))


def forget() -> None:
    """Let go of what the layers of a pass share on a GPU: up to 33 MB, kept until then."""
    _dense.cache_clear()


@functools.lru_cache(maxsize=2)  # most layers share one
def _dense(width: int, mixed: bool, signed: bool, seed: int, device: torch.device) -> Tensor:
    at, signs = (without_waiting(x, device) for x in _places(width, mixed, signed, seed))
    dense = torch.zeros(width, COLUMNS, dtype=torch.float64, device=device)
    return dense.scatter_(1, at[:, None], signs[:, None])
