"""Indices from exact kernels inside blocks of samples: unbiased sums, jackknife, chance level.

Each block says what it can about numerator and denominators of an index on the whole N × N kernel
(`pair_sums`). Blocks are nearly independent, so leaving out one at a time gives the standard
error, and permuting the pairing of samples inside blocks the chance level (`chance_level`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._ops import packed_kernels as packing
from ..errors import MismatchError
from ..representation.layer import Blocks, Kind, Layer
from ..representation.representation import Representation
from . import chance_level as chance
from . import error_bars, indices, kernels
from .combinations import Kernel, Question
from .error_bars import jackknife as jackknife
from .pair_sums import (
    FINEST_FLOAT,
    FINEST_SQUARE,
    Side,
    factors,
    level,
    own_sums,
    pair_sums,
    side,
)

_DRAWS = 256  # permutations drawn in all, spread over the blocks
FEW = 1024  # samples: up to these an error is that of other samples, beyond that of a part of them
_ROWS = {"cpu": 64, "cuda": 2048}  # kernels of blocks at a time: what a cache holds, or fills a GPU


@dataclass(frozen=True)
class Estimate:
    """Scores of rows × columns, their standard errors, and the score of unrelated samples."""

    scores: np.ndarray
    stderr: np.ndarray
    alive: tuple[np.ndarray, ...]  # rows and columns that are not constant on these data
    chance: np.ndarray | None = None  # mean under permuted pairing
    chance_high: np.ndarray | None = None  # 95 % quantile
    df: np.ndarray | None = None  # degrees of freedom of the standard errors
    replicates: np.ndarray | None = None  # (groups, rows, columns): with a group left out
    n_eff: tuple[np.ndarray, ...] | None = None  # samples that carry each row's and column's kernel
    effective_blocks: np.ndarray | None = None  # that carry the variance of each score

    @staticmethod
    def of(
        scores: Tensor,
        stderr: Tensor | Sequence[Tensor],
        alive: Iterable[Tensor],
        chance: Iterable[Tensor] = (),
        *,
        low: float = 0.0,
        n_eff: Iterable[Tensor] | None = None,
        effective_blocks: Tensor | None = None,
    ) -> Estimate:
        """An estimate from tensors on any device, with scores kept in [low, 1].

        Instead of standard errors come the deviations that they are made of, if known.
        """
        score, *levels = (x.clamp(low, 1.0).cpu().numpy() for x in (scores, *chance))
        lives = tuple(x.cpu().numpy() for x in alive)
        mean, high = levels or (None, None)
        found: dict[str, np.ndarray] = {}
        if not isinstance(stderr, Tensor):
            found["replicates"] = error_bars.replicates(scores, stderr).cpu().numpy()
            stderr, df = error_bars.standard_error(stderr)
            found["df"] = df.cpu().numpy()
        if effective_blocks is not None:
            found["effective_blocks"] = effective_blocks.cpu().numpy()
        carried = None if n_eff is None else tuple(x.cpu().numpy() for x in n_eff)
        error = stderr.cpu().numpy()
        return Estimate(score, error, lives, mean, high, n_eff=carried, **found)

    def with_errors(self, stderr: Tensor) -> Estimate:
        """The same with other standard errors, to which replicates are scaled."""
        error = stderr.cpu().numpy()
        if self.replicates is None:
            return replace(self, stderr=error)
        centre = self.replicates.mean(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = np.where(self.stderr > 0, error / self.stderr, 0.0)
        return replace(self, stderr=error, replicates=centre + (self.replicates - centre) * scale)

    def with_part(self, part: Estimate, rows: np.ndarray, columns: np.ndarray) -> Estimate:
        """The same with some rows and columns (masks) from another estimate."""
        at = (..., *np.ix_(rows, columns))
        changed = {}
        for name in ("scores", "stderr", "chance", "chance_high", "df", "replicates"):
            mine, other = getattr(self, name), getattr(part, name)
            if mine is not None and other is not None:
                changed[name] = mine.copy()
                changed[name][at] = other
        return replace(self, **changed)


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


def at_once(layers: int, device: str | torch.device) -> int:
    """How many blocks of so many layers to work on at a time."""
    return max(1, _ROWS.get(torch.device(device).type, _ROWS["cpu"]) // layers)


def read(
    layers: Sequence[Layer],
    kernel: Kernel,
    which: slice,  # blocks of one size
    n: int,  # their samples
    device: str | torch.device,
    unit: float | None = None,
    *,
    loose: bool = False,
    whole: bool = False,
) -> tuple[Tensor, Tensor]:
    """Blocks of a named kernel: strict lower triangles (g·L, n(n-1)/2), diagonals (g·L, n).

    Rows come block by block, all layers of each, in float64. With `unit`, what the kernel is made
    of is divided by its trace over that: at entries of about one float32 will do, on a CPU. With
    `loose`, K_ij may come as K_ij − u_i − u_j, which centring cannot tell apart, and which keeps
    the differences that a large mean would drown; with `whole`, `which` is the one block of all.
    """
    entries, diagonals = {}, {}
    keep_loose = loose and kernel not in ("product", "transport")  # those are no sums of kernels
    for kind in kernels.needs(kernel):
        stored = [layer.packed_blocks(kind, whole=whole) for layer in layers]
        packed = torch.stack([x.triangle[which, : n * (n - 1) // 2] for x in stored], 1)
        diagonal = torch.stack([x.diagonal[which, :n] for x in stored], 1).double()
        over = diagonal.new_ones(1, 1)
        if unit is not None or kernel in kernels.OF_TRACES:
            over = ((unit or 1.0) / kernels.traces(layers, kind))[:, None]
        packed = packed.flatten(0, 1).to(device)
        if unit is None:  # laid out as `packing.picked` does what it is combined with
            packed = packed.T.contiguous().T
        dtype = torch.float64 if unit is None or packed.is_cuda else torch.float32
        diagonals[kind] = (diagonal * over).flatten(0, 1).to(packed.device, dtype)
        entries[kind] = packing.unpack16(packed, diagonals[kind])
        if not keep_loose and any(x.offset is not None for x in stored):
            none = diagonal.new_zeros(len(stored[0].diagonal), n)
            u = [none if x.offset is None else x.offset[:, :n].double() for x in stored]
            offset = (torch.stack([x[which] for x in u], 1) * over).flatten(0, 1).to(packed.device)
            i, j = packing.lower(n, packed.device)
            entries[kind] += (packing.picked(offset, i) + packing.picked(offset, j)).to(dtype)
            diagonals[kind] = (diagonals[kind] + 2 * offset).to(dtype)
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
    loose: bool = False,
    whole: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """All blocks of a named kernel, as `read` has them, in `runs`."""
    layers = list(layers)
    for start, stop in runs(sizes, at_once):
        which = slice(start, stop)
        yield read(layers, kernel, which, sizes[start], device, loose=loose, whole=whole)


def kernel_blocks(
    layer: Layer, kernel: Kernel, sizes: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Each block of one layer: strict lower triangle (n(n-1)/2,) and diagonal (n,), float64."""
    for triangles, diagonals in stacked([layer], kernel, sizes):
        yield triangles[0], diagonals[0]


