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

from . import fused
from .blocks import gram, pack16
from .representation import Layer, Settings, finish, without_sums
from .sketch import Fold, add_to_buckets

_READ_AT_ONCE = 8192  # features, where there are no buckets to fold onto


@dataclass(frozen=True)
class Plan:
    """What happens to the rows of one forward batch, the same for every layer."""

    buckets: tuple[Tensor, Tensor] | None  # bucket and sign (n, t) of each; None if not kept
    blocks: list[tuple[int, int]]  # rows [start, stop) that form a block; they come first


class Accumulator:
    """Blocks, buckets and moments of one layer; `add` batches, then `result`."""

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
        self._moments: Tensor | None = None  # in the order of _names
        self._names: list[str] = []
        self._blocks: dict[str, list[tuple[Tensor, ...]]] = {}

    def add(self, features: Tensor, gradients: Tensor | None, plan: Plan) -> dict[str, Tensor]:
        """Take in a batch (n, d); returns squared norms (n,), finite where the samples are."""
        with torch.autocast(features.device.type, enabled=False), torch.no_grad():
            vectors = {"features": features}
            if gradients is not None:
                # float16 features come with float32 gradients, which would vanish in float16
                both = torch.promote_types(features.dtype, gradients.dtype)
                vectors = {"features": features.to(both), "gradients": gradients.to(both)}
                if self.settings.elementwise:
                    vectors["elementwise"] = features.float() * gradients.float()
            diagonals = {
                kind: self._add_blocks(kind, x, plan.blocks) for kind, x in vectors.items()
            }
            if fused.available(features) and not self._deterministic:
                norms, inner = self._add_fused(vectors, plan.buckets)
            else:
                norms, inner = self._add_plain(vectors, diagonals, plan)
            self._add_moments(norms, inner)
            return norms

    def _add_blocks(self, kind: str, x: Tensor, spans: list[tuple[int, int]]) -> list[Tensor]:
        """Gram matrices inside blocks, packed at once on a CPU, at the end on a GPU.

        A GPU would spend more time on being told to pack a block than on everything else. Returns
        the squared norms of the rows in each block.
        """
        held = self._blocks.setdefault(kind, [])
        diagonals = []
        for start, stop in spans:
            kernel = gram(x[start:stop])
            held.append((kernel,) if x.is_cuda else pack16(kernel, self.settings.block))
            diagonals.append(kernel.diagonal())
        return diagonals

    def _add_plain(
        self, vectors: dict[str, Tensor], diagonals: dict[str, list[Tensor]], plan: Plan
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Buckets and moments in plain PyTorch: squared norms, and ⟨f, g⟩ of each sample."""
        norms = {}
        for kind, x in vectors.items():
            rest = x[sum(map(len, diagonals[kind])) :].float()
            norms[kind] = torch.cat([*diagonals[kind], torch.einsum("nd,nd->n", rest, rest)])
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
            tables = [self._tables(k, x[0].device) for k in kinds] if buckets else []
            second = x[1] if len(x) > 1 else None
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
            width = self.width if self.settings.buckets else min(self.dim, _READ_AT_ONCE)
            self._fold = Fold(self.dim, width, self.settings.seed, device)
        return self._fold

    def _tables(self, kind: str, device: torch.device) -> tuple[Tensor, Tensor]:
        """The buckets (M, width) and the total (width,) of one kind, which are added to."""
        if kind not in self._sums:
            self._sums[kind] = torch.zeros(self.settings.buckets, self.width, device=device)
            self._totals[kind] = torch.zeros(self.width, device=device, dtype=torch.float64)
        return self._sums[kind], self._totals[kind]

    def _add_moments(self, norms: dict[str, Tensor], inner: Tensor | None) -> None:
        """Sums over samples, in float64 on the device: few launches, and no waiting for them."""
        values = {f"trace_{kind}": norm for kind, norm in norms.items()}
        if inner is not None:
            values["product"] = norms["features"].double() * norms["gradients"]
            wide = inner.double()
            values |= {"inner": wide, "inner_squared": wide**2, "inner_fourth": wide**4}
        sums = torch.stack([value.double() for value in values.values()]).sum(1)
        self._moments = sums if self._moments is None else self._moments + sums
        self._names = list(values)

    def _packed_blocks(self, kind: str) -> tuple[Tensor, Tensor]:  # (k, t) int16, (k, B)
        """All blocks of a kind, in the order in which they came."""
        size = self.settings.block
        held = self._blocks[kind]
        if held and len(held[0]) == 1:  # kernels on a GPU: those of one size in one go
            kernels = [kernel for (kernel,) in held]
            full = [k for k in kernels if len(k) == size]
            both = [pack16(torch.stack(full), size)] if full else []
            both += [pack16(k[None], size) for k in kernels if len(k) < size]
            where = [i for i, k in enumerate(kernels) if len(k) == size]
            where += [i for i, k in enumerate(kernels) if len(k) < size]
            order = torch.tensor(where).argsort().to(kernels[0].device)
            triangles, diagonals = (torch.cat(x)[order] for x in zip(*both, strict=True))
            return triangles, diagonals
        triangles = torch.zeros(len(held), size * (size - 1) // 2, dtype=torch.int16)
        diagonals = torch.zeros(len(held), size)
        for i, (triangle, diagonal) in enumerate(held):
            triangles[i], diagonals[i] = triangle, diagonal
        return triangles, diagonals

    def result(self, signs: Tensor | None, count: int, *, keep_sums: bool) -> Layer:
        """The layer's share of a Representation, with its accumulators if they are to be kept."""
        tensors: dict[str, Tensor] = {} if signs is None else {"signs": signs}
        sums_of = [] if self._moments is None else self._moments.tolist()
        moments = dict(zip(self._names, sums_of, strict=True))
        for kind in self._blocks if self.settings.blocks else ():
            triangles, diagonals = self._packed_blocks(kind)
            tensors[f"{kind}.blocks.triangle"] = triangles
            tensors[f"{kind}.blocks.diagonal"] = diagonals
        for kind, sums in self._sums.items():
            tensors[f"{kind}.sums"] = sums
            tensors[f"{kind}.total"] = self._totals[kind]
        tensors, moments = finish(tensors, moments, count)
        if not keep_sums:
            tensors = without_sums(tensors)
        return Layer(
            name=self.name,
            shape=self.shape,
            dim=self.dim,
            folded=self.width < self.dim,
            moments=MappingProxyType(moments),
            tensors=MappingProxyType({key: value.cpu() for key, value in tensors.items()}),
        )
