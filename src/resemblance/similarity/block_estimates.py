"""Indices from exact kernels inside blocks of samples: unbiased sums, jackknife, chance level.

Each block says what it can about numerator and denominators of an index on the whole N × N kernel
(`pair_sums`). Blocks are nearly independent, so leaving out one at a time gives the standard
error, and permuting the pairing of samples inside blocks the chance level (`chance_level`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .._ops import packed_kernels as packing
from ..errors import MismatchError
from ..representation.layer import Layer
from ..representation.representation import Representation
from . import chance_level as chance
from . import indices, kernels
from .combinations import Index, Kernel
from .pair_sums import Side, factors, least_visible, level, own_sums, pair_sums, side

_DRAWS = 256  # permutations drawn in all, spread over the blocks
_ROWS = {"cpu": 64, "cuda": 2048}  # kernels of blocks at a time: what a cache holds, or fills a GPU


@dataclass(frozen=True)
class Estimate:
    """Scores of rows × columns, their standard errors, and the score of unrelated samples."""

    scores: np.ndarray
    stderr: np.ndarray
    alive: tuple[np.ndarray, np.ndarray]  # rows and columns that are not constant on these data
    chance: np.ndarray | None = None  # mean under permuted pairing
    chance_high: np.ndarray | None = None  # 95 % quantile


def runs(sizes: Sequence[int], at_once: int) -> list[tuple[int, int]]:
    """Successive blocks [start, stop) of one size, at most `at_once` of them.

    >>> runs([8, 8, 8, 8, 8, 5], at_once=3)
    [(0, 3), (3, 5), (5, 6)]
    """
    out: list[tuple[int, int]] = []
    for b, n in enumerate(sizes):
        if out and n == sizes[b - 1] and b - out[-1][0] < at_once:
            out[-1] = (out[-1][0], b + 1)
        else:
            out.append((b, b + 1))
    return out


def stacked(
    layers: Iterable[Layer],
    kernel: Kernel,
    sizes: Sequence[int],
    device: str | torch.device = "cpu",
    *,
    at_once: int = 1,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The blocks of a named kernel, for all layers, in float64: `runs` of g blocks at a time.

    Yields strict lower triangles (g·L, t), row by row, t = n(n-1)/2, and diagonals (g·L, n): all
    layers of a block, then those of the next.
    """
    layers = list(layers)
    kinds = kernels.needs(kernel)
    scale = {
        kind: torch.tensor([[max(x.recorded(kind).trace, 1e-300)] for x in layers]).double()
        for kind in kinds
    }
    for start, stop in runs(sizes, at_once):
        n = sizes[start]
        t = n * (n - 1) // 2
        entries, diagonals = {}, {}
        for kind in kinds:
            packed = [x.packed_blocks(kind).triangle[start:stop, :t].T for x in layers]
            diagonal = [x.packed_blocks(kind).diagonal[start:stop, :n] for x in layers]
            diagonals[kind] = torch.stack(diagonal, 1).flatten(0, 1).to(device).double()
            rows = torch.stack(packed, 2).to(device).flatten(1).T
            entries[kind] = packing.unpack16(rows, diagonals[kind])
        unit = {kind: x.to(device).repeat(stop - start, 1) for kind, x in scale.items()}
        if kernel == "transport":
            square = kernels.transport(
                *(packing.squares(entries[k], diagonals[k]) / unit[k][..., None] for k in kinds)
            )
            i, j = packing.lower(n, square.device)
            yield square[:, i, j], square.diagonal(dim1=-2, dim2=-1).clone()
        else:
            yield (
                kernels.entries(kernel, entries, unit),
                kernels.entries(kernel, diagonals, unit),
            )


