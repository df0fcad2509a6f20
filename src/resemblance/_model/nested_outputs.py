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
    return _swap(output, first_tensor(output), new)


def _swap(value: Any, old: Tensor | None, new: Tensor) -> Any:
    # Not nested in swap_first: a function that refers to itself would keep both tensors until the
    # garbage collector comes by.
    if value is old:
        return new
    if _is_record(value):
        given = [field.name for field in dataclasses.fields(value) if field.init]
        swapped = {key: _swap(getattr(value, key), old, new) for key in given}
        return dataclasses.replace(value, **swapped)
    if isinstance(value, MutableMapping):
        out = copy.copy(value)  # keeps the type, a default factory, the order
        for key, item in value.items():
            out[key] = _swap(item, old, new)
        return out
    if isinstance(value, tuple | list):
        items = [_swap(item, old, new) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def sample_axis(tensor: Tensor, count: int, *, usual: int) -> int | None:
    """Which of the first two axes holds `count` samples; `usual` where both could, None if neither.

    Recurrent layers and older transformers are time-major: (time, samples, width).
    """
    fitting = [axis for axis in (0, 1) if tensor.ndim > axis and tensor.shape[axis] == count]
    if len(fitting) == 2:
        return usual
    return fitting[0] if fitting else None
