"""H-score, shrunk H-score and TransRate: how well classes separate in a layer's features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..analysis.kernel_ridge import FeatureSpectrum, as_spectrum, encode_labels


def h_score(features: Any, labels: Any, *, least: float = 1e-3) -> float:
    """tr(Σ⁺ Σ_between): the variance of class means where all directions count alike.

    Σ is the covariance of features and Σ_between that of E[f | y], both over n. Directions with
    less than a share `least` of the largest variance are left out of the pseudo-inverse. Larger is
    better, at most one less than there are classes.

    Args:
        features: (n, d), or their `FeatureSpectrum`; they are centred here.
        labels: (n,) of any classes.

    Bias: upwards where n is not many times the directions left in; with n below d and `least=0` it
    is always at its maximum. Cost: the spectrum twice.
    Reference: Bao et al. 2019, arXiv 2212.10082.

    >>> round(h_score(torch.tensor([[0.0], [0.0], [1.0], [1.0]]), [0, 0, 1, 1]), 6)
    1.0
    """
    found = as_spectrum(features).centred()
    if not len(found.values):
        return 0.0  # nothing varies
    kept = found.values > least * found.values.amax()
    # both covariances have the same 1/n, which is gone from their quotient
    between = _between_class_scatter(found, labels)
    return float((between[kept] / found.values[kept]).sum())


def shrunk_h_score(features: Any, labels: Any) -> float:
    """H-score with the covariance of Ledoit and Wolf: tr(Σ_s⁻¹ (1 − s) Σ_between).

    Σ_s = (1 − s) Σ + s (tr Σ / d) I, with the s that is best in mean square as n grows. It does not
    degenerate where features are as wide as samples are many.

    Args:
        features: (n, d), or their `FeatureSpectrum`; they are centred here.
        labels: (n,) of any classes.

    Bias: downwards, by the shrinkage. Cost: the spectrum twice.
    Reference: Ibrahim et al. 2021, arXiv 2110.06893; Ledoit and Wolf 2004.

    >>> x = torch.tensor([[0.0, 0.1], [0.1, 0.0], [1.0, 0.9], [0.9, 1.0]])
    >>> 0 < shrunk_h_score(x, [0, 0, 1, 1]) < h_score(x, [0, 0, 1, 1])
    True
    """
    found = as_spectrum(features).centred()
    n, share = len(found.vectors), shrinkage(found)
    level = found.values.sum() / n / found.width
    variance = (1 - share) * found.values / n + share * level
    return float((1 - share) * (_between_class_scatter(found, labels) / n / variance).sum())


def shrinkage(found: FeatureSpectrum) -> float:
    """How much of the identity Ledoit and Wolf mix into a covariance, from centred features."""
    n, d = len(found.vectors), found.width
    if d == 1:
        return 0.0  # the identity is all there is
    square = float((found.values / n).square().sum())  # ‖Σ‖²_F
    level = float(found.values.sum()) / n / d
    away = square - d * level**2  # ‖Σ − level I‖²_F
    fourth = float(found.coordinates.square().sum(1).square().mean())  # E‖x‖⁴
    noise = (fourth - square) / n  # E‖Σ̂ − Σ‖²_F
    return 1.0 if away <= 0 else min(1.0, max(0.0, noise / away))


def trans_rate(
    features: Any, labels: Any, *, precision: float = 1e-4, scaled: bool = True
) -> float:
    """R(F) − Σ_c (n_c / n) R(F_c): nats that coding features costs, less those once y is known.

    R(F) = ½ log det(I + FᵀF / (n ε)), of features less the mean of all. Larger is better.

    Args:
        features: (n, d), or their `FeatureSpectrum`; they are centred here.
        labels: (n,) of any classes.
        precision: ε.
        scaled: to a mean squared norm of one first; else a network with larger features would have
            a larger score.

    Bias: with few samples a class, a class's rate is too low and the score too high, the more the
    wider features are. Cost: the spectrum twice, and one of each class.
    Reference: Huang et al. 2022, arXiv 2106.09362.

    >>> x = torch.eye(3).repeat(3, 1)
    >>> trans_rate(x, [0, 1, 2] * 3) > trans_rate(x, [0, 0, 0, 1, 1, 1, 2, 2, 2])
    True
    """
    found = as_spectrum(features).centred()
    n = len(found.vectors)
    numbers, classes = encode_labels(labels, n)
    size = float(found.values.sum()) / n if scaled else 1.0
    x = found.coordinates / max(size, 1e-300) ** 0.5
    whole = _coding_rate(x, precision)
    parts = [x[numbers == c] for c in range(classes)]
    return whole - sum(len(part) / n * _coding_rate(part, precision) for part in parts)


def _coding_rate(x: Tensor, precision: float) -> float:  # (n, r)
    small = x @ x.T if len(x) <= x.shape[1] else x.T @ x
    return (
        float(torch.log1p(torch.linalg.eigvalsh(small).clamp_min(0) / (len(x) * precision)).sum())
        / 2
    )


def _between_class_scatter(found: FeatureSpectrum, labels: Any) -> Tensor:  # (r,)
    """The sum over samples of their class mean's square, along each axis of centred features."""
    numbers, classes = encode_labels(labels, len(found.vectors))
    x = found.coordinates
    sums = torch.zeros(classes, x.shape[1], dtype=x.dtype).index_add_(0, numbers, x)
    counts = torch.bincount(numbers, minlength=classes)
    return (sums.square() / counts[:, None]).sum(0)
