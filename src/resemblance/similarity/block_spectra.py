"""NBS and spectra from blocks: indices that are no sums over pairs of samples.

They are taken inside each block and averaged, which makes them the index of as many samples as a
block holds, not of all N (see `nbs_scores`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .._ops import packed_kernels as packing
from ..representation.representation import Representation
from . import indices, left_out_sequences
from .combinations import Question
from .error_bars import left_out
from .estimate import Estimate
from .stored_kernels import round_off, stacked

_FINEST_SQUARE = 10  # times what is round-off of squared entries: of squared eigenvalues


def nbs_scores(
    a: Representation, b: Representation, asked: Question, device: str | torch.device = "cpu"
) -> Estimate:
    """NBS inside blocks: Σ_b Tr(K1^½ K2 K1^½)^½ / √(Σ_b Tr K1 · Σ_b Tr K2), over all blocks b.

    Bias: this is the NBS of as many samples as a block holds, which lies above that of all N
    samples where kernels have more directions than a block has samples, since a few samples from
    each network can always be rotated onto each other. Scores of one block size compare with each
    other. Standard error: jackknife over blocks. Cost: O(L1 L2 k B³).
    """

    def parts(a: Representation, b: Representation) -> list[Tensor]:  # each (k, ...)
        found = []
        both = (_read(rep, asked, device) for rep in (a, b))
        for pair in zip(*both, strict=True):
            one, two = (indices.factor(_squares(t, d, asked)) for t, d, _ in pair)
            # traces of the factors, so that a network is exactly like itself
            traces = (factor.square().sum((-1, -2)) for factor in (one, two))
            least = (x for _, _, x in pair)
            found.append((indices.nuclear_of_pairs(one, two), *traces, *least))
        return [torch.stack(x).cpu() for x in zip(*found, strict=True)]

    def score(*each: Tensor) -> Tensor:
        top, t1, t2, r1, r2 = (x.sum(0) for x in each)
        return top / indices.norms(t1 * (t1 > r1), t2 * (t2 > r2))

    each = parts(a, b)
    _, t1, t2, r1, r2 = (x.sum(0) for x in each)
    if a.settings.tokens > 1:
        deviations = _without_sequences(a, b, score, each, parts)
    else:
        deviations = _deviations(score, *each)
    return Estimate.of(score(*each), deviations, (t1 > r1, t2 > r2))


def spectral_scores(
    a: Representation,
    b: Representation,
    asked: Question,
    device: str | torch.device = "cpu",
    *,
    paired: bool,
) -> Estimate:
    """Cosine of the sorted eigenvalues, each the mean over blocks; samples need not be paired.

    Bias: the spectrum is that of as many samples as a block holds. Standard error: jackknife over
    blocks, leaving out a block of both networks at once where they saw the same samples, and of one
    after the other, variances added, where they did not. Cost: O((L1 + L2) k B³).
    """
    one, two = (_spectra(rep, asked, device) for rep in (a, b))

    def score(x: Tensor, y: Tensor) -> Tensor:
        return indices.cosines(x.mean(0), y.mean(0))

    if paired and a.settings.tokens > 1:

        def parts(a: Representation, b: Representation) -> list[Tensor]:
            return [_as_long(_spectra(rep, asked, device), one.shape[2]) for rep in (a, b)]

        deviations = _without_sequences(a, b, score, [one, two], parts)
    elif paired:
        deviations = _deviations(score, one, two)
    else:
        deviations = _deviations(lambda x: score(x, two), one)
        deviations += _deviations(lambda y: score(one, y), two)
    alive = (one[0, :, 0].isfinite(), two[0, :, 0].isfinite())
    return Estimate.of(score(one, two), deviations, alive)


def _spectra(rep: Representation, asked: Question, device: str | torch.device) -> Tensor:
    """Eigenvalues (k, L, n) of every full block, largest first; NaN for a constant layer."""
    size = max(rep.block_sizes)
    spectra, raw = [], []
    for triangle, diagonal, least in _read(rep, asked, device):
        if diagonal.shape[-1] == size:  # the spectrum of fewer samples is another spectrum
            values = torch.linalg.eigvalsh(_squares(triangle, diagonal, asked))
            spectra.append(values.clamp_min(0).flip(-1))
            raw.append(least)
    out = torch.stack(spectra).cpu()
    seen = out.sum((0, 2)) > torch.stack(raw).sum(0).cpu()
    return torch.where(seen[:, None], out, torch.nan)


def _as_long(spectra: Tensor, length: int) -> Tensor:  # (k, L, m) -> (k, L, length)
    """Spectra of fewer samples as if there were more: eigenvalues grow with their number."""
    m = spectra.shape[-1]
    return torch.nn.functional.pad(spectra * (length / m), (0, length - m))


def _read(
    rep: Representation, asked: Question, device: str | torch.device
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Each block of all layers: triangles, diagonals, and the trace (L,) that is round-off."""
    sizes = rep.block_sizes
    blocks = stacked(rep, asked.kernel, sizes, device, loose=asked.centre)
    for b, ((triangle, diagonal), n) in enumerate(zip(blocks, sizes, strict=True)):
        least = round_off(rep, asked.kernel, slice(b, b + 1), n).to(device)
        yield triangle, diagonal, n * (_FINEST_SQUARE * least).sqrt()


def _squares(triangle: Tensor, diagonal: Tensor, asked: Question) -> Tensor:
    square = packing.squares(triangle, diagonal)
    return indices.centred(square) if asked.centre else square


def _without_sequences(
    a: Representation,
    b: Representation,
    score: Callable[..., Tensor],
    each: list[Tensor],  # (k, ...), what the score is made of
    parts: Callable[[Representation, Representation], list[Tensor]],
) -> list[Tensor]:
    """What moves a score of tokens: leaving out a group of sequences at a time."""
    scores = []
    for group in left_out_sequences.groups(a):
        keep = torch.ones(len(each[0]), dtype=torch.bool)
        keep[group.blocks] = False
        rest = [x[keep] for x in each]
        if len(group.rest):
            less = parts(*(left_out_sequences.only(rep, group) for rep in (a, b)))
            rest = [torch.cat(pair) for pair in zip(rest, less, strict=True)]
        scores.append(score(*rest))
    return [left_out(torch.stack(scores))]


def _deviations(score: Callable[..., Tensor], *each: Tensor) -> list[Tensor]:  # each (k, ...)
    """What moves a score of blocks: leaving out one of them at a time."""
    rest = torch.arange(len(each[0]))
    return [left_out(torch.stack([score(*(x[rest != i] for x in each)) for i in rest]))]
