"""NBS: normalised Bures similarity, which on centred features is the Procrustes similarity.

It is not a sum over pairs of samples but the nuclear norm of ΨᵀΦ for kernels ΨΨᵀ and ΦΦᵀ, so from
blocks or buckets it is the NBS of as many samples as a block or a sketch holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...representation.notes import Note
from ...representation.representation import Representation
from .. import jackknife, stored_kernels
from ..block_estimator import LayerPairing
from ..function_estimator import block_deviations, full_spectra, square_blocks
from ..jackknife import Estimate
from ..kernels import CompareConfig
from ..pair_statistics import norm_products
from .registry import PreparedKernel, SimilarityIndex

_NOTE_FEW = Note(
    "NBS from a sketch or from blocks overestimates NBS of all samples for kernels of high rank, "
    "by up to 0.3 and 0.5 in our measurements: compare such scores only with each other",
    "nbs-of-few-samples",
)


def nbs(k1: Any, k2: Any) -> float:
    """Normalised Bures similarity Tr(K1^½ K2 K1^½)^½ / √(Tr K1 · Tr K2), in [0, 1].

    In factors K = ΨᵀΨ it is the nuclear norm of Ψ1Ψ2ᵀ over ‖Ψ1‖_F ‖Ψ2‖_F, which is how it is
    computed. On kernels of centred features it is the Procrustes similarity. Cost: O(n³).

    Reference: Tang et al. 2020.

    Args:
        k1: the first kernel, a positive semi-definite array (n, n).
        k2: the second kernel over the same samples, a positive semi-definite array (n, n).

    Returns:
        The similarity.

    Raises:
        DataError: if a kernel is not positive semi-definite.

    Example:
        >>> import numpy as np
        >>> round(nbs(np.diag([1.0, 0.0]), np.diag([1.0, 1.0])), 4)
        0.7071
    """
    pair = (stored_kernels.check_semi_definite(k) for k in stored_kernels.checked_kernels(k1, k2))
    a, b = (stored_kernels.psd_factor(k) for k in pair)
    return stored_kernels.clamped_ratio(stored_kernels.nuclear_norm(a, b), a.norm() * b.norm())


def _from_whole(of: LayerPairing) -> Estimate:
    """‖AᵀB‖_* / (‖A‖_F ‖B‖_F) with K = AAᵀ; with AᵀB = UΣVᵀ, sample i adds (A U)_i·(B V)_i."""
    same = list(of.rows) == list(of.columns)
    found = [full_spectra(of, of.rows)]
    found.append(found[0] if same else full_spectra(of, of.columns))
    factors = [[x.vectors * x.values.sqrt() for x in side] for side in found]
    shares = torch.stack(
        [torch.stack([_nuclear_shares(x, y) for y in factors[1]]) for x in factors[0]]
    )
    traces = [torch.stack([x.square().sum(1) for x in side]) for side in factors]

    def score(top: Tensor, *trace: Tensor) -> Tensor:
        return top / norm_products(*trace)

    value = score(*(x.sum(-1) for x in (shares, *traces)))
    gone = [[x[..., a:b].sum(-1) for a, b in of.spans] for x in (shares, *traces)]
    left = [x.sum(-1) - torch.stack(y) for x, y in zip((shares, *traces), gone, strict=True)]
    alive = [torch.tensor([x.alive for x in side], dtype=torch.bool) for side in found]
    n_eff = [jackknife.effective_number(x.T) for x in traces]
    return Estimate.of(value, [jackknife.jackknife_deviations(score(*left))], alive, n_eff=n_eff)


def _factor(kernel: Tensor, floor: float) -> PreparedKernel:
    values, vectors = stored_kernels.visible_spectrum(kernel, floor)
    return PreparedKernel(rows=(vectors * values.sqrt(),))


def _nuclear_cosine(one: PreparedKernel, two: PreparedKernel) -> Tensor:
    (a,), (b,) = one.rows, two.rows
    return stored_kernels.nuclear_norm(a, b) / (a.norm() * b.norm())


def _nuclear_shares(a: Tensor, b: Tensor) -> Tensor:  # (N, r), (N, s) -> (N,)
    if not a.shape[1] or not b.shape[1]:
        return a.new_zeros(len(a))
    u, _, vt = torch.linalg.svd(a.mT @ b, full_matrices=False)
    return ((a @ u) * (b @ vt.mT)).sum(1)


def _from_blocks(
    a: Representation, b: Representation, asked: CompareConfig, device: str | torch.device = "cpu"
) -> Estimate:
    """NBS inside blocks: Σ_b Tr(K1^½ K2 K1^½)^½ / √(Σ_b Tr K1 · Σ_b Tr K2), over all blocks b.

    Bias: this is the NBS of as many samples as a block holds, which lies above that of all N
    samples where kernels have more directions than a block has samples, since a few samples from
    each network can always be rotated onto each other. Scores of one block size compare with each
    other. Standard error: jackknife over blocks. Cost: O(L1 L2 k B³).
    """

    def parts(a: Representation, b: Representation) -> list[Tensor]:  # each (k, ...)
        found = []
        both = (square_blocks(rep, asked, device) for rep in (a, b))
        for pair in zip(*both, strict=True):
            one, two = (stored_kernels.psd_factor(square) for square, _ in pair)
            # traces of the factors, so that a network is exactly like itself
            traces = (factor.square().sum((-1, -2)) for factor in (one, two))
            norms = torch.stack([stored_kernels.nuclear_norm(x[None], two) for x in one])
            found.append((norms, *traces, *(least for _, least in pair)))
        return [torch.stack(x).cpu() for x in zip(*found, strict=True)]

    def score(*each: Tensor) -> Tensor:
        top, t1, t2, r1, r2 = (x.sum(0) for x in each)
        return top / norm_products(t1 * (t1 > r1), t2 * (t2 > r2))

    each = parts(a, b)
    _, t1, t2, r1, r2 = (x.sum(0) for x in each)
    deviations = block_deviations(a, b, score, each, parts)
    return Estimate.of(score(*each), deviations, (t1 > r1, t2 > r2))


def _from_buckets(
    one: Tensor, two: Tensor, groups: Sequence[slice], _: tuple[int, int] | None
) -> tuple[Tensor, Tensor]:
    """The nuclear norm of AᵀB over the norms of A and B, which are factors of the kernels.

    Leaving out buckets is to first order: with AᵀB = U Σ Vᵀ, the norm loses Σ_h (A U Vᵀ Bᵀ)_hh.
    """
    one, two = stored_kernels.psd_factor(one), stored_kernels.psd_factor(two)
    whole, each = [], []
    for x in one:
        u, values, vt = torch.linalg.svd(x.mT @ two, full_matrices=False)
        whole.append(values.sum(-1))
        each.append(((x @ u) * (two @ vt.mT)).sum(-1))  # (L2, M)
    buckets = [torch.stack(each), *(x.square().sum(-1) for x in (one, two))]
    sums = [torch.stack(whole), *(x.sum(-1) for x in buckets[1:])]
    gone = (torch.stack([x[..., g].sum(-1) for g in groups]) for x in buckets)
    left = [x - y for x, y in zip(sums, gone, strict=True)]

    def score(top: Tensor, *squares: Tensor) -> Tensor:
        return top / norm_products(*squares)

    return score(*sums), score(*left)


# NBS of the full Gram matrix; `procrustes` is a function of it
NUCLEAR_COSINE: dict[str, Any] = {
    "score": _nuclear_cosine,
    "prepare": _factor,
    "from_whole": _from_whole,
}
INDEX = SimilarityIndex(
    "nbs",
    **NUCLEAR_COSINE,
    buckets=True,
    prefers_buckets=True,
    whole_samples=512,
    note=_NOTE_FEW,
    from_blocks=_from_blocks,
    from_buckets=_from_buckets,
)
