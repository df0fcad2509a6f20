"""Copies whose weights were changed without training: rounded, pruned, averaged."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn


def rounded(net: nn.Module, bits: int) -> nn.Module:
    """Each row of a weight matrix (each filter) rounded to 2^bits − 1 equal steps around zero."""

    def nearest(weight: Tensor) -> Tensor:
        step = weight.abs().amax(tuple(range(1, weight.ndim)), keepdim=True) / (2 ** (bits - 1) - 1)
        return (weight / step).round() * step

    return _changed(net, nearest)


def pruned(net: nn.Module, share: float) -> nn.Module:
    """The smallest weights of each layer set to zero."""

    def kept(weight: Tensor) -> Tensor:
        limit = weight.abs().flatten().kthvalue(int(share * weight.numel())).values
        return weight.where(weight.abs() > limit, 0)

    return _changed(net, kept)


def averaged(one: nn.Module, other: nn.Module) -> nn.Module:
    """The mean of all parameters of two networks."""
    mean = copy.deepcopy(one)
    with torch.no_grad():
        for here, there in zip(mean.parameters(), other.parameters(), strict=True):
            here.lerp_(there, 0.5)
    return mean


def _changed(net: nn.Module, change: Callable[[Tensor], Tensor]) -> nn.Module:
    changed = copy.deepcopy(net)
    with torch.no_grad():
        for weight in _matrices(changed):
            weight.copy_(change(weight))
    return changed


def _matrices(net: nn.Module) -> Iterator[Tensor]:
    """Weights of linear layers and convolutions but for a language model's head, which is its
    embedding as well; biases, norms and embeddings stay as they are."""
    for name, module in net.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d) and name != "lm_head":
            yield module.weight
