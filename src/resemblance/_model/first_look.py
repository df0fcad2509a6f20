"""What the first samples of a pass show of a model: that gradients come, and that it is steady.

A GPU that is at work on a batch is not waited for: what was seen is read when the next one is under
way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from .._ops.device_copies import sent_home
from ..errors import TargetError
from .capture import Consume
from .unsteady_outputs import Steadiness

_ENOUGH = 32  # samples, none of which has a gradient anywhere


class FirstLook:
    """Watch batches with `noting`, say when each `ran`, and `end`: what is wrong is said there."""

    def __init__(
        self,
        steadiness: Steadiness,
        seen: list[Tensor] | None,  # of a run on `steadiness.alike`; None makes one
        device: torch.device | None,
        *,
        gradients: bool,
    ) -> None:
        self._steadiness, self._seen = steadiness, seen
        self._ahead = int(device is not None and device.type == "cuda")  # batches of what is read
        self._reached = not gradients
        self._some: list[Tensor] = []  # whether gradients are anything but zeros
        self._batches = self._samples = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()  # since which batch

    def noting(self, consume: Consume) -> Consume:
        """The same, which notes gradients until there was one."""

        def note(i: int, features: Tensor, gradients: Tensor | None) -> None:
            if gradients is not None:
                self._some.append((gradients != 0).any())
            consume(i, features, gradients)

        return consume if self._reached else note

    def ran(self, samples: int) -> None:
        """A batch of so many went there and back, or is on its way."""
        self._batches += 1
        self._samples += samples
        if self._batches == 1:
            seen = self._steadiness.again() if self._seen is None else self._seen
            self._waiting.append((1, partial(self._steadiness.check, seen)))
        if not self._reached:
            judge = partial(self._judge, self._samples, sent_home(self._some))
            self._waiting.append((self._batches, judge))
            self._some = []
        self._read(self._batches - self._ahead)

    def end(self) -> None:
        """There are no more batches."""
        self._read(self._batches)
        if self._samples and not self._reached:
            raise TargetError(_NO_GRADIENT)

    def _read(self, batches: int) -> None:
        while self._waiting and self._waiting[0][0] <= batches:
            self._waiting.popleft()[1]()

    def _judge(self, samples: int, found: Callable[[], list[Tensor]]) -> None:
        self._reached = self._reached or any(map(bool, found()))
        if not self._reached and samples >= _ENOUGH:
            raise TargetError(_NO_GRADIENT)


_NO_GRADIENT = (
    "the gradient of the loss is zero at every layer: nothing but zeros would be recorded; check "
    "the target, or record features alone with gradients=False"
)
