"""Sums over the pairs of samples in a block, and what they say about the kernels of all samples.

Everything that CKA and RSA need of two kernels over N samples is a sum over pairs, triples or
quadruples of samples. Inside a block of n samples each such sum over *distinct* samples, divided by
the number of its terms, is a U-statistic: it estimates the mean over all N samples without bias,
as long as blocks are random subsets. Diagonal terms are known for every sample of a block. Put
together with the counts for N, they estimate an inner product of the whole N × N kernels.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._ops import packed_kernels as packing
from .combinations import Index

# Kernel entries are stored as 16-bit correlations, whose rounding has variance 8e-11. A layer whose
# squared entries, centred, lie below this share of its diagonal squared is constant as far as
# one can see.
FINEST_SQUARE = 1e-9
# Vectors themselves are float32: differences below 1e-6 of their mean are its rounding.
FINEST_FLOAT = 1e-24


def counts(n: float) -> tuple[float, float, float, float]:
    """Ordered tuples of 1, 2, 3 and 4 distinct samples out of n.

    >>> counts(4)
    (4, 12, 24, 24)
    """
    return n, n * (n - 1), n * (n - 1) * (n - 2), n * (n - 1) * (n - 2) * (n - 3)


class Side(NamedTuple):
    """What the kernels of L layers bring to a block of n samples."""

    triangle: Tensor  # k (L, n(n-1)/2)
    diagonal: Tensor  # d (L, n)
    rows: Tensor  # r (L, n): sums of rows off the diagonal
    trace: Tensor  # t (L,) = Σd
    total: Tensor  # s (L,) = Σr


def side(triangle: Tensor, diagonal: Tensor) -> Side:  # (L, t), (L, n)
    n, device = diagonal.shape[-1], diagonal.device
    sums = packing.picked(triangle, packing.others(n, device)).T.unflatten(0, (n, n - 1)).sum(1).T
    return Side(triangle, diagonal, sums, diagonal.sum(1), sums.sum(1))


def level(triangle: Tensor, diagonal: Tensor) -> Side:
    """`side` of K_ij − u_i − u_j, whose rows sum to zero off the diagonal; centring cannot tell.

    Whatever u is, HKH stays the same, and so does every estimate of it below (exactly, block by
    block). But features with a large mean no longer drown their own differences in round-off.
    Reference: Székely and Rizzo 2014, U-centring.
    """
    n = diagonal.shape[-1]
    as_it_is = side(triangle, diagonal)
    if n < 3:
        return as_it_is
    sums = as_it_is.rows
    u = sums / (n - 2) - as_it_is.total[:, None] / (2 * (n - 1) * (n - 2))
    rows, columns = packing.lower(n, diagonal.device)
    triangle = triangle - packing.picked(u, rows) - packing.picked(u, columns)
    diagonal = diagonal - 2 * u
    nothing = torch.zeros_like(sums)
    return Side(triangle, diagonal, nothing, diagonal.sum(1), nothing.sum(1))


def level_in_place(triangle: Tensor, diagonal: Tensor) -> Tensor:
    """`level` of many kernels, in float32 and by matrix products; returns the new diagonal."""
    n = diagonal.shape[1]
    step = max(1, 2**22 // n)  # entries at a time, so that large blocks need no large matrix
    parts = [(i, min(i + step, triangle.shape[1])) for i in range(0, triangle.shape[1], step)]
    sums = torch.zeros_like(diagonal)
    for start, stop in parts:
        sums.addmm_(triangle[:, start:stop], _members(n, start, stop).to(sums))
    u = sums / 2  # two samples have one entry, of which nothing is left
    if n > 2:
        u = sums / (n - 2) - sums.sum(1, keepdim=True) / (2 * (n - 1) * (n - 2))
    for start, stop in parts:
        triangle[:, start:stop].addmm_(u, _members(n, start, stop).to(u).T, alpha=-1)
    return diagonal - 2 * u


@functools.lru_cache(maxsize=1)
def _members(n: int, start: int, stop: int) -> Tensor:  # (stop - start, n)
    """Ones at the two samples that each entry of a packed triangle belongs to.

    Entries times this are row sums, and this times u is u_i + u_j.
    """
    rows, columns = torch.tril_indices(n, n, -1)[:, start:stop]
    out = torch.zeros(stop - start, n)
    return out.scatter_(1, rows[:, None], 1.0).scatter_(1, columns[:, None], 1.0)


def pair_sums(a: Side, b: Side, blocks: int = 1) -> Tensor:  # (9, g, L1, L2)
    """Σ_{i≠j} K1_ij K2_ij and so on, over each of g blocks, for all pairs of layers."""
    (k1, d1, r1, t1, s1), (k2, d2, r2, t2, s2) = (
        [x.reshape(blocks, len(x) // blocks, -1) for x in side] for side in (a, b)
    )
    return torch.stack(
        [
            2 * k1 @ k2.mT,
            r1 @ r2.mT,
            d1 @ d2.mT,
            d1 @ r2.mT,
            r1 @ d2.mT,
            s1 * s2.mT,
            t1 * t2.mT,
            t1 * s2.mT,
            s1 * t2.mT,
        ]
    )


def own_sums(a: Side) -> Tensor:  # (9, L)
    """`pair_sums` of each layer with itself."""
    k, d, r, t, s = a
    rows = [2 * (k * k).sum(1), (r * r).sum(1), (d * d).sum(1), (d * r).sum(1), (d * r).sum(1)]
    return torch.stack([*rows, s * s, t * t, t * s, t * s])


def inner_product(sums: Tensor, n: int, samples: float, *, centre: bool) -> Tensor:
    """⟨K1, K2⟩_F over N² for the kernels of all N samples, estimated from one block of n.

    `sums` (9, ...) are those of the block; with `centre`, of HKH. The formula writes each sum over
    N samples as one over tuples of distinct samples, replaces the mean of each kind of tuple by its
    U-statistic, and counts how often each kind occurs among N. `samples` = ∞ leaves only the tuples
    of distinct samples: the debiased (population) inner product.

    Bias: none, for a block that is a random subset; `centre` needs n ≥ 4 (or n = N).
    Reference: Song et al. 2012 for N = ∞; Hoeffding 1948.
    """
    a, rr, dd, dr, rd, ss, tt, ts, st = sums
    n1, n2, n3, n4 = (max(count, 1) for count in counts(n))
    pairs = a / n2  # mean of K1_ij K2_ij over i ≠ j
    diagonal = dd / n1  # mean of K1_ii K2_ii
    if not centre:
        return pairs * (1 - 1 / samples) + diagonal / samples
    triples = (rr - a) / n3  # mean of K1_ij K2_ik over distinct i, j, k
    quads = (ss - 4 * rr + 2 * a) / n4  # mean of K1_ij K2_kl over distinct i, j, k, l
    if np.isinf(samples):
        return pairs - 2 * triples + quads
    edge = (dr + rd) / n2  # means of K1_ii K2_ij + K1_ij K2_jj, i ≠ j
    corners = (tt - dd) / n2  # mean of K1_ii K2_jj, i ≠ j
    apart = (ts - 2 * dr + st - 2 * rd) / n3  # means of K1_ii K2_jk + K1_jk K2_ii, distinct
    _, m1, m2, m3 = (count / samples for count in counts(samples))
    whole = diagonal + m1 * pairs  # Σ_ij K1 K2, over N
    rows = diagonal + m1 * (edge + pairs) + m2 * triples  # Σ_i of products of row sums, over N
    total = (
        diagonal + m1 * (corners + 2 * edge + 2 * pairs) + m2 * (apart + 4 * triples) + m3 * quads
    )  # product of the sums of all entries, over N
    return (whole - 2 * rows / samples + total / samples**2) / samples


def covariance(sums: Tensor, n: int, samples: float) -> Tensor:
    """The covariance of two kernels' entries over the pairs of all N samples, from one block of n.

    It is the mean of products less the product of means, both over pairs i ≠ j of N; the latter
    sorts into quadruples, triples and pairs, as in `inner_product`. Bias: none.
    """
    a, rr, ss = sums[0], sums[1], sums[5]
    _, n2, n3, n4 = (max(count, 1) for count in counts(n))
    pairs, triples, quads = a / n2, (rr - a) / n3, (ss - 4 * rr + 2 * a) / n4
    _, m2, m3, m4 = counts(samples)
    return pairs - (m4 * quads + 4 * m3 * triples + 2 * m2 * pairs) / m2**2


def factors(index: Index, n: int, samples: float, *, centre: bool) -> Tensor:  # (9,)
    """How the nine sums of a block of n samples add up to an estimate, which is linear in them."""
    nine = torch.eye(9, dtype=torch.float64)
    samples = np.inf if index == "cka-debiased" else float(samples)  # its powers exceed int64
    if index == "rsa":
        return covariance(nine, n, samples)
    return inner_product(nine, n, samples, centre=centre)


def least_visible(diagonal: Tensor) -> Tensor:  # (L, n) -> (L,)
    """What ⟨K, K⟩ of a block must exceed to be more than the round-off of its entries."""
    n = diagonal.shape[-1]
    corners = diagonal.sum(1) ** 2 - (diagonal * diagonal).sum(1)
    return FINEST_SQUARE * corners / (n * (n - 1))
