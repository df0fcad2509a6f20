"""The `buckets` and `paper` estimators: indices from CountSketch kernels, for any two data sets.

A bucket kernel K̃ = S K Sᵀ preserves inner products up to an isotropic part from the random signs:
over sketches, E⟨K̃1, K̃2⟩ = (1 + 1/M)⟨K1, K2⟩ + (Tr K1 Tr K2 − 2 Σ_n K1_nn K2_nn) / M, with one
bucket per sample or with several. Subtracting the second term removes most of the bias of CKA; the
rest falls with N. This holds for kernels that are sketches: features, gradients, their sum,
elementwise. The *product* of two bucket kernels is not a sketch of the product kernel, because
different samples share a bucket. It is offered because the paper defines it, and its bias is far
larger than its standard error.

`paper` is Algorithm 1 as published: no correction, and, if centring is asked for, centring of the
M × M matrix as in the first code.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..representation.layer import Layer
from ..representation.representation import Representation
from . import jackknife, stored_kernels
from .indices.registry import get_index
from .jackknife import Estimate
from .kernels import KERNEL_TABLE, CompareConfig, Kernel, required_kinds

_CENTRING_ROUND_OFF = 1e-6  # of a trace: what centring float32 sums leaves of a constant layer


def bucket_kernel(layer: Layer, kernel: Kernel, *, centre: bool, paper: bool) -> Tensor:  # (M, M)
    """A named kernel formed from a layer's bucket kernels, in float64."""
    exact = centre and not paper  # samples are centred before sketching; only then is it a sketch
    parts = {kind: layer.buckets(kind, centre=exact) for kind in required_kinds(kernel)}
    if KERNEL_TABLE[kernel].over_traces and not paper:
        parts = {kind: k / stored_kernels.kernel_traces([layer], kind) for kind, k in parts.items()}
    out = KERNEL_TABLE[kernel].of_matrices(*parts.values())
    return stored_kernels.centre_kernel(out) if centre and paper else out


def bucket_scores(
    a: Representation, b: Representation, asked: CompareConfig, device: str | torch.device = "cpu"
) -> Estimate:
    """An index between all pairs of layers, from bucket kernels.

    Bias: see the module for CKA; NBS and the spectrum are those of M sketched samples. Standard
    error: a jackknife over groups of buckets, the same ones left out of both networks, so that it
    is zero for a network and itself. It says how far the score would move with other samples of the
    same source *and* another sketch of them; where each sample went into several buckets, with
    another sketch. It is wide, by about √2, for unrelated networks, whose score has no part of
    first order, and covers no bias. Cost: O(L1 L2 M²) for CKA, O(L1 L2 M³) for NBS.
    """
    one, two = (_visible_kernels(rep, asked).to(device) for rep in (a, b))
    m = one.shape[-1]
    index = get_index(asked.index)
    count = max(1, min(index.bucket_groups, m // 8))
    groups = [slice(m * i // count, m * (i + 1) // count) for i in range(count)]
    sketched = asked.estimator != "paper" and KERNEL_TABLE[asked.kernel].linear
    samples = (a.samples, b.samples) if sketched else None
    assert index.from_buckets is not None  # as `unsupported_combinations` has it
    value, left_out = index.from_buckets(one, two, groups, samples)
    alive = [k.flatten(1).any(1) for k in (one, two)]
    return Estimate.of(value, [jackknife.jackknife_deviations(left_out)], alive)


def _visible_kernels(rep: Representation, asked: CompareConfig) -> Tensor:  # (L, M, M)
    """The kernels of all layers; zeros for one of which centring left nothing but round-off."""
    out, paper = [], asked.estimator == "paper"
    for layer in rep:
        k = bucket_kernel(layer, asked.kernel, centre=asked.centre, paper=paper)
        raw = bucket_kernel(layer, asked.kernel, centre=False, paper=paper) if asked.centre else k
        out.append(k if k.trace() > _CENTRING_ROUND_OFF * raw.trace() else torch.zeros_like(k))
    return torch.stack(out)


def sketch_standard_errors(
    a: Representation, b: Representation, asked: CompareConfig, device: str | torch.device = "cpu"
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
