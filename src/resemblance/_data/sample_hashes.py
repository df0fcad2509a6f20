"""Sample identity: short hashes that identify samples by key, by content or by name.

A running number no longer identifies a sample of a stream once the order changes. A key (a name in
a tar file, a file and a row, a row's `__key__`) does, and its 63-bit hash is the index from which
buckets, signs and sampled tokens follow.

Content is read from each batch as it comes and hashed for several batches at once. On a GPU it is
hashed there: eight bytes a sample are copied to the host asynchronously.

`SampleFingerprints` show whether two recordings used the same samples. Each sample has a hash of
its content, and an identifying hash: that of its content, or of the name that the caller gave the
data (`data_id`). The data set's fingerprint is a sum over samples, so that shards add up. A block's
hash also depends on the order of its samples; where samples have keys, it is computed from the keys
instead of the content.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .._ops.devices import copy_to_device_async, copy_to_host_async
from .._ops.tensor_hash import hash_row_sums
from .._utils.formatting import printable
from .._utils.hashing import update_hashes, update_hashes_from_sums, word_keys
from ..errors import DataError
from .batches import attention_mask, batch_inputs, batch_labels, batch_leaves, num_samples
from .sources import Batch, concat_indices

KEY_FIELD = "__key__"  # under which rows and batches have their keys
_MAX_REMEMBERED_KEYS = 2**17  # keys that are looked for again
_HASHED_BYTES_AT_ONCE = 2**22  # bytes of batches that are hashed together


def index_of_key(key: str) -> int:
    """The index of the sample with this key, below 2⁶³.

    >>> index_of_key("cats/0001") == index_of_key("cats/0001") != index_of_key("cats/0002")
    True
    """
    return int(_hash_text(key)) >> 1


def refuse_duplicate(index: int, name: str, seen: set[int]) -> None:
    """An error if a sample's key came before, among the first 131,072 keys of a pass.

    Shards that number their samples anew are found out at the second of them.
    """
    if index in seen:
        raise DataError(
            f"duplicate sample key {printable(name)}: keys must be unique, for example by "
            "including the name of the shard"
        )
    if len(seen) < _MAX_REMEMBERED_KEYS:
        seen.add(index)


HashKind = Literal["known_by", "content", "labels"]
# values read of each part of a sample, evenly spaced
_VALUES_READ: dict[HashKind, int] = {"known_by": 256, "content": 32}
_DTYPE_BY_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class SampleWords(NamedTuple):
    """What was read of a batch's samples, where they lie."""

    samples: int
    words: Mapping[HashKind, list[Tensor]]  # (n, w) int64, of each part of a sample

    @property
    def form(self) -> object:
        """What batches must have in common to be hashed together."""
        return [(what, [(x.shape[1], x.device) for x in xs]) for what, xs in self.words.items()]

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for xs in self.words.values() for x in xs)


class PendingHashes(NamedTuple):
    """Hashes of the samples of some batches, which a GPU may still be at."""

    samples: int
    parts: Mapping[HashKind, list[Tensor]]  # int64 words (n, w), or their sums (n,), on the host
    arrived: torch.cuda.Event | None = None  # to wait for before reading them

    def hashes(self, what: HashKind) -> np.ndarray | None:  # (n,) uint64
        """Of each sample: equal if and (nearly) only if what was read is. None if nothing was."""
        if what not in self.parts:
            return None
        if self.arrived is not None:
            self.arrived.synchronize()
        out = np.zeros(self.samples, np.uint64)
        for part in self.parts[what]:
            update = update_hashes if part.ndim == 2 else update_hashes_from_sums
            out = update(out, part.numpy().view(np.uint64))
        return out


