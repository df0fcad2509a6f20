"""NBS and spectra from blocks: indices that are no sums over pairs of samples.

They are taken inside each block and averaged, which makes them the index of as many samples as a
block holds, not of all N (see `nbs_scores`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._ops import packed_kernels as packing
from ..representation.representation import Representation
from . import indices
from .block_estimates import Estimate, jackknife, stacked
from .combinations import Kernel

_FINEST_TRACE = 1e-4  # of the raw trace: a centred one below this is round-off of int16 entries


def nbs_scores(
    a: Representation,
    b: Representation,
    kernel: Kernel,
    centre: bool,
    device: str | torch.device = "cpu",
) -> Estimate:
    """NBS inside blocks: Σ_b Tr(K1^½ K2 K1^½)^½ / √(Σ_b Tr K1 · Σ_b Tr K2), over all blocks b.

    Bias: this is the NBS of as many samples as a block holds, which lies above that of all N
    samples where kernels have more directions than a block has samples, since a few samples from
    each network can always be rotated onto each other. Scores of one block size compare with each
    other. Standard error: jackknife over blocks. Cost: O(L1 L2 k B³).
    """
    tops, factors1, factors2, raw1, raw2 = [], [], [], [], []
    both = (stacked(rep, kernel, rep.block_sizes, device) for rep in (a, b))
    for one, two in zip(*both, strict=True):
        factor1, factor2 = (indices.factor(_squares(*x, centre=centre)) for x in (one, two))
        tops.append(torch.stack([indices.nuclear(f[None], factor2) for f in factor1]))
        # traces of the factors, so that a network is exactly like itself
        factors1.append(factor1.square().sum((-1, -2)))
        factors2.append(factor2.square().sum((-1, -2)))
        raw1.append(one[1].sum(-1))
        raw2.append(two[1].sum(-1))
    each = [torch.stack(x).cpu() for x in (tops, factors1, factors2, raw1, raw2)]

    def score(keep: Tensor) -> Tensor:
        top, t1, t2, r1, r2 = (x[keep].sum(0) for x in each)
        return top / indices.norms(t1 * _visible(t1, r1), t2 * _visible(t2, r2))

    everything = torch.arange(len(tops))
    _, t1, t2, r1, r2 = (x.sum(0) for x in each)
    alive = (_visible(t1, r1).numpy(), _visible(t2, r2).numpy())
    whole = score(everything)
    left = [score(everything[everything != i]) for i in everything]
    stderr = jackknife(left, torch.full_like(whole, torch.nan))
    return Estimate(whole.clamp(0, 1).numpy(), stderr.numpy(), alive)


def _visible(trace: Tensor, raw: Tensor) -> Tensor:  # (L,), (L,) -> (L,) bool
    """Whether centring left more of a raw trace than round-off."""
    return trace > _FINEST_TRACE * raw


def spectral_scores(
    a: Representation,
    b: Representation,
    kernel: Kernel,
    centre: bool,
    device: str | torch.device = "cpu",
    *,
    paired: bool,
) -> Estimate:
    """Cosine of the sorted eigenvalues, each the mean over blocks; samples need not be paired.

    Bias: the spectrum is that of as many samples as a block holds. Standard error: jackknife over
    blocks, leaving out a block of both networks at once where they saw the same samples, and of one
    after the other, variances added, where they did not. Cost: O((L1 + L2) k B³).
    """
    one, two = (_spectra(rep, kernel, centre, device) for rep in (a, b))  # (k, L, n)
    alive = (one[0, :, 0].isfinite().numpy(), two[0, :, 0].isfinite().numpy())

    def score(x: Tensor, y: Tensor) -> Tensor:
        x, y = x.mean(0), y.mean(0)
        return x @ y.T / indices.norms((x * x).sum(1), (y * y).sum(1))

    whole = score(one, two)
    unknown = torch.full_like(whole, torch.nan)
    if paired:
        stderr = jackknife(
            [score(x, y) for x, y in zip(_left_out(one), _left_out(two), strict=True)], unknown
        )
    else:
        rows = jackknife([score(x, two) for x in _left_out(one)], unknown)
        columns = jackknife([score(one, y) for y in _left_out(two)], unknown)
        stderr = (rows**2 + columns**2).sqrt()
    return Estimate(whole.clamp(0, 1).numpy(), stderr.numpy(), alive)


def _spectra(
    rep: Representation, kernel: Kernel, centre: bool, device: str | torch.device
) -> Tensor:  # (k, L, n)
    """Eigenvalues of every full block, largest first; NaN for a layer that is constant."""
    size = max(rep.block_sizes)
    spectra, raw = [], []
    for block in stacked(rep, kernel, rep.block_sizes, device):
        if block[1].shape[-1] == size:  # the spectrum of fewer samples is another spectrum
            values = torch.linalg.eigvalsh(_squares(*block, centre=centre))
            spectra.append(values.clamp_min(0).flip(-1))
            raw.append(block[1].sum(-1))
    out = torch.stack(spectra).cpu()
    seen = _visible(out.sum((0, 2)), torch.stack(raw).sum(0).cpu())
    return torch.where(seen[:, None], out, torch.nan)


def _left_out(x: Tensor) -> list[Tensor]:  # (k, ...) -> k times (k-1, ...)
    rest = torch.arange(len(x))
    return [x[rest != i] for i in rest] if len(x) > 1 else []


def _squares(triangle: Tensor, diagonal: Tensor, *, centre: bool) -> Tensor:
    square = packing.squares(triangle, diagonal)
    return indices.centred(square) if centre else square
