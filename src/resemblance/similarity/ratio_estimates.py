"""CKA from blocks and the squared norms of all samples: for kernels that few samples carry.

A kernel is K_ij = C_ij √(d_i d_j) with d its diagonal. Blocks know C for some pairs, and d is kept
of every sample. So a sum over the pairs of all N is estimated as a ratio: what blocks say, over
what their norms alone would have made of it, times what the norms of all N make of it:

    Σ_{i≠j} K1_ij K2_ij  ≈  (Σ_blocks K1_ij K2_ij / Σ_blocks w_i w_j) · ((Σ w)² − Σ w²),

with w_i = √(d1_i d2_i), and w = d for a kernel with itself. Diagonals are exact. How heavy a sample
is then no longer depends on whether it fell into a block. Centring would mix norms and means, so
this is for plain kernels alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import MismatchError
from ..representation.layer import Layer
from ..representation.representation import Representation
from . import block_estimates, error_bars, indices, kernels, stored_kernels
from .block_estimates import halves, of_a_part
from .combinations import Kernel, Question
from .estimate import Estimate
from .stored_kernels import runs, stacked

NO_NORMS = (
    "estimator='ratio' needs the norm of every sample, which one of the recordings lacks; record "
    "again, or use estimator='blocks'"
)
_SKETCH_BELOW = 150  # effective samples in blocks: 512 buckets are then the more accurate
_GROUPS = 64  # of samples whose norms are known, left out in turn where some are not


def norms(layers: Iterable[Layer], kernel: Kernel) -> Tensor | None:  # (L, samples known)
    """The diagonals of a kernel over all samples whose norms were kept, in float64; None if not."""
    parts = {}
    for kind in kernels.needs(kernel):
        kept = [layer.recorded(kind).norms for layer in layers]
        known = [x for x in kept if x is not None]
        if not known or len(known) < len(kept):
            return None
        parts[kind] = torch.stack(known).double()
        if kernel in kernels.OF_TRACES:
            parts[kind] /= kernels.traces(layers, kind)[:, None]
    found = kernels.entries(kernel, parts)
    found = found[:, found.isfinite().all(0)]
    return found if found.shape[1] > 2 else None  # one may be left out, and the rest have pairs


def few_carry(rep: Representation, kernel: Kernel) -> bool:
    """Whether few of the samples in blocks carry the kernels of most layers, judged by norms."""
    diagonals = norms(rep, kernel)
    if diagonals is None:
        return False
    carried = error_bars.effective(diagonals.T) * (sum(rep.block_sizes) / rep.samples)
    return bool((carried < _SKETCH_BELOW).double().mean() > 0.5)


class Sums(NamedTuple):
    """Σ over pairs of two layers, and of each with itself."""

    both: Tensor  # (..., L1, L2)
    one: Tensor  # (..., L1)
    two: Tensor  # (..., L2)


def scores(
    a: Representation, b: Representation, asked: Question, device: str | torch.device = "cpu"
) -> Estimate:
    """Plain CKA for all pairs of layers of two paired Representations.

    Bias: of a ratio, to second order. Standard error: of the score of all N samples; a jackknife
    over blocks of what the norms leave to explain, less the part that all N samples share with the
    blocks. Where norms were kept of a part of the samples (the first 65,536), theirs is added.
    Chance: that of the blocks. Cost: twice that of `block_estimates.scores`.
    """
    plain = block_estimates.scores(a, b, asked, device)
    d1, d2 = (norms(rep, asked.kernel) for rep in (a, b))
    if d1 is None or d2 is None:
        raise MismatchError(NO_NORMS)
    units = [d.mean(1, keepdim=True).clamp_min(1e-300) for d in (d1, d2)]
    d1, d2 = (d.to(device) / unit.to(device) for d, unit in zip((d1, d2), units, strict=True))
    each = _of_blocks(a, b, asked, [unit.to(device) for unit in units], device)
    return estimate(plain, each, d1, d2, a)


def estimate(
    plain: Estimate,  # of the blocks
    each: Sequence[Sums],  # as `_of_blocks` has them
    d1: Tensor,  # (L1, n) the norms of all samples, at a mean of one
    d2: Tensor,  # (L2, n)
    rep: Representation,  # one of the two
) -> Estimate:
    """What blocks and norms say, as scores with their errors."""
    total, weight = (Sums(*(x.sum(0) for x in sums)) for sums in each[:2])
    known, samples = d1.shape[1], rep.samples
    pairs, diagonals = _of_all(d1, d2, samples)

    def score(found: Sums, weight: Sums, pairs: Sums, diagonals: Sums) -> Tensor:
        parts = zip(found, weight, pairs, diagonals, strict=True)
        both, one, two = (x / w.clamp_min(1e-300) * p + d for x, w, p, d in parts)
        return both / indices.norms(one, two)

    value = score(total, weight, pairs, diagonals)
    rest, lighter = (Sums(*(x.sum(0) - x for x in sums)) for sums in each[:2])
    left_out = error_bars.left_out(score(rest, lighter, pairs, diagonals))
    # what pairs within halves of a block and across them say differently, beyond their norms
    found, expected = each[2:]
    moved = Sums(
        *(
            x - y * s / w.clamp_min(1e-300)
            for x, y, s, w in zip(found, expected, total, weight, strict=True)
        )
    )
    step = 1e-6
    nudged = Sums(*(x + step * y for x, y in zip(total, moved, strict=True)))
    of_pairs = (score(nudged, weight, pairs, diagonals) - value) / (2 * step)
    deviations = of_a_part(left_out, of_pairs, sum(rep.block_sizes) / samples)
    if known < samples:
        out = []
        for group in torch.arange(known, device=d1.device).chunk(_GROUPS):
            keep = torch.ones(known, dtype=torch.bool, device=d1.device)
            keep[group] = False
            out.append(score(total, weight, *_of_all(d1[:, keep], d2[:, keep], samples)))
        deviations.append(error_bars.left_out(torch.stack(out)) * (1 - known / samples) ** 0.5)
    alive = [torch.from_numpy(x) for x in plain.alive]
    dead = ~(alive[0][:, None] & alive[1]).to(value.device)
    chance = [torch.from_numpy(x) for x in (plain.chance, plain.chance_high) if x is not None]
    result = Estimate.of(value.masked_fill(dead, torch.nan), deviations, alive, chance)
    return replace(result, n_eff=plain.n_eff, effective_blocks=plain.effective_blocks)


def _of_all(d1: Tensor, d2: Tensor, samples: int) -> tuple[Sums, Sums]:  # (L1, n), (L2, n)
    """(Σw)² − Σw² and Σw² of all N samples, from the n that are known, as of `Sums`."""
    n = d1.shape[1]
    pairs, more = (x[0] for x in pairs_of(d1[None], d2[None])), samples / n
    squares = (d1 @ d2.T, d1.square().sum(1), d2.square().sum(1))
    often = more * (samples - 1) / (n - 1)
    return Sums(*(x * often for x in pairs)), Sums(*(x * more for x in squares))


def _of_blocks(
    a: Representation,
    b: Representation,
    asked: Question,
    units: Sequence[Tensor],
    device: str | torch.device,
) -> list[Sums]:
    """Of each block: ΣK1K2 and Σww over pairs, and both within halves of it less across them."""
    sizes = a.block_sizes
    at_once = stored_kernels.at_once(max(len(a), len(b)), device)
    both = (stacked(rep, asked.kernel, sizes, device, at_once=at_once) for rep in (a, b))
    out: list[list[Sums]] = [[], [], [], []]
    for (start, stop), *pair in zip(runs(sizes, at_once), *both, strict=True):
        n = sizes[start]
        if n < 2:
            continue
        blocks = (stop - start, -1)
        (k1, d1), (k2, d2) = (
            (t.unflatten(0, blocks) / unit, d.unflatten(0, blocks) / unit)
            for (t, d), unit in zip(pair, units, strict=True)
        )
        within, across, weight = halves(n, k1.device)  # what each pair counts for
        out[0].append(_products(k1, k2, k1, k2))
        f1, f2 = k1.float(), k2.float()  # precise enough for an error
        out[2].append(Sums(*(x.double() for x in _products(f1 * weight, f2 * weight, f1, f2))))
        every = pairs_of(d1, d2)
        inside = (
            pairs_of(d1[..., part], d2[..., part]) for part in (slice(n // 2), slice(n // 2, n))
        )
        same = [x + y for x, y in zip(*inside, strict=True)]
        out[1].append(every)
        out[3].append(
            Sums(*(within * x + across * (y - x) for x, y in zip(same, every, strict=True)))
        )
    return [Sums(*(torch.cat(x) for x in zip(*sums, strict=True))) for sums in out]


def _products(s1: Tensor, s2: Tensor, k1: Tensor, k2: Tensor) -> Sums:  # (g, L, t)
    return Sums(2 * s1 @ k2.mT, 2 * (s1 * k1).sum(-1), 2 * (s2 * k2).sum(-1))


def pairs_of(d1: Tensor, d2: Tensor) -> Sums:  # (g, L1, n), (g, L2, n)
    """Σ w_i w_j over i ≠ j of each block."""
    both = (d1.sqrt() @ d2.sqrt().mT) ** 2 - d1 @ d2.mT
    one, two = (d.sum(-1) ** 2 - d.square().sum(-1) for d in (d1, d2))
    return Sums(both, one, two)