class SampleHasher:
    """Reads some values of every sample, batch after batch of a pass.

    That keeps hashes out of the profile; samples that differ only between the values read pass for
    equal, which matters for no data set but one made for the purpose. Padding is not read, so that
    a sequence keeps its hash among longer ones.
    """

    def __init__(self) -> None:
        self._places: dict[Any, tuple[int, Tensor]] = {}  # in memory, of what is read of a sample
        self._keys: dict[Any, Tensor] = {}  # of words, on their device

    def read(self, batch: Any, *, known: bool = True) -> SampleWords:
        """Content and labels of a batch's samples and, with `known`, what tells them apart.

        Of every part of the inputs these are 32 values and 256. They are copies, as a model may
        write into what it is given.
        """
        mask, words = attention_mask(batch), dict[HashKind, list[Tensor]]()
        words |= {"known_by": [], "content": []} if known else {"content": []}
        for leaf in batch_leaves(batch_inputs(batch)):
            for what, leaf_words in self._read_leaf(leaf, mask, words).items():
                words[what].append(leaf_words)
        if (labels := _label_values(batch)) is not None:
            words["labels"] = list(self._read_leaf(labels, None, ["content"]).values())
        return SampleWords(num_samples(batch), words)

    def _read_leaf(
        self, leaf: Any, mask: Tensor | None, whats: Collection[HashKind]
    ) -> dict[HashKind, Tensor]:
        """The words of one part of the samples; none of one that has no values."""
        if not isinstance(leaf, Tensor | np.ndarray):
            hashes = np.array([_hash_text(repr(value)) for value in leaf], np.uint64)
            return dict.fromkeys(whats, torch.from_numpy(hashes.view(np.int64))[:, None])
        leaf = torch.as_tensor(leaf).detach().resolve_conj().resolve_neg()
        if not leaf.ndim or not leaf.numel():
            return {}
        leaf = leaf[:, None] if leaf.ndim == 1 else leaf
        if mask is not None and leaf.shape == mask.shape:
            unread = (mask == 0).to(leaf.device)
            front = unread.int().argsort(dim=1, stable=True)  # padding, on either side, goes last
            return dict.fromkeys(whats, _row_words(leaf.masked_fill(unread, 0).gather(1, front)))
        return {what: _row_words(self._subsample(leaf, _VALUES_READ[what])) for what in whats}

    def _subsample(self, leaf: Tensor, most: int) -> Tensor:  # (n, most)
        """Values at evenly spaced places of each sample, whatever the order of its memory."""
        shape, strides = leaf.shape[1:], leaf.stride()
        key = shape, strides, leaf.device, most
        if key not in self._places:
            count = min(most, shape.numel())
            flat = torch.linspace(0, shape.numel() - 1, count, dtype=torch.float32).long()
            places = torch.zeros_like(flat)
            # as torch.unravel_index, which imports sympy (0.4 s)
            for size, stride in zip(reversed(shape), reversed(strides[1:]), strict=True):
                places += flat % size * stride
                flat = flat // size
            self._places[key] = int(places.max()) + 1, copy_to_device_async(places, leaf.device)
        span, places = self._places[key]
        memory = leaf.as_strided((len(leaf), span), (strides[0], 1))
        bits = _DTYPE_BY_SIZE.get(leaf.element_size(), leaf.dtype)  # which every device can pick
        return memory.view(bits).index_select(1, places).view(leaf.dtype)

    def hashing(self, reads: Sequence[SampleWords]) -> PendingHashes:
        """Begin to hash the samples of batches of one form, one batch after the other."""
        samples, parts = sum(read.samples for read in reads), {}
        for what in reads[0].words:
            of_batches = zip(*(read.words[what] for read in reads), strict=True)
            parts[what] = [torch.cat(words) if len(words) > 1 else words[0] for words in of_batches]
        # words on a device are replaced by their sums, which are copied to the host
        every = [(part, i) for part in parts.values() for i in range(len(part))]
        places = [(part, i) for part, i in every if part[i].device.type != "cpu"]
        arrived = None
        if places:
            sums = [self._sums(part[i]) for part, i in places]
            together = torch.stack([x.to(sums[0].device) for x in sums])
            on_host, arrived = copy_to_host_async(together)
            for (part, i), row in zip(places, on_host, strict=True):
                part[i] = row
        return PendingHashes(samples, parts, arrived)

    def _sums(self, words: Tensor) -> Tensor:  # (n, w) -> (n,)
        """What `update_hashes_from_sums` takes in of each row, made where the words lie."""
        key = words.shape[1], words.device
        if key not in self._keys:
            keys = torch.from_numpy(word_keys(words.shape[1])[0].view(np.int64))
            self._keys[key] = copy_to_device_async(keys, words.device)
        return hash_row_sums(words, self._keys[key])


