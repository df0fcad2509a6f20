"""One layer of a Representation: its kernels, sketches, norms and moments.

A layer has *features* and, if recorded, *gradients* and their *elementwise* product. For each kind
it stores exact Gram matrices inside blocks of samples (for small data, the full Gram matrix), the
squared norm of each sample, a sketch in the layer's own coordinates, the CountSketch (bucket)
kernel and, in shards, the accumulators that the bucket kernel is computed from. The classes here
only hold packed tensors; `_ops` packs and unpacks them.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, field, replace
from typing import NoReturn

import torch
from torch import Tensor

from .._ops import packing
from .._utils.equality import by_content
from ..errors import DataError, MismatchError
from .schema import KINDS as KINDS
from .schema import Kind as Kind

NORMS_KEPT = 65_536  # squared norms of single samples: those of the first places of the order
_OPTION_TO_RECORD = {
    "features": "features",
    "gradients": "`gradients=True` (the default)",
    "elementwise": "`elementwise=True`",
}


@by_content
@dataclass(frozen=True, eq=False)
class Blocks:
    """Exact kernels inside k blocks of at most B samples, as packed correlations.

    Where a mean would drown the differences of samples, it was taken off first: what is packed is
    then L_ij with K_ij = L_ij + u_i + u_j. No centred index can tell L from K.
    """

    triangle: Tensor  # (k, B(B-1)/2) int16
    diagonal: Tensor  # (k, B) float32
    offset: Tensor | None = None  # (k, B) float32: u, zero where nothing was taken off


@by_content
@dataclass(frozen=True, eq=False)
class Whole:
    """The exact kernel of all samples, blocks side by side in their order, as one block."""

    kernel: Blocks  # k = 1, B = N
    sizes: tuple[int, ...]  # of the blocks that it can be read as

    @functools.cached_property
    def blocks(self) -> Blocks:
        """Its diagonal blocks, as a recording of more samples has them."""
        size, kernel = max(self.sizes), self.kernel
        starts = list(itertools.accumulate(self.sizes, initial=0))
        triangle = kernel.triangle.new_zeros(len(self.sizes), size * (size - 1) // 2)
        for row, start, n in zip(triangle, starts, self.sizes, strict=False):
            i, j = packing.lower_triangle(n)
            row[: len(i)] = kernel.triangle[0, (i + start) * (i + start - 1) // 2 + j + start]

        def cut(x: Tensor) -> Tensor:  # (1, N) -> (k, size)
            parts = x[0].split(list(self.sizes))
            return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)

        offset = None if kernel.offset is None else cut(kernel.offset)
        return Blocks(triangle, cut(kernel.diagonal), offset)


@by_content
@dataclass(frozen=True, eq=False)
class Sketch:
    """Sums of all samples with random signs, which add up over shards as kernels do not.

    The two-sided sketch is Y = S X P: samples added into 128 rows and features into 256 columns.
    Both maps are functions of the seed, the sample's index and the feature's logical index alone,
    so that sketches of two networks of one shape can be taken from each other. The accumulators of
    the buckets are F̃ (M, D), from which the bucket kernel is computed.
    """

    table: Tensor  # (128, 256) or (M, D) float32
    total: Tensor  # (256,) or (D,) float64: the sum of all samples, folded


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
class Recorded:
    """What was kept of one kind of vector."""

    trace: float  # Σ ‖x‖² over all samples
    blocks: Blocks | None = None
    whole: Whole | None = None  # instead of blocks, where data are few
    norms: Tensor | None = None  # float32: ‖x‖² at each place of the order, the first 65,536 of
    # them; NaN where a sample was skipped or is in another shard
    sketch: Sketch | None = None  # in coordinates
    buckets: Buckets | None = None
    sums: Sketch | None = None  # the accumulators of the buckets, in shards


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
    """One layer of a recording. Kernels are returned in float64.

    Attributes:
        name: name of the layer.
        shape: shape of one sample's activations before pooling; of images, channels first.
        dim: length of the recorded vector.
        folded: whether `max_dim` folded the vectors before bucketing.
        features: what was stored of the activations.
        gradients: what was stored of the gradients; None if not recorded.
        elementwise: what was stored of features times gradients; None if not recorded.
        products: sums over samples of features with gradients; None without gradients.
        signs: for each bucket, the sum of the signs of its samples; None without buckets.
        sketch_signs: for each row of the sketches, the sum of the signs of its samples.
        bare_name: name without those of wrappers around the network.
        channels_last: whether the network has its images as (height, width, channels).
    """

    name: str
    shape: tuple[int, ...]
    dim: int
    folded: bool
    features: Recorded
    gradients: Recorded | None = None
    elementwise: Recorded | None = None
    products: Products | None = None
    signs: Tensor | None = None  # (M,)
    sketch_signs: Tensor | None = None  # (128,)
    bare_name: str = ""
    channels_last: bool = False

    @property
    def shape_in_network(self) -> tuple[int, ...]:
        """The shape of one sample's features as the network has them."""
        return (*self.shape[1:], self.shape[0]) if self.channels_last else self.shape

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Which of features, gradients, elementwise were recorded."""
        return tuple(kind for kind in KINDS if getattr(self, kind) is not None)

    def recorded(self, kind: Kind) -> Recorded:
        """What was stored of one kind of vector.

        Args:
            kind: `"features"`, `"gradients"` or `"elementwise"`.

        Returns:
            Its blocks, buckets and sums.

        Raises:
            MismatchError: if it was not recorded; the message says how to record it.
        """
        if kind not in KINDS:
            raise DataError(f"`kind` must be one of {', '.join(KINDS)}; found {kind!r}")
        found: Recorded | None = getattr(self, kind)
        if found is None:
            raise MismatchError(
                f"layer {self.name!r} has no {kind}; record again with {_OPTION_TO_RECORD[kind]}"
            )
        return found

    def packed_blocks(self, kind: Kind, *, whole: bool = False) -> Blocks:
        """Gram matrices of blocks, as they are stored.

        Args:
            kind: `"features"`, `"gradients"` or `"elementwise"`.
            whole: whether to return the Gram matrix of all samples as one block.

        Returns:
            Packed triangles and diagonals.

        Raises:
            MismatchError: if they were not recorded.
        """
        found = self.recorded(kind)
        if found.whole is not None:
            return found.whole.kernel if whole else found.whole.blocks
        if found.blocks is None or whole:
            self._refuse(kind, "blocks")
        return found.blocks

    def blocks(self, kind: Kind, *, whole: bool = False) -> Tensor:
        """Gram matrices of blocks, as full matrices.

        Args:
            kind: `"features"`, `"gradients"` or `"elementwise"`.
            whole: whether to return the Gram matrix of all samples as one block.

        Returns:
            A float64 tensor (k, B, B); a short block is padded with zeros.

        Raises:
            MismatchError: if they were not recorded.
        """
        packed = self.packed_blocks(kind, whole=whole)
        diagonal = packed.diagonal.double()
        square = packing.symmetric_matrices(packing.unpack16(packed.triangle, diagonal), diagonal)
        if packed.offset is None:
            return square
        u, real = packed.offset.double(), (packed.diagonal + packed.offset.abs()) > 0
        both_real = real[:, :, None] & real[:, None, :]
        return square + (u[:, :, None] + u[:, None, :]) * both_real

    def buckets(self, kind: Kind, *, centre: bool = False) -> Tensor:
        """The kernel of the sketched samples, K̃ = F̃F̃ᵀ.

        Args:
            kind: `"features"`, `"gradients"` or `"elementwise"`.
            centre: whether to subtract the mean from the samples before sketching, which gives
                (F̃ − c f̄ᵀ)(F̃ − c f̄ᵀ)ᵀ with c the sum of signs in each bucket. That is exact;
                centring the M × M matrix itself is not.

        Returns:
            A float64 tensor (M, M).

        Raises:
            MismatchError: if buckets were not recorded.
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
            f"layer {self.name!r} has no {what} of {kind}; record again with {what} above 0"
        )

    def without_sums(self) -> Layer:
        """The same without its accumulators.

        Returns:
            A new layer, which can be compared but not merged.
        """
        kinds = {kind: replace(self.recorded(kind), sums=None) for kind in self.kinds}
        return replace(self, **kinds)  # type: ignore[arg-type]
