"""Training on bytes: AdamW with a warm-up and a cosine, in bfloat16 on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .clock import Clock
from .models import MASK

DECAY, WARM, LAST, CLIP = 0.1, 0.05, 0.1, 1.0  # decay; share of steps; share of the rate; norm
MASKED, KEPT, SWAPPED = 0.15, 0.1, 0.1  # of bytes; of those, seen as they are or as another

Loss = Callable[[nn.Module, Tensor], Tensor]  # a network, rows (n, context + 1) of bytes


def train(
    net: nn.Module,
    text: Tensor,  # (bytes,) uint8
    loss: Loss,
    *,
    steps: int,
    rate: float,
    batch: int,
    context: int,
    seed: int,
    clock: Clock,
    weights: Iterable[nn.Parameter] | None = None,  # None: all
) -> float:
    """Train in place; returns the mean loss of the last tenth of the steps."""
    every = list(net.parameters() if weights is None else weights)
    matrices = [w for w in every if w.ndim >= 2]
    groups = [
        {"params": matrices, "weight_decay": DECAY},
        {"params": [w for w in every if w.ndim < 2], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(
        [g for g in groups if g["params"]], rate, betas=(0.9, 0.95), fused=text.is_cuda
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda i: _share(i, steps))
    generator = torch.Generator().manual_seed(seed)
    losses = []
    net.train()
    for _ in range(steps):
        clock.check()
        rows = windows(text, batch, context + 1, generator)
        with torch.autocast("cuda", torch.bfloat16, enabled=text.is_cuda):
            now = loss(net, rows)
        optimiser.zero_grad()
        now.backward()
        nn.utils.clip_grad_norm_(every, CLIP)
        optimiser.step()
        schedule.step()
        losses.append(now.detach())
    net.eval()
    return float(torch.stack(losses[-max(1, steps // 10) :]).double().mean())


def _share(step: int, steps: int) -> float:
    """Of the rate: up over the first steps, then down a cosine to a tenth."""
    warm = max(1, round(WARM * steps))
    if step < warm:
        return (step + 1) / warm
    done = min(1.0, (step - warm) / max(1, steps - warm))
    return LAST + (1 - LAST) * (1 + math.cos(math.pi * done)) / 2


def windows(text: Tensor, count: int, length: int, generator: torch.Generator) -> Tensor:
    """Rows (count, length) of successive bytes from random places, as token ids."""
    starts = torch.randint(len(text) - length + 1, (count, 1), generator=generator)
    return text[starts.to(text.device) + torch.arange(length, device=text.device)].long()


def next_byte(net: nn.Module, rows: Tensor) -> Tensor:
    """Cross-entropy of each next byte."""
    logits = net(input_ids=rows[:, :-1]).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())


def taught_by(teacher: nn.Module) -> Loss:
    """KL(teacher‖network) at every position, in place of the next byte (Hinton et al. 2015)."""

    def loss(net: nn.Module, rows: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = teacher(input_ids=rows[:, :-1]).logits.flatten(0, 1).float().log_softmax(-1)
        got = net(input_ids=rows[:, :-1]).logits.flatten(0, 1).float().log_softmax(-1)
        return F.kl_div(got, wanted, reduction="batchmean", log_target=True)

    return loss


def filling_in(seed: int) -> Loss:
    """Cross-entropy of bytes to be filled in: most masked, some kept, some swapped, as in BERT."""
    generators: dict[torch.device, torch.Generator] = {}

    def loss(net: nn.Module, rows: Tensor) -> Tensor:
        rows, device = rows[:, :-1], rows.device
        if device not in generators:
            generators[device] = torch.Generator(device).manual_seed(seed)
        draw = {"generator": generators[device], "device": device}
        chosen, fate = torch.rand(2, *rows.shape, **draw)
        other = torch.randint(256, rows.shape, **draw)
        seen = torch.where(fate < 1 - KEPT, other, rows)
        seen = torch.where(fate < 1 - KEPT - SWAPPED, MASK, seen)
        asked = chosen < MASKED
        logits = net(input_ids=torch.where(asked, seen, rows)).logits
        goal = torch.where(asked, rows, -100)
        return F.cross_entropy(logits.flatten(0, 1).float(), goal.flatten())

    return loss
