"""Distance correlation: the cosine of doubly centred Euclidean distances, and its square root.

With D the distances between samples and A = HDH, it is √(⟨A1, A2⟩ / (‖A1‖ ‖A2‖)): plain CKA of the
kernels −HDH/2. So it is a sum over pairs of samples, and has from blocks what all samples have. Its
`chance` is the root of the mean, which lies slightly above the mean of the roots; the 95 % level is
a quantile, which a root does not move. Distances of near duplicates carry the rounding of stored
kernels: up to 0.004 of the layer's scale.

Reference: Székely, Rizzo and Bakirov 2007.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ..pair_statistics import unbiased_inner_product
from .registry import PairSumRule, SimilarityIndex


def _inner(sums: Tensor, n: int, samples: float, _: bool) -> Tensor:
    return unbiased_inner_product(sums, n, samples, True)


INDEX = SimilarityIndex(
    "distance-correlation",
    pair_sums=PairSumRule(_inner, distances="euclidean"),
    transform=np.sqrt,
)
