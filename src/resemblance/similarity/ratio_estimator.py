"""The `ratio` estimator: CKA from blocks and the squared norms of all samples.

For kernels that a few samples dominate. A kernel is K_ij = C_ij √(d_i d_j) with d its diagonal.
Blocks know C for some pairs, and d is stored for every sample. A sum over the pairs of all N
samples is estimated as a ratio: the sum over blocks, over its prediction from their norms alone,
times the same prediction for all N:

    Σ_{i≠j} K1_ij K2_ij  ≈  (Σ_blocks K1_ij K2_ij / Σ_blocks w_i w_j) · ((Σ w)² − Σ w²),

with w_i = √(d1_i d2_i), and w = d for a kernel with itself. Diagonals are exact. It then no longer
matters whether a sample with a large norm fell into a block. Centring would mix norms and means, so
only uncentred kernels are supported.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..errors import MismatchError
from ..representation.layer import Layer
from ..representation.representation import Representation
from . import block_estimator, jackknife, stored_kernels
from .block_estimator import BlockSums, finite_population_deviations, half_weights
from .jackknife import Estimate
from .kernels import KERNEL_TABLE, CompareConfig, Kernel, required_kinds
from .pair_statistics import ChanceLevels, PairSums, norm_products

_MSG_NO_NORMS = (
    "`estimator='ratio'` needs the norm of every sample, which one of the recordings does not "
    "have; record it again, or use `estimator='blocks'`"
)
_MIN_EFFECTIVE_SAMPLES = 150  # effective samples in blocks: 512 buckets are then the more accurate
_GROUPS = 64  # of samples whose norms are known, left out in turn where some are not


def sample_norms(layers: Iterable[Layer], kernel: Kernel) -> Tensor | None:  # (L, samples known)
    """The diagonals of a kernel over all samples whose norms were kept, in float64; None if not."""
    parts = {}
    for kind in required_kinds(kernel):
        kept = [layer.recorded(kind).norms for layer in layers]
        known = [x for x in kept if x is not None]
        if not known or len(known) < len(kept):
            return None
        parts[kind] = torch.stack(known).double()
        if KERNEL_TABLE[kernel].over_traces:
            parts[kind] /= stored_kernels.kernel_traces(layers, kind)[:, None]
    found = stored_kernels.combine_entries(kernel, parts)
    found = found[:, found.isfinite().all(0)]
    return found if found.shape[1] > 2 else None  # one may be left out, and the rest have pairs


def few_samples_dominate(rep: Representation, kernel: Kernel) -> bool:
    """Whether few of the samples in blocks carry the kernels of most layers, judged by norms."""
    diagonals = sample_norms(rep, kernel)
    if diagonals is None:
        return False
    carried = jackknife.effective_number(diagonals.T) * (sum(rep.block_sizes) / rep.samples)
    return bool((carried < _MIN_EFFECTIVE_SAMPLES).double().mean() > 0.5)


def ratio_scores(
    a: Representation,
    b: Representation,
    asked: CompareConfig,
    device: str | torch.device = "cpu",
    *,
    population: bool = False,
) -> Estimate:
    """Plain CKA for all pairs of layers of two paired Representations.

    Bias: of a ratio, to second order. Standard error: of the score of all N samples; a jackknife
    over blocks of what the norms leave to explain, less the part that all N samples share with the
    blocks. Where norms were kept of a part of the samples (the first 65,536), theirs is added.
    With `population` it is the standard error of the score on N new samples: a jackknife that
    leaves out the samples of one block at a time, kernels and norms, and then groups of the
    samples outside the blocks. Chance: that of the blocks. Cost: that of `block_scores`.
    """
    (d1, unit1), (d2, unit2) = (unit_norms(rep, asked.kernel, device) for rep in (a, b))
    plain, found = block_estimator.block_scores_and_sums(
        a, b, asked, device, units=[unit1, unit2], population=population
    )
    each = norm_sums(found.blocks, torch.ones_like(unit1), torch.ones_like(unit2))
    debiased = block_estimator.pair_sum_rule(asked).population
    return estimate_from_norms(plain, each, d1, d2, a, population=population, debiased=debiased)


def unit_norms(
    layers: Iterable[Layer], kernel: Kernel, device: str | torch.device = "cpu"
) -> tuple[Tensor, Tensor]:
    """`sample_norms` at a mean of one, and what they were divided by (L, 1)."""
    norms = sample_norms(layers, kernel)
    if norms is None:
        raise MismatchError(_MSG_NO_NORMS)
    unit = norms.mean(1, keepdim=True).clamp_min(1e-300).to(device)
    return norms.to(device) / unit, unit


def estimate_from_norms(
    plain: Estimate,  # of the blocks
    each: Sequence[PairSums],  # `norm_sums`
    d1: Tensor,  # (L1, n) the norms of all samples, at a mean of one
    d2: Tensor,  # (L2, n)
    rep: Representation,  # one of the two
    *,
    population: bool = False,
    debiased: bool = False,  # without the pairs of a sample and itself
) -> Estimate:
    """What blocks and norms say, as scores with their errors."""
    total, weight = (PairSums(*(x.sum(0) for x in sums)) for sums in each[:2])
    known, samples = d1.shape[1], rep.samples
    moments = _norm_moments(d1, d2)
    pairs, diagonals = _extrapolated_sums(moments, known, samples)
    share = 0.0 if debiased else 1.0

    def score(found: PairSums, weight: PairSums, pairs: PairSums, diagonals: PairSums) -> Tensor:
        parts = zip(found, weight, pairs, diagonals, strict=True)
        both, one, two = (x / w.clamp_min(1e-300) * p + d * share for x, w, p, d in parts)
        return both / norm_products(one, two)

    value = score(total, weight, pairs, diagonals)
    rest, lighter = (PairSums(*(x.sum(0) - x for x in sums)) for sums in each[:2])
    if population:
        ends = np.cumsum([0, *rep.block_sizes])
        spans = [(i, j) for i, j in itertools.pairwise(ends.tolist()) if j - i > 1]
        without = _sums_without_spans(d1, d2, moments, spans, samples)
        deviations = [jackknife.jackknife_deviations(score(rest, lighter, *without))]
        if known > ends[-1]:
            spans = _span_groups(int(ends[-1]), known)
            without = _sums_without_spans(d1, d2, moments, spans, samples)
            deviations.append(jackknife.jackknife_deviations(score(total, weight, *without)))
    else:
        left_out = jackknife.jackknife_deviations(score(rest, lighter, pairs, diagonals))
        # what pairs within halves of a block and across them say differently, beyond their norms
        found, expected = each[2:]
        moved = PairSums(
            *(
                x - y * s / w.clamp_min(1e-300)
                for x, y, s, w in zip(found, expected, total, weight, strict=True)
            )
        )
        step = 1e-6
        nudged = PairSums(*(x + step * y for x, y in zip(total, moved, strict=True)))
        of_pairs = (score(nudged, weight, pairs, diagonals) - value) / (2 * step)
        deviations = finite_population_deviations(
            left_out, of_pairs, sum(rep.block_sizes) / samples
        )
        if known < samples:
            spans = _span_groups(0, known)
            out = score(total, weight, *_sums_without_spans(d1, d2, moments, spans, samples))
            deviations.append(jackknife.jackknife_deviations(out) * (1 - known / samples) ** 0.5)
    alive = [torch.from_numpy(x) for x in plain.alive]
    dead = ~(alive[0][:, None] & alive[1]).to(value.device)
    found_levels = (plain.chance, plain.chance_high, plain.skew)
    levels = [torch.from_numpy(x) for x in found_levels if x is not None]
    chance = ChanceLevels(*levels) if levels else None
    low = -1.0 if debiased else 0.0
    result = Estimate.of(value.masked_fill(dead, torch.nan), deviations, alive, chance, low=low)
    return replace(result, n_eff=plain.n_eff, effective_blocks=plain.effective_blocks)


def _span_groups(start: int, stop: int) -> list[tuple[int, int]]:
    """Runs of samples to leave out in turn."""
    return [(int(x[0]), int(x[-1]) + 1) for x in torch.arange(start, stop).chunk(_GROUPS)]


def _norm_moments(d1: Tensor, d2: Tensor) -> list[Tensor]:  # (L1, n), (L2, n)
    """Sums over samples that norms enter `_extrapolated_sums` by: Σ√(d1 d2), Σd and Σd1 d2, Σd²."""
    roots = [d1.sqrt() @ d2.sqrt().T, d1.sum(1), d2.sum(1)]
    return [*roots, d1 @ d2.T, d1.square().sum(1), d2.square().sum(1)]


def _extrapolated_sums(
    moments: Sequence[Tensor], n: int | Tensor, samples: int
) -> tuple[PairSums, PairSums]:
    """(Σw)² − Σw² and Σw² of all N samples, from the moments of n of them, as of `Sums`."""
    sums, squares = moments[:3], moments[3:]
    more = samples / n
    often = more * (samples - 1) / (n - 1)

    def times(x: Tensor, factor: float | Tensor) -> Tensor:  # one factor, or one for each row
        return x * (factor.view(-1, *[1] * (x.ndim - 1)) if isinstance(factor, Tensor) else factor)

    pairs = (x.square() - y for x, y in zip(sums, squares, strict=True))
    return PairSums(*(times(x, often) for x in pairs)), PairSums(*(times(x, more) for x in squares))


def _sums_without_spans(
    d1: Tensor,  # (L1, n)
    d2: Tensor,  # (L2, n)
    moments: Sequence[Tensor],  # of all n
    spans: Sequence[tuple[int, int]],
    samples: int,
) -> tuple[PairSums, PairSums]:
    """`_extrapolated_sums` with each span of samples left out in turn, one row for each."""
    gone = zip(*(_norm_moments(d1[:, i:j], d2[:, i:j]) for i, j in spans), strict=True)
    left = [x - torch.stack(y) for x, y in zip(moments, gone, strict=True)]
    sizes = torch.tensor([j - i for i, j in spans], dtype=torch.int64, device=d1.device)
    return _extrapolated_sums(left, d1.shape[1] - sizes.double(), samples)


def norm_sums(blocks: Iterable[BlockSums], scale1: Tensor, scale2: Tensor) -> list[PairSums]:
    """Of each block: ΣK1K2 and Σww over pairs, and both within halves of it less across them.

    Kernels are multiplied by scales (L1, 1) and (L2, 1), so that they have the unit of the norms.
    """
    out: list[list[PairSums]] = [[], [], [], []]
    scales = PairSums(scale1 @ scale2.T, scale1[:, 0] ** 2, scale2[:, 0] ** 2)
    for block in blocks:
        n = block.one.n
        d1, d2 = block.one.diagonal * scale1, block.two.diagonal * scale2
        within, across, _ = half_weights(n, d1.device)
        every = _norm_pair_sums(d1, d2)
        halves = (
            _norm_pair_sums(d1[..., part], d2[..., part])
            for part in (slice(n // 2), slice(n // 2, n))
        )
        same = [x + y for x, y in zip(*halves, strict=True)]
        apart = (within * x + across * (y - x) for x, y in zip(same, every, strict=True))
        for into, sums in zip(out[::2], (block.pairs, block.apart), strict=True):
            into.append(PairSums(*(x * scale for x, scale in zip(sums, scales, strict=True))))
        out[1].append(every)
        out[3].append(PairSums(*apart))
    return [PairSums(*(torch.cat(x) for x in zip(*sums, strict=True))) for sums in out]


def _norm_pair_sums(d1: Tensor, d2: Tensor) -> PairSums:  # (g, L1, n), (g, L2, n)
    """Σ w_i w_j over i ≠ j of each block."""
    both = (d1.sqrt() @ d2.sqrt().mT) ** 2 - d1 @ d2.mT
    one, two = (d.sum(-1) ** 2 - d.square().sum(-1) for d in (d1, d2))
    return PairSums(both, one, two)
