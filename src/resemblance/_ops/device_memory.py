"""A GPU's memory: what this process may still take, and what it has allocated so far."""

from __future__ import annotations

import torch


def free(device: torch.device) -> int:
    """Bytes of a GPU that nobody has, and those that torch keeps for this process, unused."""
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + held


def allocated(device: torch.device | None) -> int:
    """Bytes allocated on a GPU so far, freed or not: a trial held no more than this grew by."""
    if device is None or device.type != "cuda":
        return 0
    return torch.cuda.memory_stats(device)["allocated_bytes.all.allocated"]
