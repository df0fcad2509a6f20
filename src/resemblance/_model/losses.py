"""What is differentiated: a loss for each sample, from a model's outputs.

The default needs no label. With p = softmax(z) and q ∝ p^β, the loss is −Σ_y q_y log p_y with q
held fixed, so at the logits its gradient is softmax(z) − softmax(βz): the expectation, over the
tempered prediction, of the gradient of −log p. `labels` is cross-entropy with the data's own
labels, and any function `(outputs, batch) -> (n,) losses` will do instead. Where a sample has many
predictions (tokens, pixels), its loss is their mean, without padding and ignored labels.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .._data.batches import IGNORED, attention_mask, labels_of, size
from .._data.labels import some
from ..errors import DataError, TargetError
from .nested_outputs import first_tensor
from .pooling import called

FindLogits = Callable[[Any], Tensor]
Losses = Callable[[Any, Any], Tensor]  # (outputs, batch) -> (n,)
Target = Literal["tempered", "labels"] | Losses


@dataclass(frozen=True)
class Objective:
    """A target and how to find the logits that it is about."""

    target: Target = "tempered"
    beta: float = 0.5
    logits: FindLogits | None = None

    def __post_init__(self) -> None:
        if not callable(self.target) and self.target not in ("tempered", "labels"):
            raise TargetError(
                f'target must be "tempered", "labels" or a function (outputs, batch) -> losses; '
                f"found {self.target!r}"
            )
        if not (self.logits is None or callable(self.logits)):
            raise TargetError(
                f"logits must be a function of the model's output; found {self.logits!r}"
            )
        number = isinstance(self.beta, numbers.Real) and not isinstance(self.beta, bool)
        if self.target == "tempered" and number and self.beta == 1:
            raise TargetError(
                "beta=1 makes every gradient zero, since E_p ∇log p = 0; use beta=0.5, or any "
                "other value from 0 to below 1"
            )
        if self.target == "tempered" and not (number and 0 <= self.beta < math.inf):
            raise TargetError(f"beta must be 0 or more, finite and not 1; found {self.beta!r}")

    @property
    def name(self) -> str:
        """Of the target, as it stands in settings."""
        return called(self.target) if callable(self.target) else self.target

    def losses(self, outputs: Any, batch: Any) -> Tensor:  # (n,)
        if callable(self.target):
            found = self.target(outputs, batch)
        elif self.target == "tempered":
            found = _tempered(self._scores(outputs), batch, self.beta)
        else:
            found = _labelled(self._scores(outputs), batch)
        count = size(batch)
        if not isinstance(found, Tensor) or found.shape != (count,):
            what = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found)
            raise TargetError(
                f"expected one loss for each of {count} samples, a tensor of shape ({count},), "
                f"found {what}; do not average over the batch"
            )
        return found

    def refuse_probabilities(self, outputs: Any) -> None:
        """An error if the logits are probabilities already, which would be tempered twice."""
        if callable(self.target):
            return
        z = self._scores(outputs).detach()
        if bool((z >= 0).all()) and bool(((z.sum(-1) - 1).abs() < 1e-3).all()):
            raise TargetError(
                "expected logits, found values that are positive and sum to one: the model seems "
                "to end in a softmax; pass logits=lambda p: p.log()"
            )

    def _scores(self, outputs: Any) -> Tensor:  # (n, positions, classes)
        z = (self.logits or find_logits)(outputs)
        if not isinstance(z, Tensor):
            raise TargetError(f"logits= must give a tensor; found {type(z).__name__}")
        return _by_position(z)


def _tempered(z: Tensor, batch: Any, beta: float) -> Tensor:
    each = -(F.softmax(beta * z.detach(), -1) * F.log_softmax(z, -1)).sum(-1)
    return _mean_over_positions(each, batch)


def _labelled(z: Tensor, batch: Any) -> Tensor:
    log_p = F.log_softmax(z, -1)
    y = _checked_labels(batch, log_p)
    each = -log_p.gather(-1, y.clamp_min(0)[..., None])[..., 0]
    return _mean_over_positions(each, batch, y != IGNORED)


def _mean_over_positions(each: Tensor, batch: Any, counted: Tensor | None = None) -> Tensor:
    mask = attention_mask(batch)
    if mask is None or mask.shape != each.shape:
        mask = torch.ones_like(each)
    weights = mask.to(each) if counted is None else mask.to(each) * counted
    return (each * weights).sum(1) / weights.sum(1).clamp_min(1)  # (n, positions) -> (n,)


def find_logits(outputs: Any) -> Tensor:
    """A tensor itself, `.logits` or `["logits"]`, or the first tensor of a tuple or list."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping) and "logits" in outputs:
        return outputs["logits"]
    if isinstance(getattr(outputs, "logits", None), Tensor):
        return outputs.logits
    found = first_tensor(outputs) if isinstance(outputs, tuple | list) else None
    if found is None:
        raise TargetError(
            f"found no logits in the model's output ({type(outputs).__name__}): expected a tensor, "
            "something with .logits, or a tuple that begins with them. Pass logits=<function of "
            "the output>, or record features alone with gradients=False"
        )
    return found


def _by_position(z: Tensor) -> Tensor:  # -> (n, positions, classes), float32 or better
    """Logits (n, classes), (n, tokens, classes) or (n, classes, height, width) in one shape."""
    shape = tuple(z.shape)
    if z.ndim > 3:  # images of logits, as cross_entropy takes them
        z = z.movedim(1, -1)
    if z.ndim < 2 or z.shape[-1] < 2:
        raise TargetError(
            f"expected logits over two or more classes, found an output of shape {shape}. One "
            "output a sample is a regression head (whose tempered gradient is zero for every beta) "
            "or a single binary logit: pass target=<function (outputs, batch) -> losses>; for a "
            "binary logit z also logits=lambda z: torch.cat([torch.zeros_like(z), z], 1); or "
            "gradients=False"
        )
    z = z.flatten(1, -2) if z.ndim > 2 else z[:, None]
    return z.to(torch.promote_types(z.dtype, torch.float32))


def _checked_labels(batch: Any, log_p: Tensor) -> Tensor:  # -> (n, positions)
    y = labels_of(batch)
    if y is None:
        raise TargetError(
            'target="labels" needs batches (inputs, labels) or dicts with a "labels" entry; '
            f"found {type(batch).__name__} without"
        )
    n, positions, classes = log_p.shape
    try:
        y = torch.as_tensor(y).to(log_p.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"expected integer labels from 0 to {classes - 1}, found {some(np.asarray(y))}; number "
            "the classes"
        ) from error
    if y.is_floating_point() or y.numel() != n * positions or len(y) != n:
        raise DataError(
            f"expected one integer label for each of {n} × {positions} predictions, found "
            f"{y.dtype} labels of shape {tuple(y.shape)}; for other targets pass "
            "target=<function (outputs, batch) -> losses>"
        )
    y = y.reshape(n, positions).long()
    wrong = (y != IGNORED) & ((y < 0) | (y >= classes))
    if bool(wrong.any()):
        raise DataError(
            f"label {int(y[wrong][0])} is out of range: the model has {classes} classes, "
            f"so labels run from 0 to {classes - 1}"
        )
    return y