def kernel_blocks(
    layer: Layer, kernel: Kernel, sizes: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Each block of one layer: strict lower triangle (n(n-1)/2,) and diagonal (n,), float64."""
    for triangles, diagonals in stacked([layer], kernel, sizes):
        yield triangles[0], diagonals[0]


@dataclass(frozen=True)
class _Blocks:
    """What each block says about numerator and denominators, for all layers."""

    cross: Tensor  # (k, L1, L2)
    own1: Tensor  # (k, L1)
    own2: Tensor  # (k, L2)
    visible1: Tensor  # (k, L1) an own value is round-off below these
    visible2: Tensor  # (k, L2)

    def mean(self, weights: Tensor) -> _Blocks:
        """The blocks' mean, each by its weight (k,); or many such means, for weights (m, k)."""
        share = weights / weights.sum(-1, keepdim=True)
        values = (self.cross, self.own1, self.own2, self.visible1, self.visible2)
        return _Blocks(*(torch.tensordot(share, x, 1) for x in values))

    def alive(self) -> tuple[Tensor, Tensor]:  # of means: (..., L1), (..., L2)
        return self.own1 > self.visible1, self.own2 > self.visible2

    def norms(self) -> Tensor:  # of means: (..., L1, L2)
        one, two = self.alive()
        return indices.norms(self.own1 * one, self.own2 * two)

    def score(self) -> Tensor:  # of means: (..., L1, L2)
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


def scores(
    a: Representation,
    b: Representation,
    kernel: Kernel,
    index: Index,
    centre: bool,
    device: str | torch.device = "cpu",
) -> Estimate:
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
    per_block = max(2, -(-_DRAWS // len(weight)))
    rows = _ROWS.get(torch.device(device).type, _ROWS["cpu"])
    at_once = max(1, rows // max(len(a), len(b)))
    both = (stacked(rep, kernel, rep.block_sizes, device, at_once=at_once) for rep in (a, b))
    found: list[tuple[Tensor, ...]] = []
    units: list[Tensor] = []
    for (start, stop), *pair in zip(runs(a.block_sizes, at_once), *both, strict=True):
        n, blocks = a.block_sizes[start], stop - start
        if not weight[start]:
            continue
        # at a mean diagonal of one, float32 holds the products of kernels of any scale
        units = units or [_unit(d[: len(rep)]) for (_, d), rep in zip(pair, (a, b), strict=True)]
        scaled = [
            (t / u.repeat(blocks, 1), d / u.repeat(blocks, 1))
            for (t, d), u in zip(pair, units, strict=True)
        ]
        one, two = (_prepared(*x, index, centre) for x in scaled)
        add_up = factors(index, n, samples, centre=centre).to(device)
        sums = pair_sums(one, two, blocks)
        orders = chance.orders(blocks, per_block, n, generator).to(device)
        found.append(
            (
                torch.tensordot(add_up, sums, 1),
                *(torch.tensordot(add_up, own_sums(x), 1).view(blocks, -1) for x in (one, two)),
                *(least_visible(d).view(blocks, -1) for _, d in scaled),
                torch.tensordot(add_up, chance.permuted_sums(sums, n), 1),
                chance.drawn(one, two, orders, add_up),
            )
        )

    weight = weight[weight > 0].to(device)
    *values, expected, draws = (torch.cat(x) for x in zip(*found, strict=True))
    each = _Blocks(*values)
    whole = each.mean(weight)
    value = whole.score()
    left_out = each.mean(_without_one(weight)).score()
    stderr = jackknife(list(left_out), torch.full_like(value, torch.nan))
    share = weight / weight.sum()
    mean = torch.tensordot(share, expected, 1) / whole.norms()
    above = chance.spread(draws, share, generator) / whole.norms()
    low = 0.0 if index == "cka" else -1.0
    high = (mean + above).clamp(low, 1.0)
    alive1, alive2 = whole.alive()
    return Estimate(
        scores=value.clamp(low, 1.0).cpu().numpy(),
        stderr=stderr.cpu().numpy(),
        alive=(alive1.cpu().numpy(), alive2.cpu().numpy()),
        chance=mean.clamp(low, 1.0).cpu().numpy(),
        chance_high=high.cpu().numpy(),
    )


def _prepared(triangle: Tensor, diagonal: Tensor, index: Index, centre: bool) -> Side:
    if index == "rsa":
        return side(*_distances(triangle, diagonal))
    return (level if centre else side)(triangle, diagonal)


def _unit(diagonal: Tensor) -> Tensor:  # (L, n) -> (L, 1)
    mean = diagonal.mean(1, keepdim=True)
    return torch.where(mean > 0, mean, 1.0)


def _distances(triangle: Tensor, diagonal: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distances less their mean; a sample is at no distance from itself."""
    n = diagonal.shape[-1]
    rows, columns = packing.lower(n, diagonal.device)
    squared = packing.picked(diagonal, rows) + packing.picked(diagonal, columns) - 2 * triangle
    if n > 1:
        squared = squared - squared.mean(1, keepdim=True)  # a covariance does not see it
    return squared, torch.zeros_like(diagonal)


def _without_one(weight: Tensor) -> Tensor:  # (k,) -> (k, k), or (0, 1) for a lone block
    """The blocks' weights with one block left out, for each block."""
    rest = weight * ~torch.eye(len(weight), dtype=torch.bool, device=weight.device)
    return rest if len(weight) > 1 else rest[:0]


def jackknife(left_out: Sequence[Tensor], unknown: Tensor) -> Tensor:
    """Standard error from scores with one block left out each; `unknown` with fewer than two."""
    k = len(left_out)
    if k < 2:
        return unknown
    each = torch.stack(list(left_out))
    return ((each - each.mean(0)) ** 2).sum(0).mul((k - 1) / k).sqrt()
