"""Indices that are no sums over pairs: functions of two kernel matrices, and of their spectra.

A function of two kernels is called with the full Gram matrices of up to 1,024 samples, once more
without each group of samples, or with those of each block, and averaged: then it is the index of as
many samples as a block holds, not of all N. NBS and the spectrum (`indices`) read kernels and their
eigenvalues here, and leave out blocks or sequences as functions do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._ops import packing
from ..errors import DataError
from ..representation.layer import Layer
from ..representation.representation import Representation
from . import jackknife, kernels
from .block_estimator import LayerPairing
from .compare_config import CompareConfig
from .indices.registry import SimilarityIndex, get_index
from .jackknife import Estimate, jackknife_deviations
from .kernels import iter_blocks, read_blocks, round_off_level

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
        values, vectors = torch.linalg.eigh(square)
        # a symmetric matrix of independent entries has eigenvalues up to 2σ√N
        seen = values > (0.64 * least * of.samples).sqrt()
        out.append(Spectrum(values[seen], vectors[:, seen], bool(seen.any())))
    return out


def _full_square(of: LayerPairing, layer: Layer) -> tuple[Tensor, Tensor]:  # (N, N), (1,)
    """The kernel of a layer, centred if that was asked for, and what ⟨K, K⟩ / N² is round-off."""
    centre, stored = of.asked.centre, ([layer], of.asked.kernel, slice(0, 1), of.samples)
    packed = read_blocks(*stored, of.device, loose=centre, whole=True)
    square = packing.symmetric_matrices(*packed)[0]
    least = round_off_level(*stored, whole=True).to(of.device)
    return kernels.centre_kernel(square) if centre else square, least


def full_gram_function_scores(of: LayerPairing) -> Estimate:
    """A function of two kernels; without samples, of those kernels without their rows and columns.

    Where no standard error was declared, it is NaN.
    """
    index = get_index(of.asked.index)
    sides, alive = [], []
    for layers in (of.rows, of.columns):
        found = [_full_square(of, layer) for layer in layers]
        sides.append(torch.stack([square for square, _ in found]))
        seen = [square.square().mean() > least[0] for square, least in found]
        alive.append(torch.stack(seen))
    scores = function_scores(index, sides, alive)
    stderr: Tensor | list[Tensor] = torch.full_like(scores, torch.nan)
    if index.jackknife and of.samples > 2:
        left = []
        for start, stop in of.spans:
            keep = torch.ones(of.samples, dtype=torch.bool, device=of.device)
            keep[start:stop] = False
            rest = [k[:, keep][:, :, keep] for k in sides]
            if of.asked.centre:
                rest = [kernels.centre_kernel(k) for k in rest]
            left.append(function_scores(index, rest, alive))
        stderr = [jackknife.jackknife_deviations(torch.stack(left))]
    return Estimate.of(scores, stderr, alive, low=index.bounds[0], high=index.bounds[1])


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
                found.append((function_scores(index, squares, alive), *(x.cpu() for x in alive)))
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
    index: SimilarityIndex, kernels: Sequence[Tensor], alive: Sequence[Tensor]
) -> Tensor:  # (L1, n, n) and (L2, n, n), (L1,) and (L2,) -> (L1, L2)
    """An index that is a function of two kernels, for all pairs of layers that are not constant.

    Raises:
        DataError: if it returns anything but a number.
    """
    assert index.score is not None
    one, two = (k.cpu().numpy() for k in kernels)
    out = torch.full((len(one), len(two)), torch.nan, dtype=torch.float64)
    for i, j in torch.nonzero(alive[0][:, None] & alive[1]).tolist():
        found: object = index.score(one[i].copy(), two[j].copy())  # which may change them
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
            kernels.centre_kernel(square) if asked.centre else square,
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