def round_off(
    layers: Iterable[Layer],
    kernel: Kernel,
    which: slice,
    n: int,
    unit: float | None = None,
    *,
    whole: bool = False,
) -> Tensor:  # (g·L,)
    """What ⟨K, K⟩ / n² of each block, as `read` has it, must exceed to be more than round-off.

    Of features and gradients that is the rounding of 16-bit correlations, relative to the diagonal
    they were packed with; where a mean was taken off first, also that of float32 vectors. In a
    product, the error of either factor is multiplied by the other's entries, which in wide layers
    lie far below its diagonal.
    """
    layers = list(layers)
    errors, squares = [], []
    diagonals: dict[Kind, Tensor] = {}
    for kind in kernels.needs(kernel):
        stored = [layer.packed_blocks(kind, whole=whole) for layer in layers]
        over = torch.ones(1, 1).double()
        if unit is not None or kernel in kernels.OF_TRACES:
            over = ((unit or 1.0) / kernels.traces(layers, kind))[:, None]
        packed = torch.stack([x.diagonal[which, :n] for x in stored], 1).double() * over
        none = torch.zeros_like(stored[0].diagonal)
        u = [none if x.offset is None else x.offset for x in stored]
        full = packed + 2 * over * torch.stack([x[which, :n] for x in u], 1).double()
        least = FINEST_SQUARE * _of_pairs(packed) + FINEST_FLOAT * _of_pairs(full)
        errors.append(least / _of_pairs(full).clamp_min(1e-300))
        diagonals[kind] = full
        if kernel == "product":
            squares.append(torch.stack([_correlated(x, which, n) for x in stored], 1))
    if kernel in kernels.OF_TRACES:
        of_kinds = zip(errors, diagonals.values(), strict=True)
        return torch.stack([e * _of_pairs(d) for e, d in of_kinds]).sum(0).flatten()
    relative = errors[0]
    if kernel == "product":  # the error of each factor, times the other
        relative = errors[0] * squares[1] + errors[1] * squares[0]
    return (relative * _of_pairs(kernels.entries(kernel, diagonals))).flatten()


