"""The `blocks` estimator: CKA and RSA from full Gram matrices, or from those of blocks of samples.

With up to 1,024 samples the kernel of all of them is stored, and scores are exact, up to 16-bit
storage. The standard error says how far they would move with other samples from the same source:
groups of samples are left out in turn. A group is a run of the seeded order, so leaving it out
removes a strip of the kernel.

Beyond that, each block gives unbiased estimates of the numerator and denominators of the index on
the N × N kernel (`pair_statistics`). Blocks are nearly independent, so leaving out one at a time
gives the standard error, and permuting the pairing of samples inside blocks gives the chance level.
With `unit="token"`, groups of sequences are left out instead.

Both come in two steps: reading kernels of two networks, and what their sums over pairs say
(`estimate_from_blocks`, `estimate_from_full_gram`). `all_pairs` reads kernels of many networks and
shares the second step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .._ops import packing
from ..errors import MismatchError
from ..representation.layer import Layer
from ..representation.representation import Representation
from . import jackknife
from .indices.registry import PairSumRule, get_index
from .jackknife import Estimate, SequenceGroup
from .kernels import CompareConfig, Estimator
from .pair_statistics import (
    SKEWNESS_SAMPLES,
    KernelBlock,
    PairSums,
    PermutationMoments,
    PermutationNull,
    PermutationWindow,
    RowSums,
    cross_products,
    inner_products,
    kernel_block,
    norm_products,
    permutation_moments,
    permutation_window,
    permuted_products,
    row_effects,
    sum_weights,
    u_centred_block,
)
from .stored_kernels import (
    blocks_at_once,
    equal_size_runs,
    iter_blocks,
    mean_diagonal,
    read_blocks,
    round_off_level,
)

Spans = Sequence[tuple[int, int]]  # of samples, [start, stop)


class BlockSums(NamedTuple):
    """What kernels add up to over the pairs of samples of g blocks of one size."""

    pairs: PairSums  # (g, ...) over ordered pairs
    apart: PairSums  # (g, ...) over pairs within halves of a block less those across them
    one: RowSums  # (g, L1, n)
    two: RowSums  # (g, L2, n)
    visible: tuple[Tensor, Tensor]  # (g, L1), (g, L2): ⟨K, K⟩ is round-off below these


class BlockMeans(NamedTuple):
    """What each block says about numerator and denominators, for all layers."""

    cross: Tensor  # (k, L1, L2)
    chance: Tensor  # (k, L1, L2) the mean of `cross` under permuted pairing
    own1: Tensor  # (k, L1)
    own2: Tensor  # (k, L2)
    visible1: Tensor  # (k, L1) an own value is round-off below these
    visible2: Tensor  # (k, L2)
    cross_apart: Tensor  # (k, L1, L2) pairs within halves of a block less those across them
    own1_apart: Tensor  # (k, L1)
    own2_apart: Tensor  # (k, L2)

    def mean(self, weights: Tensor) -> BlockMeans:
        """The blocks' mean, each by its weight (k,); or many such means, for weights (m, k)."""
        share = weights / weights.sum(-1, keepdim=True)
        return BlockMeans(*(torch.tensordot(share, x, 1) for x in self))

    def without(
        self, weights: Tensor, which: slice, rest: BlockMeans | None, of_rest: Tensor
    ) -> BlockMeans:
        """The mean with other blocks in place of some."""
        own = weights.clone()
        own[which] = 0
        sums = [torch.tensordot(own, x, 1) for x in self]
        if rest is not None:
            sums = [x + torch.tensordot(of_rest, y, 1) for x, y in zip(sums, rest, strict=True)]
        return BlockMeans(*(x / (own.sum() + of_rest.sum()) for x in sums))

    def alive(self) -> tuple[Tensor, Tensor]:  # of means: (..., L1), (..., L2)
        return self.own1 > self.visible1, self.own2 > self.visible2

    def norms(self) -> Tensor:  # of means: (..., L1, L2)
        one, two = self.alive()
        return norm_products(self.own1 * one, self.own2 * two)

    def scores(self) -> Tensor:  # of means: (..., L1, L2)
        return self.cross / self.norms()

    def moved(self, of: BlockMeans) -> Tensor:  # (k, L1, L2)
        """What the `apart` of each block would move the score of means by, to first order."""
        norms = of.norms()
        score, own1, own2 = of.scores(), of.own1[:, None], of.own2[None, :]
        relative = self.own1_apart[:, :, None] / own1 + self.own2_apart[:, None, :] / own2
        return self.cross_apart / norms - score * relative / 2


