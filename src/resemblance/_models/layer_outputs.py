"""Read a layer's output: find the tensor in it and its sample axis, and pool it to vectors.

Modules return tensors, tuples, lists, dicts and dataclass-like outputs. By default the first
floating-point tensor in them is recorded.

Pooling makes one vector per sample. `flatten` keeps all values. `mean`, `first` and `last` reduce
over positions: the tokens of a sequence (n, positions, width), honouring a padding mask, or the
pixels of an image (n, channels, height, width). Images that a network stores as (n, height, width,
channels) arrive with their channels second, wherever the layers that process them show that
channels are last (see `layer_patterns.ChannelAxis`). The gradient that belongs to a mean is the
*sum* of the gradients over positions: the change of the loss when the feature shifts by the same
amount at all positions. A user's function is applied to features and gradients alike.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

from .._data.batches import sequence_like
from ..errors import DataError
from .hashes import function_identity


def floating_tensors(output: Any) -> Iterator[Tensor]:
    """All floating-point tensors in a tensor, tuple, list, dict or dataclass, in order."""
    if isinstance(output, Tensor):
        yield from [output] if output.is_floating_point() else []
        return
    values: Iterable[Any] = output if isinstance(output, tuple | list) else ()
    if isinstance(output, Mapping):
        values = output.values()
    elif _is_dataclass_instance(output):
        values = [getattr(output, field.name) for field in dataclasses.fields(output)]
    for value in values:
        yield from floating_tensors(value)


def _is_dataclass_instance(output: Any) -> bool:
    return dataclasses.is_dataclass(output) and not isinstance(output, type)


def why_unreadable(tensor: Tensor) -> str | None:
    """Why no numbers can be recorded of a tensor, in words; None if they can be.

    >>> why_unreadable(torch.zeros(2, dtype=torch.complex64)), why_unreadable(torch.zeros(2))
    ('a complex64 tensor', None)
    """
    if tensor.is_meta:
        return "a tensor on the meta device, which holds no values"
    if tensor.layout != torch.strided or tensor.is_nested:
        return f"a {'nested' if tensor.is_nested else 'sparse'} tensor"
    kind = str(tensor.dtype).removeprefix("torch.")
    return None if tensor.is_floating_point() else f"a{'n' * (kind[0] == 'i')} {kind} tensor"


def tensor_at(output: Any, position: int = 0) -> Tensor | None:
    """The floating-point tensor at a position among those in an output, or the first.

    >>> tensor_at((torch.tensor([0.5]), {"h": torch.tensor([1.5])}), 1)
    tensor([1.5000])
    """
    tensors = list(floating_tensors(output))
    return next(iter(tensors[position:] or tensors), None)


def replace_tensor(value: Any, old: Tensor | None, new: Tensor) -> Any:
    """A copy of what a module returned in which `new` stands for the tensor `old`."""
    if value is old:
        return new
    if _is_dataclass_instance(value):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        changes = {name: replace_tensor(getattr(value, name), old, new) for name in names}
        return dataclasses.replace(value, **changes)
    if isinstance(value, MutableMapping):
        out = copy.copy(value)  # keeps the type, a default factory, the order
        for key, item in value.items():
            out[key] = replace_tensor(item, old, new)
        return out
    if isinstance(value, tuple | list):
        return sequence_like(value, [replace_tensor(item, old, new) for item in value])
    return value


def sample_axes(tensor: Tensor, count: int) -> list[int]:
    """Where `count` samples can be: time-major layers have them second (time, samples, width)."""
    return [axis for axis, length in enumerate(tensor.shape[:2]) if length == count]


# -- pooling --------------------------------------------------------------------------------------

Pool = str | Callable[[Tensor], Tensor]
POOLINGS = ("flatten", "mean", "first", "last")


def validate_pool(pool: Pool) -> str:
    """The name of a pooling, with a hash of a user's function.

    Raises:
        DataError: it is neither a function nor among `POOLINGS`.
    """
    if callable(pool):
        return describe_function(pool)
    if pool not in POOLINGS:
        raise DataError(f"pool must be one of {', '.join(POOLINGS)} or a function; found {pool!r}")
    return pool


def describe_function(function: Callable[..., object]) -> str:
    """How a user's function is named in settings: with a hash, as many are called `<lambda>`.

    >>> describe_function(lambda x: x.mean(1)).rpartition(" ")[0]
    'function <lambda>'
    """
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"function {name} {function_identity(function)}"


def image_channels(pool: Pool, features: Tensor) -> int:
    """The channels of images (n, channels, ...) that are kept whole, which are folded apart; or 1.

    >>> image_channels("flatten", torch.zeros(2, 3, 8, 8))
    3
    """
    return features.shape[1] if pool == "flatten" and features.ndim >= 4 else 1


def is_channels_last(features: Tensor) -> bool:
    """Whether images (n, channels, ...) lie in memory as (n, ..., channels).

    Kernels do not depend on the order of features, so flattening them so needs no copy.
    """
    return features.ndim >= 4 and not features.is_contiguous()


def pool_values(
    pool: Pool, x: Tensor, mask: Tensor | None, *, gradient: bool
) -> Tensor:  # -> (n, d)
    """Pool features or the gradients that belong to them.

    Args:
        pool: a name from `POOLINGS`, or a user's function.
        x: a layer's output or the gradient at it, samples first and channels second.
        mask: which positions (n, length) count, by default all.
        gradient: whether `x` is the gradient, of which `mean` takes the sum.

    Raises:
        DataError: the layer's numbers are complex, or the function gives no row for each sample.
    """
    if x.is_complex():
        raise DataError(
            f"expected a layer of real numbers, found {x.dtype}; choose a different layer, or one "
            "after torch.view_as_real"
        )
    if callable(pool):
        found = pool(x)
        if not isinstance(found, Tensor) or found.ndim < 1 or len(found) != len(x):
            what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise DataError(
                f"pool must return a tensor with one row for each of {len(x)} samples; found {what}"
            )
        return found.flatten(1) if found.ndim > 1 else found[:, None]
    if pool == "flatten" or x.ndim < 3:
        return x.flatten(1) if x.ndim > 1 else x[:, None]
    if x.ndim > 3:  # an image (n, channels, ...): positions are what follows the channels
        x = x.flatten(2).transpose(1, 2)
    if mask is None or mask.shape != x.shape[:2]:
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    mask = mask.to(x.device) != 0
    if pool == "mean":
        total = (x * mask[..., None]).sum(1, dtype=torch.float32)
        return total if gradient else total / mask.sum(1, keepdim=True).clamp_min(1)
    positions = torch.arange(mask.shape[1], device=x.device)
    first = torch.where(mask, positions, mask.shape[1] - 1).amin(1)
    at = first if pool == "first" else torch.where(mask, positions, 0).amax(1)
    return x[torch.arange(len(x), device=x.device), at]
