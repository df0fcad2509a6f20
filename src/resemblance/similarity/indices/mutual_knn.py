"""Mutual k-nearest neighbours: the share of a sample's 10 nearest others that both kernels name.

Nearest is by cosine similarity, as its authors normalise features first. `jaccard` and `cknna` take
the same neighbours. The expected score of unrelated networks is 10 / (N − 1), which depends on the
number of samples, so blocks of them would estimate something else. Samples with a kernel of zero
have no direction and are ranked last; ties are broken as sorting leaves them.

Standard error: a jackknife with the neighbours of all samples kept, which is conservative, as the
variance of a jackknife is never too small on average (Efron and Stein 1981): 1.2 to 1.6 times the
true one as measured (`benchmarks/indices.py`). Cost: O(N²) for each pair of layers.

Reference: Huh et al. 2024.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .registry import PreparedKernel, SimilarityIndex

NEIGHBOURS = 10


def cosine_similarities(kernel: Tensor) -> Tensor:  # (n, n) -> (n, n)
    """K_ij / √(K_ii K_jj), and zero for a sample of norm zero."""
    scale = kernel.diagonal().clamp_min(0).rsqrt()
    scale = torch.where(scale.isfinite(), scale, 0.0)
    return kernel * scale[:, None] * scale


def neighbour_mask(similarities: Tensor, count: int = NEIGHBOURS) -> Tensor:  # (n, n) -> (n, n)
    """One where column j is among the nearest neighbours of row i, else zero, in float32."""
    others = similarities.clone().fill_diagonal_(-torch.inf)
    nearest = others.topk(count, dim=1).indices
    return torch.zeros_like(others, dtype=torch.float32).scatter_(1, nearest, 1.0)


def prepare_neighbours(kernel: Tensor, _: float) -> PreparedKernel:
    """The neighbours of each sample of a kernel, as a mask."""
    return PreparedKernel(squares=(neighbour_mask(cosine_similarities(kernel)),))


def keep_neighbours(prepared: PreparedKernel, keep: Tensor, _: bool) -> PreparedKernel:
    """What is left of squares without some samples; neighbours stay those among all."""
    return PreparedKernel(squares=tuple(x[keep][:, keep] for x in prepared.squares))


def _score(one: PreparedKernel, two: PreparedKernel) -> Tensor:
    (a,), (b,) = one.squares, two.squares
    counts = [x.sum(dtype=torch.float64) for x in (a * b, a, b)]
    return counts[0] / (counts[1] * counts[2]).sqrt()  # of all samples, Σ a = Σ b = N k


# what indices of neighbours have in common
OF_NEIGHBOURS: dict[str, Any] = {
    "restrict": keep_neighbours,
    "blocks": False,
    "centre": False,
    "fewest": 2 * NEIGHBOURS,
    "invariances": ("rotation", "scale", "permutation", "sample-scale"),
}
INDEX = SimilarityIndex("mutual-knn", _score, prepare_neighbours, **OF_NEIGHBOURS)
