"""Outputs that only look like logits: what speaks against taking a softmax of them.

Anything with two or more columns could be logits. Labels that are real numbers, a configuration
that says so, an output in the shape of the input, vectors of length one and an activation at the
end say that it is a regression, an image, an embedding or something else, whose softmax would mean
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._data.batches import inputs_of, labels_of, leaves
from ..errors import TargetError
from .call_trace import Call

# activations after which a last layer gives no logits; of a softmax there is a word elsewhere
_ENDS = ("ReLU", "ReLU6", "Sigmoid", "Hardsigmoid", "Tanh", "Hardtanh", "Softplus", "GELU", "SiLU")


def refuse(model: nn.Module, batch: Any, z: Tensor, calls: Sequence[Call]) -> None:
    """An error if something says that what convention takes for logits is none."""
    what = objection(model, batch, z, calls)
    if what is not None:
        raise TargetError(
            f"expected logits over classes, found an output of shape {tuple(z.shape)} that seems "
            f"to be none: {what}. If it is, pass logits=lambda z: z; else pass target=<function "
            "(outputs, batch) -> losses>, or record features alone with gradients=False"
        )


def objection(model: nn.Module, batch: Any, z: Tensor, calls: Sequence[Call]) -> str | None:
    """What speaks against logits, in words; None if nothing does."""
    if getattr(getattr(model, "config", None), "problem_type", None) == "regression":
        return "the model's configuration says that it is for regression"
    labels = labels_of(batch)
    real = isinstance(labels, Tensor | np.ndarray) and torch.as_tensor(labels).is_floating_point()
    if real and torch.as_tensor(labels).shape == z.shape:
        return "the labels have its shape and are real numbers, as for regression"
    inputs = [x for x in leaves(inputs_of(batch)) if isinstance(x, Tensor | np.ndarray)]
    if z.ndim > 2 and any(tuple(x.shape) == tuple(z.shape) for x in inputs):
        return "it has the shape of the input, as an image or a sequence made again has"
    lengths = torch.linalg.vector_norm(z.detach().double().flatten(0, -2), dim=-1)
    if z.shape[-1] > 2 and bool(((lengths - 1).abs() < 1e-3).all()):
        return "its vectors have length one, as embeddings have"
    last = max((call for call in calls if call.leaf), key=lambda call: call.ended, default=None)
    if last is not None and last.kind in _ENDS and last.shape == tuple(z.shape):
        return f"the model ends in {last.kind}"
    return None
