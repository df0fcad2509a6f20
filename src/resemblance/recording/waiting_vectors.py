"""Where vectors wait for the rest of their block: on their device, or where room ends on the host.

Nothing depends on where: they are kept exactly, in the dtype they came in.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._ops.device_memory import free

_LEAST = 2**31  # bytes on a device, of all layers together


class WaitingRoom:
    """The room on one device that the layers of a pass share.

    On a GPU it is a quarter of what is free as the first vectors come, and 2 GiB at least.
    """

    def __init__(self, room: int | None = None) -> None:
        self._left = room

    def taken_in(self, x: Tensor) -> Tensor:
        """The tensor where it lies, or a copy on the host where there is no more room for it."""
        if x.device.type == "cpu":
            return x
        if self._left is None:
            self._left = max(_LEAST, free(x.device) // 4) if x.is_cuda else _LEAST
        if x.nbytes <= self._left:
            self._left -= x.nbytes
            return x
        return x.cpu()

    def back(self, x: Tensor, device: torch.device) -> Tensor:
        """The tensor on its device, which makes room for others."""
        if self._left is not None and x.device.type != "cpu":
            self._left += x.nbytes
        return x.to(device, non_blocking=True)
