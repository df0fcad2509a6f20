"""Short hashes that tell the same samples from others, by content or by name."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._seeded_random import absorb
from .batches import attention_mask, inputs_of, leaves, size

_VALUES = 256  # read of a sample, evenly spaced


def of_samples(batch: Any) -> np.ndarray:  # (n,) uint64
    """A hash of each sample's inputs, from up to 256 of its values: equal if and (nearly) only if.

    Reading evenly spaced values keeps this out of the profile; samples that differ only between
    them pass for equal, which matters for no data set but one made for the purpose. Padding is
    not read, so that a sequence keeps its hash among longer ones.
    """
    out = np.zeros(size(batch), np.uint64)
    mask = attention_mask(batch)
    for leaf in leaves(inputs_of(batch)):
        if not isinstance(leaf, Tensor | np.ndarray):
            out = absorb(out, np.array([[_of_text(repr(value))] for value in leaf]))
        elif leaf.ndim:
            out = absorb(out, _words(torch.as_tensor(leaf).detach(), mask))
    return out


def _words(leaf: Tensor, mask: Tensor | None) -> np.ndarray:  # (n, ...) -> (n, w) uint64
    if mask is not None and leaf.shape == mask.shape:
        unread = (mask == 0).to(leaf.device)
        front = unread.int().argsort(dim=1, stable=True)  # padding, on whichever side, goes last
        flat = leaf.masked_fill(unread, 0).gather(1, front)
    else:
        flat = leaf.reshape(len(leaf), -1)
        if flat.shape[1] > _VALUES:
            flat = flat[:, torch.linspace(0, flat.shape[1] - 1, _VALUES).long()]
    flat = flat.float() if flat.dtype == torch.bfloat16 else flat
    raw = np.ascontiguousarray(flat.cpu().numpy()).view(np.uint8)
    return np.pad(raw, ((0, 0), (0, -raw.shape[1] % 8))).view(np.uint64)


def of_name(data_id: str, count: int) -> np.ndarray:  # (count,) uint64
    """The hash that stands for each sample of data known by name."""
    return np.full(count, _of_text(data_id))


def _of_text(text: str) -> np.uint64:
    return np.frombuffer(hashlib.blake2b(text.encode(), digest_size=8).digest(), np.uint64)[0]
