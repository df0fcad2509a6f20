"""Rows that come a few at a time and are kept side by side."""

from __future__ import annotations

import torch
from torch import Tensor


class Rows:
    """Rows that come a few at a time, side by side in memory that doubles when it is full.

    A list of small pieces would fragment the heap: strewn among a network's tensors, which come and
    go, they would keep the C library from using the gaps between them again.
    """

    def __init__(self) -> None:
        self._rows, self._count = torch.empty(0), 0

    def append(self, new: Tensor) -> None:
        total = self._count + len(new)
        if not self._count:
            self._rows = new
        elif total > len(self._rows):
            full, self._rows = self._rows, new.new_empty(2 * total, *new.shape[1:])
            self._rows[: self._count] = full[: self._count]
        if self._count:
            self._rows[self._count : total] = new
        self._count = total

    def __len__(self) -> int:
        return self._count

    def whole(self) -> Tensor:
        return self._rows[: self._count].clone()
