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
from . import indices
from .block_estimates import Estimate, round_off, stacked
from .combinations import Question
from .error_bars import left_out

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
    found = []
    both = (_read(rep, asked, device) for rep in (a, b))
    for pair in zip(*both, strict=True):
        one, two = (indices.factor(_squares(t, d, asked)) for t, d, _ in pair)
        # traces of the factors, so that a network is exactly like itself
        traces = (factor.square().sum((-1, -2)) for factor in (one, two))
        least = (x for _, _, x in pair)
        found.append((indices.nuclear_of_pairs(one, two), *traces, *least))

    def score(*each: Tensor) -> Tensor:
        top, t1, t2, r1, r2 = (x.sum(0) for x in each)
        return top / indices.norms(t1 * (t1 > r1), t2 * (t2 > r2))

    each = [torch.stack(x).cpu() for x in zip(*found, strict=True)]
    _, t1, t2, r1, r2 = (x.sum(0) for x in each)
    return Estimate.of(score(*each), _deviations(score, *each), (t1 > r1, t2 > r2))


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

    if paired:
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


def _deviations(score: Callable[..., Tensor], *each: Tensor) -> list[Tensor]:  # each (k, ...)
    """What moves a score of blocks: leaving out one of them at a time."""
    rest = torch.arange(len(each[0]))
    return [left_out(torch.stack([score(*(x[rest != i] for x in each)) for i in rest]))]
