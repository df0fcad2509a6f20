"""Sums over pairs of samples in a block, U-centring, and unbiased estimates for all samples.

CKA and RSA of two kernels over N samples need only sums over pairs, triples and quadruples of
samples. Inside a block of n samples, each such sum over *distinct* samples divided by the number of
its terms is a U-statistic: it estimates the mean over all N samples without bias, as long as blocks
are random subsets. Diagonal terms are known for every sample of a block. Combined with the counts
for N, they estimate the inner product of the N × N kernels. The estimate is linear in nine sums, so
`sum_weights` says how they add up.

The chance level is that of the same kernels with the pairing of their samples permuted.
Mean and variance over all permutations inside a block are known exactly, the third moment to first
order in 1/n; the 95 % quantile is that of a gamma distribution with these moments. Blocks are
permuted independently, so their moments add up. Blocks of one window, which hold other tokens of
the same sequences, are permuted alike, so their covariances count as well.

A permuted score is T = c Σ_{i≠j} K1_ij K2_π(i)π(j) plus inner products of row sums and diagonals.
With K_ij = u_i + u_j + W_ij, where the rows of W sum to zero, it splits into a part linear in π, of
x = (u, d) with d the diagonal, and Σ W1_ij W2_π(i)π(j). The two are uncorrelated, with variances

    Var Σ_i x_iᵀ M y_π(i)  =  tr(S_x M S_y Mᵀ) / (n − 1),          S the scatter of x, of y,
    Var Σ W1_ij W2_π(i)π(j) =  ‖W1‖² ‖W2‖² / (n(n − 3)/2).

So each layer has a few numbers, and the chance level of every pair of layers is a product of them.
The quantile is poor where one or two samples carry a kernel, whose `n_eff` says so.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._ops import packing
from .indices.registry import get_index
from .kernels import Index

# Kernel entries are stored as 16-bit correlations, whose rounding has variance 8e-11. A layer whose
# squared entries, centred, lie below this share of its diagonal squared is constant as far as
# one can see.
INT16_ROUND_OFF = 1e-9
# Vectors themselves are float32: differences below 1e-6 of their mean are its rounding.
FLOAT32_ROUND_OFF = 1e-24
WEIGHTS_OF_ROWS = [1, 3, 4, 5, 7, 8]  # of the nine sums, those that row sums enter


def tuple_counts(n: float) -> tuple[float, float, float, float]:
    """Ordered tuples of 1, 2, 3 and 4 distinct samples out of n.

    >>> tuple_counts(4)
    (4, 12, 24, 24)
    """
    return n, n * (n - 1), n * (n - 1) * (n - 2), n * (n - 1) * (n - 2) * (n - 3)


class PairSums(NamedTuple):
    """A number for each pair of layers, rows × columns, and for each layer with itself."""

    both: Tensor  # (..., L1, L2)
    one: Tensor  # (..., L1)
    two: Tensor  # (..., L2)


class RowSums(NamedTuple):
    """Diagonals of the kernels of L layers, and sums of their rows off the diagonal."""

    diagonal: Tensor  # (..., L, n)
    rows: Tensor  # (..., L, n)

    @property
    def n(self) -> int:
        """How many samples there are."""
        return self.diagonal.shape[-1]

    def of(self, layers: slice) -> RowSums:
        """The same for some of the layers."""
        return RowSums(self.diagonal[..., layers, :], self.rows[..., layers, :])


class KernelBlock(NamedTuple):
    """Kernels of L layers over a block of n samples."""

    triangle: Tensor  # (L, n(n-1)/2)
    diagonal: Tensor  # (L, n)
    rows: Tensor  # (L, n): sums of rows off the diagonal


def kernel_block(triangle: Tensor, diagonal: Tensor) -> KernelBlock:  # (L, t), (L, n)
    n, device = diagonal.shape[-1], diagonal.device
    sums = (
        packing.select_columns(triangle, packing.off_diagonal_positions(n, device))
        .T.unflatten(0, (n, n - 1))
        .sum(1)
        .T
    )
    return KernelBlock(triangle, diagonal, sums)


def row_effects(rows: Tensor) -> Tensor:  # (..., n) row sums off the diagonal -> (..., n)
    """u, with which K_ij − u_i − u_j sums to zero in every row; zero for fewer than 3 samples."""
    n = rows.shape[-1]
    if n < 3:
        return torch.zeros_like(rows)
    return rows / (n - 2) - rows.sum(-1, keepdim=True) / (2 * (n - 1) * (n - 2))


def u_centred_block(triangle: Tensor, diagonal: Tensor) -> KernelBlock:
    """`kernel_block` of K_ij − u_i − u_j, whose rows sum to zero; centring cannot tell.

    Whatever u is, HKH stays the same, and so does every estimate of it below (exactly, block by
    block). But features with a large mean no longer drown their own differences in round-off.
    Reference: Székely and Rizzo 2014, U-centring.
    """
    n = diagonal.shape[-1]
    as_it_is = kernel_block(triangle, diagonal)
    if n < 3:
        return as_it_is
    u = row_effects(as_it_is.rows)
    rows, columns = packing.lower_triangle(n, diagonal.device)
    triangle = triangle - packing.select_columns(u, rows) - packing.select_columns(u, columns)
    return KernelBlock(triangle, diagonal - 2 * u, torch.zeros_like(u))


def u_centre_in_place(triangle: Tensor, diagonal: Tensor) -> Tensor:
    """`u_centred_block` of many kernels, in float32 by matrix products; returns the diagonal."""
    n = diagonal.shape[1]
    step = max(1, 2**22 // n)  # entries at a time, so that large blocks need no large matrix
    parts = [(i, min(i + step, triangle.shape[1])) for i in range(0, triangle.shape[1], step)]
    sums = torch.zeros_like(diagonal)
    for start, stop in parts:
        sums.addmm_(triangle[:, start:stop], _pair_membership(n, start, stop).to(sums))
    u = row_effects(sums) if n > 2 else sums / 2  # nothing is left of the one entry of two samples
    for start, stop in parts:
        triangle[:, start:stop].addmm_(u, _pair_membership(n, start, stop).to(u).T, alpha=-1)
    return diagonal - 2 * u


@functools.lru_cache(maxsize=1)
def _pair_membership(n: int, start: int, stop: int) -> Tensor:  # (stop - start, n)
    """Ones at the two samples that each entry of a packed triangle belongs to.

    Entries times this are row sums, and this times u is u_i + u_j.
    """
    rows, columns = torch.tril_indices(n, n, -1)[:, start:stop]
    out = torch.zeros(stop - start, n, dtype=torch.float32)
    return out.scatter_(1, rows[:, None], 1.0).scatter_(1, columns[:, None], 1.0)


def inner_products(weights: Tensor, pairs: PairSums, one: RowSums, two: RowSums) -> PairSums:
    """⟨K1, K2⟩, ⟨K1, K1⟩ and ⟨K2, K2⟩ of all layers, from what their kernels add up to in blocks.

    Args:
        weights: how the nine sums add up (`sum_weights`).
        pairs: Σ_{i≠j} K1_ij K2_ij of each pair of layers, and Σ_{i≠j} K_ij² of each.
        one: the diagonals and row sums of K1.
        two: those of K2.
    """
    return PairSums(
        cross_products(weights, pairs.both, one, two),
        own_products(weights, pairs.one, one),
        own_products(weights, pairs.two, two),
    )


def cross_products(weights: Tensor, pairs: Tensor, one: RowSums, two: RowSums) -> Tensor:
    """⟨K1, K2⟩ (..., L1, L2) of each pair of layers."""
    c, rr, dd, dr, rd, ss, tt, ts, st = weights.tolist()
    (d1, r1), (d2, r2) = one, two
    t1, s1, t2, s2 = (x.sum(-1, keepdim=True) for x in (d1, r1, d2, r2))
    out = c * pairs
    out += dd * d1 @ d2.mT + tt * t1 @ t2.mT
    if rr or dr or ss or ts:  # of what is not centred, row sums do not count
        out += (rr * r1 + dr * d1) @ r2.mT + rd * r1 @ d2.mT
        out += (ss * s1 + ts * t1) @ s2.mT + st * s1 @ t2.mT
    return out


def own_products(weights: Tensor, pairs: Tensor, sums: RowSums) -> Tensor:
    """⟨K, K⟩ (..., L) of each layer."""
    c, rr, dd, dr, rd, ss, tt, ts, st = weights.tolist()
    d, r = sums
    t, s = d.sum(-1), r.sum(-1)
    out = c * pairs + dd * d.square().sum(-1) + tt * t * t
    out += rr * r.square().sum(-1) + (dr + rd) * (d * r).sum(-1)
    return out + ss * s * s + (ts + st) * t * s


def permuted_products(weights: Tensor, one: RowSums, two: RowSums) -> Tensor:
    """The mean of `cross_products` over all permutations of the samples of one side.

    Every pair of samples then meets every other equally often: Σ K1_ij K2_ij, for one, averages
    to s1 s2 / n(n-1), where s is the sum of all entries off the diagonal.
    """
    n = one.n
    c, rr, dd, dr, rd, ss, tt, ts, st = weights.tolist()
    (t1, s1), (t2, s2) = ([x.sum(-1, keepdim=True) for x in side] for side in (one, two))
    out = (c / (n * (n - 1)) + rr / n + ss) * s1 @ s2.mT + (dd / n + tt) * t1 @ t2.mT
    return out + (dr / n + ts) * t1 @ s2.mT + (rd / n + st) * s1 @ t2.mT


def unbiased_inner_product(sums: Tensor, n: int, samples: float, centre: bool) -> Tensor:
    """⟨K1, K2⟩_F over N² for the kernels of all N samples, estimated from one block of n.

    `sums` (9, ...) are those of the block, in terms of its entries k, its row sums r and its
    diagonal d: Σ_{i≠j} k1 k2, then Σ r1 r2, Σ d1 d2, Σ d1 r2 and Σ r1 d2 over samples, then
    products of totals of r and r, d and d, d and r, r and d. With `centre` they are of HKH. The
    formula writes each sum over N samples as one over tuples of distinct samples, replaces the mean
    of each kind of tuple by its U-statistic, and counts how often each kind occurs among N.
    `samples` = ∞ leaves only the tuples of distinct samples: the debiased (population) inner
    product.

    Bias: none, for a block that is a random subset; `centre` needs n ≥ 4 (or n = N).
    Reference: Song et al. 2012 for N = ∞; Hoeffding 1948.
    """
    a, rr, dd, dr, rd, ss, tt, ts, st = sums
    n1, n2, n3, n4 = (max(count, 1) for count in tuple_counts(n))
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
    _, m1, m2, m3 = (count / samples for count in tuple_counts(samples))
    whole = diagonal + m1 * pairs  # Σ_ij K1 K2, over N
    rows = diagonal + m1 * (edge + pairs) + m2 * triples  # Σ_i of products of row sums, over N
    total = (
        diagonal + m1 * (corners + 2 * edge + 2 * pairs) + m2 * (apart + 4 * triples) + m3 * quads
    )  # product of the sums of all entries, over N
    return (whole - 2 * rows / samples + total / samples**2) / samples


def unbiased_covariance(sums: Tensor, n: int, samples: float, centre: bool = True) -> Tensor:
    """The covariance of two kernels' entries over the pairs of all N samples, from one block of n.

    It is the mean of products less the product of means, both over pairs i ≠ j of N; the latter
    sorts into quadruples, triples and pairs, as in `unbiased_inner_product`. Centring kernels first
    changes nothing. Bias: none.
    """
    a, rr, ss = sums[0], sums[1], sums[5]
    _, n2, n3, n4 = (max(count, 1) for count in tuple_counts(n))
    pairs, triples, quads = a / n2, (rr - a) / n3, (ss - 4 * rr + 2 * a) / n4
    _, m2, m3, m4 = tuple_counts(samples)
    return pairs - (m4 * quads + 4 * m3 * triples + 2 * m2 * pairs) / m2**2


def sum_weights(index: Index, n: int, samples: float, *, centre: bool) -> Tensor:  # (9,)
    """How the nine sums of a block of n samples add up to an estimate, which is linear in them."""
    rule = get_index(index).pair_sums
    assert rule is not None
    # as a float, since powers of `samples` exceed int64
    samples = math.inf if rule.population else float(samples)
    return rule.inner(torch.eye(9, dtype=torch.float64), n, samples, centre)


def cosine_matrix(x: Tensor, y: Tensor) -> Tensor:  # (..., L1, n), (..., L2, n) -> (..., L1, L2)
    return x @ y.mT / norm_products((x * x).sum(-1), (y * y).sum(-1))


def norm_products(x: Tensor, y: Tensor) -> Tensor:  # (..., L1), (..., L2) -> (..., L1, L2)
    """√(x yᵀ), the denominators of all pairs; NaN where one is zero, so that the score is too."""
    product = x.clamp_min(0)[..., :, None] * y.clamp_min(0)[..., None, :]
    return torch.where(product > 0, product, torch.nan).sqrt()


# -- the chance level --

SKEWNESS_SAMPLES = 64  # of each block, by which the third moment is estimated
_Z95 = 1.645  # standard deviations: the 95 % quantile of the normal distribution


class PermutationMoments(NamedTuple):
    """What layers bring to the variance and the third moment of a permuted score."""

    mine: Tensor  # (L, f) of rows
    theirs: Tensor  # (L, f) of columns: the variance is a product of the two
    mine_third: Tensor  # (L, h)
    theirs_third: Tensor  # (L, h)

    def null(self, rows: slice, columns: slice) -> PermutationNull:
        """The distribution about their mean of scores, for rows × columns."""
        variance = (self.mine[rows] @ self.theirs[columns].T).clamp_min(0)
        third = self.mine_third[rows] @ self.theirs_third[columns].T
        sigma = variance.sqrt()
        return PermutationNull(sigma, third / sigma**3)


class ChanceLevels(NamedTuple):
    """What scores would be if samples were paired at random."""

    mean: Tensor
    high: Tensor  # 95 % quantile
    skew: Tensor


class PermutationNull(NamedTuple):
    """Standard deviation and skewness of permuted scores, which decide a gamma distribution."""

    sigma: Tensor
    skew: Tensor

    def levels(self, mean: Tensor, norms: Tensor) -> ChanceLevels:
        """Of scores with a mean, of which sigma is that of the product with norms."""
        return ChanceLevels(mean, mean + gamma_quantile(self.sigma, self.skew) / norms, self.skew)


def gamma_quantile(sigma: Tensor, skew: Tensor) -> Tensor:
    """How far the 95 % quantile lies above the mean, from standard deviation and skewness.

    Reference: Wilson and Hilferty 1931.
    """
    skew = _gamma_skew(skew)
    return sigma * 2 / skew * ((1 + skew * _Z95 / 6 - skew**2 / 36) ** 3 - 1)


def gamma_tail(score: Tensor, levels: ChanceLevels) -> Tensor:
    """The probability that a permuted score is as high, by the same distribution.

    It is 5 % at the 95 % level. Further out the approximation of Wilson and Hilferty gives more
    than a gamma distribution has. How well both fit: `benchmarks/indices.py`.
    """
    skew = _gamma_skew(levels.skew)
    sigma = (levels.high - levels.mean) / gamma_quantile(torch.ones_like(skew), skew)
    cube = (1 + (score - levels.mean) / sigma * skew / 2).clamp_min(0)
    normal = 6 / skew * (cube ** (1 / 3) - 1 + skew**2 / 36)
    return normal_tail(normal)


def normal_tail(z: Tensor) -> Tensor:
    """The probability that a standard normal value is above z, also where it is tiny.

    `torch.special.ndtr(-z)` is (1 + erf) / 2, which is 0 or round-off beyond 8.
    """
    return torch.special.erfc(z / 2**0.5) / 2


def _gamma_skew(skew: Tensor) -> Tensor:
    return skew.nan_to_num(0.1).clamp(0.1, 2.8)  # of no less than normal, no more than χ² of one


class ThirdMoment(NamedTuple):
    """What the third moment takes of the kernels of a block; x = (u, d) less their means."""

    cube: Tensor  # (L,) tr W³
    linear: Tensor  # (L, 2, 2, 2) Σ_i x_i ⊗ x_i ⊗ x_i
    form: Tensor  # (L, 2, 2) xᵀ W x
    heavy: Tensor  # (L, 2) Σ_ij x_i W_ij²


class PermutationWindow(NamedTuple):
    """What of blocks that are permuted alike depends on the order of their samples."""

    n: int  # samples of a block
    scatter: Tensor  # (L, 2t, 2t) of u and d of each of t blocks
    squares: Tensor  # (L, t, t) ⟨W, W'⟩ of any two of them
    third: ThirdMoment | None  # of a single block


def permutation_window(
    u: Tensor, d: Tensor, kernels: Tensor, leading: Tensor | None = None
) -> PermutationWindow:
    """From row effects and diagonals of t blocks, and the inner products of their kernels.

    Args:
        u: (L, t, n) row effects, with which K_ij − u_i − u_j sums to zero in every row.
        d: (L, t, n) diagonals.
        kernels: (L, t, t) Σ_{i≠j} K_ij K'_ij of any two blocks.
        leading: (L, m, m) the kernel of the first samples of a single block, with zeros on the
            diagonal, from which the third moment is estimated; None does without.
    """
    n = u.shape[2]
    x = torch.stack([u, d], 2).flatten(1, 2)  # (L, 2t, n)
    x = x - x.mean(2, keepdim=True)
    total = u.sum(2, keepdim=True)
    squares = kernels - 2 * (n - 2) * (u @ u.mT) - 2 * total * total.mT
    third = None if leading is None else _third_moment(u[:, 0], x, leading)
    return PermutationWindow(n, x @ x.mT, squares, third)


def _third_moment(u: Tensor, x: Tensor, leading: Tensor) -> ThirdMoment:
    n, m = x.shape[2], leading.shape[1]
    some = u[:, :m].float()
    w = leading - some[:, :, None] - some[:, None, :]
    w.diagonal(dim1=1, dim2=2).zero_()
    square = w @ w
    pairs = n / m * (n - 1) / max(1, m - 1)  # of all samples, for each pair of the first
    triples = pairs * (n - 2) / max(1, m - 2)
    y = x[:, :, :m]
    return ThirdMoment(
        (square * w).sum((1, 2)).double() * triples,
        torch.einsum("lai,lbi,lci->labc", x, x, x),
        y @ w.double() @ y.mT * pairs,
        (y * square.diagonal(dim1=1, dim2=2).double()[:, None]).sum(2) * pairs,
    )


def permutation_moments(
    windows: Sequence[tuple[float, Tensor, PermutationWindow]],
) -> PermutationMoments:
    """Moments of a sum over windows, each by its share, of the mean over the blocks of a window.

    With each window come the weights (9,) of its sums (`sum_weights`).
    """
    mine, theirs, mine_third, theirs_third = [], [], [], []
    for share, add_up, window in windows:
        n, count = window.n, window.squares.shape[1]
        form, weight, c = (
            _linear_form(add_up, n, window.scatter.device),
            (share / count) ** 2,
            float(add_up[0]),
        )
        turn = torch.block_diag(*[form] * count)
        mine.append(weight / (n - 1) * window.scatter.flatten(1))
        theirs.append((turn @ window.scatter @ turn.T).flatten(1))
        if n > 3:  # else no permutation moves W
            mine.append(2 * weight * c**2 / (n * (n - 3)) * window.squares.flatten(1))
            theirs.append(window.squares.flatten(1))
        if window.third is not None:
            one, two = _third_products(window.third, form, c, n)
            mine_third.append(share**3 * one)
            theirs_third.append(two)
    nothing = windows[0][2].scatter.new_zeros(len(windows[0][2].scatter), 1)
    parts = (mine, theirs, mine_third, theirs_third)
    return PermutationMoments(*(torch.cat([nothing, *part], 1) for part in parts))


def _linear_form(add_up: Tensor, n: int, device: torch.device) -> Tensor:  # (2, 2)
    """M of the linear part, in terms of u and d; row sums are (n − 2) u and a constant."""
    c, m = add_up.tolist(), n - 2
    form = [[2 * m * c[0] + m * m * c[1], c[4] * m], [c[3] * m, c[2]]]
    return torch.tensor(form, dtype=torch.float64, device=device)


def _third_products(
    of: ThirdMoment, form: Tensor, c: float, n: int
) -> tuple[Tensor, Tensor]:  # (L, h) twice
    """The third moment, as products: of W alone, of x alone, and of both.

    8 tr W1³ tr W2³ / n³ + Σ x⊗x⊗x · Σ y⊗y⊗y / n + 6 (xᵀW1x)(yᵀW2y) / n² + 12 (Σ x_i W1_ij²) ·
    (Σ y_i W2_ij²) / n², with M between x and y.
    """
    mine = [
        8 * c**3 / n**3 * of.cube[:, None],
        of.linear.flatten(1) / n,
        6 * c / n**2 * of.form.flatten(1),
        12 * c**2 / n**2 * of.heavy,
    ]
    theirs = [
        of.cube[:, None],
        torch.einsum("labc,pa,qb,rc->lpqr", of.linear, form, form, form).flatten(1),
        (form @ of.form @ form.T).flatten(1),
        of.heavy @ form.T,
    ]
    return torch.cat(mine, 1), torch.cat(theirs, 1)
