"""Indices from exact kernels inside blocks of samples: unbiased sums, jackknife, chance level.

Each block says what it can about numerator and denominators of an index on the whole N × N kernel
(`pair_sums`). Blocks are nearly independent, so leaving out one at a time gives the standard
error, and permuting the pairing of samples inside blocks the chance level (`chance_level`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._ops import packed_kernels as packing
from ..errors import MismatchError
from ..representation.layer import Layer
from ..representation.representation import Representation
from . import chance_level as chance
from . import indices, kernels
from .combinations import Kernel, Question
from .pair_sums import Side, factors, least_visible, level, own_sums, pair_sums, side

_DRAWS = 256  # permutations drawn in all, spread over the blocks
_ROWS = {"cpu": 64, "cuda": 2048}  # kernels of blocks at a time: what a cache holds, or fills a GPU


@dataclass(frozen=True)
class Estimate:
    """Scores of rows × columns, their standard errors, and the score of unrelated samples."""

    scores: np.ndarray
    stderr: np.ndarray
    alive: tuple[np.ndarray, ...]  # rows and columns that are not constant on these data
    chance: np.ndarray | None = None  # mean under permuted pairing
    chance_high: np.ndarray | None = None  # 95 % quantile

    @staticmethod
    def of(
        scores: Tensor,
        stderr: Tensor,
        alive: Iterable[Tensor],
        chance: Iterable[Tensor] = (),
        *,
        low: float = 0.0,
    ) -> Estimate:
        """An estimate from tensors on any device, with scores kept in [low, 1]."""
        score, *levels = (x.clamp(low, 1.0).cpu().numpy() for x in (scores, *chance))
        lives = tuple(x.cpu().numpy() for x in alive)
        return Estimate(score, stderr.cpu().numpy(), lives, *levels)


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


def read(
    layers: Sequence[Layer],
    kernel: Kernel,
    which: slice,  # blocks of one size
    n: int,  # their samples
    device: str | torch.device,
    unit: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Blocks of a named kernel: strict lower triangles (g·L, n(n-1)/2), diagonals (g·L, n).

    Rows come block by block, all layers of each, in float64. With `unit`, what the kernel is made
    of is divided by its trace over that: at entries of about one float32 will do, on a CPU.
    """
    entries, diagonals = {}, {}
    for kind in kernels.needs(kernel):
        stored = [layer.packed_blocks(kind) for layer in layers]
        packed = torch.stack([x.triangle[which, : n * (n - 1) // 2] for x in stored], 1)
        diagonal = torch.stack([x.diagonal[which, :n] for x in stored], 1).double()
        if unit is not None or kernel in kernels.OF_TRACES:
            diagonal = diagonal * ((unit or 1.0) / kernels.traces(layers, kind))[:, None]
        packed = packed.flatten(0, 1).to(device)
        if unit is None:  # laid out as `packing.picked` does what it is combined with
            packed = packed.T.contiguous().T
        dtype = torch.float64 if unit is None or packed.is_cuda else torch.float32
        diagonals[kind] = diagonal.flatten(0, 1).to(packed.device, dtype)
        entries[kind] = packing.unpack16(packed, diagonals[kind])
    if kernel == "transport":
        square = kernels.transport(*(packing.squares(entries[k], diagonals[k]) for k in entries))
        i, j = packing.lower(n, square.device)
        return square[:, i, j], square.diagonal(dim1=-2, dim2=-1).clone()
    return kernels.entries(kernel, entries), kernels.entries(kernel, diagonals)


def stacked(
    layers: Iterable[Layer],
    kernel: Kernel,
    sizes: Sequence[int],
    device: str | torch.device = "cpu",
    *,
    at_once: int = 1,
) -> Iterator[tuple[Tensor, Tensor]]:
    """All blocks of a named kernel, as `read` has them, in `runs`."""
    layers = list(layers)
    for start, stop in runs(sizes, at_once):
        yield read(layers, kernel, slice(start, stop), sizes[start], device)


def kernel_blocks(
    layer: Layer, kernel: Kernel, sizes: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Each block of one layer: strict lower triangle (n(n-1)/2,) and diagonal (n,), float64."""
    for triangles, diagonals in stacked([layer], kernel, sizes):
        yield triangles[0], diagonals[0]


class _Blocks(NamedTuple):
    """What each block says about numerator and denominators, for all layers."""

    cross: Tensor  # (k, L1, L2)
    chance: Tensor  # (k, L1, L2) the mean of `cross` under permuted pairing
    own1: Tensor  # (k, L1)
    own2: Tensor  # (k, L2)
    visible1: Tensor  # (k, L1) an own value is round-off below these
    visible2: Tensor  # (k, L2)

    def mean(self, weights: Tensor) -> _Blocks:
        """The blocks' mean, each by its weight (k,); or many such means, for weights (m, k)."""
        share = weights / weights.sum(-1, keepdim=True)
        return _Blocks(*(torch.tensordot(share, x, 1) for x in self))

    def alive(self) -> tuple[Tensor, Tensor]:  # of means: (..., L1), (..., L2)
        return self.own1 > self.visible1, self.own2 > self.visible2

    def norms(self) -> Tensor:  # of means: (..., L1, L2)
        one, two = self.alive()
        return indices.norms(self.own1 * one, self.own2 * two)


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
    population for `cka-debiased`), their ratio to first order. Standard error: jackknife over
    blocks, of the score as an estimate for the population the samples came from; it is a little
    wide for the N samples themselves. Cost: O(L1 L2 k B²).

    Chance: the mean over all permutations of the pairing inside blocks, exactly, and its 95 %
    quantile from drawn ones.
    """
    generator = torch.Generator().manual_seed(a.settings.seed)
    each, draws, weight = _block_sums(a, b, asked, device, generator)
    whole = each.mean(weight)
    norms = whole.norms()
    one_left_out = each.mean(weight * ~torch.eye(len(weight), dtype=torch.bool, device=device))
    stderr = jackknife(one_left_out.cross / one_left_out.norms())
    mean = whole.chance / norms
    high = mean + chance.spread(draws, weight / weight.sum(), generator) / norms
    low = 0.0 if asked.index == "cka" else -1.0
    return Estimate.of(whole.cross / norms, stderr, whole.alive(), (mean, high), low=low)


def _block_sums(
    a: Representation,
    b: Representation,
    asked: Question,
    device: str | torch.device,
    generator: torch.Generator,
) -> tuple[_Blocks, Tensor, Tensor]:
    """What the blocks say, how permuted ones score (k, L1, L2, p), and the blocks' weights (k,)."""
    sizes = a.block_sizes
    weight = weights(sizes, a.samples, centre=asked.centre or asked.index == "rsa")
    per_block = max(2, -(-_DRAWS // len(weight)))
    rows = _ROWS.get(torch.device(device).type, _ROWS["cpu"])
    at_once = max(1, rows // max(len(a), len(b)))
    both = (stacked(rep, asked.kernel, sizes, device, at_once=at_once) for rep in (a, b))
    said, draws = [], []
    units: list[Tensor] = []
    for (start, stop), *pair in zip(runs(sizes, at_once), *both, strict=True):
        if not weight[start]:
            continue
        n, blocks = sizes[start], stop - start
        # at a mean diagonal of one, float32 holds the products of kernels of any scale
        units = units or [_unit(d[: len(rep)]) for (_, d), rep in zip(pair, (a, b), strict=True)]
        many = [unit.repeat(blocks, 1) for unit in units]
        scaled = [(t / unit, d / unit) for (t, d), unit in zip(pair, many, strict=True)]
        one, two = (_prepared(*x, asked) for x in scaled)
        sums = pair_sums(one, two, blocks)
        add_up = factors(asked.index, n, a.samples, centre=asked.centre).to(device)
        parts = (sums, chance.permuted_sums(sums, n), own_sums(one), own_sums(two))
        cross, expected, *own = (torch.tensordot(add_up, x, 1) for x in parts)
        visible = (least_visible(d) for _, d in scaled)
        said.append((cross, expected, *(x.view(blocks, -1) for x in (*own, *visible))))
        orders = chance.orders(blocks, per_block, n, generator).to(device)
        draws.append(chance.drawn(one, two, orders, add_up))
    each = _Blocks(*(torch.cat(x) for x in zip(*said, strict=True)))
    return each, torch.cat(draws), weight[weight > 0].to(device)


def _prepared(triangle: Tensor, diagonal: Tensor, asked: Question) -> Side:
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


def jackknife(left_out: Tensor) -> Tensor:  # (k, ...) -> (...)
    """Standard error from the scores with each block left out."""
    k = len(left_out)  # of a single block nothing is left, whose score is NaN, as is its error
    return ((left_out - left_out.mean(0)) ** 2).sum(0).mul((k - 1) / k).sqrt()
