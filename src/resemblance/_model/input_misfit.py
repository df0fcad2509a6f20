"""Why a model fails on its first samples: what its weights are, what the inputs are, what to do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._data.batches import inputs_of, leaves
from ..errors import DataError, first_line


def misfit(model: nn.Module, batch: Any, error: Exception) -> DataError:
    """An error that sets the model's first weights against the inputs it was given."""
    name, weight = next(iter(model.named_parameters()), ("", None))
    parts = leaves(inputs_of(batch))
    inputs = [part for part in parts if isinstance(part, Tensor)]
    found = ", ".join(_described(part) for part in inputs) or type(inputs_of(batch)).__name__
    wanted, remedy = "it has no weights", _OTHERWISE
    if weight is not None:
        wanted = f"its first weights, {name!r}, are {_short(weight)} {tuple(weight.shape)}"
        looked_up = any(isinstance(module, nn.Embedding) for module in model.modules())
        if any(part.dtype != weight.dtype for part in inputs) and not looked_up:
            scaled = " and divide by 255" if inputs[0].dtype == torch.uint8 else ""
            remedy = f"convert the inputs to {_short(weight)}{scaled}, or the model to their type"
    return DataError(
        f"{type(model).__name__} fails on the first samples ({first_line(error)}): {wanted}, and "
        f"an input is {found}; {remedy}"
    )


_OTHERWISE = (
    "give it inputs as it takes them, or pass call=<function (model, batch)>, which runs it"
)


def _short(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _described(x: Tensor) -> str:
    return f"{_short(x)} {tuple(x.shape[1:])}"
