"""Sources: samples in an order that does not depend on a loader, in blocks, batches and shares.

A *block* is a run of samples in the seeded random order, and the unit that is sharded. A *batch* is
what the model runs on at a time. A batch holds whole blocks or part of one, depending on its size,
and its `Piece`s say which. A `Share` is what one pass takes: which blocks, by shard, process and
progress. Neither batch size nor sharding changes a block. `make_source` builds a `Source` from any
kind of data.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from .._utils.formatting import printable
from ..errors import DataError

T = TypeVar("T")

DEFAULT_BLOCK = 128  # samples in a block
TRIAL_SAMPLES = 2  # samples to try the model on
MIN_BLOCKS = 16  # a small data set is cut finer, so that a jackknife has blocks to leave out

BlockSize = int | Literal["auto"]


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
            numbers = np.setdiff1d(numbers, np.flatnonzero(self.done))
        return numbers[self.process[0] :: self.process[1]]

    def of_stream(self, blocks: Iterable[T]) -> Iterator[tuple[int, T]]:
        """Its blocks of a stream, with their numbers."""
        i, n = self.shard
        done = set() if self.done is None else set(np.flatnonzero(self.done).tolist())
        left = ((k, block) for k, block in enumerate(blocks) if k % n == i and k not in done)
        return itertools.islice(left, self.process[0], None, self.process[1])


@dataclass(frozen=True)
class Piece:
    """Samples of one block that travel together: all of it, or a part."""

    block: int  # its position in the seeded order
    indices: np.ndarray  # (n,) of the samples in the data set, or of their keys
    starts: bool = True  # whether the block begins with it
    ends: bool = True  # whether the block is whole with it


@dataclass(frozen=True)
class SampledTokens:
    """Tokens drawn from the sequences of a batch."""

    positions: np.ndarray  # (n, tokens)
    length: int  # of the sequences, with their padding


@dataclass(frozen=True)
class Batch:
    pieces: list[Piece]
    samples: Any  # a tensor, or a tuple or dict of them
    drawn: SampledTokens | None = None  # where tokens are recorded
    names: tuple[str, ...] = ()  # of samples that are known by keys, for people

    @property
    def indices(self) -> np.ndarray:
        return concat_indices(self.pieces)

    def name(self, i: int) -> str:
        """What to call its i-th sample."""
        return printable(self.names[i]) if self.names else str(self.indices[i])


@dataclass(frozen=True)
class Source:
    # of at most so many samples, of some blocks; closed by who stops before the end
    batches: Callable[[int, Share], Generator[Batch, None, None]]
    first: Any  # a batch of a few samples, to try the model on
    block: int  # samples in a block
    total: int | None  # samples in the whole data set, None for a stream
    order: Literal["seeded", "stream", "keyed"]  # ours, or the stream's; keyed: samples have keys
    in_memory: bool = False  # whether reading a sample again costs no more than a copy
    some: Callable[[], Iterator[Any]] | None = None  # samples from all over a data set, one by one

    @property
    def count(self) -> int | None:
        """Blocks in the whole data set, None for a stream."""
        return None if self.total is None else -(-self.total // self.block)

    def expected(self, share: Share) -> int | None:
        """Samples of a share, None for a stream."""
        if self.total is None or self.count is None:
            return None
        starts = share.of(self.count) * self.block
        return int(np.minimum(self.block, self.total - starts).sum())

    def check(self, share: Share) -> None:
        """Refuse more shards than blocks: an empty one would be missing when the rest merge."""
        if self.count is not None and share.shard[1] > self.count:
            raise too_many_shards_error(
                share.shard, f"{self.total} samples", self.count, self.block
            )


def block_size(total: int, block: BlockSize, fewest: int = MIN_BLOCKS) -> int:
    """Samples in a block: `block`, or for `"auto"` 128 in nearly equal blocks, sixteen or more.

    >>> block_size(60_000, "auto"), block_size(640, "auto"), block_size(20, "auto")
    (128, 40, 10)
    >>> block_size(640, 128), block_size(20, 128)
    (128, 20)
    """
    if block != "auto":
        return min(block, total)
    count = max(-(-total // DEFAULT_BLOCK), min(fewest, total // 8), 1)
    return -(-total // count)


def concat_indices(pieces: Sequence[Piece]) -> np.ndarray:
    return np.concatenate([piece.indices for piece in pieces])


def too_many_shards_error(shard: tuple[int, int], what: str, count: int, block: int) -> DataError:
    return DataError(
        f"shard {shard[0]} of {shard[1]}: {what} are {count} blocks of {block}, too few for "
        f"{shard[1]} shards; use at most {count} shards, or a smaller block"
    )


def chunks(items: Iterable[Any], length: int) -> Iterator[list[Any]]:
    remaining = iter(items)
    while run := list(itertools.islice(remaining, length)):
        yield run


def split_into_batches(run: list[Piece], batch_size: int) -> list[list[Piece]]:
    """What becomes of successive blocks: one batch together, or several batches of a large one.

    >>> batches = split_into_batches([Piece(0, np.arange(8))], 3)
    >>> [[len(piece.indices) for piece in batch] for batch in batches]
    [[3], [3], [2]]
    """
    if len(run) > 1:
        return [run]
    (whole,) = run
    count = -(-len(whole.indices) // batch_size)
    return [
        [Piece(whole.block, part, starts=i == 0, ends=i == count - 1)]
        for i, part in enumerate(np.array_split(whole.indices, count))
    ]
