"""Kernel ridge regression in closed form, and its leave-one-out accuracy at each layer.

For a kernel K = QΛQᵀ over n items with targets T (n, C), the fit at α keeps the share λ / (λ + α)
of each direction, so after one eigendecomposition every α costs one matrix product. A
`RidgeProblem` holds the items (samples or buckets), Q and Λ. `leave_one_out` scores each layer of a
network.

`FeatureSpectrum` is the eigendecomposition of FFᵀ for features F (n, d). LogME, H-score, TransRate
and leave-one-out ridge accuracy are invariant to rotations of the features and computed from it,
so a layer of any width costs one decomposition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._data.batches import as_labels, check_classes, labels_for_batch, one_hot
from .._models.layer_outputs import Pool
from .._models.logits import Logits, LogitsReader
from ..errors import DataError
from ..similarity.kernels import Kernel, check_combination, required_kinds
from .layer_vectors import PassConfig, Vectors, gather_vectors

_ALPHA_GRID = 10.0 ** torch.linspace(-5, 3, 17, dtype=torch.float64)
_RANK_TOLERANCE = 1e-12  # eigenvalues below this share of the largest are round-off
_COLUMNS_PER_CHUNK = 4096  # columns turned to float64 at a time


@dataclass(frozen=True)
class RidgeProblem:
    """Items, their targets, and the spectrum of their kernel, on its range."""

    items: Vectors  # each (n, d)
    targets: Tensor  # (n, C)
    values: Tensor  # (r,)
    vectors: Tensor  # (n, r)

    @staticmethod
    def of_items(items: Vectors, targets: Tensor) -> RidgeProblem:
        """Cost: O(n³), or O(n d²) for a single kind of fewer dimensions than items."""
        return RidgeProblem(items, targets, *kernel_spectrum(items))

    def alphas(self) -> list[float]:
        """Ridges worth trying: eight decades about the mean eigenvalue over the n items."""
        mean = (self.values.sum() / len(self.vectors)).clamp_min(1e-300)
        return (_ALPHA_GRID * mean).tolist()

    def weights(self, alpha: float) -> Tensor:  # (n, C)
        """(K + αI)⁻¹T, the coefficient of each item's kernel in the prediction."""
        return self._residuals(alpha) / alpha

    def _residuals(self, alpha: float) -> Tensor:  # (n, C)
        shares = self.values / (self.values + alpha)
        return self.targets - self.vectors @ (shares[:, None] * (self.vectors.T @ self.targets))

    def leave_one_out(self, alpha: float) -> Tensor:  # (n, C)
        """What each item is predicted by the fit to all others: tᵢ − rᵢ / (1 − hᵢ).

        r are the residuals and h the leverages, diag K(K + αI)⁻¹. Exact. Cost: O(n r C).

        >>> items, targets = torch.ones(3, 1), torch.tensor([[0.0], [3.0], [6.0]]).double()
        >>> problem = RidgeProblem.of_items({"features": items}, targets)
        >>> round(float(problem.leave_one_out(alpha=1.0)[0]), 6)
        3.0
        """
        leverages = (self.vectors**2) @ (self.values / (self.values + alpha))
        free = (1 - leverages).clamp_min(1e-12)  # 0 where an item alone spans its direction
        return self.targets - self._residuals(alpha) / free[:, None]

    def best_by_leave_one_out(self, alphas: Sequence[float]) -> tuple[float, float]:
        return best_alpha(alphas, [self.leave_one_out(alpha) for alpha in alphas], self.targets)


def best_alpha(
    alphas: Sequence[float], predictions: Sequence[Tensor], targets: Tensor
) -> tuple[float, float]:
    """The α of least squared error, and the accuracy of the predictions made with it."""
    errors = [float(((predicted - targets) ** 2).sum()) for predicted in predictions]
    least = errors.index(min(errors))
    hits = predictions[least].argmax(1) == targets.argmax(1)
    return alphas[least], float(hits.double().mean())


def kernel_spectrum(items: Vectors) -> tuple[Tensor, Tensor]:  # (r,), (n, r)
    """Eigenvalues and eigenvectors of the kernel of items, without those that are round-off."""
    x = next(iter(items.values()))
    if len(items) > 1 or len(x) <= x.shape[1]:
        return _eigendecomposition(cross_kernel(items, items))
    values, vectors = _eigendecomposition(x.T.double() @ x.double())
    return values, x.double() @ vectors / values.sqrt()


