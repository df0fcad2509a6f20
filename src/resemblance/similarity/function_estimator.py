"""Indices that are no sums over pairs: functions of two kernel matrices, and of their spectra.

A function of two kernels is called with the full Gram matrices of up to 1,024 samples, once more
without each group of samples, or with those of each block, and averaged: then it is the index of as
many samples as a block holds, not of all N. NBS and the spectrum (`indices`) read kernels and their
eigenvalues here, and leave out blocks or sequences as functions do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._ops import packing
from .._utils.progress import progress_bar
from ..errors import DataError
from ..representation.layer import Layer
from ..representation.representation import Representation
from . import jackknife, stored_kernels
from .block_estimator import LayerPairing
from .indices.registry import PreparedKernel, SimilarityIndex, get_index
from .jackknife import Estimate, jackknife_deviations
from .kernels import CompareConfig
from .stored_kernels import iter_blocks, read_blocks, round_off_level, visible_spectrum

# -- full Gram matrices --


class Spectrum(NamedTuple):
    values: Tensor  # (r,) above round-off
    vectors: Tensor  # (N, r)
    alive: bool


def full_spectra(of: LayerPairing, layers: Sequence[Layer]) -> list[Spectrum]:
    """Eigenvalues of kernels that lie above those of the rounding of their entries."""
    out = []
    for layer in layers:
        square, least = _full_square(of, layer)
        values, vectors = visible_spectrum(square, _eigenvalue_floor(least, of.samples))
        out.append(Spectrum(values, vectors, bool(len(values))))
    return out


def _eigenvalue_floor(least: Tensor, samples: int) -> float:
    """The largest eigenvalue that the rounding of entries has, if ⟨K, K⟩ / N² of it is `least`.

    A symmetric matrix of independent entries has eigenvalues up to 2σ√N.
    """
    return float((0.64 * least * samples).sqrt())


def _full_square(of: LayerPairing, layer: Layer) -> tuple[Tensor, Tensor]:  # (N, N), (1,)
    """The kernel of a layer, centred if that was asked for, and what ⟨K, K⟩ / N² is round-off."""
    centre, stored = of.asked.centre, ([layer], of.asked.kernel, slice(0, 1), of.samples)
    packed = read_blocks(*stored, of.device, loose=centre, whole=True)
    square = packing.symmetric_matrices(*packed)[0]
    least = round_off_level(*stored, whole=True).to(of.device)
    return stored_kernels.centre_kernel(square) if centre else square, least


_LONG = 2_000_000  # entries of kernels, over all pairs of layers


def is_long(of: LayerPairing) -> bool | None:
    """Whether there may be a progress bar: None for comparisons that take more than a moment."""
    return None if of.samples**2 * len(of.rows) * len(of.columns) > _LONG else False


class PreparedLayer(NamedTuple):
    """A layer's kernel, and what the index needs of it."""

    square: Tensor  # (N, N)
    floor: float  # eigenvalues below are rounding
    alive: Tensor  # ()
    prepared: PreparedKernel


def prepare_layers(of: LayerPairing) -> tuple[list[PreparedLayer], list[PreparedLayer]]:
    """The layers of rows and of columns, made ready for an index that is a function of kernels."""
    index, sides = get_index(of.asked.index), []
    for layers in (of.rows, of.columns):
        side = []
        for layer in layers:
            square, least = _full_square(of, layer)
            alive = square.square().mean() > least[0]
            floor = _eigenvalue_floor(least, of.samples) * _peak(square)
            side.append(PreparedLayer(square, floor, alive, _prepared(index, square, floor, alive)))
        sides.append(side)
    return sides[0], sides[1]


def _peak(square: Tensor) -> float:
    """How much larger the rounding of entries is at the sample of the largest norm than on average.

    One eigenvector too many is a direction of its own to CCA, so these take the bound for entries
    whose variances differ: twice the root of their largest sum over a row.
    """
    norms = square.diagonal()
    return float((norms.max() / norms.mean()).clamp_min(1).sqrt())


def _prepared(
    index: SimilarityIndex, square: Tensor, floor: float, alive: Tensor
) -> PreparedKernel:
    if index.prepare is None or not alive:
        return PreparedKernel(squares=(square,))
    return index.prepare(square, floor)


def full_gram_function_scores(of: LayerPairing) -> Estimate:
    """A function of two kernels; without samples, of those kernels without their rows and columns.

    Where no standard error was declared, it is NaN.
    """
    index = get_index(of.asked.index)
    sides = prepare_layers(of)
    alive = [torch.stack([x.alive for x in side]) for side in sides]
    ready = [[x.prepared for x in side] for side in sides]
    scores = function_scores(index, ready, alive)
    stderr: Tensor | list[Tensor] = torch.full_like(scores, torch.nan)
    n_eff = None
    if index.jackknife and of.samples > 2:
        left = []
        with progress_bar(is_long(of), len(of.spans), "standard errors", "groups") as advance:
            for start, stop in of.spans:
                keep = torch.ones(of.samples, dtype=torch.bool, device=of.device)
                keep[start:stop] = False
                rest = [[_without(index, x, keep, of.asked.centre) for x in side] for side in sides]
                left.append(function_scores(index, rest, alive))
                advance(1)
        stderr = [jackknife.jackknife_deviations(torch.stack(left))]
        n_eff = [
            jackknife.effective_number(torch.stack([x.square.diagonal() for x in side], 1))
            for side in sides
        ]
    low, high = index.bounds
    return Estimate.of(scores, stderr, alive, low=low, high=high, n_eff=n_eff)


