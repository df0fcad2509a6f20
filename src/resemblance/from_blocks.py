"""Indices from exact kernels inside blocks of samples: unbiased sums, jackknife, chance level.

Everything that CKA and RSA need of two kernels over N samples is a sum over pairs, triples or
quadruples of samples. Inside a block of n samples each such sum over *distinct* samples, divided by
the number of its terms, is a U-statistic: it estimates the mean over all N samples without bias,
as long as blocks are random subsets. Diagonal terms are known for every sample of a block. Put
together with the counts for N, they estimate numerator and denominators of the index on the whole
N × N kernel, once a block. Blocks are nearly independent, so leaving out one at a time gives the
standard error, and permuting the pairing of samples inside blocks gives the chance level.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from . import blocks as packing
from . import indices, kernels
from .errors import MismatchError
from .representation import Layer, Representation

_DRAWS = 256  # permutations drawn in all, spread over the blocks
_TOTALS = 1000  # ways of choosing one draw a block, for the 95 % quantile

# Kernel entries are stored as 16-bit correlations, whose rounding has variance 8e-11. A layer whose
# squared entries, centred, lie below this share of its diagonal squared is constant as far as
# one can see.
FINEST_SQUARE = 1e-9

Side = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Estimate:
    """Scores of rows × columns, their standard errors, and the score of unrelated samples."""

    scores: np.ndarray
    stderr: np.ndarray
    alive: tuple[np.ndarray, np.ndarray]  # rows and columns that are not constant on these data
    chance: np.ndarray | None = None  # mean under permuted pairing
    chance_high: np.ndarray | None = None  # 95 % quantile


def stacked(
    layers: Iterable[Layer], kernel: str, sizes: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Each block of a named kernel, for all layers, in float64.

    Yields strict lower triangles (L, t), row by row, t = n(n-1)/2, and diagonals (L, n).
    """
    layers = list(layers)
    kinds = kernels.needs(kernel)
    scale = {
        kind: torch.tensor([[max(x.moments[f"trace_{kind}"], 1e-300)] for x in layers]).double()
        for kind in kinds
    }
    for b, n in enumerate(sizes):
        t = n * (n - 1) // 2
        entries, diagonals = {}, {}
        for kind in kinds:
            packed = torch.stack([x.tensor(f"{kind}.blocks.triangle")[b, :t] for x in layers], 1).T
            diagonals[kind] = torch.stack(
                [x.tensor(f"{kind}.blocks.diagonal")[b, :n] for x in layers]
            ).double()
            entries[kind] = packing.unpack16(packed, diagonals[kind])
        if kernel == "transport":
            square = kernels.transport(
                *(packing.squares(entries[k], diagonals[k]) / scale[k][..., None] for k in kinds)
            )
            rows, columns = packing.lower(n)
            yield square[:, rows, columns], square.diagonal(dim1=-2, dim2=-1).clone()
        else:
            yield (
                kernels.entries(kernel, entries, scale),
                kernels.entries(kernel, diagonals, scale),
            )


