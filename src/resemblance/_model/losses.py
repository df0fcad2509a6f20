"""What is differentiated: a loss for each sample, from a model's outputs, and its gradient there.

The default needs no label. With p = softmax(z) and q ∝ p^β, the loss is −Σ_y q_y log p_y with q
held fixed, so at the logits its gradient is softmax(z) − softmax(βz): the expectation, over the
tempered prediction, of the gradient of −log p. `labels` is cross-entropy with the data's own
labels, and any function `(outputs, batch) -> (n,) losses` will do instead. Where a sample has many
predictions (tokens, pixels), its loss is their mean, or their sum where tokens are the samples,
without padding and ignored labels.

The gradient at the logits is written down rather than found: a few positions at a time, so that no
float32 copy of all logits of a language model ever exists.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .._data.batches import IGNORED, labels_of, real_positions, size
from .._data.labels import some
from ..errors import DataError, TargetError
from .nested_outputs import first_tensor
from .pooling import called

FindLogits = Callable[[Any], Tensor]
Losses = Callable[[Any, Any], Tensor]  # (outputs, batch) -> (n,)
AtLogits = Callable[[Tensor, "Tensor | None"], Tensor]  # logits, labels -> the gradient there
Target = Literal["tempered", "labels"] | Losses

_AT_ONCE = {"cpu": 2**20, "cuda": 2**25}  # logits that are widened to float32 at a time


class Start(NamedTuple):
    """Where a backward pass starts: a tensor, and the gradient of the summed losses at it."""

    at: Tensor
    gradient: Tensor


@dataclass(frozen=True)
class Objective:
    """A target and how to find the logits that it is about."""

    target: Target = "tempered"
    beta: float = 0.5
    logits: FindLogits | None = None
    summed: bool = False  # over a sample's predictions, instead of their mean
    shifted: bool = False  # labels are tokens, each of which the position before it predicts
    compiled: bool = False  # labels were checked before, and all logits are widened at once

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
    def by_convention(self) -> bool:
        """Whether nobody said what the logits are."""
        return self.logits is None and not callable(self.target)

    @property
    def name(self) -> str:
        """Of the target, as it stands in settings."""
        return called(self.target) if callable(self.target) else self.target

    def start(self, batch: Any, outputs: Any, scale: float = 1.0) -> Start:
        """Where to start, with the gradient times `scale`, in the dtype of the logits."""
        if callable(self.target):
            losses = self._checked(self.target(outputs, batch), size(batch))
            return Start(losses.sum(), torch.full_like(losses[0], scale))
        z = self._scores(outputs)  # (n, positions, classes)
        counted, y = real_positions(batch, z.shape[:2], z.device), None
        if self.target == "labels":
            y = _labels(batch, z)
            if not self.compiled:
                _refuse_out_of_range(y, z.shape[-1])
            if self.shifted:
                y = F.pad(y[:, 1:], (0, 1), value=IGNORED)
            counted = counted & (y != IGNORED)
        if len(z) != size(batch):
            raise TargetError(
                f"expected logits of {size(batch)} samples, found those of {len(z)}, of shape "
                f"{tuple(z.shape)}; pass logits=<function of the output> that keeps samples first"
            )
        weights = counted.to(torch.promote_types(z.dtype, torch.float32))
        if not self.summed:
            weights = weights / weights.sum(1, keepdim=True).clamp_min(1)
        at_logits: dict[str, AtLogits] = {
            "tempered": partial(_tempered, beta=self.beta),
            "labels": _labelled,
        }
        at_once = z.numel() if self.compiled else _AT_ONCE.get(z.device.type, _AT_ONCE["cpu"])
        return Start(z, _gradient(at_logits[self.target], z.detach(), weights * scale, y, at_once))

    def check_labels(self, batch: Any, outputs: Any) -> None:
        """An error if labels count here and are not among the classes that outputs are over."""
        y = labels_of(batch)
        if self.target == "labels" and isinstance(y, Tensor):
            _refuse_out_of_range(y, self._scores(outputs).shape[-1])

    def _checked(self, found: Any, count: int) -> Tensor:  # (n,)
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
        if are_probabilities(self._scores(outputs)):
            raise TargetError(
                "expected logits, found values that are positive and sum to one: the model seems "
                "to end in a softmax; pass logits=lambda p: p.log()"
            )

    def _scores(self, outputs: Any) -> Tensor:  # (n, positions, classes)
        z = (self.logits or find_logits)(outputs)
        if not isinstance(z, Tensor):
            raise TargetError(f"logits= must give a tensor; found {type(z).__name__}")
        return by_position(z)


def _tempered(z: Tensor, _: Tensor | None, *, beta: float) -> Tensor:  # (m, classes)
    """The gradient at the logits of m predictions: all that autograd would find."""
    return F.softmax(z, -1).sub_(F.softmax(z * beta, -1))


def _labelled(z: Tensor, y: Tensor | None) -> Tensor:  # (m, classes), (m,)
    assert y is not None
    p = F.softmax(z, -1)
    return p.scatter_add_(1, y.clamp_min(0)[:, None], -torch.ones_like(p[:, :1]))


def _gradient(
    at_logits: AtLogits,
    z: Tensor,  # (n, positions, classes)
    weights: Tensor,  # (n, positions)
    y: Tensor | None,  # (n, positions)
    at_once: int,  # logits
) -> Tensor:
    """Weighted gradients at all logits, in their dtype; computed in that of the weights."""
    out = torch.empty(z.shape, dtype=z.dtype, device=z.device)
    step = max(1, at_once // z.shape[-1])
    rows = [x.flatten(0, 1).split(step) for x in (z, out)]
    labels = [None] * len(rows[0]) if y is None else y.flatten().split(step)
    for given, into, weight, label in zip(
        *rows, weights.flatten().split(step), labels, strict=True
    ):
        into.copy_(at_logits(given.to(weight.dtype), label).mul_(weight[:, None]))
    return out


def are_probabilities(z: Tensor) -> bool:  # (n, positions, classes)
    """Whether values are positive and sum to one."""
    z = z.detach()[:, :8].double()
    return bool((z >= 0).all()) and bool(((z.sum(-1) - 1).abs() < 1e-3).all())


def find_logits(outputs: Any) -> Tensor:
    """A tensor itself, `.logits`, `["logits"]` or `["out"]`, or the first of a tuple or list."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping):  # of the libraries' own: "out" of a segmentation network
        named = next((outputs[key] for key in ("logits", "out") if key in outputs), None)
        if isinstance(named, Tensor):
            return named
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


def by_position(z: Tensor) -> Tensor:  # -> (n, positions, classes)
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
    return z.flatten(1, -2) if z.ndim > 2 else z[:, None]


def _labels(batch: Any, z: Tensor) -> Tensor:  # -> (n, positions)
    y = labels_of(batch)
    if y is None:
        raise TargetError(
            'target="labels" needs batches (inputs, labels) or dicts with a "labels" entry; '
            f"found {type(batch).__name__} without"
        )
    n, positions, classes = z.shape
    try:
        y = torch.as_tensor(y).to(z.device)
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
    return y.reshape(n, positions).long()


def _refuse_out_of_range(y: Tensor, classes: int) -> None:
    wrong = (y != IGNORED) & ((y < 0) | (y >= classes))
    if bool(wrong.any()):
        raise DataError(
            f"label {int(y[wrong][0])} is out of range: the model has {classes} classes, "
            f"so labels run from 0 to {classes - 1}"
        )