def cross_kernel(rows: Vectors, items: Vectors) -> Tensor:  # (n, d), (m, d) -> (n, m)
    """Inner products of each kind in float64, multiplied over kinds."""
    out = torch.ones(1, 1, dtype=torch.float64)
    for kind, x in rows.items():
        parts = zip(
            x.split(_COLUMNS_PER_CHUNK, 1), items[kind].split(_COLUMNS_PER_CHUNK, 1), strict=True
        )
        out = out * sum(a.double() @ b.double().T for a, b in parts)
    return out


def _eigendecomposition(kernel: Tensor) -> tuple[Tensor, Tensor]:  # (n, n) -> (r,), (n, r)
    values, vectors = torch.linalg.eigh(kernel)
    kept = values > _RANK_TOLERANCE * values.amax().clamp_min(1e-300)
    return values[kept], vectors[:, kept]


_ROUND_OFF = 1e-12  # of squares: features come in float32


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
        return FeatureSpectrum(*kernel_spectrum({"features": x}), x.shape[1])

    @property
    def coordinates(self) -> Tensor:  # (n, r)
        """The features in axes of their own span, from the least to the most important."""
        return self.vectors * self.values.sqrt()

    def centred(self) -> FeatureSpectrum:
        """That of the features less their mean; of features that do not vary, of no directions."""
        if not len(self.values):
            return self
        x = self.coordinates
        values, vectors = kernel_spectrum({"features": x - x.mean(0)})
        kept = values > _ROUND_OFF * self.values.sum()  # what a constant leaves is no direction
        return FeatureSpectrum(values[kept], vectors[:, kept], self.width)


def as_spectrum(features: Any) -> FeatureSpectrum:
    """A spectrum as it is, or that of features (n, d)."""
    return features if isinstance(features, FeatureSpectrum) else FeatureSpectrum.of(features)


def encode_labels(labels: Any, count: int) -> tuple[Tensor, int]:  # (n,) and how many classes
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


@dataclass(frozen=True)
class LeaveOneOut:
    """Leave-one-out accuracy of kernel ridge at each layer, and the α at which it was reached."""

    accuracies: Mapping[str, float]
    alphas: Mapping[str, float]
    samples: int


def leave_one_out(
    model: nn.Module,
    data: Any,
    y: Any = None,
    *,
    layers: str | Sequence[str] = "auto",
    kernel: Kernel = "features",
    pool: Pool = "flatten",
    logits: Logits = "auto",
    max_dim: int | None = 16384,
    batch_size: int = 128,
) -> LeaveOneOut:
    """Leave-one-out accuracy of kernel ridge classification at each layer.

    One-hot targets T, kernel K: sample i is predicted as tᵢ − [(K+αI)⁻¹T]ᵢ / [(K+αI)⁻¹]ᵢᵢ, which is
    what fitting without it gives. α is that of least squared error on a grid of 17. Nothing is
    trained and nothing set aside, which makes it a measure of how well a network suits a small
    labelled data set (docs/how-to/adaptation.md).

    Bias: α has seen the samples it is scored on, which lifts the accuracy a little, by less than
    its standard error √(p(1−p)/N). Cost: one pass; N × d floats and O(N² min(N, d)) a layer.

    Args:
        model: the network, which is left as it was.
        data: labelled data, or inputs alone if labels are given in `y`.
        y: labels in the order of the data; None takes those in the data.
        layers: names or patterns of layers, as in `record`.
        kernel: `"features"`, `"gradients"` or `"product"`.
        pool: how a layer's output becomes a vector, as in `record`.
        logits: what the model's outputs are, as in `record`.
        max_dim: layers wider than this are folded to this width; None folds nothing.
        batch_size: samples per forward pass.

    Returns:
        The accuracy of each layer, and the α at which it was reached.

    Example:
        >>> import torch
        >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).repeat(20, 1)
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(2, 2))
        >>> dict(leave_one_out(net, x, [1, 0] * 20, layers="0").accuracies)
        {'0': 1.0}
    """
    check_combination("ridge", kernel)
    given = None if y is None else as_labels(y)
    kinds, reader = required_kinds(kernel), LogitsReader(logits)
    how = PassConfig(kinds, pool, logits=reader, max_dim=max_dim, batch_size=batch_size)
    found: list[np.ndarray] = []
    rows = gather_vectors(
        model,
        data,
        layers,
        how,
        lambda indices, own: found.append(labels_for_batch(indices, own, given)),
    )
    whole = np.concatenate(found)
    targets = one_hot(whole, check_classes(whole))
    accuracies, alphas = {}, {}
    for name in list(rows):
        problem = RidgeProblem.of_items(rows.pop(name), targets)  # vectors go once used
        alphas[name], accuracies[name] = problem.best_by_leave_one_out(problem.alphas())
    return LeaveOneOut(accuracies, alphas, len(whole))
