"""Outputs: what a network predicted for the samples of its blocks, as far as a file keeps it.

Up to 1,024 classes every probability is kept. Beyond, of each sample the 32 most likely classes and
the probability that falls into each of 256 groups of classes, which are a function of the class
alone, so that any two files have the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from .._by_content import by_content
from .._seeded_random import GROUP, below, bits

ALL_UP_TO, TOP, GROUPS = 1024, 32, 256


@by_content
@dataclass(frozen=True, eq=False)
class Outputs:
    """Log-probabilities of each row of the blocks, in their order; natural logarithms."""

    classes: int
    every: Tensor | None = None  # (rows, classes) float32
    top: Tensor | None = None  # (rows, 32) int64: the most likely classes, the likeliest first
    top_log_p: Tensor | None = None  # (rows, 32) float32
    groups: Tensor | None = None  # (rows, 256) float32: of each group
    others: Tensor | None = None  # (rows, 32) int64: classes that another network had at its top
    others_log_p: Tensor | None = None  # (rows, 32) float32: what this one gives them
    labels: Tensor | None = None  # (rows,) int64: the right class, -1 where that is not known

    @property
    def rows(self) -> int:
        return len(self.first)

    @property
    def first(self) -> Tensor:
        """A tensor with a row for each sample."""
        found = self.every if self.every is not None else self.top
        assert found is not None
        return found

    @property
    def prediction(self) -> Tensor:  # (rows,) int64
        """The most likely class."""
        if self.every is not None:
            return self.every.argmax(1)
        assert self.top is not None
        return self.top[:, 0]

    def tensors(self) -> dict[str, Tensor]:
        """Those that there are, by name."""
        found = ((field.name, getattr(self, field.name)) for field in fields(self)[1:])
        return {name: x for name, x in found if x is not None}


def joined(parts: Sequence[Outputs | None], order: Tensor | None = None) -> Outputs | None:
    """Outputs one after the other, their rows in an order; None if some are not known."""
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts) or len({part.classes for part in known}) > 1:
        return None
    names = set.intersection(*(set(part.tensors()) for part in known))
    every = {name: torch.cat([part.tensors()[name] for part in known]) for name in names}
    if order is not None:
        every = {name: x[order.to(x.device)] for name, x in every.items()}
    return Outputs(known[0].classes, **every)


def group_of(classes: int) -> Tensor:  # (classes,) int64
    """The group that each class belongs to, the same in every file."""
    return torch.from_numpy(below(bits(0, GROUP, np.arange(classes)), GROUPS))
