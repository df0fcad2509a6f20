"""Indices from sketched kernels: for data sets of different size, and for the paper's own numbers.

A bucket kernel K̃ = S K Sᵀ keeps inner products only up to an isotropic part that the random signs
leave behind: over sketches, E⟨K̃1, K̃2⟩ = (1 + 1/M)⟨K1, K2⟩ + (Tr K1 Tr K2 − 2 Σ_n K1_nn K2_nn) / M,
with one bucket a sample or with several. Taking off the second term removes most of the bias of
CKA; what is left falls with N. That holds for kernels that are sketches: features, gradients, their
sum, elementwise. The *product* of two bucket kernels is not a sketch of the product kernel, since
different samples of one bucket meet in it; it is offered because the paper defines it, and is off
by far more than its standard error.

The estimator `paper` is Algorithm 1 as published: no correction, and centring, if asked for, of
the M × M matrix as in the first code.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..representation.layer import Layer
from ..representation.representation import Representation
from . import indices, kernels
from .block_estimates import Estimate
from .combinations import Kernel, Question

_GROUPS = 8  # disjoint groups of buckets, each a sketch of its own share of the samples
_FINEST = 1e-6  # of a trace: what centring float32 sums leaves of a constant layer


def kernel_matrix(layer: Layer, kernel: Kernel, *, centre: bool, paper: bool) -> Tensor:  # (M, M)
    """A named kernel formed from a layer's bucket kernels, in float64."""
    exact = centre and not paper  # samples are centred before sketching; only then is it a sketch
    parts = {kind: layer.buckets(kind, centre=exact) for kind in kernels.needs(kernel)}
    if kernel in kernels.OF_TRACES and not paper:
        parts = {kind: k / kernels.traces([layer], kind) for kind, k in parts.items()}
    whole = kernel == "transport"
    out = kernels.transport(*parts.values()) if whole else kernels.entries(kernel, parts)
    return indices.centred(out) if centre and paper else out


def scores(
    a: Representation, b: Representation, asked: Question, device: str | torch.device = "cpu"
) -> Estimate:
    """`cka`, `nbs` or `spectral` between all pairs of layers, from bucket kernels.

    Bias: see the module for CKA; NBS and the spectrum are those of M sketched samples. Standard
    error: the spread of the score over disjoint groups of buckets, divided by the root of their
    number. Cost: O(L1 L2 M²) for CKA, O(L1 L2 M³) for NBS.
    """
    one, two = (_visible_kernels(rep, asked).to(device) for rep in (a, b))
    value = _score(one, two, asked, a.samples, b.samples)
    stderr = torch.full_like(value, torch.nan)
    m = one.shape[-1]
    groups = min(_GROUPS, m // 8)
    if groups > 1:
        each = []
        for part in torch.arange(m).chunk(groups):
            x, y = (k[:, part][:, :, part] for k in (one, two))
            each.append(_score(x, y, asked, a.samples / groups, b.samples / groups))
        stderr = torch.stack(each).cpu().std(0) / len(each) ** 0.5
    return Estimate.of(value, stderr, [k.flatten(1).any(1) for k in (one, two)])


def _visible_kernels(rep: Representation, asked: Question) -> Tensor:  # (L, M, M)
    """The kernels of all layers; zeros for one of which centring left nothing but round-off."""
    out, paper = [], asked.estimator == "paper"
    for layer in rep:
        k = kernel_matrix(layer, asked.kernel, centre=asked.centre, paper=paper)
        raw = kernel_matrix(layer, asked.kernel, centre=False, paper=paper) if asked.centre else k
        out.append(k if k.trace() > _FINEST * raw.trace() else torch.zeros_like(k))
    return torch.stack(out)


def _score(
    one: Tensor, two: Tensor, asked: Question, n1: float, n2: float
) -> Tensor:  # (L1, M, M), (L2, M, M) -> (L1, L2)
    if asked.index == "nbs":
        one, two = indices.factor(one), indices.factor(two)
        norms = indices.norms(*(factor.square().sum((-1, -2)) for factor in (one, two)))
        return (indices.nuclear_of_pairs(one, two) / norms).clamp(0, 1)
    if asked.index == "spectral":
        return indices.cosines(*(torch.linalg.eigvalsh(k).clamp_min(0) for k in (one, two))).clamp(
            0, 1
        )
    x, y = one.flatten(1), two.flatten(1)
    cross, own1, own2 = x @ y.T, (x * x).sum(1), (y * y).sum(1)
    if asked.estimator != "paper" and asked.kernel not in ("product", "transport"):
        t1, t2 = (k.diagonal(dim1=-2, dim2=-1).sum(-1) for k in (one, two))
        share = 1 / one.shape[-1]
        cross = cross - torch.outer(t1, t2) * share * (1 - 2 / max(n1, n2))
        # no kernel of n samples has a smaller norm than its trace over √n
        own1, own2 = (
            torch.maximum(own - t * t * share * (1 - 2 / n), t * t / n)
            for own, t, n in ((own1, t1, n1), (own2, t2, n2))
        )
    return (cross / indices.norms(own1, own2)).clamp(0, 1)
