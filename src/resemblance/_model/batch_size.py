"""How many samples a forward pass takes where the user leaves it open.

On a GPU small batches waste time and large ones run out of memory, so the size follows from what a
trial allocated for a sample and from what is free. Results do not depend on it.
"""

from __future__ import annotations

import torch

from .._ops.device_memory import free

USUAL, _LARGEST, _TOKENS = 128, 4096, 4096


def fitting(block: int, each: int, free: int) -> int:
    """The most samples that take half of `free` bytes at `each`, in whole blocks if that is one.

    >>> fitting(128, each=100 * 2**20, free=64 * 2**30), fitting(128, each=2**30, free=2**33)
    (256, 4)
    """
    samples = max(1, min(free // 2 // max(each, 1), _LARGEST))
    return samples // block * block or samples


def chosen(
    device: torch.device | None, block: int, each: int, deterministic: bool, length: int = 1
) -> int:
    """The batch size for samples that allocate `each` bytes, 0 if that is not known.

    It is fixed where runs are to agree bit for bit, as free memory varies: 128 samples, or as many
    sequences of `length` as have 4,096 tokens.
    """
    if device is None or device.type != "cuda" or deterministic or not each:
        return max(USUAL, block) if length == 1 else max(1, _TOKENS // length)
    return fitting(block, each, free(device))
