"""Memory on a CPU: what one batch's tensors leave to the next, and what stays out of their way.

glibc gives the free end of its heap back to the system where that is more than twice the largest
block it has mapped so far, and asks for it again, page by page, at the next batch.
"""

from __future__ import annotations

import mmap
import os

import torch
from torch import Tensor

_LARGEST = 2**25 - 2**16  # bytes of a block whose freeing still teaches glibc something
_LARGE = 2**20  # bytes of a table


def keep_between_batches() -> None:
    """Have glibc keep up to 64 MB at the end of its heap, for as long as the process lives.

    A block that nothing is written into takes no memory. Elsewhere this does nothing.
    """
    torch.empty(_LARGEST, dtype=torch.uint8, device="cpu")


def zeros_apart(rows: int, width: int) -> Tensor:
    """Zeros in float32; a large table lies in pages of its own.

    Among the tensors of a network, which come and go with every batch, it would keep the C library
    from using their memory again.
    """
    size = 4 * rows * width
    if size < _LARGE:
        return torch.zeros(rows, width, device="cpu")
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}
    return torch.frombuffer(mmap.mmap(-1, size, **private), dtype=torch.float32).view(rows, width)
