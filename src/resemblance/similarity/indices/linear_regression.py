"""Linear regression: the share of the first network's variance that the second explains linearly.

R² = ‖Q2ᵀX1‖_F² / ‖X1‖_F² of the best linear map of the second layer's features to the first's, on
the samples that it was fitted to. It is not symmetric: rows are explained by columns, and
`compare(b, a)` has the other direction. A layer with p directions explains about p/N of anything:
read it beside its chance level. Bases and the standard error are those of `cca`.

Reference: Kornblith et al. 2019.
"""

from __future__ import annotations

from torch import Tensor

from ..stored_kernels import visible_spectrum
from .cca import orthonormal
from .registry import PreparedKernel, SimilarityIndex


def _prepare(kernel: Tensor, floor: float) -> PreparedKernel:
    values, vectors = visible_spectrum(kernel, floor)
    return PreparedKernel(rows=(vectors, vectors * values.sqrt()))


def _restrict(prepared: PreparedKernel, keep: Tensor, centred: bool) -> PreparedKernel:
    basis, features = (x[keep] for x in prepared.rows)
    return PreparedKernel(
        rows=(orthonormal(basis, centred), features - features.mean(0) if centred else features)
    )


def _score(one: PreparedKernel, two: PreparedKernel) -> Tensor:
    features, basis = one.rows[1], two.rows[0]
    return (basis.T @ features).square().sum() / features.square().sum()


INDEX = SimilarityIndex(
    "linear-regression",
    _score,
    _prepare,
    _restrict,
    symmetric=False,
    blocks=False,
    centre=True,
)