def kernel_blocks(
    layer: Layer, kernel: str, sizes: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Each block of one layer: strict lower triangle (n(n-1)/2,) and diagonal (n,), float64."""
    for triangles, diagonals in stacked([layer], kernel, sizes):
        yield triangles[0], diagonals[0]


# -- sums over distinct samples -----------------------------------------------------------------


def counts(n: float) -> tuple[float, float, float, float]:
    """Ordered tuples of 1, 2, 3 and 4 distinct samples out of n.

    >>> counts(4)
    (4, 12, 24, 24)
    """
    return n, n * (n - 1), n * (n - 1) * (n - 2), n * (n - 1) * (n - 2) * (n - 3)


def side(triangle: Tensor, diagonal: Tensor) -> Side:  # (L, t), (L, n)
    """What one kernel brings to a block: entries, diagonal, row sums off it, and their totals."""
    n = diagonal.shape[-1]
    sums = packing.picked(triangle, packing.others(n)).T.unflatten(0, (n, n - 1)).sum(1).T
    return triangle, diagonal, sums, diagonal.sum(1), sums.sum(1)


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
    _, _, sums, _, total = as_it_is
    u = sums / (n - 2) - total[:, None] / (2 * (n - 1) * (n - 2))
    rows, columns = packing.lower(n)
    triangle = triangle - packing.picked(u, rows) - packing.picked(u, columns)
    diagonal = diagonal - 2 * u
    return triangle, diagonal, torch.zeros_like(sums), diagonal.sum(1), torch.zeros_like(total)


def pair_sums(a: Side, b: Side) -> Tensor:  # (9, L1, L2)
    """Sums over one block for all pairs of layers, from which every estimate is made.

    Σ_{i≠j} K1_ij K2_ij, Σ r1 r2, Σ d1 d2, Σ d1 r2, Σ r1 d2, and the products of totals
    s1 s2, t1 t2, t1 s2, s1 t2, with d the diagonal, r the row sums off it, t = Σd, s = Σr.
    """
    (k1, d1, r1, t1, s1), (k2, d2, r2, t2, s2) = a, b
    return torch.stack(
        [
            2 * k1 @ k2.T,
            r1 @ r2.T,
            d1 @ d2.T,
            d1 @ r2.T,
            r1 @ d2.T,
            torch.outer(s1, s2),
            torch.outer(t1, t2),
            torch.outer(t1, s2),
            torch.outer(s1, t2),
        ]
    )


def own_sums(a: Side) -> Tensor:  # (9, L)
    """`pair_sums` of each layer with itself."""
    k, d, r, t, s = a
    rows = [2 * (k * k).sum(1), (r * r).sum(1), (d * d).sum(1), (d * r).sum(1), (d * r).sum(1)]
    return torch.stack([*rows, s * s, t * t, t * s, t * s])


def permuted_sums(sums: Tensor, n: int) -> Tensor:  # (9, ...) -> (9, ...)
    """The mean of `pair_sums` over all permutations of the samples of one side.

    Every pair of samples then meets every other equally often: Σ K1_ij K2_ij, for one, averages
    to s1 s2 / n(n-1).
    """
    _, _, _, _, _, ss, tt, ts, st = sums
    return torch.stack([ss / (n * (n - 1)), ss / n, tt / n, ts / n, st / n, ss, tt, ts, st])


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
    infinite = np.isinf(samples)
    if not centre:
        return pairs if infinite else pairs * (1 - 1 / samples) + diagonal / samples
    triples = (rr - a) / n3  # mean of K1_ij K2_ik over distinct i, j, k
    quads = (ss - 4 * rr + 2 * a) / n4  # mean of K1_ij K2_kl over distinct i, j, k, l
    if infinite:
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


# -- estimates ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Blocks:
    """What each block says about numerator and denominators, for all layers."""

    cross: Tensor  # (k, L1, L2)
    own1: Tensor  # (k, L1)
    own2: Tensor  # (k, L2)
    visible1: Tensor  # (k, L1) an own value is round-off below these
    visible2: Tensor  # (k, L2)

    def mean(self, weights: Tensor) -> _Blocks:
        """The blocks' mean, each by its weight."""
        share = weights / weights.sum()
        values = (self.cross, self.own1, self.own2, self.visible1, self.visible2)
        return _Blocks(*(torch.tensordot(share, x, 1) for x in values))

    def alive(self) -> tuple[Tensor, Tensor]:  # of means: (L1,), (L2,)
        return self.own1 > self.visible1, self.own2 > self.visible2

    def norms(self) -> Tensor:  # of means: (L1, L2)
        one, two = self.alive()
        return indices.norms(self.own1 * one, self.own2 * two)

    def score(self) -> Tensor:  # of means: (L1, L2)
        return self.cross / self.norms()


def weights(sizes: Sequence[int], samples: float, *, centre: bool) -> Tensor:  # (k,)
    """Pairs of samples in each block, zero for a block too small to say anything."""
    fewest = min(4, samples) if centre else 2
    out = torch.tensor([n * (n - 1.0) if n >= fewest else 0.0 for n in sizes]).double()
    if not out.any():
        raise MismatchError(
            f"expected blocks of at least {fewest:g} samples, found at most {max(sizes)}; record "
            "with a larger block"
        )
    return out


def scores(a: Representation, b: Representation, kernel: str, index: str, centre: bool) -> Estimate:
    """`cka`, `cka-debiased` or `rsa` for all pairs of layers of two paired Representations.

    Bias: numerator and denominators are unbiased for the kernels of all N samples (of the
    population for `cka-debiased`), their ratio to first order. Standard error: jackknife over
    blocks, of the score as an estimate for the population the samples came from; it is a little
    wide for the N samples themselves. Cost: O(L1 L2 k B²).

    Chance: the mean over all permutations of the pairing inside blocks, exactly, and its 95 %
    quantile from drawn ones.
    """
    samples = float("inf") if index == "cka-debiased" else float(a.samples)
    weight = weights(a.block_sizes, a.samples, centre=centre or index == "rsa")
    generator = torch.Generator().manual_seed(a.settings.seed)
    found: list[tuple[Tensor, ...]] = []
    expected, draws = [], []

    def combine(sums: Tensor, n: int) -> Tensor:
        if index == "rsa":
            return covariance(sums, n, samples)
        return inner_product(sums, n, samples, centre=centre)

    def prepared(triangle: Tensor, diagonal: Tensor) -> Side:
        if index == "rsa":
            return side(*_distances(triangle, diagonal))
        return (level if centre else side)(triangle, diagonal)

    units: list[Tensor] = []
    per_block = max(2, -(-_DRAWS // len(weight)))
    both = (stacked(rep, kernel, rep.block_sizes) for rep in (a, b))
    for n, w, *blocks in zip(a.block_sizes, weight, *both, strict=True):
        if not w:
            continue
        # at a mean diagonal of one, float32 holds the products of kernels of any scale
        units = units or [_unit(diagonal) for _, diagonal in blocks]
        blocks = [(t / unit, d / unit) for (t, d), unit in zip(blocks, units, strict=True)]
        one, two = (prepared(*block) for block in blocks)
        visible = (
            FINEST_SQUARE * (d.sum(1) ** 2 - (d * d).sum(1)) / (n * (n - 1)) for _, d in blocks
        )
        sums = pair_sums(one, two)
        own = (combine(own_sums(x), n) for x in (one, two))
        found.append((combine(sums, n), *own, *visible))
        expected.append(combine(permuted_sums(sums, n), n))
        small1, small2 = _float32(one), _float32(two)
        drawn = [
            combine(pair_sums(small1, _permuted(small2, now, generator)), n)
            for now in _batches(per_block)
        ]
        # (L1, draws · L2) -> (L1, L2, draws)
        draws.append(torch.cat([x.unflatten(1, (-1, len(b))).mT for x in drawn], 2).double())

    weight = weight[weight > 0]
    each = _Blocks(*(torch.stack(x) for x in zip(*found, strict=True)))
    whole = each.mean(weight)
    value = whole.score()
    stderr = jackknife(
        [each.mean(rest).score() for rest in _without_one(weight)],
        torch.full_like(value, torch.nan),
    )
    share = weight / weight.sum()
    mean = torch.tensordot(share, torch.stack(expected), 1) / whole.norms()
    above = _spread(torch.stack(draws), share, generator) / whole.norms()
    low = 0.0 if index == "cka" else -1.0
    high = (mean + above).clamp(low, 1.0)
    value, mean = value.clamp(low, 1.0), mean.clamp(low, 1.0)
    alive1, alive2 = whole.alive()
    return Estimate(
        scores=value.numpy(),
        stderr=stderr.numpy(),
        alive=(alive1.numpy(), alive2.numpy()),
        chance=mean.numpy(),
        chance_high=high.numpy(),
    )


def _float32(x: Side) -> Side:
    k, d, r, t, s = (part.float() for part in x)
    return k, d, r, t, s


def _unit(diagonal: Tensor) -> Tensor:  # (L, n) -> (L, 1)
    mean = diagonal.mean(1, keepdim=True)
    return torch.where(mean > 0, mean, 1.0)


def _distances(triangle: Tensor, diagonal: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distances less their mean; a sample is at no distance from itself."""
    n = diagonal.shape[-1]
    rows, columns = packing.lower(n)
    squared = packing.picked(diagonal, rows) + packing.picked(diagonal, columns) - 2 * triangle
    if n > 1:
        squared = squared - squared.mean(1, keepdim=True)  # a covariance does not see it
    return squared, torch.zeros_like(diagonal)


def _permuted(x: Side, draws: int, generator: torch.Generator) -> Side:
    """One side of a block with its samples in random order, `draws` times: as many more layers.

    They come draw by draw, all layers of each.
    """
    triangle, diagonal, sums, t, s = x
    n = diagonal.shape[-1]
    flat, (rows, columns) = triangle.T.contiguous(), packing.lower(n)
    orders = [torch.randperm(n, generator=generator) for _ in range(draws)]
    square = packing.square_places(n).flatten()
    ends = ((o.index_select(0, rows), o.index_select(0, columns)) for o in orders)
    places = [square.index_select(0, i * n + j) for i, j in ends]
    return (
        torch.cat([flat.index_select(0, place) for place in places], 1).T,
        torch.cat([diagonal[:, order] for order in orders]),
        torch.cat([sums[:, order] for order in orders]),
        t.repeat(draws),
        s.repeat(draws),
    )


def _spread(draws: Tensor, share: Tensor, generator: torch.Generator) -> Tensor:
    """How far the 95 % quantile of the blocks' mean lies above its own mean.

    `draws` (k, L1, L2, p) holds p permutations of each of k blocks. Blocks are permuted apart, so
    one draw of each, chosen at random, makes one draw of the whole.
    """
    p = draws.shape[-1]
    spread = (draws - draws.mean(-1, keepdim=True)) * (p / (p - 1)) ** 0.5
    totals = torch.zeros(*draws.shape[1:-1], _TOTALS, dtype=torch.float64)
    for weight, block in zip(share, spread, strict=True):
        totals += weight * block[..., torch.randint(p, (_TOTALS,), generator=generator)]
    return torch.quantile(totals, 0.95, dim=-1)


def _batches(draws: int, most: int = 32) -> list[int]:
    return [min(most, draws - done) for done in range(0, draws, most)]


def _without_one(weight: Tensor) -> list[Tensor]:
    """The blocks' weights with one block left out, for each block."""
    every = torch.arange(len(weight))
    return [torch.where(every == i, 0.0, weight) for i in every] if len(weight) > 1 else []


def jackknife(left_out: Sequence[Tensor], unknown: Tensor) -> Tensor:
    """Standard error from scores with one block left out each; `unknown` with fewer than two."""
    k = len(left_out)
    if k < 2:
        return unknown
    each = torch.stack(list(left_out))
    return ((each - each.mean(0)) ** 2).sum(0).mul((k - 1) / k).sqrt()
