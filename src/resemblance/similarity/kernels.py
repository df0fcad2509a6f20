"""From features and gradients to one kernel: the six combinations that have names.

With K_f = [f_i·f_j] and K_g = [g_i·g_j] over the same samples:

    features      K_f
    gradients     K_g
    product       K_f ∘ K_g, the kernel of ψ = g fᵀ: the paper's, and the default
    sum           K_f / tr K_f + K_g / tr K_g
    elementwise   the kernel of f ∘ g, which is recorded on its own
    transport     halfway on the Bures geodesic from K_f / tr K_f to K_g / tr K_g

The paper adds K_f and K_g as they are, and so does `estimator="paper"`; dividing each by its trace
makes `sum` and `transport` keep their value when features are rescaled. All but `transport` act
entry by entry, so they apply to packed triangles as well as to matrices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..representation.layer import KINDS, Kind, Layer
from .combinations import Kernel
from .indices import positive_root

OF_TRACES = ("sum", "transport")  # made of K_f / tr K_f and K_g / tr K_g
# Eigenvalues of K_f under this share of their mean are taken as zero when K_f is inverted.
TRANSPORT_FLOOR = 1e-3


def needs(kernel: Kernel) -> tuple[Kind, ...]:
    """What must have been recorded for a kernel."""
    own = tuple(kind for kind in KINDS if kind == kernel)
    return own or ("features", "gradients")


def traces(layers: Iterable[Layer], kind: Kind) -> Tensor:  # (L,)
    """Tr K_f or Tr K_g of each layer over all samples, to the precision of float32, never zero."""
    return torch.tensor([x.recorded(kind).trace for x in layers]).double().clamp_min(1e-300)


def entries(kernel: Kernel, parts: Mapping[Kind, Tensor]) -> Tensor:
    """Entries of an entrywise kernel from those of K_f and K_g, over traces for `OF_TRACES`."""
    if kernel == "product":
        return parts["features"] * parts["gradients"]
    if kernel == "sum":
        return parts["features"] + parts["gradients"]
    return parts[needs(kernel)[0]]


def transport(kf: Tensor, kg: Tensor) -> Tensor:  # (..., n, n)
    """(½I + ½T) K_f (½I + ½T) with T = K_f^-½ (K_f^½ K_g K_f^½)^½ K_f^-½.

    K_f is inverted on its range alone: eigenvalues below `TRANSPORT_FLOOR` times their mean count
    as zero, so on a rank-deficient K_f the part of K_g outside that range does not enter.

    >>> k = torch.diag(torch.tensor([4.0, 1.0])).double()
    >>> torch.allclose(transport(k, k), k)
    True
    """
    values, vectors = torch.linalg.eigh(kf)
    floor = TRANSPORT_FLOOR * kf.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
    on_range = values > floor
    root = torch.where(on_range, values, 0.0).sqrt()
    inverse = torch.where(on_range, root.clamp_min(1e-300).reciprocal(), 0.0)
    half = vectors * root[..., None, :] @ vectors.mT
    back = vectors * inverse[..., None, :] @ vectors.mT
    t = back @ positive_root(half @ kg @ half) @ back
    middle = (torch.eye(kf.shape[-1], dtype=kf.dtype, device=kf.device) + t) / 2
    out = middle @ kf @ middle
    return (out + out.mT) / 2
