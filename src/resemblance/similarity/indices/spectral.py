"""Spectral similarity: the cosine of sorted eigenvalues, which needs no pairing of samples.

From blocks or buckets it is that of as many samples as a block or a sketch holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...representation.notes import Note
from ...representation.representation import Representation
from .. import jackknife
from ..block_estimator import LayerPairing
from ..function_estimator import (
    block_deviations,
    deviations_without_blocks,
    full_spectra,
    square_blocks,
)
from ..jackknife import Estimate
from ..kernels import CompareConfig
from ..pair_statistics import cosine_matrix
from ..pairing import same_samples
from .registry import SimilarityIndex

_NOTE_FEW = Note(
    "a spectrum from a sketch or from blocks reflects few samples, which raises scores of "
    "dissimilar layers by up to 0.2 and 0.3 in our measurements: compare such scores only with "
    "each other",
    "spectral-of-few-samples",
)


def _from_whole(of: LayerPairing) -> Estimate:
    """Cosine of sorted eigenvalues; to first order, λ loses λ Σ v_i² with the samples i."""
    whole, left, alive = [], [], []
    for layers in (of.rows, of.columns):
        found = full_spectra(of, layers)
        padded = torch.zeros(len(of.spans) + 1, len(found), of.samples, dtype=torch.float64)
        for i, x in enumerate(found):
            lost = torch.stack([x.vectors[a:b].square().sum(0) for a, b in of.spans])
            each = torch.cat([x.values[None], x.values * (1 - lost)]).cpu()
            padded[:, i, of.samples - each.shape[1] :] = each
        whole.append(padded[0])
        left.append(padded[1:])
        alive.append(torch.tensor([x.alive for x in found], dtype=torch.bool))
    deviations = jackknife.jackknife_deviations(cosine_matrix(*left))
    return Estimate.of(cosine_matrix(*whole), [deviations], alive)


def _from_blocks(
    a: Representation, b: Representation, asked: CompareConfig, device: str | torch.device = "cpu"
) -> Estimate:
    """Cosine of the sorted eigenvalues, each the mean over blocks; samples need not be paired.

    Bias: the spectrum is that of as many samples as a block holds. Standard error: jackknife over
    blocks, leaving out a block of both networks at once where they saw the same samples, and of one
    after the other, variances added, where they did not. Cost: O((L1 + L2) k B³).
    """
    one, two = (_block_spectra(rep, asked, device) for rep in (a, b))
    paired = same_samples(a, b) and a.block_numbers == b.block_numbers

    def score(x: Tensor, y: Tensor) -> Tensor:
        return cosine_matrix(x.mean(0), y.mean(0))

    def parts(a: Representation, b: Representation) -> list[Tensor]:
        return [_padded_spectra(_block_spectra(rep, asked, device), one.shape[2]) for rep in (a, b)]

    if paired:
        deviations = block_deviations(a, b, score, (one, two), parts)
    else:
        deviations = deviations_without_blocks(lambda x: score(x, two), one)
        deviations += deviations_without_blocks(lambda y: score(one, y), two)
    alive = (one[0, :, 0].isfinite(), two[0, :, 0].isfinite())
    return Estimate.of(score(one, two), deviations, alive)


def _block_spectra(rep: Representation, asked: CompareConfig, device: str | torch.device) -> Tensor:
    """Eigenvalues (k, L, n) of every full block, largest first; NaN for a constant layer."""
    size = max(rep.block_sizes)
    spectra, raw = [], []
    for square, least in square_blocks(rep, asked, device):
        if square.shape[-1] == size:  # the spectrum of fewer samples is another spectrum
            spectra.append(torch.linalg.eigvalsh(square).clamp_min(0).flip(-1))
            raw.append(least)
    out = torch.stack(spectra).cpu()
    seen = out.sum((0, 2)) > torch.stack(raw).sum(0).cpu()
    return torch.where(seen[:, None], out, torch.nan)


def _padded_spectra(spectra: Tensor, length: int) -> Tensor:  # (k, L, m) -> (k, L, length)
    """Spectra of fewer samples as if there were more: eigenvalues grow with their number."""
    m = spectra.shape[-1]
    return torch.nn.functional.pad(spectra * (length / m), (0, length - m))


def _from_buckets(
    one: Tensor, two: Tensor, groups: Sequence[slice], _: tuple[int, int] | None
) -> tuple[Tensor, Tensor]:
    """Cosines of eigenvalues, taken anew without each group."""

    def score(keep: Tensor) -> Tensor:
        parts = (k[:, keep][:, :, keep] for k in (one, two))
        return cosine_matrix(*(torch.linalg.eigvalsh(k).clamp_min(0) for k in parts))

    every = torch.arange(one.shape[-1], device=one.device)
    left = [every[(every < g.start) | (every >= g.stop)] for g in groups]
    return score(every), torch.stack([score(keep) for keep in left])


INDEX = SimilarityIndex(
    "spectral",
    paired=False,
    buckets=True,
    bucket_groups=8,
    note=_NOTE_FEW,
    from_whole=_from_whole,
    from_blocks=_from_blocks,
    from_buckets=_from_buckets,
)
