"""Batches as trees of tensors: tuples, lists and dicts whose leaves share their first axis.

A leaf is a tensor, an array, or a list of plain values such as strings. Zero-dimensional tensors
and other objects are passed through unchanged. A batch is (inputs, labels), a dict with both, or
inputs alone; a dict may hold an attention mask. Class labels are checked here as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._ops.devices import HostToDevice, copy_to_device_async, gather_rows
from .._utils.formatting import join_names
from .._utils.validation import is_integer
from ..errors import DataError

LABEL_KEYS = ("labels", "label", "label_ids")
_MASK, _DECODER_MASK = "attention_mask", "decoder_attention_mask"
# what tokenizers add for others
_TOKENIZER_EXTRAS = ("special_tokens_mask", "offset_mapping", "length")
IGNORE_INDEX = -100  # the label that torch's losses leave out


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


def batch_leaves(batch: Any) -> list[Any]:
    found: list[Any] = []
    tree_map(found.append, batch)
    return found


def _has_samples(leaf: Any) -> bool:
    return getattr(leaf, "ndim", 1) > 0


def check_unmasked(array: Any) -> None:
    """An error if values of an array are hidden by a mask, which nothing here would see."""
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise DataError(
            "expected an array without masked values; fill them, for example with filled(0), or "
            "remove those samples"
        )


def as_tensor(leaf: Any) -> Any:
    """An array of numbers as a tensor, one of strings as a list of them; all else as it is."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    if leaf.ndim == 1 and all(isinstance(value, str) for value in leaf[:1]):
        return leaf.tolist()
    check_unmasked(leaf)
    try:
        return torch.from_numpy(np.ascontiguousarray(leaf, leaf.dtype.newbyteorder("=")))
    except TypeError as error:
        raise DataError(
            f"expected arrays of numbers, found {leaf.dtype} of shape {leaf.shape}; convert them, "
            'such as with astype("float32")'
        ) from error


def num_samples(batch: Any) -> int:
    """The number of samples in a batch: the common length of what it holds."""
    counts = {len(leaf) for leaf in batch_leaves(batch) if _has_samples(leaf)}
    if len(counts) != 1:
        what = f"lengths {sorted(counts)}" if counts else "nothing with samples in it"
        raise DataError(
            f"expected a batch whose tensors share their first axis, found {what} in a "
            f"{type(batch).__name__}; yield a tensor, (inputs, labels) or a dict of tensors"
        )
    return counts.pop()


def take_samples(batch: Any, where: slice | np.ndarray, *, pin_memory: bool = False) -> Any:
    """Some samples of a batch; arrays become tensors, those of host tensors are pinned if asked."""

    def pick(leaf: Any) -> Any:
        if not _has_samples(leaf):
            return leaf
        if isinstance(where, slice) or isinstance(leaf, np.ndarray):
            return as_tensor(leaf[where])
        if isinstance(leaf, Tensor) and pin_memory and leaf.device.type == "cpu":
            return gather_rows(leaf, torch.from_numpy(where))
        if isinstance(leaf, Tensor):
            return leaf[copy_to_device_async(torch.from_numpy(where), leaf.device)]
        return [leaf[int(i)] for i in where]

    return tree_map(pick, batch)


def concat_batches(batches: list[Any], padding: int | None = None) -> Any:
    """Batches one after the other, as one.

    Token sequences of different lengths are padded on where an attention mask says what is
    padding: masks and tokens with zeros, labels with the index that losses ignore.
    """
    first = batches[0]
    if len(batches) == 1 or getattr(first, "ndim", 1) == 0:
        return first
    if isinstance(first, Tensor | np.ndarray):
        parts = [torch.as_tensor(batch) for batch in batches]
        shapes = {part.shape[1:] for part in parts}
        tokens = all(part.ndim == 2 and not part.is_floating_point() for part in parts)
        if len(shapes) > 1 and tokens and padding is not None:
            longest = max(part.shape[1] for part in parts)
            parts = [F.pad(part, (0, longest - part.shape[1]), value=padding) for part in parts]
        elif len(shapes) > 1:
            raise DataError(
                f"expected samples of one shape, found {sorted(map(tuple, shapes))} in successive "
                "batches; resize them, or pad token sequences and yield dicts with an "
                "attention_mask"
            )
        return torch.cat(parts)
    if is_plain_list(first):
        return list(itertools.chain.from_iterable(batches))
    if isinstance(first, Mapping):
        masked = attention_mask(first) is not None
        fills = {key: IGNORE_INDEX if key in LABEL_KEYS else 0 for key in first} if masked else {}
        return {
            key: concat_batches([batch[key] for batch in batches], fills.get(key, padding))
            for key in first
        }
    if isinstance(first, tuple | list):
        columns = zip(*batches, strict=True)
        return sequence_like(first, [concat_batches(list(x), padding) for x in columns])
    return first


def batch_inputs(batch: Any) -> Any:
    """What the model is called with: the batch without its labels."""
    if isinstance(batch, Mapping):
        return {
            key: value
            for key, value in batch.items()
            if key not in (*LABEL_KEYS, *_TOKENIZER_EXTRAS)
        }
    return batch[0] if isinstance(batch, tuple | list) and not is_plain_list(batch) else batch


