"""Short hashes that tell the same samples from others, by content or by name."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._ops.device_copies import on_the_way, without_waiting
from .._seeded_random import absorb
from .batches import attention_mask, inputs_of, labels_of, leaves, size

_KNOWN_BY, _CONTENT = 256, 32  # values read of a sample, evenly spaced


class Read(NamedTuple):
    """Values of samples on their way to the host."""

    values: Tensor  # (n, v)
    arrived: torch.cuda.Event | None


def read(batch: Any, values: int = _CONTENT) -> list[Read]:
    """Up to so many values of each sample's inputs, evenly spaced, of every part of them.

    That keeps hashes out of the profile; samples that differ only between the values read pass for
    equal, which matters for no data set but one made for the purpose. Padding is not read, so that
    a sequence keeps its hash among longer ones.
    """
    mask = attention_mask(batch)
    parts = [_values(leaf, mask, values) for leaf in leaves(inputs_of(batch))]
    return [Read(*on_the_way(part)) for part in parts if part is not None]


def read_labels(batch: Any) -> list[Read] | None:
    """Each sample's label, whatever its kind; None if the batch has none."""
    labels = labels_of(batch)
    if labels is None or isinstance(labels, Mapping):
        return None
    if not isinstance(labels, Tensor):
        labels = labels if isinstance(labels, np.ndarray) else list(labels)
        if isinstance(labels, np.ndarray) and labels.dtype.kind not in "biuf":
            labels = labels.tolist()
    if isinstance(labels, np.ndarray | Tensor):
        labels = torch.as_tensor(labels).detach()
        # as 64-bit numbers, so that int32 and int64 labels are the same
        labels = labels.double() if labels.is_floating_point() else labels.long()
    if not getattr(labels, "ndim", 1) or len(labels) != size(batch):
        return None
    part = _values(labels, None, _CONTENT)
    return None if part is None else [Read(*on_the_way(part))]


def read_to_know(batch: Any) -> list[Read]:
    """What samples without a name are known by: up to 256 of their values."""
    return read(batch, _KNOWN_BY)


def hashed(found: list[Read], count: int) -> np.ndarray:  # (count,) uint64
    """A hash of each sample from what was read: equal if and (nearly) only if that is."""
    out = np.zeros(count, np.uint64)
    for values, arrived in found:
        if arrived is not None:
            arrived.synchronize()
        raw = np.ascontiguousarray(values.numpy()).view(np.uint8)
        if short := -raw.shape[1] % 8:
            raw = np.pad(raw, ((0, 0), (0, short)))
        out = absorb(out, raw.view(np.uint64))
    return out


def _values(leaf: Any, mask: Tensor | None, most: int) -> Tensor | None:  # (n, v)
    if not isinstance(leaf, Tensor | np.ndarray):
        words = np.array([_of_text(repr(value)) for value in leaf], np.uint64)
        return torch.from_numpy(words.view(np.int64))[:, None]
    leaf = torch.as_tensor(leaf).detach()
    if not leaf.ndim:
        return None
    if mask is not None and leaf.shape == mask.shape:
        unread = (mask == 0).to(leaf.device)
        front = unread.int().argsort(dim=1, stable=True)  # padding, on whichever side, goes last
        flat = leaf.masked_fill(unread, 0).gather(1, front)
    else:
        flat = leaf.reshape(len(leaf), -1)
        if flat.shape[1] > most:
            places = torch.linspace(0, flat.shape[1] - 1, most).long()
            flat = flat[:, without_waiting(places, flat.device)]
    # a copy, as the model may write into its inputs
    return flat.float() if flat.dtype == torch.bfloat16 else flat.clone()


def of_name(data_id: str, count: int) -> np.ndarray:  # (count,) uint64
    """The hash that stands for each sample of data known by name."""
    return np.full(count, _of_text(data_id))


def _of_text(text: str) -> np.uint64:
    return np.frombuffer(hashlib.blake2b(text.encode(), digest_size=8).digest(), np.uint64)[0]
