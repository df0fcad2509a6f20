"""RSA by concordance: Kendall's τ-b of the distances between samples.

It asks of any two pairs of samples which of them is the closer one, and corrects for ties. From
blocks it is the mean over blocks, as for `rsa_spearman`. The full Gram matrix has no standard
error, whose jackknife would take 32 times as long. Cost: O(N² log N) for each pair of layers, a
quarter of a second at 1,000 samples.

Reference: Nili et al. 2014.
"""

from __future__ import annotations

from torch import Tensor

from ..._ops import packing
from .registry import PreparedKernel, SimilarityIndex
from .rsa_spearman import pair_distances, pair_matrix


def _prepare(kernel: Tensor, _: float) -> PreparedKernel:
    return PreparedKernel(squares=(pair_matrix(pair_distances(kernel), kernel),))


def _score(one: PreparedKernel, two: PreparedKernel) -> float:
    from scipy.stats import kendalltau

    sides = (x.squares[0].cpu() for x in (one, two))
    i, j = packing.lower_triangle(len(one.squares[0]))
    return float(kendalltau(*(x[i, j].numpy() for x in sides)).statistic)


INDEX = SimilarityIndex(
    "rsa-kendall",
    _score,
    _prepare,
    bounds=(-1.0, 1.0),
    jackknife=False,
    without_errors="has none, because its jackknife would take 32 times as long; `rsa-spearman` "
    "has one",
)
