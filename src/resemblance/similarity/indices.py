"""Similarity of two kernel matrices over the same items: plain formulas on arrays.

`cka` and `nbs` take NumPy or torch matrices, compute in float64, and are unchanged when either
kernel is scaled or when the items of both are permuted together. Estimating these, and other
indices, from part of the entries is the business of `block_estimates` and `bucket_estimates`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError

# A kernel computed in float32 may have eigenvalues this far below zero, relative to the largest;
# anything lower is not a kernel.
_NEGATIVE = 1e-5


def cka(k1: Any, k2: Any, *, centre: bool = True) -> float:
    """Kernel alignment ⟨K1, K2⟩_F / (‖K1‖_F ‖K2‖_F), in [0, 1].

    With `centre`, each kernel is first centred, HKH with H = I − 11ᵀ/n, which is the CKA of
    Kornblith et al. 2019; without, it is the formula of Tang et al. 2020 as printed. Independent
    features do not score zero: chance depends on n and on the rank. Cost: O(n²).

    >>> import numpy as np
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> round(cka(x @ x.T, 3 * x @ x.T), 6)
    1.0
    """
    a, b = _pair(k1, k2)
    if centre:
        a, b = _visibly_centred(a), _visibly_centred(b)
    return _ratio((a * b).sum(), a.norm() * b.norm())


def nbs(k1: Any, k2: Any) -> float:
    """Normalised Bures similarity Tr(K1^½ K2 K1^½)^½ / √(Tr K1 · Tr K2), in [0, 1].

    In factors K = ΨᵀΨ it is the nuclear norm of Ψ1Ψ2ᵀ over ‖Ψ1‖_F ‖Ψ2‖_F, which is how it is
    computed. On kernels of centred features it is the Procrustes similarity. Cost: O(n³).

    >>> import numpy as np
    >>> round(nbs(np.diag([1.0, 0.0]), np.diag([1.0, 1.0])), 4)
    0.7071
    """
    a, b = (factor(_semi_definite(k)) for k in _pair(k1, k2))
    return _ratio(nuclear(a, b), a.norm() * b.norm())


def centred(k: Tensor) -> Tensor:
    """HKH: the kernel of features with their mean over these items taken off."""
    return k - k.mean(-1, keepdim=True) - k.mean(-2, keepdim=True) + k.mean((-1, -2), keepdim=True)


def _visibly_centred(k: Tensor) -> Tensor:
    """HKH, and exactly zero where only round-off is left: a constant layer has no direction."""
    out = centred(k)
    return out if out.norm() > 1e-14 * len(k) * k.norm() else torch.zeros_like(k)


def factor(k: Tensor) -> Tensor:  # (..., n, n) -> (..., n, n) with k = factor factorᵀ
    """A factor of a positive semi-definite matrix: eigenvectors times roots of eigenvalues.

    Negative eigenvalues are round-off, of the kernel or of its storage, and count as zero.
    """
    values, vectors = torch.linalg.eigh(k)
    return vectors * values.clamp_min(0).sqrt()[..., None, :]


def positive_root(k: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh((k + k.mT) / 2)
    return vectors * values.clamp_min(0).sqrt()[..., None, :] @ vectors.mT


def nuclear(a: Tensor, b: Tensor) -> Tensor:  # (..., n, r), (..., n, s) -> (...)
    """The nuclear norm of aᵀb: Tr(K1^½ K2 K1^½)^½ for K1 = aaᵀ, K2 = bbᵀ."""
    return torch.linalg.svdvals(a.mT @ b).sum(-1)


def nuclear_of_pairs(a: Tensor, b: Tensor) -> Tensor:  # (L1, n, r), (L2, n, s) -> (L1, L2)
    return torch.stack([nuclear(x[None], b) for x in a])


def cosines(x: Tensor, y: Tensor) -> Tensor:  # (..., L1, n), (..., L2, n) -> (..., L1, L2)
    return x @ y.mT / norms((x * x).sum(-1), (y * y).sum(-1))


def norms(x: Tensor, y: Tensor) -> Tensor:  # (..., L1), (..., L2) -> (..., L1, L2)
    """√(x yᵀ), the denominators of all pairs; NaN where one is zero, so that the score is too."""
    product = x.clamp_min(0)[..., :, None] * y.clamp_min(0)[..., None, :]
    return torch.where(product > 0, product, torch.nan).sqrt()


def _pair(k1: Any, k2: Any) -> tuple[Tensor, Tensor]:
    a, b = _matrix(k1), _matrix(k2)
    for k in (a, b):
        if k.ndim != 2 or k.shape[0] != k.shape[1] or not len(k):
            raise DataError(f"expected a square kernel matrix, found shape {tuple(k.shape)}")
        if not torch.isfinite(k).all():
            raise DataError("expected finite kernels, found NaN or Inf; repair the features")
    if a.shape != b.shape:
        raise DataError(
            f"expected kernels over the same items, found {len(a)} and {len(b)} of them; "
            "compare recordings of different data through their buckets"
        )
    return a, b


def _matrix(given: Any) -> Tensor:
    if isinstance(given, np.ndarray):
        given = given.astype(given.dtype.newbyteorder("="), copy=False)
    try:
        found = torch.as_tensor(given).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"expected a kernel matrix of numbers, found {type(given).__name__}; for recordings "
            "use compare"
        ) from error
    if found.is_complex():
        raise DataError(f"expected a kernel matrix of real numbers, found {found.dtype}")
    return found.double()


def _semi_definite(k: Tensor) -> Tensor:
    values = torch.linalg.eigvalsh(k)
    lowest, highest = float(values[0]), float(values[-1])
    if lowest < -_NEGATIVE * max(highest, 0.0):
        raise DataError(
            f"expected a positive semi-definite kernel, found eigenvalues from {lowest:.3g} to "
            f"{highest:.3g}; pass a kernel, such as features @ features.T"
        )
    return k


def _ratio(numerator: Tensor, denominator: Tensor) -> float:
    """A similarity, with round-off beyond ±1 taken off; undefined for a kernel of zeros."""
    if not denominator > 0:
        raise DataError("a kernel is zero (a constant or dead layer): its similarity is undefined")
    return float((numerator / denominator).clamp(-1, 1))
