"""The tensor inside whatever a module returns: found, replaced, and where its samples are.

Modules return tensors, tuples, lists, dicts and dataclass-like outputs. What is recorded is the
first floating-point tensor in them.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor

from .._data.batches import sequence_like


def first_tensor(output: Any) -> Tensor | None:
    """The first floating-point tensor in a tensor, tuple, list, dict or dataclass.

    >>> import torch
    >>> first_tensor((torch.tensor([1, 2]), {"h": torch.tensor([0.5])}))
    tensor([0.5000])
    """
    return next(tensors(output), None)


def tensors(output: Any) -> Iterator[Tensor]:
    """All floating-point tensors in it, in order."""
    if not isinstance(output, Tensor):
        for value in _children(output):
            yield from tensors(value)
    elif output.is_floating_point():
        yield output


def _children(output: Any) -> Iterable[Any]:
    if isinstance(output, Mapping):
        return output.values()
    if isinstance(output, tuple | list):
        return output
    fields = dataclasses.fields(output) if _is_record(output) else ()
    return [getattr(output, field.name) for field in fields]


def _is_record(output: Any) -> bool:
    return dataclasses.is_dataclass(output) and not isinstance(output, type)


def tensor_at(output: Any, position: int) -> Tensor | None:
    """The floating-point tensor at a position among those in it, or the first.

    >>> import torch
    >>> tensor_at((torch.tensor([0.5]), {"h": torch.tensor([1.5])}), 1)
    tensor([1.5000])
    """
    found = list(tensors(output))
    return found[position] if position < len(found) else next(iter(found), None)


def swap(value: Any, old: Tensor | None, new: Tensor) -> Any:
    """A copy of what a module returned in which `new` stands for the tensor `old`."""
    if value is old:
        return new
    if _is_record(value):
        given = [field.name for field in dataclasses.fields(value) if field.init]
        swapped = {key: swap(getattr(value, key), old, new) for key in given}
        return dataclasses.replace(value, **swapped)
    if isinstance(value, MutableMapping):
        out = copy.copy(value)  # keeps the type, a default factory, the order
        for key, item in value.items():
            out[key] = swap(item, old, new)
        return out
    if isinstance(value, tuple | list):
        return sequence_like(value, [swap(item, old, new) for item in value])
    return value


def sample_axes(tensor: Tensor, count: int) -> list[int]:
    """Where `count` samples can be: time-major layers have them second (time, samples, width)."""
    return [axis for axis, length in enumerate(tensor.shape[:2]) if length == count]
