"""NBS and spectra from blocks: indices that are no sums over pairs of samples.

They are taken inside each block and averaged, which makes them the index of as many samples as a
block holds, not of all N (see `nbs_scores`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .._ops import packed_kernels as packing
from ..representation.representation import Representation
from . import indices
from .block_estimates import Estimate, jackknife, stacked
from .combinations import Question

_FINEST_TRACE = 1e-4  # of the raw trace: a centred one below this is round-off of int16 entries


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
    both = (stacked(rep, asked.kernel, rep.block_sizes, device) for rep in (a, b))
    for pair in zip(*both, strict=True):
        one, two = (indices.factor(_squares(t, d, asked)) for t, d in pair)
        # traces of the factors, so that a network is exactly like itself
        traces = (factor.square().sum((-1, -2)) for factor in (one, two))
        raw = (diagonal.sum(-1) for _, diagonal in pair)
        found.append((indices.nuclear_of_pairs(one, two), *traces, *raw))

    def score(*each: Tensor) -> Tensor:
        top, t1, t2, r1, r2 = (x.sum(0) for x in each)
        return top / indices.norms(t1 * _visible(t1, r1), t2 * _visible(t2, r2))

    each = [torch.stack(x).cpu() for x in zip(*found, strict=True)]
    _, t1, t2, r1, r2 = (x.sum(0) for x in each)
    alive = (_visible(t1, r1), _visible(t2, r2))
    return Estimate.of(score(*each), _error(score, *each), alive)


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
        stderr = _error(score, one, two)
    else:
        rows, columns = _error(lambda x: score(x, two), one), _error(lambda y: score(one, y), two)
        stderr = (rows**2 + columns**2).sqrt()
    alive = (one[0, :, 0].isfinite(), two[0, :, 0].isfinite())
    return Estimate.of(score(one, two), stderr, alive)


def _spectra(rep: Representation, asked: Question, device: str | torch.device) -> Tensor:
    """Eigenvalues (k, L, n) of every full block, largest first; NaN for a constant layer."""
    size = max(rep.block_sizes)
    spectra, raw = [], []
    for triangle, diagonal in stacked(rep, asked.kernel, rep.block_sizes, device):
        if diagonal.shape[-1] == size:  # the spectrum of fewer samples is another spectrum
            values = torch.linalg.eigvalsh(_squares(triangle, diagonal, asked))
            spectra.append(values.clamp_min(0).flip(-1))
            raw.append(diagonal.sum(-1))
    out = torch.stack(spectra).cpu()
    seen = _visible(out.sum((0, 2)), torch.stack(raw).sum(0).cpu())
    return torch.where(seen[:, None], out, torch.nan)


def _squares(triangle: Tensor, diagonal: Tensor, asked: Question) -> Tensor:
    square = packing.squares(triangle, diagonal)
    return indices.centred(square) if asked.centre else square


def _visible(trace: Tensor, raw: Tensor) -> Tensor:  # (L,), (L,) -> (L,) bool
    """Whether centring left more of a raw trace than round-off."""
    return trace > _FINEST_TRACE * raw


def _error(score: Callable[..., Tensor], *each: Tensor) -> Tensor:  # each (k, ...)
    """The standard error of a score of blocks, by leaving out one of them at a time."""
    rest = torch.arange(len(each[0]))
    return jackknife(torch.stack([score(*(x[rest != i] for x in each)) for i in rest]))
