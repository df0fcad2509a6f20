"""From a layer's output to one vector a sample.

`flatten` keeps everything. `mean`, `first` and `last` reduce over positions: the tokens of a
sequence (n, positions, width), honouring a padding mask, or the pixels of an image (n, channels,
height, width). Images that a network keeps as (n, height, width, channels) come in that order as
well: a pass hands them on with their channels second, where the layers that work on them show that
they are last (`channel_axis`). The gradient that belongs to a mean is the *sum* of the gradients
over positions: how the loss answers when the feature is shifted by the same amount everywhere. A
function is applied to features and gradients alike.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import DataError

Pool = str | Callable[[Tensor], Tensor]
NAMES = ("flatten", "mean", "first", "last")


def check(pool: Pool) -> str:
    """The name of a pooling, or an error that lists them."""
    if callable(pool):
        return called(pool)
    if pool not in NAMES:
        raise DataError(f"pool must be one of {', '.join(NAMES)} or a function; found {pool!r}")
    return pool


def called(function: Callable[..., object]) -> str:
    """How a user's function is named in settings.

    >>> called(max)
    'function max'
    """
    return f"function {getattr(function, '__qualname__', type(function).__name__)}"


def channels_of(pool: Pool, features: Tensor) -> int:
    """The channels of images (n, channels, ...) that are kept whole, which are folded apart; or 1.

    >>> channels_of("flatten", torch.zeros(2, 3, 8, 8))
    3
    """
    return features.shape[1] if pool == "flatten" and features.ndim >= 4 else 1


def is_channels_last(features: Tensor) -> bool:
    """Whether images (n, channels, ...) lie in memory as (n, ..., channels).

    Kernels do not depend on the order of features, so flattening them so needs no copy.
    """
    return features.ndim >= 4 and not features.is_contiguous()


def apply(pool: Pool, x: Tensor, mask: Tensor | None, *, gradient: bool) -> Tensor:  # -> (n, d)
    """Pool features or, with `gradient`, the gradients that belong to them."""
    if x.is_complex():
        raise DataError(
            f"expected a layer of real numbers, found {x.dtype}; tap another layer, or one that "
            "follows torch.view_as_real"
        )
    if callable(pool):
        found = pool(x)
        if not isinstance(found, Tensor) or found.ndim < 1 or len(found) != len(x):
            what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise DataError(
                f"pool must give a tensor with a row for each of {len(x)} samples; found {what}"
            )
        return found.flatten(1) if found.ndim > 1 else found[:, None]
    if pool == "flatten" or x.ndim < 3:
        return x.flatten(1) if x.ndim > 1 else x[:, None]
    if x.ndim > 3:  # an image (n, channels, ...): positions are what follows the channels
        x = x.flatten(2).transpose(1, 2)
    if mask is None or mask.shape != x.shape[:2]:
        mask = torch.ones(x.shape[:2], device=x.device)
    mask = mask.to(x.device) != 0
    if pool == "mean":
        total = (x * mask[..., None]).sum(1, dtype=torch.float32)
        return total if gradient else total / mask.sum(1, keepdim=True).clamp_min(1)
    positions = torch.arange(mask.shape[1], device=x.device)
    if pool == "first":
        at = torch.where(mask, positions, mask.shape[1] - 1).amin(1)
    else:
        at = torch.where(mask, positions, 0).amax(1)
    return x[torch.arange(len(x), device=x.device), at]
