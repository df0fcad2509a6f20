"""Loss functions whose gradients are recorded: tempered, with labels, or the user's own.

The default needs no labels. With p = softmax(z) and q ∝ p^β, the loss is −Σ_y q_y log p_y with q
held fixed, so its gradient at the logits is softmax(z) − softmax(βz): the expectation of the
gradient of −log p under the tempered prediction. `labels` is cross-entropy with the data's own
labels. Any function `(outputs, batch) -> (n,) losses` can be used instead. If a sample has several
predictions (tokens, pixels), its loss is their mean, or their sum where tokens are the samples.
Padding and ignored labels are excluded.

A multi-label network predicts each label independently, with p = σ(z). Its loss is the sum of the
binary cross-entropies of the labels, so the gradient is σ(z) − σ(βz), or σ(z) − y with labels.

The gradient at the logits is computed in closed form, a few positions at a time, so that no float32
copy of all logits of a language model ever exists.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .._data.batches import IGNORE_INDEX, batch_labels, num_samples, real_token_mask
from .._utils.formatting import join_names
from ..errors import DataError, TargetError
from .layer_outputs import describe_function
from .logits import LogitsReader

LossFunction = Callable[[Any, Any], Tensor]  # (outputs, batch) -> (n,)
Target = Literal["tempered", "labels"] | LossFunction

SIGMOID_SUFFIX = "-sigmoid"  # ends the names of targets of independent labels
_AT_ONCE = {"cpu": 2**20, "cuda": 2**25}  # logits that are widened to float32 at a time


class BackwardStart(NamedTuple):
    """Where a backward pass starts: a tensor, and the gradient of the summed losses at it."""

    at: Tensor
    gradient: Tensor


@dataclass(frozen=True)
class Objective:
    """A target and how to read the logits that it is about.

    The loss of a token is that of its whole sequence, `summed`: it reaches all that is predicted
    from the token, and neither how many tokens are drawn nor the sequence's length scales it.
    """

    target: Target = "tempered"
    beta: float = 0.5
    logits: LogitsReader = field(default_factory=LogitsReader)
    summed: bool = False  # over a sample's predictions, instead of their mean
    shifted: bool = False  # labels are tokens, each of which the position before it predicts
    compiled: bool = False  # labels were checked before, and all logits are widened at once

    def __post_init__(self) -> None:
        if not callable(self.target) and self.target not in ("tempered", "labels"):
            raise TargetError(
                f'target must be "tempered", "labels" or a function (outputs, batch) -> losses; '
                f"found {self.target!r}"
            )
        if not callable(self.target) and self.logits.option == "none":
            raise TargetError(
                '`logits="none"` leaves no loss to differentiate; record features only with '
                "`gradients=False`, or pass your own loss as `target=<function (outputs, batch) -> "
                "losses>`"
            )
        if self.target == "labels" and self.shifted and self.logits.independent:
            raise TargetError(
                f'`target="labels"` of a language model is the next token, one class, and '
                f'`logits="{self.logits.option}"` reads independent labels; omit one of them'
            )
        number = isinstance(self.beta, numbers.Real) and not isinstance(self.beta, bool)
        if self.target == "tempered" and number and self.beta == 1:
            raise TargetError(
                "`beta=1` makes every gradient zero, since E_p ∇log p = 0; use `beta=0.5`, or any "
                "other value from 0 to below 1"
            )
        if self.target == "tempered" and not (number and 0 <= self.beta < math.inf):
            raise TargetError(f"`beta` must be 0 or more, finite and not 1; found {self.beta!r}")

    @property
    def name(self) -> str:
        """The target as settings hold it; multi-label losses have names of their own."""
        if callable(self.target):
            return describe_function(self.target)
        return f"{self.target}{SIGMOID_SUFFIX}" if self.logits.independent else self.target

    def start(self, batch: Any, outputs: Any, scale: float = 1.0) -> BackwardStart:
        """Where to start, with the gradient times `scale`, in the dtype of the logits."""
        if callable(self.target):
            losses, count = self.target(outputs, batch), num_samples(batch)
            if not isinstance(losses, Tensor) or losses.shape != (count,):
                tensor = isinstance(losses, Tensor)
                what = f"shape {tuple(losses.shape)}" if tensor else type(losses)
                raise TargetError(
                    f"expected one loss for each of {count} samples, a tensor of shape ({count},), "
                    f"found {what}; do not average over the batch"
                )
            return BackwardStart(losses.sum(), torch.full_like(losses[0], scale))
        z = self.logits(outputs)  # (n, positions, classes)
        counted, y = real_token_mask(batch, z.shape[:2], z.device), None
        if self.target == "labels":
            y = self._labels(batch, z)
            if not self.compiled:
                self._refuse_out_of_range(y, z.shape[-1])
            if self.shifted:
                y = F.pad(y[:, 1:], (0, 1), value=IGNORE_INDEX)
            known = y != IGNORE_INDEX
            counted = counted & (known.any(-1) if self.logits.independent else known)
        if len(z) != num_samples(batch):
            raise TargetError(
                f"expected logits of {num_samples(batch)} samples, found those of {len(z)}, of "
                f"shape {tuple(z.shape)}; pass `logits=<function of the output>` that keeps "
                "samples first"
            )
        weights = counted.to(torch.promote_types(z.dtype, torch.float32))
        if not self.summed:
            weights = weights / weights.sum(1, keepdim=True).clamp_min(1)
        return BackwardStart(z, self._gradient_in_chunks(z.detach(), weights * scale, y))

    def check_labels(self, batch: Any, outputs: Any) -> None:
        """An error if labels count here and are not among those that outputs are over."""
        y = batch_labels(batch)
        if self.target == "labels" and isinstance(y, Tensor):
            self._refuse_out_of_range(y, self.logits(outputs).shape[-1])

    def _labels(self, batch: Any, z: Tensor) -> Tensor:  # (n, positions), or that of z for each
        y = batch_labels(batch)
        if y is None:
            raise TargetError(
                '`target="labels"` needs batches (inputs, labels) or dicts with a "labels" entry; '
                f"found {type(batch).__name__} without"
            )
        n, positions, classes = z.shape
        wanted = f"integer labels from 0 to {classes - 1}"
        if self.logits.independent:
            wanted = f"labels from 0 to 1 of shape ({n}, {classes})"
        try:
            y = torch.as_tensor(y).to(z.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"expected {wanted}, found {join_names(np.asarray(y), 5)}; number the classes"
            ) from error
        if self.logits.independent:
            y = y.movedim(1, -1) if y.ndim > 3 else y  # as logits of images
            if y.numel() != z.numel() or len(y) != n:
                raise DataError(
                    f"expected a label from 0 to 1 for each of {n} × {positions} × {classes} "
                    f"logits, found labels of shape {tuple(y.shape)}; pass them as multi-hot rows"
                )
            return y.reshape(z.shape).to(torch.promote_types(z.dtype, torch.float32))
        if y.is_floating_point() or y.numel() != n * positions or len(y) != n:
            raise DataError(
                f"expected one integer label for each of {n} × {positions} predictions, found "
                f"{y.dtype} labels of shape {tuple(y.shape)}; for multi-hot labels pass "
                '`logits="sigmoid"`, for other targets `target=<function (outputs, batch) -> '
                "losses>`"
            )
        return y.reshape(n, positions).long()

    def _refuse_out_of_range(self, y: Tensor, classes: int) -> None:
        independent = self.logits.independent
        wrong = (y < 0) | ((y > 1) if independent else (y >= classes))
        wrong &= y != IGNORE_INDEX
        if bool(wrong.any()):
            run = f"the model has {classes} classes, so labels run from 0 to {classes - 1}"
            raise DataError(
                f"label {y[wrong][0].item():g} is out of range: "
                + ("labels run from 0 to 1" if independent else run)
            )

    def _gradient_in_chunks(
        self,
        z: Tensor,  # (n, positions, classes)
        weights: Tensor,  # (n, positions)
        y: Tensor | None,  # (n, positions), or that of z
    ) -> Tensor:
        """Weighted gradients at all logits, in their dtype; computed in that of the weights."""
        at_once = z.numel() if self.compiled else _AT_ONCE.get(z.device.type, _AT_ONCE["cpu"])
        out = torch.empty(z.shape, dtype=z.dtype, device=z.device)
        step = max(1, at_once // z.shape[-1])
        rows = [x.flatten(0, 1).split(step) for x in (z, out)]
        labels = [None] * len(rows[0]) if y is None else y.flatten(0, 1).split(step)
        for given, into, weight, label in zip(
            *rows, weights.flatten().split(step), labels, strict=True
        ):
            gradient = self._gradient_at_logits(given.to(weight.dtype), label)
            into.copy_(gradient.mul_(weight[:, None]))
        return out

    def _gradient_at_logits(self, z: Tensor, y: Tensor | None) -> Tensor:  # (m, classes)
        """All that autograd would find at the logits of m predictions.

        Labels are (m,) classes, or (m, labels) that are independent; None for tempered predictions.
        """
        squash = torch.sigmoid if self.logits.independent else partial(F.softmax, dim=-1)
        p = squash(z)
        if y is None:
            return p.sub_(squash(z * self.beta))
        if self.logits.independent:
            return torch.where(y == IGNORE_INDEX, 0, p - y)
        return p.scatter_add_(1, y.clamp_min(0)[:, None], -torch.ones_like(p[:, :1]))
