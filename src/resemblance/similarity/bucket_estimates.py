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

from collections.abc import Sequence

import torch
from torch import Tensor

from ..representation.layer import Layer
from ..representation.representation import Representation
from . import error_bars, indices, kernels
from .combinations import Kernel, Question
from .estimate import Estimate

_GROUPS = {"cka": 32, "nbs": 32, "spectral": 8}  # of buckets, at most, to be left out in turn
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
    error: a jackknife over groups of buckets, the same ones left out of both networks, so that it
    is zero for a network and itself. It says how far the score would move with other samples of the
    same source *and* another sketch of them; where each sample went into several buckets, with
    another sketch. It is wide, by about √2, for unrelated networks, whose score has no part of
    first order, and covers no bias. Cost: O(L1 L2 M²) for CKA, O(L1 L2 M³) for NBS.
    """
    one, two = (_visible_kernels(rep, asked).to(device) for rep in (a, b))
    m = one.shape[-1]
    count = max(1, min(_GROUPS[asked.index], m // 8))
    groups = [slice(m * i // count, m * (i + 1) // count) for i in range(count)]
    if asked.index == "cka":
        sketched = asked.estimator != "paper" and asked.kernel not in ("product", "transport")
        samples = (a.samples, b.samples) if sketched else None
        value, left_out = _cka(one, two, groups, samples)
    else:
        value, left_out = (_nbs if asked.index == "nbs" else _spectral)(one, two, groups)
    alive = [k.flatten(1).any(1) for k in (one, two)]
    return Estimate.of(value, [error_bars.left_out(left_out)], alive)


def _visible_kernels(rep: Representation, asked: Question) -> Tensor:  # (L, M, M)
    """The kernels of all layers; zeros for one of which centring left nothing but round-off."""
    out, paper = [], asked.estimator == "paper"
    for layer in rep:
        k = kernel_matrix(layer, asked.kernel, centre=asked.centre, paper=paper)
        raw = kernel_matrix(layer, asked.kernel, centre=False, paper=paper) if asked.centre else k
        out.append(k if k.trace() > _FINEST * raw.trace() else torch.zeros_like(k))
    return torch.stack(out)


Groups = Sequence[slice]  # of buckets, G of them
Both = tuple[Tensor, Tensor]  # scores (L1, L2), and those with each group left out (G, L1, L2)


def _cka(
    one: Tensor, two: Tensor, groups: Groups, samples: tuple[int, int] | None
) -> Both:  # (L1, M, M), (L2, M, M)
    """Cosines of kernels, less the isotropic part of a sketch where the `samples` are given."""
    m = one.shape[-1]

    def inner(x: Tensor, y: Tensor) -> list[Tensor]:
        return [x.flatten(1) @ y.flatten(1).T, x.square().sum((1, 2)), y.square().sum((1, 2))]

    def linear(group: slice) -> list[Tensor]:
        traces = [k.diagonal(dim1=1, dim2=2)[:, group].sum(1) for k in (one, two)]
        return [*traces, one.new_tensor([group.stop - group.start])]

    def score(
        cross: Tensor, own1: Tensor, own2: Tensor, t1: Tensor, t2: Tensor, buckets: Tensor
    ) -> Tensor:
        if samples is not None:
            n1, n2 = (n * buckets / m for n in samples)  # those in the buckets
            isotropic = (1 - 2 / torch.maximum(n1, n2)) / buckets
            cross = cross - t1[..., :, None] * t2[..., None, :] * isotropic[..., None]
            # no kernel of n samples has a smaller norm than its trace over √n
            own1, own2 = (
                torch.maximum(own - t * t / buckets * (1 - 2 / n), t * t / n)
                for own, t, n in ((own1, t1, n1), (own2, t2, n2))
            )
        return cross / indices.norms(own1, own2)

    gone = []
    for g in groups:  # entries that have their row or their column in the group
        strip, inside = inner(one[:, g], two[:, g]), inner(one[:, g, g], two[:, g, g])
        gone.append([2 * x - y for x, y in zip(strip, inside, strict=True)] + linear(g))
    whole = inner(one, two) + linear(slice(0, m))
    left = [x - torch.stack(y) for x, y in zip(whole, zip(*gone, strict=True), strict=True)]
    return score(*whole), score(*left)


def _nbs(one: Tensor, two: Tensor, groups: Groups) -> Both:
    """The nuclear norm of AᵀB over the norms of A and B, which are factors of the kernels.

    Leaving out buckets is to first order: with AᵀB = U Σ Vᵀ, the norm loses Σ_h (A U Vᵀ Bᵀ)_hh.
    """
    one, two = indices.factor(one), indices.factor(two)
    whole, each = [], []
    for x in one:
        u, values, vt = torch.linalg.svd(x.mT @ two, full_matrices=False)
        whole.append(values.sum(-1))
        each.append(((x @ u) * (two @ vt.mT)).sum(-1))  # (L2, M)
    buckets = [torch.stack(each), *(x.square().sum(-1) for x in (one, two))]
    sums = [torch.stack(whole), *(x.sum(-1) for x in buckets[1:])]
    left = [x - _grouped(y, groups) for x, y in zip(sums, buckets, strict=True)]

    def score(top: Tensor, *squares: Tensor) -> Tensor:
        return top / indices.norms(*squares)

    return score(*sums), score(*left)


def _spectral(one: Tensor, two: Tensor, groups: Groups) -> Both:
    """Cosines of eigenvalues, taken anew without each group."""

    def score(keep: Tensor) -> Tensor:
        parts = (k[:, keep][:, :, keep] for k in (one, two))
        return indices.cosines(*(torch.linalg.eigvalsh(k).clamp_min(0) for k in parts))

    every = torch.arange(one.shape[-1], device=one.device)
    left = [every[(every < g.start) | (every >= g.stop)] for g in groups]
    return score(every), torch.stack([score(keep) for keep in left])


def _grouped(x: Tensor, groups: Groups) -> Tensor:  # (..., M) -> (G, ...)
    return torch.stack([x[..., g].sum(-1) for g in groups])


def sketch_errors(
    a: Representation, b: Representation, asked: Question, device: str | torch.device = "cpu"
) -> Tensor:  # (L1, L2)
    """Standard errors of CKA about the score of all N samples: those of the sketch alone.

    With SᵀS = I + E, where E_ij = ±1 for samples that share a bucket, ⟨K̃1, K̃2⟩ moves by
    2 Σ_{i≠j} E_ij (K1 K2)_ij to first order, and a score by 2 Σ E_ij Q_ij, with Q put together from
    K1 K2, K1² and K2². Its variance is 8/M Σ_{i≠j} Q_ij², and of Q buckets hold a sketch. A quarter
    is added for heavy samples that meet in a bucket, which first order does not see. Bias is not
    covered. Cost: O(L1 L2 M³).
    """
    one, two = (_visible_kernels(rep, asked).to(device) for rep in (a, b))
    m = one.shape[-1]

    def inner(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).sum() - x.trace() * y.trace() / m

    out = one.new_full((len(one), len(two)), torch.nan)
    for i, x in enumerate(one):
        for j, y in enumerate(two):
            own1, own2 = inner(x, x), inner(y, y)
            if own1 <= 0 or own2 <= 0:
                continue
            both = x @ y
            cross = (both + both.mT) / 2 / (own1 * own2).sqrt()
            score = inner(x, y) / (own1 * own2).sqrt()
            q = cross - score / 2 * (x @ x / own1 + y @ y / own2)
            out[i, j] = (8 / m * (q.square().sum() - q.diagonal().square().sum())).sqrt()
    return 1.25 * out
