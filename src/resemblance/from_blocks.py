"""Indices from exact kernels inside blocks of samples: unbiased sums, jackknife, chance level.

Everything that CKA and RSA need of two kernels over N samples is a sum over pairs, triples or
quadruples of samples. Inside a block of n samples each such sum over *distinct* samples, divided by
the number of its terms, is a U-statistic: it estimates the mean over all N samples without bias,
as long as blocks are random subsets. Diagonal terms are known for every sample of a block. Put
together with the counts for N, they estimate numerator and denominators of the index on the whole
N × N kernel. Blocks are nearly independent, so leaving out one at a time gives the standard error,
and permuting the pairing of samples inside blocks gives the chance level.

NBS and the spectrum are no such sums; they are taken inside blocks and averaged, which makes them
the index of n samples, not of N (see `nbs_scores`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from . import blocks as packing
from . import indices, kernels
from .representation import Layer, Representation

_DRAWS = 512  # permutations drawn in all, spread over the blocks
_TOTALS = 1000  # ways of choosing one draw a block, for the 95 % quantile


@dataclass(frozen=True)
class Estimate:
    """Scores of rows × columns, their standard errors, and the score of unrelated samples."""

    scores: np.ndarray
    stderr: np.ndarray
    chance: np.ndarray | None = None  # mean under permuted pairing
    chance_high: np.ndarray | None = None  # 95 % quantile


def kernel_blocks(
    layer: Layer, kernel: str, sizes: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Each block of a named kernel: strict lower triangle (n(n-1)/2,) and diagonal (n,), float64."""
    triangles, diagonals, scale = {}, {}, {}
    kinds = kernels.needs(kernel)
    for kind in kinds:
        triangles[kind] = layer.tensor(f"{kind}.blocks.triangle")
        diagonals[kind] = layer.tensor(f"{kind}.blocks.diagonal")
        scale[kind] = max(layer.moments[f"trace_{kind}"], 1e-300)
    for b, n in enumerate(sizes):
        t = n * (n - 1) // 2
        parts = {
            kind: packing.unpack16(triangles[kind][b, None, :t], diagonals[kind][b, None, :n])[0]
            for kind in kinds
        }
        diagonal = {kind: diagonals[kind][b, :n].double() for kind in kinds}
        if kernel == "transport":
            square = kernels.transport(
                *(packing.squares(parts[k][None], diagonal[k][None])[0] / scale[k] for k in kinds)
            )
            rows, columns = torch.tril_indices(n, n, -1)
            yield square[rows, columns], square.diagonal().clone()
        else:
            yield kernels.entries(kernel, parts, scale), kernels.entries(kernel, diagonal, scale)


