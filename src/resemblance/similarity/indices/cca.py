"""CCA: the mean squared canonical correlation, ‖Q1ᵀQ2‖_F² / min(p1, p2).

Q is an orthonormal basis of the features over samples: the eigenvectors of the kernel, of which p
have an eigenvalue above the rounding of stored kernels. Directions below that, a hundred-thousandth
of the layer's scale, count as none. A layer with as many directions as samples contains everything
(its score with any other is 1), and with p directions unrelated networks score about p/N, so that
wide layers cannot be distinguished (Kornblith et al. 2019): read it beside its chance level.

The other indices of this family, `svcca` and `linear_regression`, share its bases. Samples of a
block would have other canonical correlations, so all three need the full Gram matrix. Standard
error: a jackknife that takes the directions of all samples and makes them orthonormal again without
a group; it is too large where directions are many for the samples (1.9 times with 20 of them among
50, 1.0 among 1,000). Cost: O(N³) for each layer, O(N p²) for each pair of layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..stored_kernels import visible_spectrum
from .registry import PreparedKernel, SimilarityIndex


def orthonormal(rows: Tensor, centred: bool) -> Tensor:  # (n, r) -> (n, r)
    """An orthonormal basis of the columns, with their means taken off if they were before."""
    return torch.linalg.qr(rows - rows.mean(0) if centred else rows).Q


def restrict_basis(prepared: PreparedKernel, keep: Tensor, centred: bool) -> PreparedKernel:
    """Bases over some of the samples."""
    return PreparedKernel(rows=tuple(orthonormal(x[keep], centred) for x in prepared.rows))


def _prepare(kernel: Tensor, floor: float) -> PreparedKernel:
    return PreparedKernel(rows=(visible_spectrum(kernel, floor)[1],))


def _score(one: PreparedKernel, two: PreparedKernel) -> Tensor:
    (a,), (b,) = one.rows, two.rows
    return (a.T @ b).square().sum() / min(a.shape[1], b.shape[1])


INDEX = SimilarityIndex(
    "cca",
    _score,
    _prepare,
    restrict_basis,
    blocks=False,
    centre=True,
    invariances=("rotation", "scale", "permutation", "shift", "linear"),
)
