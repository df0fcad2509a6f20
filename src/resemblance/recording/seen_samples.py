"""Which samples a pass saw: hashes by which recordings find out whether they share them.

Each sample has a hash of its content, and one by which recordings are told apart: its content's, or
the name that the caller gave the data. A data set's is a sum over samples, which shards add up to;
a block's depends on the order as well, and where samples have keys it is of the keys.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from .._data.sample_hashes import Read, SampleReader, What, of_name
from .._data.sources import Drawn
from .._seeded_random import absorb

_READ: tuple[What, ...] = ("content", "known_by", "labels")


class SeenSamples:
    """Running hashes of the samples of a pass, of their labels and of its blocks.

    `begin` a batch, `end` it, and `settle` what is not under way any more.
    """

    def __init__(self, data_id: str | None, *, keyed: bool = False) -> None:
        self._name, self._keyed, self._reader = data_id, keyed, SampleReader()
        self._known_by = self._content = self._labels = 0
        self._tokens = 1  # blocks that a window of samples makes
        self._labelled = True  # every batch so far had labels
        self._waiting: deque[partial[None]] = deque()
        self._open: list[tuple[np.ndarray, np.ndarray | None]] = []  # parts of a block
        self.block_hashes: list[str] = []
        self._label_hashes: list[str] = []

    def begin(self, samples: Any, drawn: Drawn | None = None) -> None:
        """Read some of a batch, as it came from the data, with the tokens drawn from it."""
        self._batch = self._reader.read(samples, known=self._name is None), drawn

    def end(
        self,
        indices: np.ndarray,
        keep: np.ndarray,  # (n,) which samples of the batch are counted in
        blocks: Sequence[tuple[int, bool]],  # samples of each, as far as kept, and whether it ends
    ) -> None:
        """Count in the batch, once it has arrived."""
        self._waiting.append(partial(self._add, *self._batch, indices, keep, blocks))

    def settle(self, unread: int = 0) -> None:
        """Hash all batches but the latest `unread`, which may be under way."""
        while len(self._waiting) > unread:
            self._waiting.popleft()()

    def _add(
        self,
        read: Read,
        drawn: Drawn | None,
        indices: np.ndarray,
        keep: np.ndarray,
        blocks: Sequence[tuple[int, bool]],
    ) -> None:
        content, known_by, labels = (read.hashes(what) for what in _READ)
        assert content is not None
        if known_by is None:
            known_by = of_name(self._name or "", len(content))
        at = indices[keep].astype(np.uint64)[:, None]
        self._known_by = _added(self._known_by, absorb(known_by[keep], at))
        self._content = _added(self._content, content[keep])
        if labels is None:
            self._labelled = False
        else:
            self._labels = _added(self._labels, labels[keep])
        if self._keyed:  # which tell the order also where preprocessing differs
            content = absorb(np.zeros_like(content), indices.astype(np.uint64)[:, None])
        if drawn is not None:  # blocks of other tokens are other blocks
            content = absorb(content, drawn.positions.astype(np.uint64) + np.uint64(1))
            self._tokens = drawn.positions.shape[1]
        start = 0
        for count, ends in blocks:
            rows = np.flatnonzero(keep[start : start + count]) + start
            self._add_to_block(content[rows], None if labels is None else labels[rows], ends=ends)
            start += count

    def _add_to_block(self, content: np.ndarray, labels: np.ndarray | None, *, ends: bool) -> None:
        self._open.append((content, labels))
        if not ends:
            return
        parts, self._open = self._open, []
        content = np.concatenate([part for part, _ in parts])
        if len(content):
            self.block_hashes += [_of_sequence(content)] * self._tokens
        if len(content) and self._labelled:
            named = np.concatenate([part for _, part in parts if part is not None])
            self._label_hashes += [_of_sequence(named)] * self._tokens

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


def _of_sequence(hashes: np.ndarray) -> str:
    return f"{int(absorb(np.zeros(1, np.uint64), hashes[None])[0]):016x}"
