"""Kernel ridge regression in closed form: one spectrum, then any α for the price of a product.

For a kernel K = QΛQᵀ over n items with targets T (n, C), the fit at α keeps the share λ / (λ + α)
of each direction. A `Problem` holds the items, be they samples or buckets, and Q and Λ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .sample_vectors import Vectors

_GRID = 10.0 ** torch.linspace(-5, 3, 17, dtype=torch.float64)
_RANK = 1e-12  # eigenvalues below this share of the largest are round-off
_WIDTH = 4096  # columns turned to float64 at a time


@dataclass(frozen=True)
class Problem:
    """Items, their targets, and the spectrum of their kernel, on its range."""

    items: Vectors  # each (n, d)
    targets: Tensor  # (n, C)
    values: Tensor  # (r,)
    vectors: Tensor  # (n, r)

    @staticmethod
    def of_items(items: Vectors, targets: Tensor) -> Problem:
        """Cost: O(n³), or O(n d²) for a single kind of fewer dimensions than items."""
        return Problem(items, targets, *spectrum(items))

    def alphas(self) -> list[float]:
        """Ridges worth trying: eight decades about the mean eigenvalue over the n items."""
        mean = (self.values.sum() / len(self.vectors)).clamp_min(1e-300)
        return (_GRID * mean).tolist()

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
        >>> problem = Problem.of_items({"features": items}, targets)
        >>> round(float(problem.leave_one_out(alpha=1.0)[0]), 6)
        3.0
        """
        leverages = (self.vectors**2) @ (self.values / (self.values + alpha))
        free = (1 - leverages).clamp_min(1e-12)  # 0 where an item alone spans its direction
        return self.targets - self._residuals(alpha) / free[:, None]

    def best_by_leave_one_out(self, alphas: Sequence[float]) -> tuple[float, float]:
        return best(alphas, [self.leave_one_out(alpha) for alpha in alphas], self.targets)


def best(
    alphas: Sequence[float], predictions: Sequence[Tensor], targets: Tensor
) -> tuple[float, float]:
    """The α of least squared error, and the accuracy of the predictions made with it."""
    errors = [float(((predicted - targets) ** 2).sum()) for predicted in predictions]
    least = errors.index(min(errors))
    hits = predictions[least].argmax(1) == targets.argmax(1)
    return alphas[least], float(hits.double().mean())


def spectrum(items: Vectors) -> tuple[Tensor, Tensor]:  # (r,), (n, r)
    """Eigenvalues and eigenvectors of the kernel of items, without those that are round-off."""
    x = next(iter(items.values()))
    if len(items) > 1 or len(x) <= x.shape[1]:
        return _spectrum(kernel(items, items))
    values, vectors = _spectrum(x.T.double() @ x.double())
    return values, x.double() @ vectors / values.sqrt()


def kernel(rows: Vectors, items: Vectors) -> Tensor:  # (n, d), (m, d) -> (n, m)
    """Inner products of each kind in float64, multiplied over kinds."""
    out = torch.ones(1, 1, dtype=torch.float64)
    for kind, x in rows.items():
        parts = zip(x.split(_WIDTH, 1), items[kind].split(_WIDTH, 1), strict=True)
        out = out * sum(a.double() @ b.double().T for a, b in parts)
    return out


def _spectrum(kernel: Tensor) -> tuple[Tensor, Tensor]:  # (n, n) -> (r,), (n, r)
    values, vectors = torch.linalg.eigh(kernel)
    kept = values > _RANK * values.amax().clamp_min(1e-300)
    return values[kept], vectors[:, kept]