def _correlated(packed: Blocks, which: slice, n: int) -> Tensor:  # (g,)
    """The mean square of correlations; where a mean was taken off them, all that it may be."""
    found = packed.triangle[which, : n * (n - 1) // 2].float().square().mean(-1) / 2**30
    return (found if packed.offset is None else torch.ones_like(found)).double()


def _of_pairs(diagonal: Tensor) -> Tensor:  # (..., n) -> (...)
    """The mean of d_i d_j over pairs i ≠ j."""
    n = diagonal.shape[-1]
    return (diagonal.sum(-1) ** 2 - diagonal.square().sum(-1)) / max(1, n * (n - 1))


class _Blocks(NamedTuple):
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
    norm1: Tensor  # (k, L1) Σd, Σd² of the diagonals
    norm2: Tensor  # (k, L2)
    square1: Tensor
    square2: Tensor

    def mean(self, weights: Tensor) -> _Blocks:
        """The blocks' mean, each by its weight (k,); or many such means, for weights (m, k)."""
        share = weights / weights.sum(-1, keepdim=True)
        return _Blocks(*(torch.tensordot(share, x, 1) for x in self))

    def alive(self) -> tuple[Tensor, Tensor]:  # of means: (..., L1), (..., L2)
        return self.own1 > self.visible1, self.own2 > self.visible2

    def norms(self) -> Tensor:  # of means: (..., L1, L2)
        one, two = self.alive()
        return indices.norms(self.own1 * one, self.own2 * two)

    def moved(self, of: _Blocks) -> Tensor:  # (k, L1, L2)
        """What the `apart` of each block would move the score of means by, to first order."""
        norms = of.norms()
        score, own1, own2 = of.cross / norms, of.own1[:, None], of.own2[None, :]
        relative = self.own1_apart[:, :, None] / own1 + self.own2_apart[:, None, :] / own2
        return self.cross_apart / norms - score * relative / 2

    def n_eff(self) -> tuple[Tensor, Tensor]:
        return (
            self.norm1.sum(0) ** 2 / self.square1.sum(0),
            self.norm2.sum(0) ** 2 / self.square2.sum(0),
        )


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

    Chance: the mean over all permutations of the pairing inside blocks, exactly, and its 95 %
    quantile from drawn ones.
    """
    generator = torch.Generator().manual_seed(a.settings.seed)
    each, draws, weight = _block_sums(a, b, asked, device, generator)
    whole = each.mean(weight)
    norms = whole.norms()
    one_left_out = each.mean(weight * ~torch.eye(len(weight), dtype=torch.bool, device=device))
    left_out = error_bars.left_out(one_left_out.cross / one_left_out.norms())
    share = weight / weight.sum()
    deviations = [left_out]
    if a.samples > FEW and asked.index != "cka-debiased":
        pairs = each.moved(whole) * (share / 2)[:, None, None]
        deviations = of_a_part(left_out, pairs, sum(a.block_sizes) / a.samples)
    mean = whole.chance / norms
    high = mean + chance.spread(draws, share, generator) / norms
    low = 0.0 if asked.index == "cka" else -1.0
    return Estimate.of(
        whole.cross / norms,
        deviations,
        whole.alive(),
        (mean, high),
        low=low,
        n_eff=each.n_eff(),
        effective_blocks=error_bars.effective(
            indices.norms(each.own1, each.own2).nan_to_num() * weight[:, None, None]
        ),
    )


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
    generator: torch.Generator,
) -> tuple[_Blocks, Tensor, Tensor]:
    """What the blocks say, how permuted ones score (k, L1, L2, p), and the blocks' weights (k,)."""
    sizes = a.block_sizes
    loose = is_centred(asked)
    weight = weights(sizes, a.samples, centre=loose)
    per_block = max(2, -(-_DRAWS // len(weight)))
    many = at_once(max(len(a), len(b)), device)
    both = (stacked(rep, asked.kernel, sizes, device, at_once=many, loose=loose) for rep in (a, b))
    said, draws = [], []
    units: list[Tensor] = []
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
        which = slice(start, stop)
        visible = (
            round_off(rep, asked.kernel, which, n).to(device) / unit[:, 0] ** 2
            for rep, unit in zip((a, b), every, strict=True)
        )
        apart = [add_up[0] * x for x in _halves_apart(one, two, n, blocks)]
        sizes_of = [
            x.view(blocks, -1)
            for d in (carriers(asked, *x) for x in zip((one, two), scaled, strict=True))
            for x in (d.sum(1), d.square().sum(1))
        ]
        of_layers = [x.view(blocks, -1) for x in (*own, *visible)]
        said.append((cross, expected, *of_layers, *apart, *sizes_of[::2], *sizes_of[1::2]))
        orders = chance.orders(blocks, per_block, n, generator).to(device)
        draws.append(chance.drawn(one, two, orders, add_up))
    each = _Blocks(*(torch.cat(x) for x in zip(*said, strict=True)))
    return each, torch.cat(draws), weight[weight > 0].to(device)


def halves(n: int, device: torch.device) -> tuple[float, float, Tensor]:  # (t,)
    """Weights of pairs within halves of a block, and across them, and those of all its pairs.

    In a sum over pairs with these weights, what single samples add cancels; what is left says how
    much it matters which pairs were taken. Its standard deviation is twice that of the plain sum.
    """
    i, j = packing.lower(n, device)
    apart = (i < n // 2) != (j < n // 2)
    across = max(1, (n // 2) * (n - n // 2))
    within = max(1, len(i) - across)
    # of a difference of means the variance is σ² (1/w + 1/a), of the mean of all σ² / (w + a)
    return (
        2 * (across / within) ** 0.5,
        -2 * (within / across) ** 0.5,
        torch.where(apart, -2 * (within / across) ** 0.5, 2 * (across / within) ** 0.5).double(),
    )


def _halves_apart(one: Side, two: Side, n: int, blocks: int) -> list[Tensor]:
    """Sums over pairs with those weights: of all layers (g, L1, L2), and of each with itself."""
    _, _, sign = halves(n, one.triangle.device)
    signed1, signed2 = one.triangle * sign, two.triangle * sign
    k1, k2 = (x.unflatten(0, (blocks, -1)) for x in (signed1, two.triangle))
    own1 = 2 * (signed1 * one.triangle).sum(1).view(blocks, -1)
    own2 = 2 * (signed2 * two.triangle).sum(1).view(blocks, -1)
    return [2 * k1 @ k2.mT, own1, own2]


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