def stacked(rep: Representation, kernel: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Each block with all layers at once: triangles (L, t) and diagonals (L, n)."""
    for layers in zip(
        *(kernel_blocks(layer, kernel, rep.block_sizes) for layer in rep), strict=True
    ):
        yield torch.stack([t for t, _ in layers]), torch.stack([d for _, d in layers])


# -- sums over distinct samples -----------------------------------------------------------------


def counts(sizes: Sequence[int]) -> Tensor:  # (k, 4)
    """Ordered tuples of 1, 2, 3 and 4 distinct samples in each block."""
    n = torch.tensor(sizes, dtype=torch.float64)
    out = [n, n * (n - 1), n * (n - 1) * (n - 2), n * (n - 1) * (n - 2) * (n - 3)]
    return torch.stack(out, 1).clamp_min(0)


def side(triangle: Tensor, diagonal: Tensor) -> tuple[Tensor, ...]:
    """What one kernel brings to a block: entries, diagonal, row sums off it, and their totals."""
    n = diagonal.shape[-1]
    rows, columns = torch.tril_indices(n, n, -1)
    sums = torch.zeros_like(diagonal).index_add_(1, rows, triangle)
    sums.index_add_(1, columns, triangle)
    return triangle, diagonal, sums, diagonal.sum(1), sums.sum(1)


def pair_sums(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> Tensor:  # (9, L1, L2)
    """Sums over one block for all pairs of layers, from which `pattern_means` is made.

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


def own_sums(a: tuple[Tensor, ...]) -> Tensor:  # (9, L)
    """`pair_sums` of each layer with itself."""
    k, d, r, t, s = a
    rows = [2 * (k * k).sum(1), (r * r).sum(1), (d * d).sum(1), (d * r).sum(1), (d * r).sum(1)]
    return torch.stack([*rows, s * s, t * t, t * s, t * s])


def inner_product(sums: Tensor, count: Tensor, samples: float, *, centre: bool) -> Tensor:
    """⟨K1, K2⟩_F over N² for the kernels of all N samples, estimated without bias from blocks.

    `sums` (9, ...) and `count` (4,) are totals over blocks; with `centre`, of HKH. The formula
    writes each sum over N samples as one over tuples of distinct samples, replaces the mean of each
    kind of tuple by its U-statistic, and counts how often each kind occurs among N. `samples` = ∞
    leaves only the tuples of distinct samples: the debiased (population) inner product.
    """
    a, rr, dd, dr, rd, ss, tt, ts, st = sums
    n1, n2, n3, n4 = (c.clamp_min(1.0) for c in count)
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
    n = samples
    m1, m2, m3 = n - 1, (n - 1) * (n - 2), (n - 1) * (n - 2) * (n - 3)
    whole = diagonal + m1 * pairs  # Σ_ij K1 K2, over N
    rows = diagonal + m1 * (edge + pairs) + m2 * triples  # Σ_i of products of row sums, over N
    total = (
        diagonal + m1 * (corners + 2 * edge + 2 * pairs) + m2 * (apart + 4 * triples) + m3 * quads
    )  # product of the sums of all entries, over N
    return (whole - 2 * rows / n + total / n**2) / n


# -- estimates ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sums:
    """Block by block: the sums of pairs and of each side, for all layers."""

    count: Tensor  # (k, 4)
    pair: Tensor  # (k, 9, L1, L2)
    own1: Tensor  # (k, 9, L1)
    own2: Tensor  # (k, 9, L2)
    total1: Tensor  # (k, L1) sums of all off-diagonal entries
    total2: Tensor  # (k, L2)


def scores(a: Representation, b: Representation, kernel: str, index: str, centre: bool) -> Estimate:
    """`cka`, `cka-debiased` or `rsa` for all pairs of layers of two paired Representations.

    Bias: numerator and denominators are unbiased for the kernels of all N samples (of the
    population for `cka-debiased`), their ratio to first order. Standard error: jackknife over
    blocks, of the score as an estimate for the population the samples came from; it is a little
    wide for the N samples themselves. Cost: O(L1 L2 k B²).
    """
    samples = float("inf") if index == "cka-debiased" else float(a.samples)
    generator = torch.Generator().manual_seed(a.settings.seed)
    count = counts(a.block_sizes)
    per_block = max(2, -(-_DRAWS // len(count)))
    pair, own1, own2, total1, total2, draws = [], [], [], [], [], []

    def combine(sums: Tensor, c: Tensor, s1: Tensor, s2: Tensor) -> Tensor:
        if index == "rsa":  # the covariance of squared distances over pairs
            return sums[0] / c[1] - s1 * s2 / c[1] ** 2
        return inner_product(sums, c, samples, centre=centre)

    for one, two in zip(stacked(a, kernel), stacked(b, kernel), strict=True):
        side1, side2 = (side(*(_distances(*x) if index == "rsa" else x)) for x in (one, two))
        pair.append(pair_sums(side1, side2))
        own1.append(own_sums(side1))
        own2.append(own_sums(side2))
        total1.append(side1[4])
        total2.append(side2[4])
        shuffles = (_permuted(side2, generator) for _ in range(per_block))
        zero = torch.zeros(())
        draws.append(
            torch.stack([combine(pair_sums(side1, x), count.sum(0), zero, zero) for x in shuffles])
        )
    sums = _Sums(count, *(torch.stack(x) for x in (pair, own1, own2, total1, total2)))

    def score(keep: Tensor) -> Tensor:  # (L1, L2) from the blocks in keep
        c = sums.count[keep].sum(0)
        s1, s2 = sums.total1[keep].sum(0), sums.total2[keep].sum(0)
        cross = combine(sums.pair[keep].sum(0), c, s1[:, None], s2[None])
        norm1 = combine(sums.own1[keep].sum(0), c, s1, s1)
        norm2 = combine(sums.own2[keep].sum(0), c, s2, s2)
        return cross / indices.norms(norm1, norm2)

    k = len(count)
    everything = torch.arange(k)
    value = score(everything)
    stderr = _jackknife([score(everything[everything != b]) for b in range(k)], value)
    mean, high = _chance(sums, torch.stack(draws), combine, generator)
    low = 0.0 if index == "cka" else -1.0 if index == "rsa" else -np.inf
    high_end = np.inf if index == "cka-debiased" else 1.0
    return Estimate(value.clamp(low, high_end).numpy(), stderr.numpy(), mean.numpy(), high.numpy())


def _distances(triangle: Tensor, diagonal: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distances in place of kernel entries; a sample is at no distance from itself."""
    rows, columns = torch.tril_indices(diagonal.shape[-1], diagonal.shape[-1], -1)
    return diagonal[:, rows] + diagonal[:, columns] - 2 * triangle, torch.zeros_like(diagonal)


def _permuted(x: tuple[Tensor, ...], generator: torch.Generator) -> tuple[Tensor, ...]:
    """One side of a block with its samples in random order, so that no sample meets itself."""
    triangle, diagonal, sums, t, s = x
    n = diagonal.shape[-1]
    order = torch.randperm(n, generator=generator)
    rows, columns = torch.tril_indices(n, n, -1)
    i, j = order[rows], order[columns]
    i, j = torch.maximum(i, j), torch.minimum(i, j)
    return triangle[:, i * (i - 1) // 2 + j], diagonal[:, order], sums[:, order], t, s


def _jackknife(left_out: list[Tensor], value: Tensor) -> Tensor:
    """Standard error from scores with one block left out each; NaN with fewer than two blocks."""
    k = len(left_out)
    if k < 2:
        return torch.full_like(value, torch.nan)
    each = torch.stack(left_out)
    return ((each - each.mean(0)) ** 2).sum(0).mul((k - 1) / k).sqrt()


def _chance(
    sums: _Sums, draws: Tensor, combine: object, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Mean and 95 % quantile of the score when samples are paired at random inside blocks.

    The mean is exact: over all permutations, Σ K1_ij K2_ij averages to s1 s2 / n(n-1) and so on.
    The quantile adds the spread of the drawn permutations, one draw a block at a time.
    """
    assert callable(combine)
    n, n2 = sums.count[:, 0, None, None], sums.count[:, 1, None, None].clamp_min(1.0)
    _, _, _, _, _, ss, tt, ts, st = sums.pair.unbind(1)
    expected = torch.stack([ss / n2, ss / n, tt / n, ts / n, st / n, ss, tt, ts, st], 1)
    c, s1, s2 = sums.count.sum(0), sums.total1.sum(0), sums.total2.sum(0)
    norms = indices.norms(
        combine(sums.own1.sum(0), c, s1, s1), combine(sums.own2.sum(0), c, s2, s2)
    )
    mean = combine(expected.sum(0), c, s1[:, None], s2[None]) / norms
    k, p = draws.shape[:2]
    spread = (draws - draws.mean(1, keepdim=True)) * (p / (p - 1)) ** 0.5
    totals = torch.zeros(_TOTALS, *mean.shape, dtype=torch.float64)
    for block in spread:
        totals += block[torch.randint(p, (_TOTALS,), generator=generator)]
    return mean, mean + torch.quantile(totals, 0.95, dim=0) / norms


def nbs_scores(a: Representation, b: Representation, kernel: str, centre: bool) -> Estimate:
    """NBS inside blocks: Σ_b Tr(K1^½ K2 K1^½)^½ / √(Σ_b Tr K1 · Σ_b Tr K2), over all blocks b.

    Bias: this is the NBS of as many samples as a block holds, which lies above that of all N
    samples where kernels have more directions than a block has samples, since a few samples from
    each network can always be rotated onto each other. Scores of one block size compare with each
    other. Standard error: jackknife over blocks. Cost: O(L1 L2 k B³).
    """
    tops, traces1, traces2 = [], [], []
    for one, two in zip(stacked(a, kernel), stacked(b, kernel), strict=True):
        square1, square2 = (_centred_squares(*x, centre=centre) for x in (one, two))
        factor1, factor2 = indices.factor(square1), indices.factor(square2)
        tops.append(torch.stack([indices.nuclear(f[None], factor2) for f in factor1]))
        traces1.append(square1.diagonal(dim1=-2, dim2=-1).sum(-1))
        traces2.append(square2.diagonal(dim1=-2, dim2=-1).sum(-1))
    top, t1, t2 = (torch.stack(x) for x in (tops, traces1, traces2))

    def score(top: Tensor, t1: Tensor, t2: Tensor) -> Tensor:
        return top / indices.norms(t1, t2)

    whole = score(top.sum(0), t1.sum(0), t2.sum(0))
    left = [
        score(top.sum(0) - top[i], t1.sum(0) - t1[i], t2.sum(0) - t2[i]) for i in range(len(top))
    ]
    return Estimate(whole.clamp(0, 1).numpy(), _jackknife(left, whole).numpy())


def spectral_scores(a: Representation, b: Representation, kernel: str, centre: bool) -> Estimate:
    """Cosine of sorted eigenvalues, averaged over blocks; samples need not be paired.

    Bias: the spectrum is that of as many samples as a block holds. Standard error: jackknife over
    blocks, both networks' at once (NaN if they differ in number). Cost: O((L1 + L2) k B³).
    """
    spectra = []
    for rep in (a, b):
        values = [
            torch.linalg.eigvalsh(_centred_squares(*x, centre=centre)).clamp_min(0).flip(-1)
            for x in stacked(rep, kernel)
            if x[1].shape[-1] == max(rep.block_sizes)
        ]
        spectra.append(torch.stack(values))  # (k, L, n)
    n = min(x.shape[-1] for x in spectra)
    one, two = (x[..., :n] for x in spectra)

    def score(x: Tensor, y: Tensor) -> Tensor:
        return x @ y.T / indices.norms((x * x).sum(1), (y * y).sum(1))

    whole = score(one.mean(0), two.mean(0))
    left = []
    if len(one) == len(two):
        rest = torch.arange(len(one))
        left = [score(one[rest != i].mean(0), two[rest != i].mean(0)) for i in rest]
    return Estimate(whole.clamp(0, 1).numpy(), _jackknife(left, whole).numpy())


def _centred_squares(triangle: Tensor, diagonal: Tensor, *, centre: bool) -> Tensor:
    square = packing.squares(triangle, diagonal)
    return indices.centred(square) if centre else square