def block_means(blocks: Iterable[BlockSums], asked: CompareConfig, samples: int) -> BlockMeans:
    """Estimates of numerator and denominators for all N samples, from each block."""
    means = []
    for block in blocks:
        weights = sum_weights(asked.index, block.one.n, samples, centre=asked.centre)
        inner = inner_products(weights, block.pairs, block.one, block.two)
        expected = permuted_products(weights, block.one, block.two)
        apart = (float(weights[0]) * x for x in block.apart)
        means.append((inner.both, expected, inner.one, inner.two, *block.visible, *apart))
    return BlockMeans(*(torch.cat(x) for x in zip(*means, strict=True)))


class BlockStatistics(NamedTuple):
    """What was found in the blocks of two Representations."""

    each: BlockMeans
    weight: Tensor  # (k,) of each block
    units: list[Tensor]  # (L, 1) that the kernels of either were divided by
    blocks: list[BlockSums]
    windows: list[PermutationWindow]  # layers of both, one after the other
    n_eff: tuple[Tensor, Tensor]


def is_centred(asked: CompareConfig) -> bool:
    """Whether what is added to a row and its column alike does not enter a score."""
    return asked.centre or pair_sum_rule(asked).distances is not None


def pair_sum_rule(asked: CompareConfig) -> PairSumRule:
    """How the index adds up from sums over pairs."""
    rule = get_index(asked.index).pair_sums
    assert rule is not None
    return rule


def block_weights(sizes: Sequence[int], samples: float, *, centre: bool) -> Tensor:  # (k,)
    """Pairs of samples in each block, zero for a block too small to say anything."""
    fewest = min(4, samples) if centre else 2
    pairs = [n * (n - 1.0) if n >= fewest else 0.0 for n in sizes]
    out = torch.tensor(pairs, dtype=torch.float64)
    if not out.any():
        raise MismatchError(
            f"expected blocks of at least {fewest:g} samples, found at most {max(sizes)}; record "
            "with a larger block"
        )
    return out


def block_spans(sizes: Sequence[int], weights: Tensor) -> Spans:
    """The samples [start, stop) of each block that has a weight."""
    ends = itertools.pairwise([0, *itertools.accumulate(sizes)])
    return [span for span, weight in zip(ends, weights, strict=True) if weight]


def block_scores(
    a: Representation,
    b: Representation,
    asked: CompareConfig,
    device: str | torch.device = "cpu",
    *,
    population: bool = False,
) -> Estimate:
    """`cka`, `cka-debiased` or `rsa` for all pairs of layers of two paired Representations.

    Bias: numerator and denominators are unbiased for the kernels of all N samples (of the
    population for `cka-debiased`), their ratio to first order. Standard error: a jackknife over
    blocks; beyond 1,024 samples, less what all N samples share with the blocks
    (`finite_population_deviations`), so that it is that of the score of all N. For `cka-debiased`,
    for fewer samples, and with `population`, it is that of the score on samples drawn anew. Cost:
    O(L1 L2 k B²).

    Of tokens, numerator and denominators are over pairs of different sequences, and the standard
    error is that of the score on other sequences: groups of them are left out.

    Chance: the mean over all permutations of the pairing inside blocks, exactly, and its 95 %
    quantile from their moments.
    """
    return block_scores_and_sums(a, b, asked, device, population=population)[0]


