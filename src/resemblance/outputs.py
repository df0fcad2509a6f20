"""The tensor inside whatever a module returns: found, replaced, turned batch first.

Modules return tensors, tuples, lists, dicts and dataclass-like outputs. What is recorded is the
first floating-point tensor in them.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, MutableMapping
from typing import Any

from torch import Tensor


def first_tensor(output: Any) -> Tensor | None:
    """The first floating-point tensor in a tensor, tuple, list, dict or dataclass.

    >>> import torch
    >>> first_tensor((torch.tensor([1, 2]), {"h": torch.tensor([0.5])}))
    tensor([0.5000])
    """
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    for value in _children(output):
        found = first_tensor(value)
        if found is not None:
            return found
    return None


def _children(output: Any) -> list[Any]:
    if isinstance(output, Mapping):
        return list(output.values())
    if isinstance(output, tuple | list):
        return list(output)
    if _is_record(output):
        return [getattr(output, field.name) for field in dataclasses.fields(output)]
    return []


def _is_record(output: Any) -> bool:
    return dataclasses.is_dataclass(output) and not isinstance(output, type)


def swap_first(output: Any, new: Tensor) -> Any:
    """A copy of `output` in which its first floating-point tensor is `new`, wherever it stands."""
    old = first_tensor(output)

    def swap(value: Any) -> Any:
        if value is old:
            return new
        if _is_record(value):
            given = [field.name for field in dataclasses.fields(value) if field.init]
            return dataclasses.replace(value, **{key: swap(getattr(value, key)) for key in given})
        if isinstance(value, MutableMapping):
            out = copy.copy(value)  # keeps the type, a default factory, the order
            for key, item in value.items():
                out[key] = swap(item)
            return out
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(swap, value))
        if isinstance(value, tuple | list):
            return type(value)(map(swap, value))
        return value

    return swap(output)


def sample_axis(tensor: Tensor, count: int, *, usual: int) -> int | None:
    """Which of the first two axes holds `count` samples; `usual` where both could, None if neither.

    Recurrent layers and older transformers are time-major: (time, samples, width).
    """
    fitting = [axis for axis in (0, 1) if tensor.ndim > axis and tensor.shape[axis] == count]
    if len(fitting) == 2:
        return usual
    return fitting[0] if fitting else None
