"""Jaccard similarity of neighbours: |A ∩ B| / |A ∪ B| of each sample's 10 nearest, averaged.

Neighbours, their number and the standard error are those of `mutual_knn`.

Reference: Wang et al. 2020; Klabunde et al. 2023.
"""

from __future__ import annotations

from torch import Tensor

from .mutual_knn import OF_NEIGHBOURS, prepare_neighbours
from .registry import PreparedKernel, SimilarityIndex


def _score(one: PreparedKernel, two: PreparedKernel) -> Tensor:
    (a,), (b,) = one.squares, two.squares
    shared = (a * b).sum(1).double()  # so that equal scores are equal in any order of samples
    union = a.sum(1) + b.sum(1) - shared
    return (shared / union.clamp_min(1)).sum() / (union > 0).sum()


INDEX = SimilarityIndex("jaccard", _score, prepare_neighbours, **OF_NEIGHBOURS)