def block_scores_and_sums(
    a: Representation,
    b: Representation,
    asked: CompareConfig,
    device: str | torch.device = "cpu",
    *,
    units: list[Tensor] | None = None,
    population: bool = False,
) -> tuple[Estimate, BlockStatistics]:
    """`block_scores`, and what they were computed from: kernels divided by `units`, if given."""
    found = _block_statistics(a, b, asked, device, windows=True, units=units)
    left_out = None
    if a.settings.tokens > 1:
        left_out = _scores_without_sequences(a, b, asked, device, found)
    moments = block_permutation_moments(found.windows, found.weight, asked, a)
    null = moments.null(slice(0, len(a)), slice(len(a), None))
    estimate = estimate_from_blocks(
        found.each, found.weight, found.n_eff, asked, a, null, left_out, population=population
    )
    return estimate, found


def block_permutation_moments(
    windows: Sequence[PermutationWindow], weight: Tensor, asked: CompareConfig, rep: Representation
) -> PermutationMoments:
    """Moments of permuted scores over all blocks, of which those of a window are permuted alike."""
    share = (weight / weight.sum()).unflatten(0, (-1, rep.settings.tokens)).sum(1).tolist()
    return permutation_moments(
        [
            (s, sum_weights(asked.index, w.n, rep.samples, centre=asked.centre), w)
            for s, w in zip(share, windows, strict=True)
        ]
    )


def estimate_from_blocks(
    each: BlockMeans,
    weight: Tensor,  # (k,) of each block
    n_eff: tuple[Tensor, Tensor],
    asked: CompareConfig,
    rep: Representation,
    null: PermutationNull,  # of what is not divided by norms
    left_out: Tensor | None = None,  # (m, L1, L2) of tokens, scores without groups of sequences
    *,
    population: bool = False,
) -> Estimate:
    """What blocks say, as scores with their errors; `rep` is one of the two."""
    tokens = rep.settings.tokens
    whole = each.mean(weight)
    norms = whole.norms()
    if left_out is None:
        apart = ~torch.eye(len(weight), dtype=torch.bool, device=weight.device)
        left_out = each.mean(weight * apart).scores()
    deviations = [jackknife.jackknife_deviations(left_out)]
    population_score = pair_sum_rule(asked).population
    of_recorded = tokens == 1 and rep.samples > jackknife.FULL_GRAM_SAMPLES and not population_score
    if of_recorded and not population:
        pairs = each.moved(whole) * (weight / weight.sum() / 2)[:, None, None]
        deviations = finite_population_deviations(
            deviations[0], pairs, sum(rep.block_sizes) / rep.samples
        )
    carried = norm_products(each.own1, each.own2).nan_to_num() * weight[:, None, None]
    return Estimate.of(
        whole.scores(),
        deviations,
        whole.alive(),
        null.levels(whole.chance / norms, norms),
        low=get_index(asked.index).bounds[0],
        n_eff=n_eff,
        effective_blocks=jackknife.effective_number(carried) if tokens == 1 else None,
    )


def _scores_without_sequences(
    a: Representation,
    b: Representation,
    asked: CompareConfig,
    device: str | torch.device,
    found: BlockStatistics,
) -> Tensor:  # (m, L1, L2)
    """The score with each of some groups of sequences left out of all its blocks."""
    scores = []
    for group, weight in used_sequence_groups(a, asked):
        rest = None
        if len(group.rest):
            one, two = (jackknife.window_without_group(rep, group) for rep in (a, b))
            rest = _block_statistics(one, two, asked, device, units=found.units).each
        left = found.each.without(found.weight, group.blocks, rest, weight.to(device))
        scores.append(left.scores())
    return torch.stack(scores)


def used_sequence_groups(
    rep: Representation, asked: CompareConfig
) -> Iterator[tuple[SequenceGroup, Tensor]]:
    """Groups of sequences to leave out, and the weights of what is left of the blocks of each."""
    centre, tokens = is_centred(asked), rep.settings.tokens
    weight = block_weights(rep.block_sizes, rep.samples, centre=centre)
    for group in jackknife.sequence_groups(rep):
        n = len(group.rest)
        if weight[group.blocks.start]:
            yield (
                group,
                block_weights([n] * tokens, rep.samples, centre=centre) if n else weight[:0],
            )


