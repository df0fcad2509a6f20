"""What is differentiated: a loss for each sample, from a model's outputs.

The default needs no label. With p = softmax(z) and q ∝ p^β, the loss is −Σ_y q_y log p_y with q
held fixed, so at the logits its gradient is softmax(z) − softmax(βz): the expectation, over the
tempered prediction, of the gradient of −log p. `labels` is cross-entropy with the data's own
labels, and any function `(outputs, batch) -> (n,) losses` will do instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .capture import first_tensor
from .data import attention_mask, labels_of
from .errors import DataError, TargetError

Losses = Callable[[Any, Any], Tensor]  # (outputs, batch) -> (n,)
Target = str | Losses


def losses(target: Target, beta: float, logits: Callable[[Any], Tensor] | None) -> Losses:
    """The function from (outputs, batch) to one loss a sample that `target` names."""
    if callable(target):
        return target
    if target not in ("tempered", "labels"):
        raise TargetError(
            f'target must be "tempered", "labels" or a function (outputs, batch) -> losses; '
            f"found {target!r}"
        )
    if target == "tempered" and beta == 1:
        raise TargetError(
            "beta=1 makes every gradient zero, since E_p ∇log p = 0; use beta=0.5, or any other "
            "value from 0 to below 1"
        )
    if target == "tempered" and not 0 <= beta:
        raise TargetError(f"beta must be 0 or more and not 1; found {beta}")
    find = logits or find_logits

    def tempered_or_labels(outputs: Any, batch: Any) -> Tensor:
        z = find(outputs)
        classes = z.shape[1] if z.ndim == 4 else z.shape[-1]
        if z.ndim < 2 or classes < 2:
            raise TargetError(
                f"expected logits over two or more classes, found an output of shape "
                f"{tuple(z.shape)}. One output a sample is a regression head (whose tempered "
                "gradient is zero for every beta) or a single binary logit: pass "
                "target=<function (outputs, batch) -> losses>; for a binary logit z also "
                "logits=lambda z: torch.cat([torch.zeros_like(z), z], 1); or gradients=False"
            )
        z = z.float()
        if z.ndim == 4:  # an image of logits (n, classes, h, w), as cross_entropy takes it
            z = z.movedim(1, -1)
        z = z.flatten(1, -2) if z.ndim > 2 else z[:, None]  # (n, positions, classes)
        log_p = F.log_softmax(z, -1)
        if target == "tempered":
            each = -(F.softmax(beta * z.detach(), -1) * log_p).sum(-1)
        else:
            y = _checked_labels(batch, log_p)
            each = F.nll_loss(log_p.flatten(0, 1), y.flatten(), reduction="none", ignore_index=-100)
            each = each.view(y.shape)
        return _mean_over_positions(each, attention_mask(batch))

    return tempered_or_labels


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


def refuse_probabilities(outputs: Any, logits: Callable[[Any], Tensor] | None) -> None:
    """An error if what should be logits is already a probability, which would be tempered twice."""
    z = (logits or find_logits)(outputs).detach().float()
    if z.ndim == 2 and z.shape[1] > 1 and (z >= 0).all():
        if torch.allclose(z.sum(1), torch.ones(len(z), device=z.device), atol=1e-3):
            raise TargetError(
                "expected logits, found rows that are positive and sum to one: the model seems to "
                "end in a softmax; pass logits=lambda p: p.log()"
            )


def _checked_labels(batch: Any, log_p: Tensor) -> Tensor:  # -> (n, positions)
    y = labels_of(batch)
    if y is None:
        raise TargetError(
            'target="labels" needs batches (inputs, labels) or dicts with a "labels" entry; '
            f"found {type(batch).__name__} without"
        )
    y = torch.as_tensor(y).to(log_p.device)
    if y.is_floating_point() or y.numel() != log_p.shape[0] * log_p.shape[1]:
        raise DataError(
            f"expected one integer label for each of {log_p.shape[0]} × {log_p.shape[1]} "
            f"predictions, found {y.dtype} labels of shape {tuple(y.shape)}; for other targets pass "
            "target=<function (outputs, batch) -> losses>"
        )
    y = y.reshape(log_p.shape[:2]).long()
    wrong = (y != -100) & ((y < 0) | (y >= log_p.shape[-1]))
    if wrong.any():
        raise DataError(
            f"label {int(y[wrong][0])} is out of range: the model has {log_p.shape[-1]} classes, "
            f"so labels run from 0 to {log_p.shape[-1] - 1}"
        )
    return y


def _mean_over_positions(each: Tensor, mask: Tensor | None) -> Tensor:  # (n, positions) -> (n,)
    if mask is None or mask.shape != each.shape:
        return each.mean(1)
    mask = mask.to(each)
    return (each * mask).sum(1) / mask.sum(1).clamp_min(1)
