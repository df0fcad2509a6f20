"""What is kept of a trained network: pooled features and gradients of the probe, and its outputs.

The vectors are those of `resemblance.record(..., pool="mean")`: the mean of a layer's output over
positions, and the sum over positions of the gradient, at each of the six layers. Three targets are
differentiated: `tempered` with β = 0 and β = 0.5, and the labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .families import inputs

TARGETS = ("beta 0", "beta 0.5", "labels")


@dataclass(frozen=True)
class Vectors:
    """One network on the probe.

    Attributes:
        features: of each layer, (N, d).
        gradients: of each target, of each layer, (N, d).
        log_p: log-probabilities of the classes, (N, classes).
        accuracy: on all test samples.
        learnt: the share of its own training labels that it predicts.
    """

    features: list[Tensor]
    gradients: dict[str, list[Tensor]]
    log_p: Tensor
    accuracy: float
    learnt: float


def record(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    held_out: tuple[Tensor, Tensor],
    learnt: tuple[Tensor, Tensor],
) -> Vectors:
    """Run a network on the probe, and on what its accuracies are measured on."""
    net = net.eval()
    features, gradients, logits = pooled(net, x, y)
    return Vectors(
        features, gradients, logits.log_softmax(1), accuracy(net, *held_out), accuracy(net, *learnt)
    )


def pooled(
    net: nn.Module, x: Tensor, y: Tensor
) -> tuple[list[Tensor], dict[str, list[Tensor]], Tensor]:
    """Features and gradients of each layer, and the logits."""
    outputs: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda _m, _i, out: outputs.append(out))
        for layer in net.layers  # type: ignore[union-attr]
    ]
    try:
        with torch.enable_grad():
            logits = net(inputs(x))
    finally:
        for hook in hooks:
            hook.remove()
    p = logits.detach().softmax(1)
    starts = {
        "beta 0": p - 1 / p.shape[1],
        "beta 0.5": p - (0.5 * logits.detach()).softmax(1),
        "labels": p - torch.nn.functional.one_hot(y, p.shape[1]),
    }
    gradients = {}
    for target in TARGETS:
        found = torch.autograd.grad(logits, outputs, starts[target], retain_graph=True)
        gradients[target] = [_positions(g).sum(1) for g in found]
    return [_positions(f.detach()).mean(1) for f in outputs], gradients, logits.detach()


def _positions(
    x: Tensor,
) -> Tensor:  # (n, channels, h, w) or (n, positions, d) -> (n, positions, d)
    return x.flatten(2).transpose(1, 2) if x.ndim == 4 else x


@torch.no_grad()
def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    right = [
        (net(inputs(a)).argmax(1) == b) for a, b in zip(x.split(1000), y.split(1000), strict=True)
    ]
    return float(torch.cat(right).double().mean())
