"""Short hashes that tell the same samples from others, by content or by name.

Words are read of each batch as it comes, and hashed for several batches at once. What lies on a GPU
is hashed there: eight bytes a sample come to the host, which does not wait.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
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
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # of values of such size


class Read(NamedTuple):
    """What was read of a batch's samples, where they lie."""

    samples: int
    words: Mapping[What, list[Tensor]]  # (n, w) int64, of each part of a sample

    @property
    def form(self) -> object:
        """What batches must have in common to be hashed together."""
        return [(what, [(x.shape[1], x.device) for x in of]) for what, of in self.words.items()]

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for of in self.words.values() for x in of)


class Hashing(NamedTuple):
    """Hashes of the samples of some batches, which a GPU may still be at."""

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

        Of every part of the inputs these are 32 values and 256. They are copies, as a model may
        write into what it is given.
        """
        mask, inputs = attention_mask(batch), leaves(inputs_of(batch))
        words: dict[What, list[Tensor]] = (
            {"known_by": [], "content": []} if known else {"content": []}
        )
        for leaf in inputs:
            for what, found in self._of_leaf(leaf, mask, words).items():
                words[what].append(found)
        if (labels := _labels(batch)) is not None:
            words["labels"] = list(self._of_leaf(labels, None, ["content"]).values())
        return Read(size(batch), words)

    def _of_leaf(
        self, leaf: Any, mask: Tensor | None, whats: Collection[What]
    ) -> dict[What, Tensor]:
        """The words of one part of the samples; none of one that has no values."""
        if not isinstance(leaf, Tensor | np.ndarray):
            return dict.fromkeys(whats, _of_texts(leaf))
        leaf = torch.as_tensor(leaf).detach().resolve_conj().resolve_neg()
        if not leaf.ndim or not leaf.numel():
            return {}
        leaf = leaf[:, None] if leaf.ndim == 1 else leaf
        if mask is not None and leaf.shape == mask.shape:
            unread = (mask == 0).to(leaf.device)
            front = unread.int().argsort(dim=1, stable=True)  # padding, on either side, goes last
            return dict.fromkeys(whats, _words(leaf.masked_fill(unread, 0).gather(1, front)))
        return {what: _words(self._some_of(leaf, _VALUES[what])) for what in whats}

    def _some_of(self, leaf: Tensor, most: int) -> Tensor:  # (n, most)
        """Values at evenly spaced places of each sample, whatever the order of its memory."""
        shape, strides = leaf.shape[1:], leaf.stride()
        key = shape, strides, leaf.device, most
        if key not in self._places:
            flat = torch.linspace(0, shape.numel() - 1, min(most, shape.numel())).long()
            steps = torch.tensor(strides[1:], dtype=torch.int64)[:, None]
            places = (torch.stack(torch.unravel_index(flat, shape)) * steps).sum(0)
            self._places[key] = int(places.max()) + 1, without_waiting(places, leaf.device)
        span, places = self._places[key]
        lying = leaf.as_strided((len(leaf), span), (strides[0], 1))
        bits = _BITS.get(leaf.element_size(), leaf.dtype)  # which can be picked whatever they mean
        return lying.view(bits).index_select(1, places).view(leaf.dtype)

    def hashing(self, reads: Sequence[Read]) -> Hashing:
        """Begin to hash the samples of batches of one form, one batch after the other."""
        samples, parts = sum(read.samples for read in reads), {}
        for what in reads[0].words:
            of_batches = zip(*(read.words[what] for read in reads), strict=True)
            parts[what] = [torch.cat(words) if len(words) > 1 else words[0] for words in of_batches]
        return Hashing(samples, parts, self._sent_home(list(parts.values())))

    def _sent_home(self, parts: Sequence[list[Tensor]]) -> list[torch.cuda.Event]:
        """Put sums, which are sent to the host, in the place of words that lie on a device."""
        by_device: dict[torch.device, list[tuple[list[Tensor], int]]] = {}
        for of_what in parts:
            for i, words in enumerate(of_what):
                by_device.setdefault(words.device, []).append((of_what, i))
        by_device.pop(torch.device("cpu"), None)
        arrive = []
        for places in by_device.values():
            sums, arrived = on_the_way(torch.stack([self._sums(of[i]) for of, i in places]))
            for (of_what, i), of_part in zip(places, sums, strict=True):
                of_what[i] = of_part
            arrive += [arrived] if arrived is not None else []
        return arrive

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
    raw = (values.float() if values.dtype == torch.bfloat16 else values).view(torch.uint8)
    if short := -raw.shape[1] % 8:
        raw = F.pad(raw, (0, short))
    return raw.view(torch.int64)


def of_name(data_id: str, count: int) -> np.ndarray:  # (n,) uint64
    """The hash that stands for each sample of data known by name."""
    return np.full(count, _of_text(data_id))


def of_texts(texts: Sequence[str]) -> str:
    """One hash of several texts, as 16 digits.

    >>> of_texts(["a", "b"]) == of_texts(["b", "a"])
    False
    """
    return f"{int(_of_text(repr(list(texts)))):016x}"


def _of_text(text: str) -> np.uint64:
    return np.frombuffer(
        hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), np.uint64
    )[0]
