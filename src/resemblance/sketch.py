"""CountSketch: many samples added, with random signs, into few buckets.

A sketch S has one ±1 in the column of each sample, so streaming `table[h(n)] += s(n) · f_n`
gives `S F` with `E[SᵀS] = I`. The bucket h and the sign s are a pure function of the seed and the
sample's index: equal on every device, in every batch size, order and shard. Two networks
are comparable through their buckets only because of that.

`CountSketch` shrinks the number of samples, `Fold` the width of a very wide layer, and
`shuffled` is the seeded order in which samples are visited. All three draw from one hash.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from .batches import without_waiting
from .errors import DataError

_BUCKET, _SIGN, _ORDER, _FOLD_SIGN, _FOLD_SHIFT, _ROW = range(6)  # independent streams of one seed


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection that mixes all 64 bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _hash(seed: int, stream: int, indices: ArrayLike) -> np.ndarray:
    """64 random bits for each index; streams and seeds are independent of each other."""
    with np.errstate(over="ignore"):
        golden = np.uint64(0x9E3779B97F4A7C15)
        key = _mix(np.asarray([int(seed) % 2**64], np.uint64) + golden * np.uint64(stream + 1))
        return _mix(key ^ _mix(np.asarray(indices).astype(np.uint64) * golden + golden))


def _below(bits: np.ndarray, bound: int) -> np.ndarray:
    """Integers in [0, bound) from the upper 32 of 64 random bits (bias below bound / 2³²)."""
    return (((bits >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32)).astype(np.int64)


def mix(hashes: np.ndarray, words: np.ndarray) -> np.ndarray:  # (n,), (n, w) -> (n,) uint64
    """Running 64-bit hashes of rows, after reading each row's words; zero words add nothing."""
    keys = _hash(0, _ROW, np.arange(words.shape[1]))
    with np.errstate(over="ignore"):
        return _mix(_mix(hashes) + (_mix(words ^ keys) - _mix(keys)).sum(1, dtype=np.uint64))


def shuffled(count: int, seed: int) -> np.ndarray:
    """The seeded order of `count` samples: indices sorted by their hash.

    >>> sorted(shuffled(5, seed=0).tolist())
    [0, 1, 2, 3, 4]
    """
    # No two are equal, each step being a bijection: any sort gives the same order.
    return np.argsort(_hash(seed, _ORDER, np.arange(count)))


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
        if self.buckets < 1 or self.per_sample < 1 or self.buckets % self.per_sample:
            raise DataError(
                "buckets must be a positive multiple of per_sample; "
                f"found buckets={self.buckets}, per_sample={self.per_sample}"
            )

    def assign(self, indices: ArrayLike) -> tuple[Tensor, Tensor]:
        """Buckets (int64) and signs (float32, scaled by 1/√t), each (n, per_sample)."""
        index = np.atleast_1d(np.asarray(indices))
        if index.size and index.min() < 0:
            raise DataError(f"sample indices must not be negative; found {index.min()}")
        rows = self.buckets // self.per_sample
        h = np.empty((len(index), self.per_sample), np.int64)
        s = np.empty((len(index), self.per_sample), np.float32)
        for t in range(self.per_sample):
            h[:, t] = t * rows + _below(_hash(self.seed, _BUCKET + 16 * t, index), rows)
            s[:, t] = 1.0 - 2.0 * (_hash(self.seed, _SIGN + 16 * t, index) >> np.uint64(63))
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
        words = _hash(seed, _FOLD_SIGN, np.arange(-(-dim // 64)))  # a bit of them a feature
        self._bits = without_waiting(torch.from_numpy(words.view(np.uint8)), self._device)
        step = 8 if width % 8 == 0 else 1  # so that a GPU can read eight features at a time
        shifts = _below(_hash(seed, _FOLD_SHIFT, np.arange(-(-dim // width))), width // step)
        self.shifts = (step * shifts).tolist() if dim > width else [0]

    @functools.cached_property
    def packed(self) -> tuple[Tensor, Tensor]:
        """Signs (dim,) in int8 and shifts (chunks,) in int32 on the device, for `fused`."""
        eight = torch.arange(8, dtype=torch.uint8, device=self._device)
        bits = (self._bits[:, None] >> eight & 1).flatten()[: self.dim].to(torch.int8)
        signs = 1 - 2 * bits if self.dim > self.width else torch.ones_like(bits)
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
