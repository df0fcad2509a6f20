"""Tokens as samples: which positions of each sequence are recorded.

Positions are a function of the seed, the sequence's index and its real tokens alone: padding, on
whichever side, and what other sequences are in a batch do not move them. Padding and special tokens
are never drawn. A sequence with fewer tokens than are asked for gives some of them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._seeded_random import TOKEN, bits
from ..errors import DataError
from .batches import attention_mask, inputs_of
from .sources import Batch, Drawn

_IDS = ("decoder_input_ids", "input_ids")  # of an encoder–decoder model, those of its decoder
_MASKS = {"decoder_input_ids": "decoder_attention_mask", "input_ids": "attention_mask"}


@dataclass(frozen=True)
class TokenDraw:
    """How tokens are drawn from sequences."""

    tokens: int  # of each sequence
    seed: int
    special: frozenset[int] = frozenset()  # tokens that are never drawn
    mask_token: int | None = None  # takes the place of drawn tokens, for models that fill in

    def __call__(self, batch: Batch) -> Batch:
        """The batch with real tokens first and no more padding than needed, and its positions."""
        samples = padding_last(batch.samples)
        key, ids = token_ids(samples)
        allowed = _real(samples, key, ids)
        mask = samples.get("special_tokens_mask") if isinstance(samples, Mapping) else None
        if isinstance(mask, Tensor) and mask.shape == ids.shape:
            allowed &= mask.cpu().numpy() == 0
        if self.special:
            allowed &= ~np.isin(ids, list(self.special))
        positions = drawn(allowed, batch.indices, self.tokens, self.seed)
        if self.mask_token is not None:
            filled = ids.copy()
            np.put_along_axis(filled, positions, self.mask_token, 1)
            samples = _with_ids(samples, key, torch.from_numpy(filled))
        return replace(batch, samples=samples, drawn=Drawn(positions, ids.shape[1]))


def drawn(allowed: np.ndarray, indices: np.ndarray, tokens: int, seed: int) -> np.ndarray:
    """Positions (n, tokens) where `allowed` (n, length) is, in an order of their own a sequence.

    >>> sorted(drawn(np.array([[False, True, True, False]]), np.array([7]), 2, seed=0)[0].tolist())
    [1, 2]
    """
    counts = allowed.sum(1)
    if not counts.all():
        raise DataError(
            f"sequence {indices[np.argmin(counts)]} has no token to record: it holds nothing but "
            "padding and special tokens; leave it out"
        )
    # of an allowed token, among those of its sequence
    rank = (np.cumsum(allowed, 1) - 1).astype(np.uint64)  # with int64 the sum would be a float
    keys = bits(seed, TOKEN, (indices.astype(np.uint64)[:, None] << np.uint64(32)) + rank)
    keys = np.where(allowed, keys >> np.uint64(1), np.uint64(2**64 - 1))
    order = np.argsort(keys, 1, kind="stable")
    which = np.arange(tokens) % counts[:, None]  # what is scarce comes again
    return np.take_along_axis(order, which, 1)


def token_ids(samples: Any) -> tuple[str, np.ndarray]:
    """The token ids (n, length) of a batch, and the key they are under, `""` if it has none."""
    inputs = inputs_of(samples)
    key = ""
    if isinstance(inputs, Mapping):
        key = next((name for name in _IDS if name in inputs), "")
        inputs = inputs.get(key)
    if isinstance(inputs, np.ndarray | Tensor):
        ids = torch.as_tensor(inputs)
        if ids.ndim == 2 and not ids.is_floating_point() and ids.dtype != torch.bool:
            return key, ids.cpu().numpy()
    what = type(samples).__name__
    if isinstance(samples, Mapping):
        what = f"a dict of {', '.join(map(str, samples))}"
    raise DataError(
        'unit="token" needs sequences of token ids (n, length), alone or as "input_ids" of a dict; '
        f'found {what}; make tokens of the texts, or record with unit="sample"'
    )


def padding_last(samples: Any) -> Any:
    """A batch of token sequences with real tokens first, cut to the longest of them.

    Causal models read the same in either place, but for networks that count positions from the
    first column.
    """
    mask = attention_mask(samples)
    if mask is None:
        return samples
    real = mask != 0
    longest = max(1, int(real.sum(1).max()))
    if longest == mask.shape[1] and not bool((real[:, 1:] & ~real[:, :-1]).any()):
        return samples
    order = real.int().argsort(dim=1, descending=True, stable=True)[:, :longest]

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            leaf = torch.as_tensor(leaf)
        if not isinstance(leaf, Tensor) or leaf.shape != mask.shape:
            return leaf
        return leaf.gather(1, order.to(leaf.device))

    return {key: moved(leaf) for key, leaf in samples.items()}


def _real(samples: Any, key: str, ids: np.ndarray) -> np.ndarray:  # (n, length)
    mask = samples.get(_MASKS[key]) if key else None
    if isinstance(mask, np.ndarray | Tensor) and tuple(mask.shape) == ids.shape:
        return torch.as_tensor(mask).cpu().numpy() != 0
    return np.ones(ids.shape, bool)


def _with_ids(samples: Any, key: str, ids: Tensor) -> Any:
    if key:
        return {**samples, key: ids.to(samples[key])}
    if isinstance(samples, tuple | list):
        return type(samples)([ids.to(torch.as_tensor(samples[0])), *samples[1:]])
    return ids.to(samples)
