"""Copies to and from a device that keep nobody waiting."""

from __future__ import annotations

import torch
from torch import Tensor


def without_waiting(x: Tensor, device: torch.device) -> Tensor:
    """A host tensor on the device, copied in turn with its other work while the host goes on."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)


def on_the_way(x: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """A tensor's copy on the host, and what to wait for before reading it."""
    if not x.is_cuda:
        return x, None
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    host.copy_(x, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()
    return host, arrived
