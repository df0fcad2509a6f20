"""The spectrum of a layer's features, computed once for all scores that are made of it.

Features F (n, d) have the kernel K = FFᵀ = UΛUᵀ. Every score that does not change when features are
turned is a function of Λ, U and d, so a layer of any width costs one decomposition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..analysis.kernel_ridge import spectrum
from ..errors import DataError

_ROUNDING = 1e-12  # of squares: features come in float32


@dataclass(frozen=True)
class FeatureSpectrum:
    """Eigenvalues and eigenvectors of FFᵀ, on its range, in float64."""

    values: Tensor  # (r,)
    vectors: Tensor  # (n, r)
    width: int  # d

    @staticmethod
    def of(features: Any) -> FeatureSpectrum:
        """Of features (n, d), an array or a tensor. Cost: O(n d min(n, d)) and O(min(n, d)³).

        >>> FeatureSpectrum.of(np.array([[3.0, 0.0], [0.0, 2.0]])).values.tolist()
        [4.0, 9.0]
        """
        x = torch.as_tensor(features)
        if x.ndim != 2 or not len(x):
            raise DataError(
                f"expected features of shape (samples, width), found {tuple(x.shape)}; flatten or "
                "pool them"
            )
        if not x.is_floating_point():
            x = x.double()
        return FeatureSpectrum(*spectrum({"features": x}), x.shape[1])

    @property
    def coordinates(self) -> Tensor:  # (n, r)
        """The features in axes of their own span, from the least to the most important."""
        return self.vectors * self.values.sqrt()

    def centred(self) -> FeatureSpectrum:
        """That of the features less their mean; of features that do not vary, of no directions."""
        if not len(self.values):
            return self
        x = self.coordinates
        values, vectors = spectrum({"features": x - x.mean(0)})
        kept = values > _ROUNDING * self.values.sum()  # what a constant leaves is no direction
        return FeatureSpectrum(values[kept], vectors[:, kept], self.width)


def spectrum_of(features: Any) -> FeatureSpectrum:
    """A spectrum as it is, or that of features (n, d)."""
    return features if isinstance(features, FeatureSpectrum) else FeatureSpectrum.of(features)


def numbered(labels: Any, count: int) -> tuple[Tensor, int]:  # (n,) and how many classes
    """Labels as numbers from 0 up, one for each of `count` samples, of two or more classes."""
    found = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if found.shape != (count,):
        raise DataError(
            f"expected a label for each of {count} samples, found labels of shape {found.shape}"
        )
    classes, numbers = np.unique(found, return_inverse=True)
    if len(classes) < 2:
        raise DataError("expected samples of two or more classes, found one class alone")
    return torch.from_numpy(numbers.astype(np.int64)), len(classes)


def one_hot(numbers: Tensor, classes: int) -> Tensor:  # (n,) -> (n, C)
    return torch.nn.functional.one_hot(numbers, classes).double()
