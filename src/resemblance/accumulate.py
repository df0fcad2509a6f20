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

    buckets: Tensor  # (n, t) on the device
    signs: Tensor  # (n, t)
    blocks: list[tuple[int, int]]  # rows [start, stop) that form a block


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

    def add(self, features: Tensor, gradients: Tensor | None, plan: Plan) -> Tensor:
        """Take in a batch; returns, for each sample, a number that is finite if the sample is."""
        with torch.autocast(features.device.type, enabled=False), torch.no_grad():
            f = features.float()
            norm_f = self._kind("features", f, plan)
            if gradients is None:
                return norm_f
            g = gradients.float()
            norm_g = self._kind("gradients", g, plan)
            inner = torch.einsum("nd,nd->n", f, g)
            self._moment("product", norm_f * norm_g)
            self._moment("inner", inner)
            self._moment("inner_squared", inner.double() ** 2)
            if self.settings.elementwise:
                self._kind("elementwise", f * g, plan)
            return norm_f + norm_g

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
        norm = torch.cat(norms)
        self._moment(f"trace_{kind}", norm)
        if self.settings.buckets:
            self._sketch(kind, x, plan)
        return norm

    def _sketch(self, kind: str, x: Tensor, plan: Plan) -> None:
        if self.width < self.dim:
            if self._fold is None:
                self._fold = Fold(self.dim, self.width, self.settings.seed, x.device)
            x = self._fold(x)
        if kind not in self._sums:
            self._sums[kind] = x.new_zeros(self.settings.buckets, self.width)
            self._totals[kind] = x.new_zeros(self.width)
        self._totals[kind] += x.sum(0)
        add_to_buckets(self._sums[kind], x, plan.buckets, plan.signs)

    def _moment(self, name: str, values: Tensor) -> None:
        total = values.double().sum()
        self._moments[name] = self._moments[name] + total if name in self._moments else total

    def result(self, signs: Tensor | None, count: int) -> Layer:
        """The layer's share of a Representation, with its accumulators still in it."""
        tensors: dict[str, Tensor] = {} if signs is None else {"signs": signs}
        for kind, packed in self._blocks.items():
            tensors[f"{kind}.blocks.triangle"] = torch.stack([triangle for triangle, _ in packed])
            tensors[f"{kind}.blocks.diagonal"] = torch.stack([diagonal for _, diagonal in packed])
        for kind, sums in self._sums.items():
            tensors[f"{kind}.sums"] = sums.cpu()
            tensors[f"{kind}.total"] = self._totals[kind].cpu()
        moments = {name: float(value) for name, value in self._moments.items()}
        tensors, moments = finish(tensors, moments, count)
        return Layer(
            name=self.name,
            shape=self.shape,
            dim=self.dim,
            folded=self.width < self.dim,
            moments=MappingProxyType(moments),
            tensors=MappingProxyType(tensors),
        )
