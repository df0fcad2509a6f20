"""RSA by concordance: Kendall's τ-b of the distances between samples.

It asks of any two pairs of samples which of them is the closer one, and corrects for ties. From
blocks it is the mean over blocks, as for `rsa_spearman`. The full Gram matrix has no standard
error, whose jackknife would take 32 times as long. Cost: O(N² log N) for each pair of layers, a
quarter of a second at 1,000 samples.

Reference: Nili et al. 2014.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .registry import PreparedKernel, SimilarityIndex
from .rsa_spearman import pair_distances


def _prepare(kernel: Tensor, _: float) -> PreparedKernel:
    i, j = torch.tril_indices(len(kernel), len(kernel), -1, device=kernel.device)
    out = torch.zeros_like(kernel)
    out[i, j] = out[j, i] = pair_distances(kernel)
    return PreparedKernel(squares=(out,))


def _score(one: PreparedKernel, two: PreparedKernel) -> float:
    from scipy.stats import kendalltau

    sides = (x.squares[0].cpu() for x in (one, two))
    i, j = torch.tril_indices(len(one.squares[0]), len(one.squares[0]), -1)
    return float(kendalltau(*(x[i, j].numpy() for x in sides)).statistic)


INDEX = SimilarityIndex(
    "rsa-kendall",
    _score,
    _prepare,
    bounds=(-1.0, 1.0),
    jackknife=False,
    without_errors="has none, as its jackknife takes 32 times as long; `rsa-spearman` has one",
)
