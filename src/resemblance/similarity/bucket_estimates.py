"""Indices from sketched kernels: for data sets of different size, and for the paper's own numbers.

A bucket kernel K̃ = S K Sᵀ keeps inner products only up to an isotropic part that the random signs
leave behind: over sketches, E⟨K̃1, K̃2⟩ = (1 + 1/M)⟨K1, K2⟩ + (Tr K1 Tr K2 − 2 Σ_n K1_nn K2_nn) / M,
with one bucket a sample or with several. Taking off the second term removes most of the bias of
CKA; what is left falls with N. That holds for kernels that are sketches: features, gradients, their
sum, elementwise. The *product* of two bucket kernels is not a sketch of the product kernel, since
different samples of one bucket meet in it; it is offered because the paper defines it, and is off
by far more than its standard error.

`scores(..., paper=True)` is Algorithm 1 as published: no correction, and centring, if asked for, of
the M × M matrix as in the first code.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..representation.layer import Layer
from ..representation.representation import Representation
from . import indices, kernels
from .block_estimates import Estimate
from .combinations import Index, Kernel

_GROUPS = 8  # disjoint groups of buckets, each a sketch of its own share of the samples
_FINEST = 1e-6  # of a trace: what centring float32 sums leaves of a constant layer


def kernel_matrix(layer: Layer, kernel: Kernel, *, centre: bool, paper: bool) -> Tensor:  # (M, M)
    """A named kernel formed from a layer's bucket kernels, in float64."""
    kinds = kernels.needs(kernel)
    exact = centre and not paper  # samples are centred before sketching; only then is it a sketch
    parts = {kind: layer.buckets(kind, centre=exact) for kind in kinds}
    scale = {
        kind: torch.tensor(1.0 if paper else max(layer.recorded(kind).trace, 1e-300)).double()
        for kind in kinds
    }
    if kernel == "transport":
        out = kernels.transport(*(parts[kind] / scale[kind] for kind in kinds))
    else:
        out = kernels.entries(kernel, parts, scale)
    return indices.centred(out) if centre and paper else out


def scores(
    a: Representation,
    b: Representation,
    kernel: Kernel,
    index: Index,
    centre: bool,
    device: str | torch.device = "cpu",
    *,
    paper: bool,
) -> Estimate:
    """`cka`, `nbs` or `spectral` between all pairs of layers, from bucket kernels.

    Bias: see the module for CKA; NBS and the spectrum are those of M sketched samples. Standard
    error: the spread of the score over disjoint groups of buckets, divided by the root of their
    number. Cost: O(L1 L2 M²) for CKA, O(L1 L2 M³) for NBS.
    """
    one, two = (_visible_kernels(rep, kernel, centre, paper).to(device) for rep in (a, b))
    corrected = not paper and kernel not in ("product", "transport")
    value = _score(one, two, index, corrected, a.samples, b.samples).cpu()
    alive = (one.flatten(1).any(1).cpu().numpy(), two.flatten(1).any(1).cpu().numpy())
    m = one.shape[-1]
    groups = min(_GROUPS, m // 8)
    if groups < 2:
        return Estimate(value.numpy(), torch.full_like(value, torch.nan).numpy(), alive)
    each = []
    for part in torch.arange(m).chunk(groups):
        x, y = (k[:, part][:, :, part] for k in (one, two))
        each.append(_score(x, y, index, corrected, a.samples / groups, b.samples / groups))
    stderr = torch.stack(each).cpu().std(0) / len(each) ** 0.5
    return Estimate(value.numpy(), stderr.numpy(), alive)


def _visible_kernels(
    rep: Representation, kernel: Kernel, centre: bool, paper: bool
) -> Tensor:  # (L, M, M)
    """The kernels of all layers; zeros for one of which centring left nothing but round-off."""
    out = []
    for layer in rep:
        k = kernel_matrix(layer, kernel, centre=centre, paper=paper)
        raw = kernel_matrix(layer, kernel, centre=False, paper=paper) if centre else k
        out.append(k if k.trace() > _FINEST * raw.trace() else torch.zeros_like(k))
    return torch.stack(out)


def _score(
    one: Tensor, two: Tensor, index: Index, corrected: bool, n1: float, n2: float
) -> Tensor:  # (L1, M, M), (L2, M, M) -> (L1, L2)
    if index == "nbs":
        factor1, factor2 = indices.factor(one), indices.factor(two)
        t1, t2 = (factor.square().sum((-1, -2)) for factor in (factor1, factor2))
        top = torch.stack([indices.nuclear(f[None], factor2) for f in factor1])
        return (top / indices.norms(t1, t2)).clamp(0, 1)
    if index == "spectral":
        x, y = (torch.linalg.eigvalsh(k).clamp_min(0) for k in (one, two))
        return (x @ y.T / indices.norms((x * x).sum(1), (y * y).sum(1))).clamp(0, 1)
    x, y = one.flatten(1), two.flatten(1)
    cross, own1, own2 = x @ y.T, (x * x).sum(1), (y * y).sum(1)
    if corrected:
        t1, t2 = (k.diagonal(dim1=-2, dim2=-1).sum(-1) for k in (one, two))
        share = 1 / one.shape[-1]
        cross = cross - torch.outer(t1, t2) * share * (1 - 2 / max(n1, n2))
        # no kernel of n samples has a smaller norm than its trace over √n
        own1 = torch.maximum(own1 - t1 * t1 * share * (1 - 2 / n1), t1 * t1 / n1)
        own2 = torch.maximum(own2 - t2 * t2 * share * (1 - 2 / n2), t2 * t2 / n2)
    return (cross / indices.norms(own1, own2)).clamp(0, 1)
