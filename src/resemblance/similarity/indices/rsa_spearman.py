"""RSA by ranks: Spearman's correlation of the distances between samples.

Ties share their mean rank. From blocks it is the mean of the blocks' rank correlations, which
estimates that of all samples: ranks among the pairs of a block are those among all pairs up to
their sampling error (0.001 of 2,000 samples as measured, `benchmarks/indices.py`).
Cost: O(N² log N) for each layer, then O(N²) for each pair of layers.

Reference: Kriegeskorte et al. 2008.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..._ops import packing
from .registry import PreparedKernel, SimilarityIndex


def pair_distances(kernel: Tensor) -> Tensor:  # (n, n) -> (t,)
    """Squared distances of all pairs of samples."""
    i, j = packing.lower_triangle(len(kernel), kernel.device)
    d = kernel.diagonal()
    return d[i] + d[j] - 2 * kernel[i, j]


def pair_matrix(values: Tensor, kernel: Tensor) -> Tensor:  # (t,), (n, n) -> (n, n)
    """Numbers of all pairs of samples as a symmetric matrix, with zeros on the diagonal."""
    return packing.symmetric_matrices(values, torch.zeros_like(kernel[0]))


def _prepare(kernel: Tensor, _: float) -> PreparedKernel:
    """Ranks of distances, at mean zero and norm one, as a symmetric matrix."""
    from scipy.stats import rankdata

    distances = pair_distances(kernel)
    ranks = torch.from_numpy(rankdata(distances.cpu().numpy())).to(distances)
    ranks -= ranks.mean()
    return PreparedKernel(squares=(pair_matrix(ranks / (2 * ranks.square().sum()).sqrt(), kernel),))


def _score(one: PreparedKernel, two: PreparedKernel) -> Tensor:
    (a,), (b,) = one.squares, two.squares
    return a.flatten() @ b.flatten()


INDEX = SimilarityIndex("rsa-spearman", _score, _prepare, bounds=(-1.0, 1.0))