def _without(
    index: SimilarityIndex, layer: PreparedLayer, keep: Tensor, centre: bool
) -> PreparedKernel:
    """What is prepared of a layer with some samples left out."""
    if not layer.alive:
        return layer.prepared
    if index.restrict is not None:
        return index.restrict(layer.prepared, keep, centre)
    rest = layer.square[keep][:, keep]
    rest = stored_kernels.centre_kernel(rest) if centre else rest
    return _prepared(index, rest, layer.floor, layer.alive)


# -- blocks --

_SQUARED_ROUND_OFF = 10  # times what is round-off of squared entries: of squared eigenvalues


def block_function_scores(
    a: Representation, b: Representation, asked: CompareConfig, device: str | torch.device = "cpu"
) -> Estimate:
    """The mean over blocks of an index that is a function of two kernels.

    Only blocks of full size enter. Bias: what the index of as many samples as a block holds differs
    by from that of all N. Standard error: jackknife over blocks, of tokens over groups of
    sequences; not known for different numbers of sequences. Cost: O(L1 L2 k) calls.
    """
    index = get_index(asked.index)

    def parts(a: Representation, b: Representation) -> list[Tensor]:
        size, found = max(a.block_sizes), []
        both = (square_blocks(rep, asked, device) for rep in (a, b))
        for pair in zip(*both, strict=False):  # unpaired recordings may differ in their number
            squares = [square for square, _ in pair]
            if all(square.shape[-1] == size for square in squares):
                alive = [k.diagonal(dim1=1, dim2=2).sum(1) > least for k, least in pair]
                ready = [
                    [_prepared(index, k, 0.0, live) for k, live in zip(*side, strict=True)]
                    for side in zip(squares, alive, strict=True)
                ]
                scores = function_scores(index, ready, alive)
                found.append((scores, *(x.cpu() for x in alive)))
        return [torch.stack(x) for x in zip(*found, strict=True)]  # (k, L1, L2), (k, L1), (k, L2)

    def score(each: Tensor, *_: Tensor) -> Tensor:
        return each.nanmean(0)

    each = parts(a, b)
    scores, alive = score(*each), [x.any(0) for x in each[1:]]
    stderr: Tensor | list[Tensor] = torch.full_like(scores, torch.nan)
    if a.settings.tokens == 1 or a.block_sizes == b.block_sizes:  # else sequences are not paired
        stderr = block_deviations(a, b, score, each, parts)
    return Estimate.of(scores, stderr, alive, low=index.bounds[0], high=index.bounds[1])


def function_scores(
    index: SimilarityIndex, sides: Sequence[Sequence[PreparedKernel]], alive: Sequence[Tensor]
) -> Tensor:  # L1 and L2 kernels, (L1,) and (L2,) -> (L1, L2)
    """An index that is a function of two kernels, for all pairs of layers that are not constant.

    Raises:
        DataError: if it returns anything but a number.
    """
    assert index.score is not None
    rows, columns = sides
    out = torch.full((len(rows), len(columns)), torch.nan, dtype=torch.float64)
    for i, j in torch.nonzero(alive[0][:, None] & alive[1]).tolist():
        pair: tuple[Any, ...] = rows[i], columns[j]
        if index.prepare is None:  # arrays, which the function may change
            pair = tuple(x.squares[0].cpu().numpy().copy() for x in pair)
        found: object = index.score(*pair)
        if isinstance(found, np.ndarray | Tensor) and found.ndim == 0:
            found = found.item()
        if not isinstance(found, Real):
            raise DataError(
                f"index {index.name!r} must return one number, found {type(found).__name__}"
            )
        out[i, j] = float(found)
    return out


def square_blocks(
    rep: Representation, asked: CompareConfig, device: str | torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Each block of all layers: kernels (L, n, n), and the traces (L,) that are round-off."""
    sizes = rep.block_sizes
    blocks = iter_blocks(rep, asked.kernel, sizes, device, loose=asked.centre)
    for b, (packed, n) in enumerate(zip(blocks, sizes, strict=True)):
        square = packing.symmetric_matrices(*packed)
        least = round_off_level(rep, asked.kernel, slice(b, b + 1), n).to(device)
        yield (
            stored_kernels.centre_kernel(square) if asked.centre else square,
            n * (_SQUARED_ROUND_OFF * least).sqrt(),
        )


def block_deviations(
    a: Representation,
    b: Representation,
    score: Callable[..., Tensor],
    each: Sequence[Tensor],  # (k, ...), what the score is made of
    parts: Callable[[Representation, Representation], Sequence[Tensor]],  # which makes them
) -> list[Tensor]:
    """What moves a score: leaving out a block at a time; of tokens, a group of sequences."""
    if a.settings.tokens == 1:
        return deviations_without_blocks(score, *each)
    scores = []
    for group in jackknife.sequence_groups(a):
        keep = torch.ones(len(each[0]), dtype=torch.bool)
        keep[group.blocks] = False
        rest = [x[keep] for x in each]
        if len(group.rest):
            less = parts(*(jackknife.window_without_group(rep, group) for rep in (a, b)))
            rest = [torch.cat(pair) for pair in zip(rest, less, strict=True)]
        scores.append(score(*rest))
    return [jackknife_deviations(torch.stack(scores))]


def deviations_without_blocks(
    score: Callable[..., Tensor], *each: Tensor
) -> list[Tensor]:  # each (k, ...)
    """What moves a score of blocks: leaving out one of them at a time."""
    rest = torch.arange(len(each[0]))
    return [jackknife_deviations(torch.stack([score(*(x[rest != i] for x in each)) for i in rest]))]
