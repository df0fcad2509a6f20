"""SVCCA: the mean canonical correlation of the directions with 99 % of the variance.

Of each kernel, the leading eigenvectors are kept that hold 99 % of its trace, and the canonical
correlations of those bases averaged: ‖Q1ᵀQ2‖_* / min(p1, p2). Leaving out small directions is what
CCA lacks; the limits of wide layers, and the standard error, are those of `cca`. The error takes
the number of directions as fixed: it was 0.8 to 1.5 times the spread (`benchmarks/indices.py`).

Reference: Raghu et al. 2017.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..stored_kernels import visible_spectrum
from .cca import restrict_basis
from .registry import PreparedKernel, SimilarityIndex

VARIANCE = 0.99


def _prepare(kernel: Tensor, floor: float) -> PreparedKernel:
    values, vectors = visible_spectrum(kernel, floor)  # ascending
    left = values.cumsum(0) <= (1 - VARIANCE) * values.sum()
    return PreparedKernel(rows=(vectors[:, ~left],))


def _score(one: PreparedKernel, two: PreparedKernel) -> Tensor:
    (a,), (b,) = one.rows, two.rows
    return torch.linalg.svdvals(a.T @ b).sum() / min(a.shape[1], b.shape[1])


INDEX = SimilarityIndex("svcca", _score, _prepare, restrict_basis, blocks=False, centre=True)
