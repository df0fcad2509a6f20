"""Batches as trees of tensors: tuples, lists and dicts, whose leaves share their first axis.

A leaf is a tensor, an array, or a list of plain values (strings, say). Tensors without axes and
anything else travel along unchanged.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._ops.device_copies import without_waiting
from ..errors import DataError

_LABELS = ("labels", "label", "label_ids")
_MASK, _DECODER_MASK = "attention_mask", "decoder_attention_mask"
_BESIDE = ("special_tokens_mask", "offset_mapping", "length")  # what tokenizers add for others
IGNORED = -100  # the label that torch's losses leave out


def tree_map(function: Callable[[Any], Any], batch: Any) -> Any:
    """The batch with every tensor, array or list of plain values replaced by function(it)."""
    if isinstance(batch, Tensor | np.ndarray) or is_plain_list(batch):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: tree_map(function, value) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return sequence_like(batch, [tree_map(function, value) for value in batch])
    return batch


def sequence_like(old: Any, values: list[Any]) -> Any:
    """A tuple, named tuple or list of the kind of `old`."""
    return type(old)(*values) if hasattr(old, "_fields") else type(old)(values)


def is_plain_list(batch: Any) -> bool:
    nested: Any = (Tensor, np.ndarray, Mapping, tuple, list)
    sequence = isinstance(batch, tuple | list) and len(batch) > 0
    return sequence and not any(isinstance(value, nested) for value in batch)


def leaves(batch: Any) -> list[Any]:
    found: list[Any] = []
    tree_map(found.append, batch)
    return found


def _has_samples(leaf: Any) -> bool:
    return getattr(leaf, "ndim", 1) > 0


def refuse_masked(array: Any) -> None:
    """An error if values of an array are hidden by a mask, which nothing here would see."""
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise DataError(
            "expected an array without masked values; fill them, such as with filled(0), or leave "
            "their samples out"
        )


def _as_tensor(leaf: Any) -> Any:
    """An array of numbers as a tensor, one of strings as a list of them."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    if leaf.ndim == 1 and all(isinstance(value, str) for value in leaf[:1]):
        return leaf.tolist()
    refuse_masked(leaf)
    try:
        native = leaf.astype(leaf.dtype.newbyteorder("="), copy=False)
        return torch.from_numpy(np.ascontiguousarray(native))
    except TypeError as error:
        raise DataError(
            f"expected arrays of numbers, found {leaf.dtype} of shape {leaf.shape}; convert them, "
            'such as with astype("float32")'
        ) from error


def size(batch: Any) -> int:
    """The number of samples in a batch: the common length of what it holds."""
    counts = {len(leaf) for leaf in leaves(batch) if _has_samples(leaf)}
    if len(counts) != 1:
        what = f"lengths {sorted(counts)}" if counts else "nothing with samples in it"
        raise DataError(
            f"expected a batch whose tensors share their first axis, found {what} in a "
            f"{type(batch).__name__}; yield a tensor, (inputs, labels) or a dict of tensors"
        )
    return counts.pop()


def take(batch: Any, where: slice | np.ndarray) -> Any:
    """Some samples of a batch; arrays become tensors."""

    def pick(leaf: Any) -> Any:
        if not _has_samples(leaf):
            return leaf
        if isinstance(where, slice) or isinstance(leaf, np.ndarray):
            return _as_tensor(leaf[where])
        if isinstance(leaf, Tensor):
            return leaf[without_waiting(torch.from_numpy(where), leaf.device)]
        return [leaf[int(i)] for i in where]

    return tree_map(pick, batch)


def join(batches: list[Any], padding: int | None = None) -> Any:
    """Batches one after the other, as one.

    Token sequences of different lengths are padded on where an attention mask says what is
    padding: masks and tokens with zeros, labels with the index that losses ignore.
    """
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, Tensor | np.ndarray):
        return _join_tensors([torch.as_tensor(batch) for batch in batches], padding)
    if is_plain_list(first):
        return list(itertools.chain.from_iterable(batches))
    if isinstance(first, Mapping):
        masked = attention_mask(first) is not None
        fills = {key: IGNORED if key in _LABELS else 0 for key in first} if masked else {}
        return {
            key: join([batch[key] for batch in batches], fills.get(key, padding)) for key in first
        }
    if isinstance(first, tuple | list):
        parts = zip(*batches, strict=True)
        return sequence_like(first, [join(list(part), padding) for part in parts])
    return first


def _join_tensors(parts: list[Tensor], padding: int | None) -> Tensor:
    if parts[0].ndim == 0:
        return parts[0]
    shapes = {part.shape[1:] for part in parts}
    tokens = all(part.ndim == 2 and not part.is_floating_point() for part in parts)
    if len(shapes) > 1 and tokens and padding is not None:
        longest = max(part.shape[1] for part in parts)
        parts = [F.pad(part, (0, longest - part.shape[1]), value=padding) for part in parts]
    elif len(shapes) > 1:
        raise DataError(
            f"expected samples of one shape, found {sorted(map(tuple, shapes))} in successive "
            "batches; resize them, or pad token sequences and yield dicts with an attention_mask"
        )
    return torch.cat(parts)


def inputs_of(batch: Any) -> Any:
    """What the model is called with: the batch without its labels."""
    if isinstance(batch, Mapping):
        return {key: value for key, value in batch.items() if key not in (*_LABELS, *_BESIDE)}
    return batch[0] if isinstance(batch, tuple | list) and not is_plain_list(batch) else batch


def run_by_convention(model: nn.Module, batch: Any) -> Any:
    """The model on a batch's inputs, by keyword where they are a dict."""
    inputs = inputs_of(batch)
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def labels_of(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return next((batch[key] for key in _LABELS if key in batch), None)
    if isinstance(batch, tuple | list) and len(batch) > 1 and not is_plain_list(batch):
        return batch[1]
    return None


def attention_mask(batch: Any) -> Tensor | None:
    """The padding mask (n, positions) of a batch of sequences, or None."""
    mask = batch.get(_MASK) if isinstance(batch, Mapping) else None
    return mask if isinstance(mask, Tensor) and mask.ndim == 2 else None


def real_positions(batch: Any, shape: Sequence[int], device: torch.device) -> Tensor:
    """Which of (n, positions) predictions are of real tokens, by the mask that has their shape."""
    masks = (batch.get(key) for key in (_DECODER_MASK, _MASK)) if isinstance(batch, Mapping) else ()
    for mask in masks:
        if isinstance(mask, Tensor) and tuple(mask.shape) == tuple(shape):
            return mask.to(device) != 0
    return torch.ones(tuple(shape), dtype=torch.bool, device=device)


def is_padded(batch: Any) -> bool:
    """Whether a mask says that some sequences are padded."""
    mask = attention_mask(batch)
    return mask is not None and bool((mask == 0).any())


def to_device(batch: Any, device: torch.device | None) -> Any:
    """The batch as ordinary tensors, outside any graph, on the model's device."""

    def move(leaf: Any) -> Any:
        leaf = _as_tensor(leaf)
        if not isinstance(leaf, Tensor):
            return leaf
        if leaf.is_inference():
            leaf = leaf.clone()  # made in inference mode: autograd refuses to save it
        return leaf.detach().to(device or leaf.device, non_blocking=True)

    with torch.inference_mode(False):
        return tree_map(move, batch)