def call_model(model: nn.Module, batch: Any) -> Any:
    """The model on a batch's inputs, by keyword where they are a dict."""
    inputs = batch_inputs(batch)
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def batch_labels(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return next((batch[key] for key in LABEL_KEYS if key in batch), None)
    if isinstance(batch, tuple | list) and len(batch) > 1 and not is_plain_list(batch):
        return batch[1]
    return None


def attention_mask(batch: Any) -> Tensor | None:
    """The padding mask (n, positions) of a batch of sequences, or None."""
    mask = batch.get(_MASK) if isinstance(batch, Mapping) else None
    return mask if isinstance(mask, Tensor) and mask.ndim == 2 else None


def real_token_mask(batch: Any, shape: Sequence[int], device: torch.device) -> Tensor:
    """Which of (n, positions) predictions are of real tokens, by the mask that has their shape."""
    for key in (_DECODER_MASK, _MASK):
        mask = batch.get(key) if isinstance(batch, Mapping) else None
        if isinstance(mask, Tensor) and tuple(mask.shape) == tuple(shape):
            return mask.to(device) != 0
    return torch.ones(tuple(shape), dtype=torch.bool, device=device)


def is_padded(batch: Any) -> bool:
    """Whether a mask says that some sequences are padded."""
    mask = attention_mask(batch)
    return mask is not None and bool((mask == 0).any())


def batch_to_device(
    batch: Any, device: torch.device | None, sender: HostToDevice | None = None
) -> Any:
    """The batch as ordinary tensors, outside any graph, on the model's device.

    Dense tensors that are on the host go through the `sender`, if there is one.
    """

    def move(leaf: Any) -> Any:
        leaf = as_tensor(leaf)
        if not isinstance(leaf, Tensor):
            return leaf
        if leaf.is_inference():
            leaf = leaf.clone()  # made in inference mode: autograd refuses to save it
        leaf = leaf.detach()
        if sender is not None and leaf.device.type == "cpu" and leaf.layout == torch.strided:
            return sender.send(leaf)
        return leaf.to(device or leaf.device, non_blocking=True)

    with torch.inference_mode(False):
        return tree_map(move, batch)


# -- class labels ---------------------------------------------------------------------------------


def as_labels(labels: Any) -> np.ndarray:  # -> (n,)
    """Labels as an array of numbers or of names, with none missing.

    >>> as_labels(["cat", "dog"]).tolist()
    ['cat', 'dog']
    """
    try:
        array = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    except ValueError as error:
        raise DataError("expected one label per sample, found rows of different lengths") from error
    if array.ndim != 1:
        raise DataError(
            f"expected one label per sample, found labels of shape {array.shape}; pass integers or "
            "names, not one-hot rows"
        )
    values = list(labels) if isinstance(labels, list | tuple) else array.tolist()
    kinds = {type(value).__name__: isinstance(value, str) for value in values}
    numbers = array.dtype.kind in "biuf" or all(map(is_integer, values))
    if not (all(kinds.values()) if any(kinds.values()) else numbers):
        raise DataError(
            "expected labels that are all numbers or all names, found "
            f"{', '.join(sorted(kinds))}; remove samples without a label"
        )
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise DataError(
            "expected a class for each sample, found NaN as a label; remove samples without one"
        )
    return array


def labels_for_batch(indices: np.ndarray, own: Any, apart: np.ndarray | None) -> np.ndarray:  # (n,)
    """The labels of a batch: those given apart, by index, else its own."""
    if apart is not None:
        if indices.max() >= len(apart):
            raise DataError(
                f"expected one label per sample, found labels of shape {apart.shape} and a sample "
                f"{indices.max()}; pass labels in the order of the data"
            )
        return apart[indices]
    if own is None:
        raise DataError("found no labels; pass y, or data whose batches are (inputs, labels)")
    labels = as_labels(own)
    if len(labels) != len(indices):
        raise DataError(
            f"expected one label a sample, found {len(labels)} labels for {len(indices)} samples"
        )
    return labels


def check_classes(labels: np.ndarray, classes: Any = None) -> np.ndarray:
    """The sorted classes, of which there are two or more, each with samples."""
    present = np.unique(labels)
    if len(present) < 2:
        raise DataError(
            f"expected samples of two or more classes, found {join_names(present, 5)} alone"
        )
    expected = present if classes is None else np.unique(np.asarray(classes))
    if len(absent := np.setdiff1d(expected, present)):
        raise DataError(
            f"no sample of class {join_names(absent, 5)}, which `classes` lists: it cannot be "
            "learned; add samples of it, or remove it from `classes`"
        )
    if len(surplus := np.setdiff1d(present, expected)):
        raise DataError(
            f"samples of class {join_names(surplus, 5)}, which is missing from `classes`; add it "
            "or remove them"
        )
    return present


def one_hot(labels: np.ndarray, known: np.ndarray) -> Tensor:  # (n,), (C,) -> (n, C)
    """Rows of float64 with a one at each label's class.

    >>> one_hot(np.array(["b", "a"]), np.array(["a", "b"])).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    return torch.from_numpy((labels[:, None] == known).astype(np.float64))


def check_known_labels(labels: np.ndarray, known: np.ndarray) -> None:
    """An error if a label is none of the classes that were fitted."""
    if len(unseen := np.setdiff1d(labels, known)):
        raise DataError(
            f"label {join_names(unseen, 5)} was not among the classes of fit "
            f"({join_names(known, 5)}), so it can never be predicted; fit with samples of it, or "
            "leave it out"
        )