def finite_population_deviations(left_out: Tensor, pairs: Tensor, part: float) -> list[Tensor]:
    """Deviations from the score of all N samples, of which the blocks hold a part.

    A block moves a score by its samples, each of which all N hold as well, and by which of their
    pairs it holds: Var = V₁ + V₂ about the population, and (1 − part) V₁ + V₂ about the score of
    all N. The jackknife sees V₁ + V₂, pairs within halves of blocks against those across see V₂.
    """
    k = len(pairs)
    spread = (pairs - pairs.mean(0)) * (k / max(1, k - 1)) ** 0.5
    return [left_out * (1 - part) ** 0.5, spread * part**0.5]


def _block_statistics(
    a: Representation,
    b: Representation,
    asked: CompareConfig,
    device: str | torch.device,
    *,
    windows: bool = False,  # for the chance level
    units: list[Tensor] | None = None,
) -> BlockStatistics:
    """What the blocks say, with their chance level."""
    sizes, tokens = a.block_sizes, a.settings.tokens
    loose = is_centred(asked)
    weight = block_weights(sizes, a.samples, centre=loose)
    many = blocks_at_once(max(len(a), len(b)), device)
    both = (
        iter_blocks(rep, asked.kernel, sizes, device, at_once=many, loose=loose) for rep in (a, b)
    )
    found, permuted, together = [], [], []
    carried = [jackknife.EffectiveSamples(), jackknife.EffectiveSamples()]
    for (start, stop), *pair in zip(equal_size_runs(sizes, many), *both, strict=True):
        if not weight[start]:
            continue
        n, blocks = sizes[start], stop - start
        # at a mean diagonal of one, float32 holds the products of kernels of any scale
        units = units or [
            mean_diagonal(d[: len(rep)]) for (_, d), rep in zip(pair, (a, b), strict=True)
        ]
        sides = []
        for raw, unit, into in zip(pair, units, carried, strict=True):
            triangle, diagonal = (x / unit.repeat(blocks, 1) for x in raw)
            side, shares = prepare_kernels(triangle, diagonal, asked)
            into.add([i // tokens for i in range(start, stop)], shares.unflatten(0, (blocks, -1)))
            sides.append(KernelBlock(*(x.unflatten(0, (blocks, -1)) for x in side)))
        levels = [
            round_off_level(rep, asked.kernel, slice(start, stop), n).to(device).view(blocks, -1)
            / unit[:, 0] ** 2
            for rep, unit in zip((a, b), units, strict=True)
        ]
        seen = [_visible_level(level, asked) for level in levels]
        one, two = sides
        found.append(
            BlockSums(
                _pair_sums(one.triangle, two.triangle),
                _half_differences(one.triangle, two.triangle, n, asked.estimator),
                RowSums(one.diagonal, one.rows),
                RowSums(two.diagonal, two.rows),
                (seen[0], seen[1]),
            )
        )
        for i in range(blocks if windows else 0):
            together.append([torch.cat([x[i] for x in part]) for part in zip(*sides, strict=True)])
            if len(together) == tokens:
                triangles, d, r = (torch.stack(x, 1) for x in zip(*together, strict=True))
                leading = _leading_kernel(triangles[:, 0], n) if tokens == 1 else None
                inner = 2 * triangles @ triangles.mT
                permuted.append(permutation_window(row_effects(r), d, inner, leading))
                together = []
    weight = weight[weight > 0].to(device)
    assert units is not None
    n_eff = (carried[0].n_eff(), carried[1].n_eff())
    each = block_means(found, asked, a.samples)
    return BlockStatistics(each, weight, units, found, permuted, n_eff)


def _pair_sums(x: Tensor, y: Tensor) -> PairSums:  # (g, L1, t), (g, L2, t)
    return PairSums(2 * x @ y.mT, 2 * x.square().sum(-1), 2 * y.square().sum(-1))


def _leading_kernel(triangles: Tensor, n: int, most: int = SKEWNESS_SAMPLES) -> Tensor:
    m = min(n, most)
    packed = triangles[:, : m * (m - 1) // 2].float()
    return packing.symmetric_matrices(packed, packed.new_zeros(len(packed), m))


def half_weights(n: int, device: torch.device) -> tuple[float, float, Tensor]:  # (t,) float32
    """Weights of pairs within halves of a block, and across them, and those of all its pairs.

    In a sum over pairs with these weights, what single samples add cancels; what is left says how
    much it matters which pairs were taken. Its standard deviation is twice that of the plain sum.
    """
    i, j = packing.lower_triangle(n, device)
    apart = (i < n // 2) != (j < n // 2)
    across = max(1, (n // 2) * (n - n // 2))
    within = max(1, len(i) - across)
    # of a difference of means the variance is σ² (1/w + 1/a), of the mean of all σ² / (w + a)
    inside, outside = 2 * (across / within) ** 0.5, -2 * (within / across) ** 0.5
    every = torch.full(apart.shape, inside, dtype=torch.float32, device=device)
    return inside, outside, every.masked_fill_(apart, outside)


def _half_differences(x: Tensor, y: Tensor, n: int, estimator: Estimator) -> PairSums:
    """Sums over pairs (g, L, t) with those weights, in float32, which is enough for an error."""
    _, _, weight = half_weights(n, x.device)
    x, y = x.float(), y.float()
    weighted = x * weight
    if estimator == "ratio":  # in the order that keeps its standard errors to the last digit
        own = (weighted * x).sum(-1), (y * weight * y).sum(-1)
    else:
        own = x.square() @ weight, y.square() @ weight
    return PairSums(*(2 * z.double() for z in (weighted @ y.mT, *own)))


def prepare_kernels(
    triangle: Tensor, diagonal: Tensor, asked: CompareConfig
) -> tuple[KernelBlock, Tensor]:
    """Kernels made ready for an index: as they are, levelled to be centred, or as distances.

    Also how much each sample carries of a kernel (L, n): its diagonal, which distances do not have.
    """
    if distances := pair_sum_rule(asked).distances:
        shares = u_centred_block(triangle, diagonal).diagonal
        squared = _squared_distances(triangle, diagonal)
        zeros = torch.zeros_like(diagonal)  # a sample is at no distance from itself
        if distances == "euclidean":
            return u_centred_block(squared.clamp_min(0).sqrt(), zeros), shares
        # a covariance does not see the mean
        return kernel_block(squared - squared.mean(1, keepdim=True), zeros), shares
    block = (u_centred_block if asked.centre else kernel_block)(triangle, diagonal)
    return block, block.diagonal


def _squared_distances(triangle: Tensor, diagonal: Tensor) -> Tensor:  # (L, t)
    rows, columns = packing.lower_triangle(diagonal.shape[-1], diagonal.device)
    ends = packing.select_columns(diagonal, rows) + packing.select_columns(diagonal, columns)
    return ends - 2 * triangle


def _visible_level(level: Tensor, asked: CompareConfig) -> Tensor:
    """Below what ⟨K, K⟩ is round-off, if it is `level` of kernels at a mean diagonal of one.

    The square of a distance has the round-off of a kernel; of a layer that is constant, a distance
    is the root of that.
    """
    return level.sqrt() if pair_sum_rule(asked).distances == "euclidean" else level


# -- full Gram matrices --

_GROUPS = 32  # of samples, to be left out in turn


@dataclass(frozen=True)
class LayerPairing:
    """Layers that hold the kernels of all N samples, in the same order, and what is asked of them.

    Every row is compared with every column, once more without each span of samples.
    """

    rows: Sequence[Layer]
    columns: Sequence[Layer]
    asked: CompareConfig
    samples: int
    spans: Spans
    device: str | torch.device = "cpu"


def sample_groups(samples: int) -> Spans:
    """Runs of samples to leave out, about 32 in all; single samples where there are fewer.

    >>> sample_groups(3), len(sample_groups(300))
    ([(0, 1), (1, 2), (2, 3)], 32)
    """
    count = min(_GROUPS, samples)
    ends = [samples * i // count for i in range(count + 1)]
    return list(itertools.pairwise(ends))


def full_gram_scores(of: LayerPairing, *, chance: bool = False) -> Estimate:
    """An index between layers that hold the kernels of all N samples, in the same order.

    Bias: none but of 16-bit storage, below 1e-4 for CKA; the score is that of these N samples.
    Standard error: a jackknife over the `spans` of samples, of the score on N samples drawn anew
    (for `cka-debiased`, which does not depend on N, of the population's). With `chance`, the mean
    over all permutations, exactly, and its 95 % quantile from their moments. Cost: O(L1 L2 N²).
    """
    asked, samples = of.asked, of.samples
    one, two = (
        _prepared_kernels(layers, asked, samples, of.device) for layers in (of.rows, of.columns)
    )
    every, *left = (
        inner_products(
            sum_weights(asked.index, rows.n, samples, centre=asked.centre), pairs, rows, columns
        )
        for pairs, rows, columns in _sums_without_spans(one.kernels, two.kernels, of.spans)
    )
    levels = None
    if chance:
        weights = sum_weights(asked.index, samples, samples, centre=asked.centre)
        rows, columns = (RowSums(x.kernels.diagonal, x.kernels.rows) for x in (one, two))
        null = _moments(one.kernels, two.kernels, weights).null(
            slice(0, len(of.rows)), slice(len(of.rows), None)
        )
        levels = (permuted_products(weights, rows, columns), null)
    return estimate_from_full_gram(
        of, every, left, (one.visible, two.visible), (one.n_eff, two.n_eff), levels
    )


def permuted_full_gram_scores(of: LayerPairing, orders: Iterable[Tensor]) -> Iterator[Tensor]:
    """Scores (L1, L2) with the samples of the columns in each of some orders, clamped to no range.

    Cost: O(L1 L2 N²) for each.
    """
    one, two = (
        _prepared_kernels(layers, of.asked, of.samples, of.device)
        for layers in (of.rows, of.columns)
    )
    weights = sum_weights(of.asked.index, of.samples, of.samples, centre=of.asked.centre)
    rows, columns = (RowSums(x.kernels.diagonal, x.kernels.rows) for x in (one, two))
    triangles = one.kernels.triangle.double(), two.kernels.triangle.double()
    own = inner_products(weights, _pair_sums(*triangles), rows, columns)
    norms = norm_products(own.one * (own.one > one.visible), own.two * (own.two > two.visible))
    i, j = packing.lower_triangle(of.samples, torch.device(of.device))
    positions = packing.triangle_positions(of.samples, torch.device(of.device))
    for order in orders:
        pairs = 2 * triangles[0] @ triangles[1][:, positions[order[i], order[j]]].T
        permuted = RowSums(*(x[:, order] for x in columns))
        yield cross_products(weights, pairs, rows, permuted) / norms


def estimate_from_full_gram(
    of: LayerPairing,
    every: PairSums,  # inner products over all samples
    left: Sequence[PairSums],  # without each span of them
    visible: tuple[Tensor, Tensor],
    n_eff: tuple[Tensor, Tensor],
    chance: tuple[Tensor, PermutationNull] | None = None,
) -> Estimate:
    """Scores with their errors, from inner products of kernels.

    Args:
        of: the layers, and what is asked of them.
        every: inner products over all samples.
        left: those without each span of samples.
        visible: (L1,) and (L2,), below which the product of a layer with itself is round-off.
        n_eff: (L1,) and (L2,) effective sample sizes.
        chance: (L1, L2) the mean of products over permutations, and their distribution about it;
            None does without.
    """
    alive = (every.one > visible[0], every.two > visible[1])

    def norms(x: PairSums) -> Tensor:
        return norm_products(x.one * alive[0], x.two * alive[1])

    fewest = 4 if is_centred(of.asked) else 2
    left_out = torch.stack([x.both / norms(x) for x in left])
    for score, (start, stop) in zip(left_out, of.spans, strict=True):
        if of.samples - (stop - start) < fewest:
            score.fill_(torch.nan)
    levels = None
    if chance is not None:
        levels = chance[1].levels(chance[0] / norms(every), norms(every))
    return Estimate.of(
        every.both / norms(every),
        [jackknife.jackknife_deviations(left_out)],
        alive,
        levels,
        low=get_index(of.asked.index).bounds[0],
        n_eff=n_eff,
    )


class _PreparedKernels(NamedTuple):
    kernels: KernelBlock  # of all samples as one block; triangles in float32
    visible: Tensor  # (L,)
    n_eff: Tensor  # (L,)


def _prepared_kernels(
    layers: Sequence[Layer], asked: CompareConfig, samples: int, device: str | torch.device
) -> _PreparedKernels:
    """Kernels made ready for the index: at a mean diagonal of one, levelled, or as distances."""
    how = {"loose": is_centred(asked), "whole": True}
    parts, visible, carried = [], [], []
    for layer in layers:
        triangle, diagonal = read_blocks([layer], asked.kernel, slice(0, 1), samples, device, **how)
        unit = mean_diagonal(diagonal)[:, 0]
        least = round_off_level([layer], asked.kernel, slice(0, 1), samples, whole=True)
        visible.append(_visible_level(least.to(device) / unit**2, asked))
        block, shares = prepare_kernels(triangle / unit, diagonal / unit, asked)
        carried.append(jackknife.effective_number(shares.T))
        parts.append(block._replace(triangle=block.triangle.float()))
    together = KernelBlock(*(torch.cat(part) for part in zip(*parts, strict=True)))
    return _PreparedKernels(together, torch.cat(visible), torch.cat(carried))


def _sums_without_spans(
    one: KernelBlock, two: KernelBlock, spans: Spans
) -> Iterator[tuple[PairSums, RowSums, RowSums]]:
    """Sums over pairs, diagonals and row sums of all samples, then without each span."""
    pairs = _pair_sums(one.triangle.double(), two.triangle.double())
    yield pairs, RowSums(*one[1:]), RowSums(*two[1:])
    for start, stop in spans:
        keep = torch.ones(one.diagonal.shape[1], dtype=torch.bool, device=one.diagonal.device)
        keep[start:stop] = False
        strips = [_kernel_rows(x, start, stop) for x in (one, two)]
        inside = _pair_sums(*(x[:, :, start:stop].flatten(1) for x in strips))
        gone = _pair_sums(*(x.flatten(1) for x in strips))  # both ends of a pair inside count twice
        rest = (x - y + z / 2 for x, y, z in zip(pairs, gone, inside, strict=True))
        less1, less2 = (
            RowSums(x.diagonal[:, keep], (x.rows - strip.sum(1))[:, keep])
            for x, strip in zip((one, two), strips, strict=True)
        )
        yield PairSums(*rest), less1, less2


def _kernel_rows(x: KernelBlock, start: int, stop: int) -> Tensor:  # (L, stop - start, N)
    """Rows of kernels, with zeros on the diagonal, in float64."""
    n = x.diagonal.shape[1]
    places = packing.triangle_positions(n, x.diagonal.device)[start:stop]
    out = x.triangle.index_select(1, places.flatten()).view(-1, stop - start, n).double()
    out[:, range(stop - start), range(start, stop)] = 0.0
    return out


def _moments(one: KernelBlock, two: KernelBlock, add_up: Tensor) -> PermutationMoments:
    """Of the permuted scores of all layers, those of rows before those of columns."""
    both = KernelBlock(*(torch.cat(x) for x in zip(one, two, strict=True)))
    own = 2 * torch.cat([x.triangle.double().square().sum(1) for x in (one, two)])
    leading = _leading_kernel(both.triangle, both.diagonal.shape[1], 256)
    u = row_effects(both.rows)[:, None]
    window = permutation_window(u, both.diagonal[:, None], own[:, None, None], leading)
    return permutation_moments([(1.0, add_up, window)])
