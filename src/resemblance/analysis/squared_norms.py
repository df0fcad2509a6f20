"""The three squared norms that adaptation scores are made of, and what they owe to chance.

‖μ‖², ‖K‖_F²/N⁴ and Tr K/N² of the kernel of all N samples: exact where it was kept whole, else
estimated from blocks (and the norms of all samples, where they are known), or from buckets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..errors import MismatchError
from ..representation.layer import Layer
from ..representation.representation import Representation
from ..similarity import (
    bucket_estimates,
    error_bars,
    kernels,
    left_out_sequences,
    ratio_estimates,
    stored_kernels,
    whole_estimates,
)
from ..similarity.combinations import Kernel
from ..similarity.kernel_strips import Strips
from ..similarity.whole_estimates import is_whole

_AS_IT_IS = torch.ones(1, 1, dtype=torch.float64)
_GROUPS = 64  # of samples whose norms are known, to be left out in turn


class SquaredNorms(NamedTuple):
    """‖μ‖², ‖K‖_F²/N⁴ and Tr K/N² of all N samples."""

    values: np.ndarray  # (3,)
    deviations: list[np.ndarray]  # each (k, 3), whose squares add up to variances
    n_eff: float


def from_blocks(layer: Layer, kernel: Kernel, rep: Representation) -> SquaredNorms:
    """From exact kernels: of all samples, of blocks, or of blocks and the norms of all samples.

    Bias: none for ‖μ‖² and Tr K; with the norms of all samples, that of a ratio, to second order.
    Of a whole kernel everything is exact. Cost: one read of the blocks.
    """
    n = rep.samples
    for kind in kernels.needs(kernel):
        layer.packed_blocks(kind)  # or an error that says how to record it
    exact = is_whole(layer, kernel)
    total, others = (_whole_sums if exact else _block_sums)(layer, kernel, rep)
    if not total[1]:
        raise MismatchError(
            f"no pair of samples shares a block at layer {layer.name!r}; record with blocks above "
            '0 and at least two samples, or use estimator="paper"'
        )
    held = total[0] / n  # the part of the samples that is in blocks
    plain = held >= 1 or rep.settings.tokens > 1  # whose norms do not tell sequences apart
    norms = None if plain else ratio_estimates.norms([layer], kernel)
    if norms is not None:
        return _with_norms(total, others, norms[0].numpy(), n)

    def squares(sums: np.ndarray, trace: np.ndarray | float) -> np.ndarray:  # (..., 8) -> (..., 3)
        samples, pairs, _, d2, k, k2 = np.moveaxis(sums[..., :6], -1, 0)
        return _squares(k / pairs, k2 / pairs, d2 / samples, trace, n)

    whole = squares(total, _trace(layer, kernel) / n)
    n_eff = float(total[2] ** 2 / total[3]) if total[3] else math.nan
    if len(others) < 2 or not others[:, 1].all():
        return SquaredNorms(whole, [], n_eff)
    left_out = error_bars.left_out(torch.from_numpy(squares(others, others[:, 2] / others[:, 0])))
    # Tr K sums over every sample, the blocks hold some: what it owes to chance is that much less.
    left_out[:, 2] *= math.sqrt(min(1.0, held))
    return SquaredNorms(whole, [left_out.numpy()], n_eff)


def _squares(
    off: np.ndarray, off2: np.ndarray, d2: np.ndarray, trace: np.ndarray | float, n: int
) -> np.ndarray:  # (..., 3)
    """From means of K_ij and K_ij² over pairs, and of K_ii² and K_ii over samples."""
    mean = trace / n + (n - 1) / n * off
    return np.stack([mean, (d2 + (n - 1) * off2) / n**3, trace / n + np.zeros_like(mean)], -1)


def _with_norms(
    total: np.ndarray, others: np.ndarray, diagonal: np.ndarray, n: int
) -> SquaredNorms:  # (8,), (k, 8), (samples known,)
    """With K_ij = C_ij √(K_ii K_jj): the mean of C from blocks, K_ii of every sample."""

    def squares(sums: np.ndarray, every: np.ndarray) -> np.ndarray:  # (..., 8), (..., 4)
        k, k2, weight, weight2 = np.moveaxis(sums[..., 4:], -1, 0)
        known, root, d, d2 = np.moveaxis(every, -1, 0)
        pairs = known * (known - 1)
        off, off2 = k / weight * (root**2 - d) / pairs, k2 / weight2 * (d**2 - d2) / pairs
        return _squares(off, off2, d2 / known, d / known, n)

    each = np.stack([np.ones_like(diagonal), diagonal**0.5, diagonal, diagonal**2], -1)
    groups = np.array_split(each, min(_GROUPS, len(each)))
    every = each.sum(0)
    n_eff = float(every[2] ** 2 / every[3]) if every[3] else math.nan
    whole = squares(total, every)
    if len(others) < 2 or not others[:, 1].all():
        return SquaredNorms(whole, [], n_eff)
    left_out = [
        squares(others, np.broadcast_to(every, (len(others), 4))),
        squares(np.broadcast_to(total, (len(groups), 8)), every - [x.sum(0) for x in groups]),
    ]
    return SquaredNorms(
        whole, [error_bars.left_out(torch.from_numpy(x)).numpy() for x in left_out], n_eff
    )


def _block_sums(
    layer: Layer, kernel: Kernel, rep: Representation
) -> tuple[np.ndarray, np.ndarray]:  # (8,), (k, 8)
    """What blocks hold, and what is left without each: samples, pairs, Σd, Σd² of the diagonal,
    Σ_{i≠j} of K, of K², and of what norms alone would make of them, √(d_i d_j) and d_i d_j."""
    sums = _sums(layer, kernel, rep.block_sizes)
    total = sums.sum(0)
    if rep.settings.tokens == 1:
        return total, total - sums
    others = []
    for group in left_out_sequences.groups(rep):
        others.append(total - sums[group.blocks].sum(0))
        if len(group.rest):
            less = left_out_sequences.only_layer(layer, group)
            sizes = (len(group.rest),) * rep.settings.tokens
            others[-1] += _sums(less, kernel, sizes).sum(0)
    return total, np.stack(others)


def _sums(layer: Layer, kernel: Kernel, sizes: Sequence[int]) -> np.ndarray:  # (k, 8)
    rows, many = [torch.zeros(0, 8, dtype=torch.float64)], stored_kernels.at_once(1, "cpu")
    for t, d in stored_kernels.stacked([layer], kernel, sizes, at_once=many):
        s, s2, n = d.sum(1), d.square().sum(1), torch.full((len(d),), float(d.shape[1])).double()
        weights = (d.clamp_min(0).sqrt().sum(1) ** 2 - s, s**2 - s2)
        of_pairs = (2 * t.sum(1), 2 * t.square().sum(1))
        rows.append(torch.stack([n, n * (n - 1), s, s2, *of_pairs, *weights], 1))
    return torch.cat(rows).numpy()


def _whole_sums(
    layer: Layer, kernel: Kernel, rep: Representation
) -> tuple[np.ndarray, np.ndarray]:  # (8,), (k, 8)
    """The same of a whole kernel, and without each of some groups of its samples."""
    strips = Strips([layer], kernel, 0, rep.samples, loose=False, whole=True, unit=_AS_IT_IS)
    spans, d = whole_estimates.groups(rep.samples), strips.diagonal[0]
    tiles = np.zeros((2, len(spans), len(spans)))  # ΣK and ΣK² of rows of a span, columns of others
    for g, (start, stop) in enumerate(spans):
        strip = strips.rows(start, stop)[0]
        columns = torch.stack([strip.sum(0), strip.square().sum(0)]).numpy()
        tiles[:, g, : g + 1] = np.add.reduceat(columns, [at for at, _ in spans[: g + 1]], axis=1)

    def row(diagonal: torch.Tensor, pairs: np.ndarray) -> tuple[float, ...]:
        count = len(diagonal)
        linear = float(diagonal.sum()), float(diagonal.square().sum())
        return (count, count * (count - 1), *linear, *pairs, math.nan, math.nan)

    every = 2 * tiles.sum((1, 2))
    others = []
    for g, (start, stop) in enumerate(spans):
        gone = 2 * (tiles[:, g].sum(1) + tiles[:, :, g].sum(1) - tiles[:, g, g])
        others.append(row(torch.cat([d[:start], d[stop:]]), every - gone))
    return np.array(row(d, every)), np.array(others)


def from_buckets(layer: Layer, kernel: Kernel, rep: Representation) -> SquaredNorms:
    """Sums over the bucket kernel, as the first code had them; ‖μ‖² comes out too large."""
    k = bucket_estimates.kernel_matrix(layer, kernel, centre=False, paper=True) / rep.samples**2
    squares = [float(k.sum()), float((k * k).sum()), float(k.trace())]
    return SquaredNorms(np.array(squares), [], math.nan)


def _trace(layer: Layer, kernel: Kernel) -> float:
    if kernel == "sum":  # each part is divided by its own trace
        return 2.0
    if kernel == "product" and layer.products is not None:
        return layer.products.norms
    return layer.recorded(*kernels.needs(kernel)).trace
