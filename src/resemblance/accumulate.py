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

from .blocks import gram, pack16
from .representation import Layer, Settings, finish
from .sketch import Fold, add_to_buckets


@dataclass(frozen=True)
class Plan:
    """What happens to the rows of one forward batch, the same for every layer."""

    buckets: Tensor | None  # (n, t) on the device; None if no buckets are kept
    signs: Tensor | None  # (n, t)
    blocks: list[tuple[int, int]]  # rows [start, stop) that form a block; they come first


class Accumulator:
    """Blocks, buckets and moments of one layer; `add` batches, then `result`."""

    def __init__(self, name: str, shape: tuple[int, ...], dim: int, settings: Settings) -> None:
        self.name, self.shape, self.dim, self.settings = name, shape, dim, settings
        self.width = min(dim, settings.max_dim or dim)
        self._fold: Fold | None = None
        self._sums: dict[str, Tensor] = {}
        self._totals: dict[str, Tensor] = {}
        self._moments: dict[str, Tensor] = {}
        self._blocks: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def add(self, features: Tensor, gradients: Tensor | None, plan: Plan) -> dict[str, Tensor]:
        """Take in a batch (n, d); returns squared norms (n,), finite where the samples are."""
        with torch.autocast(features.device.type, enabled=False), torch.no_grad():
            f = features.float()
            norms = {"features": self._kind("features", f, plan)}
            if gradients is None:
                return norms
            g = gradients.float()
            norms["gradients"] = self._kind("gradients", g, plan)
            inner = torch.einsum("nd,nd->n", f, g).double()
            self._moment("product", norms["features"] * norms["gradients"])
            self._moment("inner", inner)
            self._moment("inner_squared", inner**2)
            self._moment("inner_fourth", inner**4)
            if self.settings.elementwise:
                norms["elementwise"] = self._kind("elementwise", f * g, plan)
            return norms

    def _kind(self, kind: str, x: Tensor, plan: Plan) -> Tensor:  # (n, d) -> (n,) squared norms
        norms = []
        done = 0
        for start, stop in plan.blocks:
            kernel = gram(x[start:stop])
            self._blocks.setdefault(kind, []).append(pack16(kernel, self.settings.block))
            norms.append(kernel.diagonal())
            done = stop
        if done < len(x):
            norms.append(torch.einsum("nd,nd->n", x[done:], x[done:]))
        norm = torch.cat(norms).double()
        self._moment(f"trace_{kind}", norm)
        if plan.buckets is not None and plan.signs is not None:
            self._sketch(kind, x, plan.buckets, plan.signs)
        return norm

    def _sketch(self, kind: str, x: Tensor, buckets: Tensor, signs: Tensor) -> None:
        if self.width < self.dim:
            if self._fold is None:
                self._fold = Fold(self.dim, self.width, self.settings.seed, x.device)
            x = self._fold(x)
        if kind not in self._sums:
            self._sums[kind] = x.new_zeros(self.settings.buckets, self.width)
            self._totals[kind] = x.new_zeros(self.width, dtype=torch.float64)
        self._totals[kind] += x.sum(0)
        add_to_buckets(self._sums[kind], x, buckets, signs)

    def _moment(self, name: str, values: Tensor) -> None:
        total = values.sum()
        self._moments[name] = self._moments[name] + total if name in self._moments else total

    def result(self, signs: Tensor | None, count: int) -> Layer:
        """The layer's share of a Representation, with its accumulators still in it."""
        tensors: dict[str, Tensor] = {} if signs is None else {"signs": signs}
        moments = {name: float(value) for name, value in self._moments.items()}
        kinds = [name.removeprefix("trace_") for name in moments if name.startswith("trace_")]
        for kind in kinds if self.settings.blocks else ():
            packed = self._blocks.get(kind, [])
            size = self.settings.block
            triangles = torch.zeros(len(packed), size * (size - 1) // 2, dtype=torch.int16)
            diagonals = torch.zeros(len(packed), size)
            for row, (triangle, diagonal) in enumerate(packed):
                triangles[row], diagonals[row] = triangle, diagonal
            tensors[f"{kind}.blocks.triangle"] = triangles
            tensors[f"{kind}.blocks.diagonal"] = diagonals
        for kind, sums in self._sums.items():
            tensors[f"{kind}.sums"] = sums.cpu()
            tensors[f"{kind}.total"] = self._totals[kind].cpu()
        tensors, moments = finish(tensors, moments, count)
        return Layer(
            name=self.name,
            shape=self.shape,
            dim=self.dim,
            folded=self.width < self.dim,
            moments=MappingProxyType(moments),
            tensors=MappingProxyType(tensors),
        )
