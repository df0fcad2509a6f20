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

from .registry import PreparedKernel, SimilarityIndex


def pair_distances(kernel: Tensor) -> Tensor:  # (n, n) -> (t,)
    """Squared distances of all pairs of samples."""
    i, j = torch.tril_indices(len(kernel), len(kernel), -1, device=kernel.device)
    d = kernel.diagonal()
    return d[i] + d[j] - 2 * kernel[i, j]


def _prepare(kernel: Tensor, _: float) -> PreparedKernel:
    """Ranks of distances, at mean zero and norm one, as a symmetric matrix."""
    from scipy.stats import rankdata

    distances = pair_distances(kernel)
    ranks = torch.from_numpy(rankdata(distances.cpu().numpy())).to(distances)
    ranks -= ranks.mean()
    out = torch.zeros_like(kernel)
    i, j = torch.tril_indices(len(kernel), len(kernel), -1, device=kernel.device)
    out[i, j] = out[j, i] = ranks / (2 * ranks.square().sum()).sqrt()
    return PreparedKernel(squares=(out,))


def _score(one: PreparedKernel, two: PreparedKernel) -> Tensor:
    (a,), (b,) = one.squares, two.squares
    return a.flatten() @ b.flatten()


INDEX = SimilarityIndex("rsa-spearman", _score, _prepare, bounds=(-1.0, 1.0))
