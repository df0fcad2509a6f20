"""Layer: one layer's share of a Representation, as records of what was kept of its vectors.

A layer has *features* and, if recorded, *gradients* and their *elementwise* product. Of each kind
it keeps exact kernels inside blocks of samples, the kernel of the buckets, and, in shards, the
accumulators that those come from. Packing is `_ops.packed_kernels`; the records hold, it computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, NoReturn

import torch
from torch import Tensor

from .._by_content import by_content
from .._ops import packed_kernels as packing
from ..errors import MismatchError

Kind = Literal["features", "gradients", "elementwise"]
KINDS: tuple[Kind, ...] = ("features", "gradients", "elementwise")
_OPTION = {
    "features": "features",
    "gradients": "gradients on (the default)",
    "elementwise": "elementwise=True",
}


@by_content
@dataclass(frozen=True, eq=False)
class Blocks:
    """Exact kernels inside k blocks of at most B samples, as packed correlations."""

    triangle: Tensor  # (k, B(B-1)/2) int16
    diagonal: Tensor  # (k, B) float32


@by_content
@dataclass(frozen=True, eq=False)
class Buckets:
    """The kernel K̃ = F̃F̃ᵀ of M buckets, packed, and what centring it needs."""

    triangle: Tensor  # (M(M-1)/2, 3) uint8
    diagonal: Tensor  # (M,) float32
    mean: Tensor  # (M,) float32: F̃ f̄, each bucket's inner product with the mean sample
    mean_norm: float = field(kw_only=True)  # ‖f̄‖²


@by_content
@dataclass(frozen=True, eq=False)
class Sums:
    """The accumulators: they add up over shards, which kernels do not."""

    buckets: Tensor  # (M, D) float32: F̃
    total: Tensor  # (D,) float64: the sum of all samples


@by_content
@dataclass(frozen=True, eq=False)
class Recorded:
    """What was kept of one kind of vector."""

    trace: float  # Σ ‖x‖² over all samples
    blocks: Blocks | None = None
    buckets: Buckets | None = None
    sums: Sums | None = None


@dataclass(frozen=True)
class Products:
    """Sums over all samples of what joins their features and gradients."""

    norms: float  # Σ ‖f‖²‖g‖²
    inner: float  # Σ ⟨f, g⟩
    inner_squared: float
    inner_fourth: float


@by_content
@dataclass(frozen=True, eq=False)
class Layer:
    """One layer of a recording. Kernels come out in float64."""

    name: str
    shape: tuple[int, ...]  # of one sample's features before pooling, as they lie in memory
    dim: int  # width of the recorded vector
    folded: bool  # whether max_dim acted on the buckets
    features: Recorded
    gradients: Recorded | None = None
    elementwise: Recorded | None = None
    products: Products | None = None  # with gradients
    signs: Tensor | None = None  # (M,) sums of the signs of each bucket's samples

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Which of features, gradients, elementwise were recorded."""
        return tuple(kind for kind in KINDS if getattr(self, kind) is not None)

    def recorded(self, kind: Kind) -> Recorded:
        """What was kept of a kind, or an error that says how to record it."""
        found: Recorded | None = getattr(self, kind)
        if found is None:
            raise MismatchError(
                f"layer {self.name!r} holds no {kind}: it was recorded without; record again with "
                f"{_OPTION[kind]}"
            )
        return found

    def packed_blocks(self, kind: Kind) -> Blocks:
        """Block kernels as they are stored."""
        found = self.recorded(kind).blocks
        return found if found is not None else self._refuse(kind, "blocks")

    def triangles(self, kind: Kind) -> tuple[Tensor, Tensor]:
        """Block kernels as strict lower triangles (k, B(B-1)/2) and diagonals (k, B)."""
        packed = self.packed_blocks(kind)
        diagonal = packed.diagonal.double()
        return packing.unpack16(packed.triangle, diagonal), diagonal

    def blocks(self, kind: Kind) -> Tensor:
        """Block kernels as full matrices (k, B, B); a short block is padded with zeros."""
        return packing.squares(*self.triangles(kind))

    def buckets(self, kind: Kind, *, centre: bool = False) -> Tensor:
        """The kernel (M, M) of the sketched samples, K̃ = F̃F̃ᵀ.

        With `centre`, that of the samples with their mean taken off before sketching:
        (F̃ − c f̄ᵀ)(F̃ − c f̄ᵀ)ᵀ with c the sum of signs in each bucket. That is exact,
        which centring the M × M matrix itself is not.
        """
        found = self.recorded(kind).buckets
        if found is None or self.signs is None:
            self._refuse(kind, "buckets")
        kernel = packing.unpack24(found.triangle, found.diagonal)
        if centre:
            c, row = self.signs.double(), found.mean.double()
            kernel = kernel - torch.outer(row, c) - torch.outer(c, row)
            kernel = kernel + found.mean_norm * torch.outer(c, c)
        return kernel

    def _refuse(self, kind: Kind, what: str) -> NoReturn:
        raise MismatchError(
            f"layer {self.name!r} holds no {what} of {kind}: it was recorded without; record again "
            f"with {what} above 0"
        )

    def without_sums(self) -> Layer:
        """The same without its accumulators."""
        kinds = {kind: replace(self.recorded(kind), sums=None) for kind in self.kinds}
        return replace(self, **kinds)  # type: ignore[arg-type]
