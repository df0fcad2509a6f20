"""RSA: the correlation of squared distances between samples."""

from __future__ import annotations

from ..pair_statistics import unbiased_covariance
from .registry import PairSumRule, SimilarityIndex

INDEX = SimilarityIndex(
    "rsa", bounds=(-1.0, 1.0), pair_sums=PairSumRule(unbiased_covariance, distances="squared")
)
