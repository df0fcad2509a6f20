"""Scores without labels: the adaptation scores of a layer, from its features and gradients.

They are the columns of `rs.adaptation` for the product kernel K_ij = (fᵢ·fⱼ)(gᵢ·gⱼ), exact for the
samples at hand, computed from the vectors of a pass that serves other scores as well. Both are
negated, so that larger is better, as the less a network must change.
"""

from __future__ import annotations

import math

from torch import Tensor

from ..analysis.sample_vectors import Vectors

_MOST = 1024  # samples of which the whole kernel is made, as `record` does


def adaptation_scores(vectors: Vectors) -> dict[str, float]:
    """−‖μ‖ and −log(‖μ‖ / (‖K‖_F / N²)) of features and gradients (n, d), n up to 1,024 used.

    ‖μ‖² = (1/N²) Σ_ij K_ij. Bias: ‖μ‖² of these samples is above that of their source by about
    Tr K / N². Cost: O(N² d). Reference: Tang et al. 2020, arXiv 2003.11498, section 6.3.

    >>> import torch
    >>> x = torch.eye(2)
    >>> found = adaptation_scores({"features": x, "gradients": x})
    >>> {name: round(value, 3) for name, value in found.items()}
    {'mean_embedding': -0.707, 'log_ratio': -0.693}
    """
    kernel = _gram(vectors["features"]) * _gram(vectors["gradients"])
    n = len(kernel)
    mean = math.sqrt(max(float(kernel.sum()), 0.0)) / n
    size = float(kernel.norm()) / n**2
    ratio = math.log(mean / size) if mean > 0 < size else math.nan
    return {"mean_embedding": -mean, "log_ratio": -ratio}


def _gram(x: Tensor) -> Tensor:
    x = x[:_MOST].double()
    return x @ x.T
