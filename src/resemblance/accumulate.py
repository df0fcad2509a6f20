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
        self._moments: dict[str, Tensor] = {}
        self._blocks: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def add(self, features: Tensor, gradients: Tensor | None, plan: Plan) -> dict[str, Tensor]:
        """Take in a batch (n, d); returns squared norms (n,), finite where the samples are."""
        with torch.autocast(features.device.type, enabled=False), torch.no_grad():
            vectors = {"features": features}
            if gradients is not None:
                vectors["gradients"] = gradients
                if self.settings.elementwise:
                    vectors["elementwise"] = features.float() * gradients.float()
            diagonals = {
                kind: self._add_blocks(kind, x, plan.blocks) for kind, x in vectors.items()
            }
            if plan.buckets is not None and not self._deterministic and fused.available(features):
                norms, inner = self._add_fused(vectors, *plan.buckets)
            else:
                norms, inner = self._add_plain(vectors, diagonals, plan)
            for kind, norm in norms.items():
                self._moment(f"trace_{kind}", norm)
            if inner is not None:
                self._moment("product", norms["features"] * norms["gradients"])
                self._moment("inner", inner)
                self._moment("inner_squared", inner**2)
                self._moment("inner_fourth", inner**4)
            return norms

    def _add_blocks(self, kind: str, x: Tensor, spans: list[tuple[int, int]]) -> Tensor:
        """Gram matrices inside blocks; returns the squared norms of the rows in blocks."""
        size = self.settings.block
        packed = self._blocks.setdefault(kind, [])
        diagonals = [x.new_zeros(0, dtype=torch.float32)]
        for start, stop in spans:
            kernel = gram(x[start:stop])
            packed.append(pack16(kernel, size))
            diagonals.append(kernel.diagonal())
        return torch.cat(diagonals)

    def _add_plain(
        self, vectors: dict[str, Tensor], diagonals: dict[str, Tensor], plan: Plan
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Buckets and moments in plain PyTorch: squared norms, and ⟨f, g⟩ of each sample."""
        norms = {}
        for kind, x in vectors.items():
            rest = x[len(diagonals[kind]) :].float()
            norms[kind] = torch.cat(
                [diagonals[kind], torch.einsum("nd,nd->n", rest, rest)]
            ).double()
            if plan.buckets is not None:
                table, total = self._tables(kind, x.device)
                folded = self._folded(x.device)(x.float())
                total += folded.sum(0)
                add_to_buckets(table, folded, *plan.buckets, deterministic=self._deterministic)
        if "gradients" not in vectors:
            return norms, None
        f, g = vectors["features"].float(), vectors["gradients"].float()
        return norms, torch.einsum("nd,nd->n", f, g).double()

    def _add_fused(
        self, vectors: dict[str, Tensor], buckets: Tensor, signs: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """The same in one read of features and gradients, on a GPU."""

        def sketched(*kinds: str) -> tuple[Tensor, ...]:
            x = [vectors[kind] for kind in kinds]
            tables, totals = zip(*(self._tables(k, x[0].device) for k in kinds), strict=True)
            second = x[1] if len(x) > 1 else None
            fold = self._folded(x[0].device)
            return fused.sketch(x[0], second, fold, buckets, signs, tables, totals)

        norms, inner = {}, None
        if "gradients" in vectors:
            norms["features"], norms["gradients"], inner = sketched("features", "gradients")
        else:
            norms["features"], _, _ = sketched("features")
        if "elementwise" in vectors:
            norms["elementwise"], _, _ = sketched("elementwise")
        norms = {kind: norm.double() for kind, norm in norms.items()}
        return norms, None if inner is None else inner.double()

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

    def _moment(self, name: str, values: Tensor) -> None:
        total = values.double().sum()
        self._moments[name] = self._moments[name] + total if name in self._moments else total

    def result(self, signs: Tensor | None, count: int, *, keep_sums: bool) -> Layer:
        """The layer's share of a Representation, with its accumulators if they are to be kept."""
        tensors: dict[str, Tensor] = {} if signs is None else {"signs": signs}
        moments = {name: float(value) for name, value in self._moments.items()}
        size = self.settings.block
        for kind, packed in self._blocks.items() if self.settings.blocks else ():
            none = torch.zeros(0, size * (size - 1) // 2, dtype=torch.int16), torch.zeros(0, size)
            triangles, diagonals = map(torch.stack, zip(*packed, strict=True)) if packed else none
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
