"""Which blocks of the seeded order one pass takes: a shard of them, or what is left of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Share:
    """Every n-th block, less those that are done, dealt out to processes in turn.

    Shards are fixed by the number of a block alone, so that one can be recorded again without the
    others. Processes of one job share what is left, so that their number may change between starts.

    >>> Share(shard=(1, 2), process=(0, 2), done=np.arange(8) == 3).of(8).tolist()
    [1, 7]
    """

    shard: tuple[int, int] = (0, 1)  # (i, n)
    process: tuple[int, int] = (0, 1)  # its rank, of so many
    done: np.ndarray | None = None  # (blocks,) bool: recorded before

    def of(self, count: int) -> np.ndarray:
        """The numbers of its blocks, out of so many."""
        numbers = np.arange(self.shard[0], count, self.shard[1])
        if self.done is not None:
            numbers = numbers[~_reaching(self.done, count)[numbers]]
        return numbers[self.process[0] :: self.process[1]]

    def of_stream(self, blocks: Iterable[T]) -> Iterator[tuple[int, T]]:
        """Its blocks of a stream, with their numbers."""
        i, n = self.shard
        left = -1  # blocks of the shard that are not done, less one
        for number, block in enumerate(blocks):
            ours = number % n == i
            if ours and self.done is not None and number < len(self.done):
                ours = not self.done[number]
            left += ours
            if ours and left % self.process[1] == self.process[0]:
                yield number, block


def _reaching(done: np.ndarray, count: int) -> np.ndarray:
    """As many as there are blocks: those that nobody spoke of are not done."""
    return np.pad(done[:count], (0, max(0, count - len(done))))
