"""What becomes of a trained network's weights: rounded, pruned, or moved by an adapter."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .models import block_of, projections


@torch.no_grad()
def rounded(net: nn.Module, bits: int, block: int | None = None) -> nn.Module:
    """A copy whose weights have so many bits, symmetric about zero, with a scale an output row.

    With `block`, only those of that block.
    """
    out, top = copy.deepcopy(net), 2 ** (bits - 1) - 1
    for name, (module, axis) in projections(out).items():
        if block is None or block_of(name) == block:
            weight = module.weight
            step = weight.abs().amax(1 - axis, keepdim=True).div(top).clamp_min(1e-12)
            weight.copy_((weight / step).round().clamp(-top, top) * step)
    return out


@torch.no_grad()
def pruned(net: nn.Module, share: float) -> nn.Module:
    """A copy whose smallest weights, in each matrix, are zero."""
    out = copy.deepcopy(net)
    for module, _ in projections(out).values():
        size = module.weight.abs()
        limit = size.flatten().kthvalue(max(1, int(share * size.numel()))).values
        module.weight[size <= limit] = 0
    return out


class LowRank(nn.Module):
    """W + A B: what an adapter makes of a matrix (Hu et al. 2021). It begins as W."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.a = nn.Parameter(torch.randn(rows, rank).to(weight) / rows**0.5)
        self.b = nn.Parameter(torch.zeros(rank, columns).to(weight))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.a @ self.b


@contextmanager
def adapted(net: nn.Module, rank: int) -> Iterator[list[nn.Parameter]]:
    """Adapters on every projection, to be trained; merged into the weights at the end."""
    touched = [module for module, _ in projections(net).values()]
    for weight in net.parameters():
        weight.requires_grad_(False)
    for module in touched:
        parametrize.register_parametrization(module, "weight", LowRank(module.weight, rank))
    yield [w for name, w in net.named_parameters() if name.endswith((".a", ".b"))]
    for module in touched:
        parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
    for weight in net.parameters():
        weight.requires_grad_(True)
