"""Sketch over classes: a row of class probabilities added with random signs into few buckets.

For two vectors x and y over the classes of one row, E⟨S x, S y⟩ = ⟨x, y⟩ with a variance of about
(‖x‖² ‖y‖² + ⟨x, y⟩²) / m for m buckets. The bucket of a class is its place in a fixed random order
of all classes, modulo m: all buckets hold equally many classes, and a sum takes the place of atomic
additions. The sign is a random linear hash, the parity of (bits of the class AND key of the row).
Keys depend only on the seed and the index of the row's sample. So two files that were recorded
separately have the same S for a row, and the errors of different rows are independent of each
other.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from .._utils.hashing import CLASS_BITS, CLASS_ORDER, ROW_KEY, random_bits
from .devices import copy_to_device_async

CLASS_BUCKETS = 512
_BITS = 32  # of a class, and of a key


class ClassSketch:
    """S for rows of so many classes, on a device."""

    def __init__(self, classes: int, device: torch.device) -> None:
        order, bits = (copy_to_device_async(x, device) for x in _padded_order(classes))
        self._classes, self._order = classes, order
        # halves, as a parity is the fraction of half a count
        self._halves = _unpack(bits).T.contiguous() / 2

    def signs(self, keys: Tensor) -> Tensor:  # (rows,) -> (rows, places)
        """The sign of each class in each row, in the order of buckets."""
        signs = (_unpack(keys) @ self._halves).frac_().mul_(-4).add_(1)
        signs[:, self._classes :] = 0
        return signs

    def sketch(self, x: Tensor, signs: Tensor) -> Tensor:  # (rows, classes), (rows, places)
        """S x of each row, (rows, CLASS_BUCKETS)."""
        signed = x.index_select(1, self._order).mul_(signs)
        return signed.unflatten(1, (-1, CLASS_BUCKETS)).sum(1)


def row_keys(seed: int, index: np.ndarray) -> Tensor:  # (rows,) uint64 -> (rows,) int64
    """The key of each row, from the seed and the index of its sample (or token)."""
    return torch.from_numpy((random_bits(seed, ROW_KEY, index) >> np.uint64(32)).astype(np.int64))


def class_places(ids: Tensor, keys: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The bucket and the sign of single classes (rows, k), −1 for none, in rows of these keys."""
    known = ids.clamp_min(0)
    parity = torch.from_numpy(_class_bits(known.numpy())) & keys[:, None]
    for shift in (16, 8, 4, 2, 1):
        parity = parity ^ (parity >> shift)
    return _class_buckets(classes)[known], (1 - 2 * (parity & 1)).double()


def _unpack(bits: Tensor) -> Tensor:  # (n,) int64 -> (n, _BITS) float32
    return ((bits[:, None] >> torch.arange(_BITS, device=bits.device)) & 1).float()


@functools.lru_cache(maxsize=2)
def _padded_order(classes: int) -> tuple[Tensor, Tensor]:  # (places,) each
    """The class at each place and its bits; places beyond the classes have any."""
    order = np.pad(_class_order(classes), (0, -classes % CLASS_BUCKETS))
    return torch.from_numpy(order), torch.from_numpy(_class_bits(order))


def _class_order(classes: int) -> np.ndarray:
    """Classes in their random order. No two hashes are equal, so any sort gives the same."""
    return np.argsort(random_bits(0, CLASS_ORDER, np.arange(classes)))


def _class_bits(ids: np.ndarray) -> np.ndarray:
    return (random_bits(0, CLASS_BITS, ids) >> np.uint64(64 - _BITS)).astype(np.int64)


@functools.lru_cache(maxsize=4)
def _class_buckets(classes: int) -> Tensor:  # (classes,)
    places = torch.empty(classes, dtype=torch.int64)
    places[torch.from_numpy(_class_order(classes))] = torch.arange(classes)
    return places % CLASS_BUCKETS
