"""Copies that were made by training: tuned, distilled, or given a LoRA adapter that was merged.

Both kinds of network of `copies` are trained by the one loop here, on any data that can be indexed,
by a loss of their own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

Loss = Callable[[nn.Module, Tensor], Tensor]  # of a network on the rows of these numbers


def trained(
    net: nn.Module, loss: Loss, *, rows: int, steps: int, batch: int, rate: float, seed: int
) -> nn.Module:
    """A copy after so many steps of AdamW on rows drawn at random, the rate falling to zero."""
    net = copy.deepcopy(net).train()
    generator = torch.Generator().manual_seed(seed)
    weights = [weight for weight in net.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(weights, rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(net, torch.randint(rows, (batch,), generator=generator)).backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        schedule.step()
    return net.eval()


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL of a student's predictions from its teacher's, both softened."""
    flat = [(z / temperature).log_softmax(-1).flatten(0, -2) for z in (teacher, student)]
    return nn.functional.kl_div(flat[1], flat[0], log_target=True, reduction="batchmean")


def with_adapter(net: nn.Module, layers: list[str], seed: int) -> nn.Module:
    """A copy with a LoRA adapter of rank 4 at each of these layers, and nothing else to train."""
    from peft import LoraConfig, get_peft_model

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        how = LoraConfig(r=4, lora_alpha=16, target_modules=layers)
        return get_peft_model(copy.deepcopy(net), how)
