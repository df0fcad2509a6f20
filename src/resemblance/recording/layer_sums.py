"""One layer's running state: what a pass keeps while samples stream by.

Per batch and layer, the features f (n, d) and gradients g (n, d) are read a few times: for exact
Gram matrices inside each block, for the buckets F̃, G̃ (M × min(d, max_dim)), and for moments.
Nothing here grows with the number of samples but the blocks, which are bounded by their setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from .._ops import fused_sketch as fused
from .._ops.count_sketch import add_to_buckets
from .._ops.feature_fold import Fold
from .._ops.gram_matrices import grams
from .._ops.packed_kernels import pack16
from ..representation.representation import Layer, Settings, finish, without_sums

_BATCHES_HELD = 32  # whose norms wait to be summed up together


@dataclass(frozen=True)
class Plan:
    """What happens to the rows of one forward batch, the same for every layer."""

    buckets: tuple[Tensor, Tensor] | None  # bucket and sign (n, t) of each; None if not kept
    blocks: list[tuple[int, int]]  # rows [start, stop) that form a block; they come first


class Accumulator:
    """Blocks, buckets and moments of one layer: `add` batches, `finish`, and take the `result`.

    All layers are finished before any result is taken, so that a GPU is told everything first.
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dim: int,
        settings: Settings,
        *,
        deterministic: bool = False,
    ) -> None:
        self.name, self.shape, self.dim, self.settings = name, shape, dim, settings
        self.width = min(dim, settings.max_dim or dim)
        self._deterministic = deterministic
        self._fold: Fold | None = None
        self._sums: dict[str, Tensor] = {}
        self._totals: dict[str, Tensor] = {}
        self._norms: list[dict[str, Tensor]] = []  # of the latest batches, and their ⟨f, g⟩
        self._moments: dict[str, Tensor] = {}
        self._kinds: tuple[str, ...] = ()
        self._blocks: dict[str, list[tuple[Tensor, Tensor]]] = {}  # packed
        self._loose: dict[str, list[Tensor]] = {}  # kernels (blocks, B, B) to be packed together

    def add(self, features: Tensor, gradients: Tensor | None, plan: Plan) -> dict[str, Tensor]:
        """Take in a batch (n, d); returns squared norms (n,), finite where the samples are."""
        device = torch.cuda.device_of(features)  # Triton launches on the current one
        with device, torch.autocast(features.device.type, enabled=False), torch.no_grad():
            vectors = {"features": features.contiguous()}
            if gradients is not None:
                # float16 features come with float32 gradients, which would vanish in float16
                both = torch.promote_types(features.dtype, gradients.dtype)
                vectors["features"] = vectors["features"].to(both)
                vectors["gradients"] = gradients.to(both).contiguous()
                if self.settings.elementwise:
                    f, g = vectors["features"].float(), vectors["gradients"].float()
                    vectors["elementwise"] = f * g
            self._kinds = tuple(vectors)
            kernels = self._add_blocks(vectors, plan.blocks)
            much = gradients is not None or plan.buckets is not None
            if much and fused.available(features) and not self._deterministic:
                norms, inner = self._add_fused(vectors, plan.buckets)
            else:
                norms, inner = self._add_plain(vectors, kernels, plan)
            self._norms.append(norms if inner is None else {**norms, "inner": inner})
            if len(self._norms) == _BATCHES_HELD:
                self._add_moments()
            return norms

    def _add_blocks(
        self, vectors: dict[str, Tensor], spans: list[tuple[int, int]]
    ) -> dict[str, Tensor]:  # each (blocks, B, B)
        """Gram matrices inside blocks, packed at once on a CPU, all together on a GPU.

        A GPU would spend more time on being told to pack a block than on everything else.
        """
        out: dict[str, Tensor] = {}
        size = self.settings.block
        for kinds in (("features", "gradients"), ("elementwise",)):
            found = [kind for kind in kinds if kind in vectors]
            if not found or not spans:
                continue
            kernels = grams([vectors[kind] for kind in found], spans, size)
            for kind, of_kind in zip(found, kernels, strict=True):
                self._loose.setdefault(kind, []).append(of_kind)
                out[kind] = of_kind
        if not vectors["features"].is_cuda or not spans:
            self._pack_blocks()
        return out

    def _pack_blocks(self) -> None:
        for kind, kernels in self._loose.items():
            packed = pack16(torch.cat(kernels), self.settings.block)
            self._blocks.setdefault(kind, []).append(packed)
        self._loose = {}

    def _add_plain(
        self, vectors: dict[str, Tensor], kernels: dict[str, Tensor], plan: Plan
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Buckets and moments in plain PyTorch: squared norms, and ⟨f, g⟩ of each sample."""
        norms = {}
        for kind, x in vectors.items():
            norms[kind] = _squared_norms(x, kernels.get(kind), plan.blocks)
            if plan.buckets is not None:
                table, total = self._tables(kind, x.device)
                folded = self._folded(x.device)(x.float())
                total += folded.sum(0)
                add_to_buckets(table, folded, *plan.buckets, deterministic=self._deterministic)
        if "gradients" not in vectors:
            return norms, None
        f, g = vectors["features"].float(), vectors["gradients"].float()
        return norms, torch.einsum("nd,nd->n", f, g)

    def _add_fused(
        self, vectors: dict[str, Tensor], buckets: tuple[Tensor, Tensor] | None
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """The same in one read of features and gradients, on a GPU."""

        def sketched(*kinds: str) -> tuple[Tensor, ...]:
            x = [vectors[kind] for kind in kinds]
            second = x[1] if len(x) > 1 else None
            if buckets is None:
                return fused.sketch(x[0], second, None, None, [])
            tables = [self._tables(kind, x[0].device) for kind in kinds]
            return fused.sketch(x[0], second, self._folded(x[0].device), buckets, tables)

        norms: dict[str, Tensor] = {}
        inner = None
        if "gradients" in vectors:
            norms["features"], norms["gradients"], inner = sketched("features", "gradients")
        else:
            norms["features"], _, _ = sketched("features")
        if "elementwise" in vectors:
            norms["elementwise"], _, _ = sketched("elementwise")
        return norms, inner

    def _folded(self, device: torch.device) -> Fold:
        if self._fold is None:
            self._fold = Fold(self.dim, self.width, self.settings.seed, device)
        return self._fold

    def _tables(self, kind: str, device: torch.device) -> tuple[Tensor, Tensor]:
        """The buckets (M, width) and the total (width,) of one kind, which are added to."""
        if kind not in self._sums:
            self._sums[kind] = torch.zeros(self.settings.buckets, self.width, device=device)
            self._totals[kind] = torch.zeros(self.width, device=device, dtype=torch.float64)
        return self._sums[kind], self._totals[kind]

    def _add_moments(self) -> None:
        """Sums over the samples of the batches held, in float64 on the device."""
        if not self._norms:
            return
        norms = {
            key: torch.cat([batch[key] for batch in self._norms]).double() for key in self._norms[0]
        }
        inner = norms.pop("inner", None)
        values = {f"trace_{kind}": norm for kind, norm in norms.items()}
        if inner is not None:
            values["product"] = norms["features"] * norms["gradients"]
            values |= {"inner": inner, "inner_squared": inner**2, "inner_fourth": inner**4}
        for key, value in values.items():
            self._moments[key] = self._moments.get(key, 0) + value.sum()
        self._norms = []

    def finish(self, count: int) -> None:
        """Form everything that a Representation holds, where it lies, without waiting for it."""
        tensors: dict[str, Tensor] = {}
        self._add_moments()
        self._pack_blocks()
        size = self.settings.block
        for kind in self._kinds if self.settings.blocks else ():
            packed = self._blocks.get(kind) or [pack16(torch.zeros(0, size, size), size)]
            triangles, diagonals = (torch.cat(parts) for parts in zip(*packed, strict=True))
            tensors[f"{kind}.blocks.triangle"] = triangles
            tensors[f"{kind}.blocks.diagonal"] = diagonals
        for kind, table in self._sums.items():
            tensors[f"{kind}.sums"] = table
            tensors[f"{kind}.total"] = self._totals[kind]
        self._tensors, means = finish(tensors, count)
        self._moments |= means

    def result(self, signs: Tensor | None, *, keep_sums: bool) -> Layer:
        """The layer's share of a Representation, with its accumulators if they are to be kept."""
        tensors = self._tensors if keep_sums else without_sums(self._tensors)
        if signs is not None:
            tensors = {"signs": signs, **tensors}
        values = torch.stack(list(self._moments.values())).tolist()
        return Layer(
            name=self.name,
            shape=self.shape,
            dim=self.dim,
            folded=self.width < self.dim,
            moments=MappingProxyType(dict(zip(self._moments, values, strict=True))),
            tensors=MappingProxyType({key: value.cpu() for key, value in tensors.items()}),
        )


def _squared_norms(x: Tensor, kernels: Tensor | None, spans: list[tuple[int, int]]) -> Tensor:
    """‖x_i‖² of rows (n, d), in float32; those of blocks come from the diagonals of their kernels.

    A GPU may have rounded the factors of float32 products, but no others.
    """
    known: list[Tensor] = []
    if kernels is not None and not (x.is_cuda and x.dtype == torch.float32):
        diagonals = kernels.diagonal(dim1=1, dim2=2)
        known = [row[: stop - start] for row, (start, stop) in zip(diagonals, spans, strict=True)]
        x = x[spans[-1][1] :]
    if x.is_cuda:  # in one read, whatever the dtype
        rest = torch.linalg.vector_norm(x, dim=1, dtype=torch.float32).square_()
    else:
        rest = torch.einsum("nd,nd->n", x.float(), x.float())
    return torch.cat([*known, rest]) if known else rest
