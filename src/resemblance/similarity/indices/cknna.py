"""CKNNA: debiased CKA of cosine similarities, of which those between common neighbours are kept.

The formula is that of its authors' program: with C the cosines of a kernel, N the mask of its 10
nearest neighbours and HSIC the unbiased estimator of Song et al. 2012,

    HSIC(N1 N2 C1, N1 N2 C2) / √(HSIC(N1 C1, N1 C1) · HSIC(N2 C2, N2 C2)),

whose masked matrices are not symmetric, nor is it: swapping the networks moves a score by about
0.001. Their paper centres each row instead. Unrelated networks score about 0. Neighbours and the
standard error are those of `mutual_knn`.

Reference: Huh et al. 2024.
"""

from __future__ import annotations

from torch import Tensor

from .mutual_knn import OF_NEIGHBOURS, cosine_similarities, neighbour_mask
from .registry import PreparedKernel, SimilarityIndex


def _prepare(kernel: Tensor, _: float) -> PreparedKernel:
    cosines = cosine_similarities(kernel)
    return PreparedKernel(squares=(neighbour_mask(cosines) > 0, cosines))


def _masked_hsic(mask: Tensor, k1: Tensor, k2: Tensor) -> Tensor:  # (n, n), no diagonal
    """The unbiased HSIC of Song et al. 2012 of the entries of a mask, but for a constant factor."""
    n = len(mask)
    i, j = mask.nonzero(as_tuple=True)
    a, b, transposed = k1[i, j], k2[i, j], k2[j, i] * mask[j, i]
    columns = a.new_zeros(n).index_add(0, j, a)
    rows = b.new_zeros(n).index_add(0, i, b)
    total = a @ transposed + a.sum() * b.sum() / ((n - 1) * (n - 2))
    return total - 2 * columns @ rows / (n - 2)


def _score(one: PreparedKernel, two: PreparedKernel) -> Tensor:
    (near1, k1), (near2, k2) = one.squares, two.squares
    own = _masked_hsic(near1, k1, k1) * _masked_hsic(near2, k2, k2)
    return _masked_hsic(near1 & near2, k1, k2) / own.clamp_min(0).sqrt()


INDEX = SimilarityIndex(
    "cknna",
    _score,
    _prepare,
    symmetric=False,
    bounds=(-1.0, 1.0),
    **OF_NEIGHBOURS,
)
