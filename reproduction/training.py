"""Training, and what becomes of a network afterwards: fine-tuned, distilled, pruned, rounded."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .images import inputs
from .nets import ResNet

DECAY, TEMPERATURE = 5e-4, 4.0
_compiled: dict[str, tuple[ResNet, Callable[[Tensor], Tensor]]] = {}


def train(
    net: ResNet,
    architecture: str,
    x: Tensor,  # (n, h, w, 3) uint8
    y: Tensor,
    *,
    epochs: int,
    batch: int,
    rate: float,
    seed: int,
    mirror: bool = True,
    teacher: nn.Module | None = None,
    after: Callable[[int, ResNet], None] | None = None,  # an epoch, with a network as it stands
) -> ResNet:
    """SGD with Nesterov momentum, one cycle of the rate, random crops and mirror images.

    A teacher's softened predictions take the place of the labels (Hinton et al. 2015).
    """
    cuda = x.is_cuda
    work, trunk = _workbench(net, architecture)
    optimiser = torch.optim.SGD(
        work.parameters(), rate, momentum=0.9, weight_decay=DECAY, nesterov=True, fused=cuda
    )
    steps = epochs * (len(x) // batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda i: min((i + 1) / (0.25 * steps), (steps - i) / (0.75 * steps), 1.0)
    )
    generator = torch.Generator(x.device).manual_seed(seed)
    pad = x.shape[1] // 8
    padded = F.pad(x, (0, 0, pad, pad, pad, pad))
    for epoch in range(1, epochs + 1):
        work.train()
        order = torch.randperm(len(x), device=x.device, generator=generator)
        for rows in order[: len(x) // batch * batch].split(batch):
            images = inputs(_augmented(padded, rows, x.shape[1], generator, mirror))
            with torch.autocast("cuda", torch.bfloat16, enabled=cuda):
                logits = work.head(trunk(images))
                loss = _loss(logits, y[rows], teacher, images)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        if after is not None:
            net.load_state_dict(work.state_dict())
            after(epoch, net)
    net.load_state_dict(work.state_dict())
    return net.eval()


def _workbench(net: ResNet, architecture: str) -> tuple[ResNet, Callable[[Tensor], Tensor]]:
    """A copy to train. On a GPU its trunk is compiled once, and later networks move into it."""
    device = next(net.parameters()).device
    if device.type != "cuda":
        return (work := copy.deepcopy(net)), work.trunk
    if architecture not in _compiled:
        work = copy.deepcopy(net).to(memory_format=torch.channels_last)
        _compiled[architecture] = work, torch.compile(work.trunk)
    work, trunk = _compiled[architecture]
    work.head = copy.deepcopy(net.head)
    work.load_state_dict(net.state_dict())
    return work, trunk


def _augmented(
    padded: Tensor, rows: Tensor, side: int, generator: torch.Generator, mirror: bool
) -> Tensor:
    """Each image cut out of its padded self at a random place, half of them mirrored."""
    n, slack = len(rows), padded.shape[1] - side + 1
    draw = torch.randint(slack, (2, n, 1), device=padded.device, generator=generator)
    line = torch.arange(side, device=padded.device)
    across = line.expand(n, side)
    if mirror:
        turned = torch.rand(n, 1, device=padded.device, generator=generator) < 0.5
        across = torch.where(turned, side - 1 - line, line)
    down, across = draw[0] + line, draw[1] + across
    return padded[rows[:, None, None], down[:, :, None], across[:, None, :]]


def _loss(logits: Tensor, labels: Tensor, teacher: nn.Module | None, images: Tensor) -> Tensor:
    if teacher is None:
        return F.cross_entropy(logits, labels)
    with torch.no_grad():
        target = (teacher(images).float() / TEMPERATURE).softmax(1)
    student = (logits.float() / TEMPERATURE).log_softmax(1)
    return F.kl_div(student, target, reduction="batchmean") * TEMPERATURE**2


@torch.no_grad()
def predictions(net: nn.Module, x: Tensor) -> Tensor:  # -> (n, classes)
    """Class probabilities in evaluation mode."""
    parts = []
    for images in x.split(2048):
        with torch.autocast("cuda", torch.bfloat16, enabled=x.is_cuda):
            parts.append(net.eval()(inputs(images)).float().softmax(1))
    return torch.cat(parts)


def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((predictions(net, x).argmax(1) == y).double().mean())


@torch.no_grad()
def pruned(net: ResNet, share: float) -> ResNet:
    """A copy whose smallest weights, in each convolution and in the head, are zero."""
    out = copy.deepcopy(net)
    for weight in _weights(out):
        size = weight.abs()
        weight[size <= size.flatten().kthvalue(max(1, int(share * weight.numel()))).values] = 0
    return out


@torch.no_grad()
def rounded(net: ResNet, bits: int) -> ResNet:
    """A copy whose weights are rounded to so many bits, symmetrically, a scale a filter."""
    out = copy.deepcopy(net)
    top = 2 ** (bits - 1) - 1
    for weight in _weights(out):
        step = weight.flatten(1).abs().amax(1).div(top).clamp_min(1e-12)
        step = step.view(-1, *[1] * (weight.ndim - 1))
        weight.copy_((weight / step).round().clamp(-top, top) * step)
    return out


def _weights(net: nn.Module) -> list[Tensor]:
    return [m.weight for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
