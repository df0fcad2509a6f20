"""Which samples a pass saw: hashes by which recordings find out whether they share them.

Each sample has a hash of its content, and one by which recordings are told apart: its content's, or
the name that the caller gave the data. A data set's is a sum over samples, which shards add up to;
a block's depends on the order as well, and where samples have keys it is of the keys.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._data.sample_hashes import Hashing, Read, SampleReader, What, of_name
from .._data.sources import Drawn
from .._seeded_random import absorb

_READ: tuple[What, ...] = ("content", "known_by", "labels")
_AT_ONCE = 2**22  # bytes of batches that are hashed together


class _Batch(NamedTuple):
    """What is known of a batch that was read."""

    read: Read
    drawn: Drawn | None
    indices: np.ndarray  # (n,)
    keep: np.ndarray  # (n,) which samples of the batch are counted in
    blocks: Sequence[tuple[int, bool]]  # samples of each, as far as kept, and whether it ends


class SeenSamples:
    """Running hashes of the samples of a pass, of their labels and of its blocks.

    `begin` a batch, `end` it, and `settle` what is not under way any more. Batches are hashed
    several at a time.
    """

    def __init__(self, data_id: str | None, *, keyed: bool = False) -> None:
        self._name, self._keyed, self._reader = data_id, keyed, SampleReader()
        self._known_by = self._content = self._labels = 0
        self._tokens = 1  # blocks that a window of samples makes
        self._labelled = True  # every batch so far had labels
        self._waiting: list[_Batch] = []  # to be hashed together
        self._size = 0  # of what waits, in bytes
        self._under_way: deque[tuple[list[_Batch], Hashing]] = deque()
        self._open: list[tuple[np.ndarray, np.ndarray | None]] = []  # parts of a block
        self.block_hashes: list[str] = []
        self._label_hashes: list[str] = []

    def begin(self, samples: Any, drawn: Drawn | None = None) -> None:
        """Read some of a batch, before a model writes into it, with the tokens drawn from it."""
        self._batch = self._reader.read(samples, known=self._name is None), drawn

    def end(
        self, indices: np.ndarray, keep: np.ndarray, blocks: Sequence[tuple[int, bool]]
    ) -> None:
        """Count in the batch, once it is hashed."""
        batch = _Batch(*self._batch, indices, keep, blocks)
        if self._waiting and self._waiting[0].read.form != batch.read.form:
            self._hash()
        self._waiting.append(batch)
        self._size += batch.read.nbytes + batch.indices.nbytes
        if self._size >= _AT_ONCE:
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

    def _add(self, batches: Sequence[_Batch], hashing: Hashing) -> None:
        content, known_by, labels = (hashing.hashes(what) for what in _READ)
        assert content is not None
        if known_by is None:
            known_by = of_name(self._name or "", len(content))
        keep = np.concatenate([batch.keep for batch in batches])
        keys = np.concatenate([batch.indices for batch in batches]).astype(np.uint64)[:, None]
        self._known_by = _added(self._known_by, absorb(known_by[keep], keys[keep]))
        self._content = _added(self._content, content[keep])
        if labels is None:
            self._labelled = False
        else:
            self._labels = _added(self._labels, labels[keep])
        if self._keyed:  # which tell the order also where preprocessing differs
            content = absorb(np.zeros_like(content), keys)
        drawn = [batch.drawn.positions for batch in batches if batch.drawn is not None]
        if drawn:  # blocks of other tokens are other blocks
            content = absorb(content, np.concatenate(drawn).astype(np.uint64) + np.uint64(1))
            self._tokens = drawn[0].shape[1]
        self._add_to_blocks(batches, keep, content, labels)

    def _add_to_blocks(
        self,
        batches: Sequence[_Batch],
        keep: np.ndarray,  # (n,) as content and labels
        content: np.ndarray,
        labels: np.ndarray | None,
    ) -> None:
        ended: list[list[tuple[np.ndarray, np.ndarray | None]]] = []
        begin = 0
        for batch in batches:
            start, begin = begin, begin + len(batch.keep)
            for count, ends in batch.blocks:
                rows = np.flatnonzero(keep[start : start + count]) + start
                self._open.append((content[rows], None if labels is None else labels[rows]))
                start += count
                if ends:
                    ended.append(self._open)
                    self._open = []
        self.block_hashes += self._of_blocks([part for part, _ in parts] for parts in ended)
        if self._labelled:
            of_labels = ([part for _, part in parts if part is not None] for parts in ended)
            self._label_hashes += self._of_blocks(of_labels)

    def _of_blocks(self, blocks: Iterable[list[np.ndarray]]) -> list[str]:
        """Of each block's hashes in order, as many as it has tokens; none of an empty one."""
        whole = [np.concatenate(parts) if len(parts) > 1 else parts[0] for parts in blocks]
        out: list[str] = []
        for length, run in itertools.groupby(whole, len):
            rows = np.stack(list(run))
            for found in absorb(np.zeros(len(rows), np.uint64), rows) if length else []:
                out += [f"{int(found):016x}"] * self._tokens
        return out

    @property
    def label_hashes(self) -> tuple[str, ...] | None:
        """Of each block's labels in order, if there were any."""
        return tuple(self._label_hashes) if self._labelled else None

    def fingerprints(self) -> dict[str, Any]:
        """The fields of `DataInfo` that say which samples these were."""
        return {
            "fingerprint": f"{self._known_by:016x}",
            "content": f"{self._content:016x}",
            "labels": f"{self._labels:016x}" if self._labelled else None,
        }


def _added(total: int, hashes: np.ndarray) -> int:
    return (total + int(hashes.sum(dtype=np.uint64))) % 2**64  # which wraps around at 2⁶⁴
