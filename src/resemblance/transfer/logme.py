"""LogME: the log evidence of labels under a Bayesian linear model of the features."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..analysis.kernel_ridge import FeatureSpectrum, as_spectrum, encode_labels

_TAU_GRID = 10.0 ** torch.linspace(-10, 10, 81, dtype=torch.float64)
_GOLDEN_STEPS = 40  # golden sections
_GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


def log_me(features: Any, labels: Any) -> float:
    """The mean over classes of the largest log evidence, per sample; larger is better.

    For a class with targets t ∈ {0, 1}ⁿ: t = Fw + noise, w ~ N(0, α⁻¹I), noise ~ N(0, β⁻¹I), and
    p(t | F, α, β) at the α and β that make it largest. With τ = α / β the best β is known,

        β⁻¹ = tᵀ(I + FFᵀ / τ)⁻¹t / n,
        log p = −(n log 2π + n log β⁻¹ + n + Σᵢ log(1 + λᵢ / τ)) / 2,

    which leaves a search along one line: a grid of 81 values of τ over twenty decades, and golden
    sections about the best. (The authors iterate a fixed point of α and β, which ends at the same
    place where there is one, and runs off where features fit the labels without error.)

    Args:
        features: (n, d), or their `FeatureSpectrum`; not centred.
        labels: (n,) of any classes.

    Bias: none but the two fitted precisions. Cost: the spectrum, then O(n r C).
    Reference: You et al. 2021, arXiv 2102.11005.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(10, 1)
    >>> log_me(x, [0, 1] * 10) > log_me(x, [0, 0, 1, 1] * 5)
    True
    """
    found = as_spectrum(features)
    targets = one_hot(encode_labels(labels, len(found.vectors))[0]).double()
    return float(_log_evidence(found, targets).mean()) / len(targets)


def _log_evidence(found: FeatureSpectrum, targets: Tensor) -> Tensor:  # (n, C) -> (C,)
    scale = (found.values.sum() / len(targets)).clamp_min(1e-300)
    within = (found.vectors.T @ targets).square()  # (r, C): shares of t in each direction
    outside = (targets.square().sum(0) - within.sum(0)).clamp_min(0)

    def at(tau: Tensor) -> Tensor:  # (C,) -> (C,)
        n, ratio = len(targets), found.values[:, None] / tau
        noise = ((within / (1 + ratio)).sum(0) + outside).clamp_min(1e-300) / n
        spread = torch.log1p(ratio).sum(0)
        return -(n * math.log(2 * math.pi) + n * noise.log() + n + spread) / 2

    grid = _TAU_GRID * scale
    table = torch.stack([at(tau.expand(targets.shape[1])) for tau in grid])  # (81, C)
    best = table.argmax(0)
    low, high = (grid.log()[(best + step).clamp(0, len(grid) - 1)] for step in (-1, 1))
    for _ in range(_GOLDEN_STEPS):
        left, right = high - _GOLDEN_RATIO * (high - low), low + _GOLDEN_RATIO * (high - low)
        better = at(left.exp()) > at(right.exp())
        low, high = torch.where(better, low, left), torch.where(better, right, high)
    return torch.maximum(at(((low + high) / 2).exp()), table.amax(0))
