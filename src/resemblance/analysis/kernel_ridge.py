"""Kernel ridge regression in closed form: one spectrum, then any α for the price of a product.

For a kernel K = QΛQᵀ over n items with targets T (n, C), the fit at α keeps the share
λ / (λ + α) of each direction. `Spectrum` holds Q and Λ on the range of K; its `weights` are
(K + αI)⁻¹T, and `leave_one_out` is what each item would be predicted from all others. A `Problem`
pairs a spectrum with the items and targets it came from, exact or sketched.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .sample_vectors import Vectors

_GRID = 10.0 ** torch.linspace(-5, 3, 17, dtype=torch.float64)
_RANK = 1e-12  # eigenvalues below this share of the largest are round-off
_WIDTH = 4096  # columns turned to float64 at a time


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues (r,) above round-off and their eigenvectors (n, r) of a kernel over n items."""

    values: Tensor
    vectors: Tensor

    @staticmethod
    def of_kernel(kernel: Tensor) -> Spectrum:  # (n, n)
        """From the kernel itself: O(n³)."""
        values, vectors = torch.linalg.eigh(kernel)
        kept = values > _RANK * values.amax().clamp_min(1e-300)
        return Spectrum(values[kept], vectors[:, kept])

    @staticmethod
    def of_rows(rows: Tensor) -> Spectrum:  # (n, d)
        """Of the kernel rows · rowsᵀ, through whichever of n × n and d × d is smaller."""
        if len(rows) <= rows.shape[1]:
            return Spectrum.of_kernel(rows @ rows.T)
        inner = Spectrum.of_kernel(rows.T @ rows)
        return Spectrum(inner.values, rows @ inner.vectors / inner.values.sqrt())

    def alphas(self) -> Tensor:
        """Ridges worth trying: eight decades about the mean eigenvalue over the n items."""
        return _GRID * (self.values.sum() / len(self.vectors)).clamp_min(1e-300)

    def residuals(self, targets: Tensor, alpha: float) -> Tensor:  # (n, C)
        """α(K + αI)⁻¹T, what the fit leaves of the targets."""
        shares = self.values / (self.values + alpha)
        return targets - self.vectors @ (shares[:, None] * (self.vectors.T @ targets))

    def weights(self, targets: Tensor, alpha: float) -> Tensor:  # (n, C)
        """(K + αI)⁻¹T, the coefficient of each item's kernel in the prediction."""
        return self.residuals(targets, alpha) / alpha

    def leave_one_out(self, targets: Tensor, alpha: float) -> Tensor:  # (n, C)
        """What each item is predicted by the fit to all others: tᵢ − rᵢ / (1 − hᵢ).

        r are the residuals and h the leverages, diag K(K + αI)⁻¹. Exact. Cost: O(n r C).

        >>> spectrum = Spectrum.of_kernel(torch.ones(3, 3).double())
        >>> targets = torch.tensor([[0.0], [3.0], [6.0]]).double()
        >>> round(float(spectrum.leave_one_out(targets, alpha=1.0)[0]), 6)
        3.0
        """
        shares = self.values / (self.values + alpha)
        leverages = (self.vectors**2) @ shares
        free = (1 - leverages).clamp_min(1e-12)  # 0 where an item alone spans its direction
        return targets - self.residuals(targets, alpha) / free[:, None]


def accuracy(predictions: Tensor, targets: Tensor) -> float:
    """The share of rows whose largest entry is where the one-hot target has its one."""
    return float((predictions.argmax(1) == targets.argmax(1)).double().mean())


def best_by_leave_one_out(spectrum: Spectrum, targets: Tensor) -> tuple[float, float]:
    """The α of least leave-one-out squared error on a grid, and the accuracy that goes with it."""
    grid = spectrum.alphas().tolist()
    left_out = [spectrum.leave_one_out(targets, alpha) for alpha in grid]
    best = min(range(len(grid)), key=lambda i: float(((left_out[i] - targets) ** 2).sum()))
    return grid[best], accuracy(left_out[best], targets)


def kernel(rows: Vectors, items: Vectors) -> Tensor:  # (n, d), (m, d) -> (n, m)
    """Inner products of each kind in float64, multiplied over kinds."""
    out = torch.ones(1, 1, dtype=torch.float64)
    for kind, x in rows.items():
        parts = zip(x.split(_WIDTH, 1), items[kind].split(_WIDTH, 1), strict=True)
        out = out * sum(a.double() @ b.double().T for a, b in parts)
    return out


@dataclass(frozen=True)
class Problem:
    """Items, and the coefficients that make predictions of their kernels with a new sample."""

    items: Vectors  # each (m, d)
    spectrum: Spectrum
    targets: Tensor  # (m, C)

    @staticmethod
    def of_items(items: Vectors, targets: Tensor) -> Problem:
        """Kernel ridge from items, whether samples or buckets, to their targets."""
        if len(items) == 1:
            return Problem(items, Spectrum.of_rows(next(iter(items.values())).double()), targets)
        return Problem(items, Spectrum.of_kernel(kernel(items, items)), targets)

    def weights(self, alpha: float) -> Tensor:  # (items, C)
        """The coefficient of each item's kernel in the prediction of each class."""
        return self.spectrum.weights(self.targets, alpha)