def _label_values(batch: Any) -> Any:
    """The samples' labels, numbers of one kind or other values; None if the batch has none."""
    labels = batch_labels(batch)
    if labels is None or isinstance(labels, Mapping):
        return None
    if isinstance(labels, np.ndarray):
        labels = torch.as_tensor(labels) if labels.dtype.kind in "biuf" else labels.tolist()
    if not getattr(labels, "ndim", 1) or len(labels) != num_samples(batch):
        return None
    if not isinstance(labels, Tensor):
        return list(labels)
    # as 64-bit numbers, so that int32 and int64 labels are the same
    return labels.double() if labels.is_floating_point() else labels.long()


def _row_words(values: Tensor) -> Tensor:  # (n, v) -> (n, w) int64
    """The bytes of each row, eight at a time: zeros fill the last word."""
    raw = (values.float() if values.dtype == torch.bfloat16 else values).view(torch.uint8)
    if short := -raw.shape[1] % 8:
        raw = F.pad(raw, (0, short))
    return raw.view(torch.int64)


class _ReadBatch(NamedTuple):
    """What is known of a batch that was read."""

    read: SampleWords
    batch: Batch  # without its samples
    keep: np.ndarray  # (n,) which samples of the batch are counted in


class SampleFingerprints:
    """Running hashes of the samples of a pass, of their labels and of its blocks.

    `begin` a batch, `end` it, and `settle` what is not under way any more. Batches are hashed
    several at a time.
    """

    def __init__(
        self,
        data_id: str | None,
        *,
        stored: int = 0,  # the first blocks, of which each has a hash of its samples in order
        keyed: bool = False,
        sum_blocks: bool = False,  # for `block_hash`, which knows every block
    ) -> None:
        self._name, self._keyed, self._reader = data_id, keyed, SampleHasher()
        self._stored, self._sum_blocks = stored, sum_blocks
        self._known_by = self._content = self._labels = 0
        self._tokens = 1  # blocks that a window of samples makes
        self._labelled = True  # every batch so far had labels
        self._waiting: list[_ReadBatch] = []  # to be hashed together
        self._size = 0  # of what waits, in bytes
        self._under_way: deque[tuple[list[_ReadBatch], PendingHashes]] = deque()
        # of samples in the stored blocks: the block's number, and hashes of content and labels
        self._in_blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray | None]] = []
        self._sums: Counter[int] = Counter()  # of samples and labels, by block

    def begin(self, samples: Any) -> None:
        """Read some of a batch, before a model writes into it."""
        self._read = self._reader.read(samples, known=self._name is None)

    def end(self, batch: Batch, keep: np.ndarray) -> None:  # (n,) bool
        """Count in the batch, once it is hashed."""
        if self._waiting and self._waiting[0].read.form != self._read.form:
            self._hash()
        self._waiting.append(_ReadBatch(self._read, replace(batch, samples=None), keep))
        self._size += self._read.nbytes + batch.indices.nbytes
        if self._size >= _HASHED_BYTES_AT_ONCE:
            self._hash()

    def settle(self, unread: int = 0) -> None:
        """Take in all hashes but the latest `unread`, which may be under way, or wait to be."""
        if not unread:
            self._hash()
        while len(self._under_way) > unread:
            self._add(*self._under_way.popleft())

    def _hash(self) -> None:
        """Begin to hash what waits."""
        if self._waiting:
            hashing = self._reader.hashing([batch.read for batch in self._waiting])
            self._under_way.append((self._waiting, hashing))
            self._waiting, self._size = [], 0

    def _add(self, batches: Sequence[_ReadBatch], hashing: PendingHashes) -> None:
        content, labels = hashing.hashes("content"), hashing.hashes("labels")
        assert content is not None
        known_by = hashing.hashes("known_by")
        if known_by is None:  # samples are known by the name of the data
            known_by = np.full(len(content), _hash_text(self._name or ""))
        keep = np.concatenate([batch.keep for batch in batches])
        pieces = [piece for each in batches for piece in each.batch.pieces]
        blocks = np.concatenate([np.full(len(piece.indices), piece.block) for piece in pieces])
        keys = concat_indices(pieces).astype(np.uint64)[:, None]
        self._known_by = _add_hashes(self._known_by, update_hashes(known_by[keep], keys[keep]))
        self._content = _add_hashes(self._content, content[keep])
        if labels is None:
            self._labelled = False
        else:
            self._labels = _add_hashes(self._labels, labels[keep])
        if self._sum_blocks:
            each = update_hashes(content, keys if labels is None else np.c_[keys, labels])
            found, at = np.unique(blocks, return_inverse=True)
            sums = np.zeros(len(found), np.uint64)
            np.add.at(sums, at, each)  # modulo 2⁶⁴
            self._sums.update(dict(zip(found.tolist(), sums.tolist(), strict=True)))
        if self._keyed:  # which tell the order also where preprocessing differs
            content = update_hashes(np.zeros_like(content), keys)
        drawn = [x.batch.drawn.positions for x in batches if x.batch.drawn is not None]
        if drawn:  # blocks of other tokens are other blocks
            content = update_hashes(content, np.concatenate(drawn).astype(np.uint64) + np.uint64(1))
            self._tokens = drawn[0].shape[1]
        at = np.flatnonzero(keep & (blocks < self._stored))
        if len(at):
            own = None if labels is None else labels[at]
            self._in_blocks.append((blocks[at], content[at], own))

    def _hash_blocks(self, hashes: list[np.ndarray]) -> tuple[str, ...]:
        """For each stored block, a hash of its samples' hashes in order; as many as it has tokens.

        A block whose samples were all skipped has none.
        """
        if not hashes:
            return ()
        sizes = np.unique(np.concatenate([x for x, *_ in self._in_blocks]), return_counts=True)[1]
        rows = np.split(np.concatenate(hashes), np.cumsum(sizes)[:-1])
        blocks = [int(update_hashes(np.zeros(1, np.uint64), row[None])[0]) for row in rows]
        return tuple(f"{block:016x}" for block in blocks for _ in range(self._tokens))

    @property
    def block_hashes(self) -> tuple[str, ...]:
        """Of each stored block's samples in order."""
        return self._hash_blocks([content for _, content, _ in self._in_blocks])

    @property
    def label_hashes(self) -> tuple[str, ...] | None:
        """Of each stored block's labels in order, if there were any."""
        labels = [labels for *_, labels in self._in_blocks if labels is not None]
        return self._hash_blocks(labels) if self._labelled else None

    def block_hash(self, block: int) -> int:
        """32 bits of the sum of a block's samples' hashes (index, content and label), never 0.

        Samples that are skipped count, so that it needs no model; parts of a block add up.
        """
        return (self._sums.pop(block) % 2**64) >> 32 or 1

    def fingerprints(self) -> dict[str, Any]:
        """The fields of `DataInfo` that say which samples these were."""
        return {
            "fingerprint": f"{self._known_by:016x}",
            "content": f"{self._content:016x}",
            "labels": f"{self._labels:016x}" if self._labelled else None,
        }


def _add_hashes(total: int, hashes: np.ndarray) -> int:
    return (total + int(hashes.sum(dtype=np.uint64))) % 2**64  # which wraps around at 2⁶⁴


def hash_texts(texts: Sequence[str]) -> str:
    """One hash of several texts, as 16 digits.

    >>> hash_texts(["a", "b"]) == hash_texts(["b", "a"])
    False
    """
    return f"{int(_hash_text(repr(list(texts)))):016x}"


def _hash_text(text: str) -> np.uint64:
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return np.frombuffer(digest, np.dtype("<u8"))[0]
