"""Short hashes that tell the same samples from others, by content or by name.

What lies on a GPU is hashed there: eight bytes a sample come to the host, which does not wait.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .._ops.device_copies import on_the_way, without_waiting
from .._ops.mixed_words import mixed_row_sums
from .._seeded_random import absorb, absorb_sums, row_keys
from .batches import attention_mask, inputs_of, labels_of, leaves, size

What = Literal["known_by", "content", "labels"]
_VALUES: dict[What, int] = {"known_by": 256, "content": 32}  # read of a sample, evenly spaced


class Read(NamedTuple):
    """What was read of a batch's samples; what a GPU made of it may be on its way."""

    samples: int
    parts: Mapping[What, list[Tensor]]  # words on the host (n, w), or their sums (n,), all int64
    arrive: Sequence[torch.cuda.Event] = ()

    def hashes(self, what: What) -> np.ndarray | None:  # (n,) uint64
        """Of each sample: equal if and (nearly) only if what was read is. None if nothing was."""
        if what not in self.parts:
            return None
        for arrived in self.arrive:
            arrived.synchronize()
        out = np.zeros(self.samples, np.uint64)
        for part in self.parts[what]:
            found = part.numpy().view(np.uint64)
            out = absorb(out, found) if found.ndim == 2 else absorb_sums(out, found)
        return out


class SampleReader:
    """Reads some values of every sample, batch after batch of a pass.

    That keeps hashes out of the profile; samples that differ only between the values read pass for
    equal, which matters for no data set but one made for the purpose. Padding is not read, so that
    a sequence keeps its hash among longer ones.
    """

    def __init__(self) -> None:
        self._places: dict[Any, tuple[int, Tensor]] = {}  # in memory, of what is read of a sample
        self._keys: dict[Any, Tensor] = {}  # of words, on their device

    def read(self, batch: Any, *, known: bool = True) -> Read:
        """Content and labels of a batch's samples and, with `known`, what tells them apart.

        Of every part of the inputs these are 32 values and 256.
        """
        mask, inputs = attention_mask(batch), leaves(inputs_of(batch))
        found: dict[What, list[Tensor]] = {}
        for what, most in _VALUES.items():
            if known or what != "known_by":
                each = (self._values(leaf, mask, most) for leaf in inputs)
                found[what] = [_words(values) for values in each if values is not None]
        if (labels := _labels(batch)) is not None:
            values = self._values(labels, None, _VALUES["content"])
            found["labels"] = [] if values is None else [_words(values)]
        return self._sent_home(size(batch), found)

    def _values(self, leaf: Any, mask: Tensor | None, most: int) -> Tensor | None:  # (n, v)
        if not isinstance(leaf, Tensor | np.ndarray):
            return _of_texts(leaf)
        leaf = torch.as_tensor(leaf).detach()
        if not leaf.ndim:
            return None
        if mask is not None and leaf.shape == mask.shape:
            unread = (mask == 0).to(leaf.device)
            front = unread.int().argsort(dim=1, stable=True)  # padding, on either side, goes last
            values = leaf.masked_fill(unread, 0).gather(1, front)
        elif leaf[:1].numel() > most:
            values = self._some_of(leaf, most)
        else:
            values = leaf.reshape(len(leaf), -1)
            if leaf.device.type == "cpu":  # hashed later, when the model may have written into it
                values = values.clone()
        return values.float() if values.dtype == torch.bfloat16 else values

    def _some_of(self, leaf: Tensor, most: int) -> Tensor:  # (n, most)
        """Values at evenly spaced places of each sample, whatever the order of its memory."""
        shape, strides = leaf.shape[1:], leaf.stride()
        key = shape, strides, leaf.device, most
        if key not in self._places:
            flat = torch.linspace(0, shape.numel() - 1, most).long()
            steps = torch.tensor(strides[1:])[:, None]
            places = (torch.stack(torch.unravel_index(flat, shape)) * steps).sum(0)
            span = int(places.max()) + 1
            self._places[key] = span, without_waiting(places, leaf.device)
        span, places = self._places[key]
        lying = leaf.as_strided((len(leaf), span), (strides[0], 1))
        return lying.index_select(1, places)

    def _sent_home(self, samples: int, found: dict[What, list[Tensor]]) -> Read:
        """Words that lie on a device are turned into their sums, which are sent to the host."""
        by_device: dict[torch.device, list[tuple[list[Tensor], int]]] = {}
        for parts in found.values():
            for i, words in enumerate(parts):
                by_device.setdefault(words.device, []).append((parts, i))
        by_device.pop(torch.device("cpu"), None)
        arrive = []
        for places in by_device.values():
            sums, arrived = on_the_way(torch.stack([self._sums(parts[i]) for parts, i in places]))
            for (parts, i), of_part in zip(places, sums, strict=True):
                parts[i] = of_part
            arrive += [arrived] if arrived is not None else []
        return Read(samples, found, arrive)

    def _sums(self, words: Tensor) -> Tensor:  # (n, w) -> (n,)
        """What `absorb_sums` takes in of each row, made where the words lie."""
        key = words.shape[1], words.device
        if key not in self._keys:
            keys = torch.from_numpy(row_keys(words.shape[1])[0].view(np.int64))
            self._keys[key] = without_waiting(keys, words.device)
        return mixed_row_sums(words, self._keys[key])


def _labels(batch: Any) -> Any:
    """The samples' labels, numbers of one kind or other values; None if the batch has none."""
    labels = labels_of(batch)
    if labels is None or isinstance(labels, Mapping):
        return None
    if not isinstance(labels, Tensor):
        labels = labels if isinstance(labels, np.ndarray) else list(labels)
        if isinstance(labels, np.ndarray) and labels.dtype.kind not in "biuf":
            labels = labels.tolist()
    if not getattr(labels, "ndim", 1) or len(labels) != size(batch):
        return None
    if not isinstance(labels, Tensor | np.ndarray):
        return labels
    labels = torch.as_tensor(labels)
    # as 64-bit numbers, so that int32 and int64 labels are the same
    return labels.double() if labels.is_floating_point() else labels.long()


def _of_texts(values: Sequence[Any]) -> Tensor:  # (n, 1)
    words = np.array([_of_text(repr(value)) for value in values], np.uint64)
    return torch.from_numpy(words.view(np.int64))[:, None]


def _words(values: Tensor) -> Tensor:  # (n, v) -> (n, w) int64
    """The bytes of each row, eight at a time: zeros fill the last word."""
    raw = values.contiguous().view(torch.uint8)
    if short := -raw.shape[1] % 8:
        raw = F.pad(raw, (0, short))
    return (raw.clone() if raw.storage_offset() % 8 else raw).view(torch.int64)


def of_name(data_id: str, count: int) -> np.ndarray:  # (n,) uint64
    """The hash that stands for each sample of data known by name."""
    return np.full(count, _of_text(data_id))


def _of_text(text: str) -> np.uint64:
    return np.frombuffer(hashlib.blake2b(text.encode(), digest_size=8).digest(), np.uint64)[0]
