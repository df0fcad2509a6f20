"""Debiased CKA: CKA of the population, from pairs of distinct samples (Song et al. 2012)."""

from __future__ import annotations

from ..pair_statistics import unbiased_inner_product
from .registry import PairSumRule, SimilarityIndex

INDEX = SimilarityIndex(
    "cka-debiased",
    uses=("compare", "compare_all"),
    bounds=(-1.0, 1.0),
    pair_sums=PairSumRule(unbiased_inner_product, population=True),
)
