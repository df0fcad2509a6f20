"""Indices from exact kernels inside blocks of samples: unbiased sums, jackknife, chance level.

Each block says what it can about numerator and denominators of an index on the whole N × N kernel
(`pair_sums`). Blocks are nearly independent, so leaving out one at a time gives the standard
error, and permuting the pairing of samples inside blocks the chance level (`chance_level`). Of
tokens, sequences take the place of samples in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .._ops import packed_kernels as packing
from ..errors import MismatchError
from ..representation.representation import Representation
from . import chance_level as chance
from . import error_bars, indices, left_out_sequences
from .combinations import Question
from .estimate import Estimate
from .pair_sums import Side, factors, level, own_sums, pair_sums, side
from .stored_kernels import at_once, round_off, runs, stacked

FEW = 1024  # samples: up to these an error is that of other samples, beyond that of a part of them


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
        self, weights: Tensor, which: slice, rest: BlockMeans, of_rest: Tensor
    ) -> BlockMeans:
        """The mean with other blocks in place of some."""
        own = weights.clone()
        own[which] = 0
        total = own.sum() + of_rest.sum()
        return BlockMeans(
            *(
                (torch.tensordot(own, x, 1) + torch.tensordot(of_rest, y, 1)) / total
                for x, y in zip(self, rest, strict=True)
            )
        )

    def alive(self) -> tuple[Tensor, Tensor]:  # of means: (..., L1), (..., L2)
        return self.own1 > self.visible1, self.own2 > self.visible2

    def norms(self) -> Tensor:  # of means: (..., L1, L2)
        one, two = self.alive()
        return indices.norms(self.own1 * one, self.own2 * two)

    def moved(self, of: BlockMeans) -> Tensor:  # (k, L1, L2)
        """What the `apart` of each block would move the score of means by, to first order."""
        norms = of.norms()
        score, own1, own2 = of.cross / norms, of.own1[:, None], of.own2[None, :]
        relative = self.own1_apart[:, :, None] / own1 + self.own2_apart[:, None, :] / own2
        return self.cross_apart / norms - score * relative / 2


class Said(NamedTuple):
    """What was found in the blocks of two Representations."""

    each: BlockMeans
    weight: Tensor  # (k,) of each block
    units: list[Tensor]  # (L, 1) that the kernels of either were divided by
    draws: Tensor | None = None  # (windows, L1, L2, p) how they score with samples permuted
    n_eff: tuple[Tensor, Tensor] | None = None


def is_centred(asked: Question) -> bool:
    """Whether what is added to a row and its column alike does not enter a score."""
    return asked.centre or asked.index == "rsa"


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


def scores(
    a: Representation, b: Representation, asked: Question, device: str | torch.device = "cpu"
) -> Estimate:
    """`cka`, `cka-debiased` or `rsa` for all pairs of layers of two paired Representations.

    Bias: numerator and denominators are unbiased for the kernels of all N samples (of the
    population for `cka-debiased`), their ratio to first order. Standard error: a jackknife over
    blocks; beyond 1,024 samples, less what all N samples share with the blocks (`of_a_part`), so
    that it is that of the score of all N. For `cka-debiased`, and for fewer samples, it is that of
    the score on samples drawn anew. Cost: O(L1 L2 k B²).

    Of tokens, numerator and denominators are over pairs of different sequences, and the standard
    error is that of the score on other sequences: groups of them are left out.

    Chance: the mean over all permutations of the pairing inside blocks, exactly, and its 95 %
    quantile from drawn ones.
    """
    generator = torch.Generator().manual_seed(a.settings.seed)
    found = _block_sums(a, b, asked, device, generator=generator)
    tokens = a.settings.tokens
    assert found.draws is not None
    share = (found.weight / found.weight.sum()).unflatten(0, (-1, tokens)).sum(1)
    left_out = _without_sequences(a, b, asked, device, found) if tokens > 1 else None
    return estimate(found, asked, a, chance.spread(found.draws, share, generator), left_out)


def estimate(
    found: Said,
    asked: Question,
    rep: Representation,
    above_mean: Tensor,  # (L1, L2) of what is not divided by norms, the 95 % level of chance
    left_out: Tensor | None = None,  # (m, L1, L2) of tokens, scores without groups of sequences
) -> Estimate:
    """What blocks say, as scores with their errors; `rep` is one of the two."""
    each, weight, tokens = found.each, found.weight, rep.settings.tokens
    whole = each.mean(weight)
    norms = whole.norms()
    if left_out is None:
        apart = ~torch.eye(len(weight), dtype=torch.bool, device=weight.device)
        rest = each.mean(weight * apart)
        left_out = rest.cross / rest.norms()
    deviations = [error_bars.left_out(left_out)]
    if tokens == 1 and rep.samples > FEW and asked.index != "cka-debiased":
        pairs = each.moved(whole) * (weight / weight.sum() / 2)[:, None, None]
        deviations = of_a_part(deviations[0], pairs, sum(rep.block_sizes) / rep.samples)
    mean = whole.chance / norms
    carried = indices.norms(each.own1, each.own2).nan_to_num() * weight[:, None, None]
    return Estimate.of(
        whole.cross / norms,
        deviations,
        whole.alive(),
        (mean, mean + above_mean / norms),
        low=0.0 if asked.index == "cka" else -1.0,
        n_eff=found.n_eff,
        effective_blocks=error_bars.effective(carried) if tokens == 1 else None,
    )


def _without_sequences(
    a: Representation, b: Representation, asked: Question, device: str | torch.device, found: Said
) -> Tensor:  # (m, L1, L2)
    """The score with each of some groups of sequences left out of all its blocks."""
    scores = []
    used = weights(a.block_sizes, a.samples, centre=is_centred(asked)) > 0
    for group in left_out_sequences.groups(a):
        if not used[group.blocks.start]:
            continue
        rest, of_rest = BlockMeans(*(x[:0] for x in found.each)), found.weight[:0]
        if len(group.rest):
            one, two = (left_out_sequences.only(rep, group) for rep in (a, b))
            rest, of_rest = _block_sums(one, two, asked, device, units=found.units)[:2]
        mean = found.each.without(found.weight, group.blocks, rest, of_rest)
        scores.append(mean.cross / mean.norms())
    return torch.stack(scores)


def of_a_part(left_out: Tensor, pairs: Tensor, part: float) -> list[Tensor]:
    """Deviations from the score of all N samples, of which the blocks hold a part.

    A block moves a score by its samples, each of which all N hold as well, and by which of their
    pairs it holds: Var = V₁ + V₂ about the population, and (1 − part) V₁ + V₂ about the score of
    all N. The jackknife sees V₁ + V₂, pairs within halves of blocks against those across see V₂.
    """
    k = len(pairs)
    spread = (pairs - pairs.mean(0)) * (k / max(1, k - 1)) ** 0.5
    return [left_out * (1 - part) ** 0.5, spread * part**0.5]


def _block_sums(
    a: Representation,
    b: Representation,
    asked: Question,
    device: str | torch.device,
    *,
    generator: torch.Generator | None = None,  # for the chance level, which is else left out
    units: list[Tensor] | None = None,
) -> Said:
    """What the blocks say, with their chance level."""
    sizes, tokens = a.block_sizes, a.settings.tokens
    loose = is_centred(asked)
    weight = weights(sizes, a.samples, centre=loose)
    permuted = chance.Orders(-(-len(weight) // tokens), generator) if generator else None
    many = at_once(max(len(a), len(b)), device)
    both = (stacked(rep, asked.kernel, sizes, device, at_once=many, loose=loose) for rep in (a, b))
    least = [_round_off(rep, asked, sizes).to(device) for rep in (a, b)]
    said, draws = [], []
    carried = [error_bars.Carried(), error_bars.Carried()]
    for (start, stop), *pair in zip(runs(sizes, many), *both, strict=True):
        if not weight[start]:
            continue
        n, blocks = sizes[start], stop - start
        # at a mean diagonal of one, float32 holds the products of kernels of any scale
        units = units or [_unit(d[: len(rep)]) for (_, d), rep in zip(pair, (a, b), strict=True)]
        every = [unit.repeat(blocks, 1) for unit in units]
        scaled = [(t / unit, d / unit) for (t, d), unit in zip(pair, every, strict=True)]
        one, two = (prepared(*x, asked) for x in scaled)
        sums = pair_sums(one, two, blocks)
        add_up = factors(asked.index, n, a.samples, centre=asked.centre).to(device)
        parts = (sums, chance.permuted_sums(sums, n), own_sums(one), own_sums(two))
        cross, expected, *own = (torch.tensordot(add_up, x, 1) for x in parts)
        visible = (x[start:stop] / unit[:, 0] ** 2 for x, unit in zip(least, units, strict=True))
        apart = [add_up[0] * x for x in _halves_apart(one, two, n, blocks)]
        of_layers = [x.view(blocks, -1) for x in (*own, *visible)]
        said.append((cross, expected, *of_layers, *apart))
        windows = [i // tokens for i in range(start, stop)]
        for into, of, raw in zip(carried, (one, two), scaled, strict=True):
            into.add(windows, carriers(asked, of, raw).unflatten(0, (blocks, -1)))
        if permuted is not None:
            draws.append(chance.drawn(one, two, permuted.of(windows, n).to(device), add_up))
    each = BlockMeans(*(torch.cat(x) for x in zip(*said, strict=True)))
    weight = weight[weight > 0].to(device)
    # of a window one permutation is drawn for all its blocks
    drawn = torch.cat(draws).unflatten(0, (-1, tokens)).mean(1) if draws else None
    assert units is not None
    return Said(each, weight, units, drawn, (carried[0].n_eff(), carried[1].n_eff()))


def _round_off(rep: Representation, asked: Question, sizes: Sequence[int]) -> Tensor:  # (k, L)
    """What each block of each layer must exceed to be more than round-off."""
    found = []
    for start, stop in runs(sizes, len(sizes)):
        least = round_off(rep, asked.kernel, slice(start, stop), sizes[start])
        found.append(least.view(stop - start, -1))
    return torch.cat(found)


def halves(n: int, device: torch.device) -> tuple[float, float, Tensor]:  # (t,) float32
    """Weights of pairs within halves of a block, and across them, and those of all its pairs.

    In a sum over pairs with these weights, what single samples add cancels; what is left says how
    much it matters which pairs were taken. Its standard deviation is twice that of the plain sum.
    """
    i, j = packing.lower(n, device)
    apart = (i < n // 2) != (j < n // 2)
    across = max(1, (n // 2) * (n - n // 2))
    within = max(1, len(i) - across)
    # of a difference of means the variance is σ² (1/w + 1/a), of the mean of all σ² / (w + a)
    inside, outside = 2 * (across / within) ** 0.5, -2 * (within / across) ** 0.5
    return inside, outside, torch.where(apart, outside, inside).float()


def _halves_apart(one: Side, two: Side, n: int, blocks: int) -> list[Tensor]:
    """Sums over pairs with those weights: of all layers (g, L1, L2), and of each with itself.

    In float32, which is precise enough for an error.
    """
    _, _, weight = halves(n, one.triangle.device)
    k1, k2 = (x.triangle.float().unflatten(0, (blocks, -1)) for x in (one, two))
    own = [x.square() @ weight for x in (k1, k2)]
    return [2 * x.double() for x in ((k1 * weight) @ k2.mT, *own)]


def carriers(asked: Question, side: Side, raw: tuple[Tensor, Tensor]) -> Tensor:  # (g·L, n)
    """How much each sample carries of a kernel: its diagonal, which distances do not have."""
    return level(*raw).diagonal if asked.index == "rsa" else side.diagonal


def prepared(triangle: Tensor, diagonal: Tensor, asked: Question) -> Side:
    """Kernels made ready for an index: as they are, levelled to be centred, or as distances."""
    if asked.index == "rsa":
        return side(*_distances(triangle, diagonal))
    return (level if asked.centre else side)(triangle, diagonal)


def _unit(diagonal: Tensor) -> Tensor:  # (L, n) -> (L, 1)
    mean = diagonal.mean(1, keepdim=True)
    return torch.where(mean > 0, mean, 1.0)


def _distances(triangle: Tensor, diagonal: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distances less their mean; a sample is at no distance from itself."""
    rows, columns = packing.lower(diagonal.shape[-1], diagonal.device)
    squared = packing.picked(diagonal, rows) + packing.picked(diagonal, columns) - 2 * triangle
    # a covariance does not see the mean
    return squared - squared.mean(1, keepdim=True), torch.zeros_like(diagonal)
