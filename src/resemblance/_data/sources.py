"""Where samples come from: indexed samples in an order that does not depend on a loader.

Whatever the user holds (a data set, a DataLoader, arrays, a stream of batches) becomes a `Source`.
A *block* is a run of samples in the seeded random order, and what shards share out; a *batch* is
what a model runs on at a time. They are separate: a batch holds whole blocks or a part of one, as
its size allows, and says which in its `Piece`s. Neither batch size nor sharding changes a block.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from .._seeded_random import shuffled
from ..errors import DataError, first_line
from .batches import is_plain_list, join, size, take, tree_map

_BLOCK = 128  # samples in a block, where nothing says otherwise
_FEWEST_BLOCKS = 16  # a small data set is cut finer, so that a jackknife has blocks to leave out
_TRIAL = 2  # samples to try the model on

Fetch = Callable[[list[np.ndarray]], Iterator[Any]]  # groups of indices to batches
BlockSize = int | Literal["auto"]


@dataclass(frozen=True)
class Piece:
    """Samples of one block that travel together: all of it, or a part."""

    block: int  # its position in the seeded order
    indices: np.ndarray  # (n,) of the samples in the data set
    starts: bool = True  # whether the block begins with it
    ends: bool = True  # whether the block is whole with it


@dataclass(frozen=True)
class Drawn:
    """Tokens drawn from the sequences of a batch."""

    positions: np.ndarray  # (n, tokens)
    length: int  # of the sequences, with their padding


@dataclass(frozen=True)
class Batch:
    pieces: list[Piece]
    samples: Any  # a tensor, or a tuple or dict of them
    drawn: Drawn | None = None  # where tokens are recorded

    @property
    def indices(self) -> np.ndarray:
        return np.concatenate([piece.indices for piece in self.pieces])


@dataclass(frozen=True)
class Source:
    batches: Callable[[int], Iterator[Batch]]  # of at most so many samples
    first: Any  # a batch of a few samples, to try the model on
    block: int  # samples in a block
    total: int | None  # samples in the whole data set, None for a stream
    expected: int | None  # samples this source will yield, None for a stream
    ordered: bool  # True when the order is ours, False when it is the stream's


def source(
    data: Any,
    *,
    seed: int,
    block: BlockSize,
    shard: tuple[int, int],
    fewest: int = _FEWEST_BLOCKS,
) -> Source:
    """The data as indexed samples; `fewest` is how many blocks `"auto"` makes of small data."""
    if isinstance(data, str | bytes | os.PathLike | nn.Module):
        raise _unknown(data)
    if _is_arrays(data):
        return _indexed(
            size(data),
            lambda groups: (take(data, group) for group in groups),
            seed,
            block_size(size(data), block, fewest),
            shard,
        )
    if isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size=_BLOCK if block == "auto" else block)
    elif _is_map_style(data):
        data = DataLoader(data)
    if isinstance(data, DataLoader):
        if _visits_all(data):
            total = len(data.dataset)  # type: ignore[arg-type]
            return _indexed(total, _loading(data), seed, block_size(total, block, fewest), shard)
        data = _drawing_apart(data)
        data._iterator = None  # of workers that are kept for the caller
    if not isinstance(data, Iterable):
        raise _unknown(data)
    return _stream(data, block, shard)


def _unknown(data: Any) -> DataError:
    what = repr(data) if isinstance(data, str | os.PathLike) else type(data).__name__
    return DataError(
        f"expected a data set, a DataLoader, arrays or an iterable of batches; found {what}"
    )


def _is_arrays(data: Any) -> bool:
    """Whether it is an array or several, perhaps with lists of labels or texts beside them."""
    values = data.values() if isinstance(data, Mapping) else data
    parts = list(values) if isinstance(data, Mapping | tuple) else [data]
    arrays = [isinstance(part, Tensor | np.ndarray) for part in parts]
    return any(arrays) and all(
        array or is_plain_list(part) for array, part in zip(arrays, parts, strict=True)
    )


def _is_map_style(data: Any) -> bool:
    """A list is a list of batches, though it could pass for a data set."""
    indexed = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    return indexed and not isinstance(data, list | tuple | Mapping | str | bytes)


def _visits_all(loader: DataLoader[Any]) -> bool:
    """Whether a loader gives each sample of a map-style data set once, in whatever order."""
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        return False
    sampler = loader.sampler
    return type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )


@dataclass(frozen=True)
class _Collate:
    """A loader's own way of making a batch of samples, with an error that says what they were."""

    collate: Callable[[Any], Any]

    def __call__(self, samples: Any) -> Any:
        try:
            return self.collate(samples)
        except (RuntimeError, TypeError, ValueError, KeyError) as error:
            raise DataError(
                f"samples cannot be put together into a batch ({first_line(error)}); give tensors "
                "of one shape, such as with a transform, or a DataLoader with its own collate_fn"
            ) from error


def _loading(loader: DataLoader[Any]) -> Fetch:
    plain = ("collate_fn", "pin_memory", "worker_init_fn", "timeout")
    of_workers = ("multiprocessing_context", "prefetch_factor")  # None where there are none
    options = {name: getattr(loader, name) for name in plain + of_workers}
    options["collate_fn"] = _Collate(loader.collate_fn)

    def fetch(groups: list[np.ndarray]) -> Iterator[Any]:
        # A lone group, as for the trial, has no use for more than one worker process.
        workers = min(loader.num_workers, len(groups))
        # A loader draws its workers' seed, from the global generator if it has none of its own.
        own = {**options, "num_workers": workers, "generator": torch.Generator()}
        wanted = [group.tolist() for group in groups]
        try:
            yield from DataLoader(loader.dataset, batch_sampler=wanted, **own)
        except DataError as error:  # from a worker process with its traceback in the message
            said = str(error).strip().splitlines()[-1]
            raise DataError(said.removeprefix("resemblance.errors.DataError: ")) from error

    return fetch


def _drawing_apart(holder: Any) -> Any:
    """A copy of a loader or sampler that draws the same, but moves no generator of the caller's.

    Generators in it are copied; where it would draw from the global one, it draws from a new one.
    """
    apart = copy.copy(holder)
    if hasattr(holder, "generator"):
        apart.generator = torch.Generator()
        if holder.generator is not None:
            apart.generator.set_state(holder.generator.get_state())
    for name in ("sampler", "batch_sampler"):
        if hasattr(holder, name):  # a loader refuses ordinary assignment
            object.__setattr__(apart, name, _drawing_apart(getattr(holder, name)))
    return apart


def block_size(total: int, block: BlockSize, fewest: int = _FEWEST_BLOCKS) -> int:
    """Samples in a block: `block`, or for `"auto"` 128 in nearly equal blocks, sixteen or more.

    >>> block_size(60_000, "auto"), block_size(640, "auto"), block_size(20, "auto")
    (128, 40, 10)
    >>> block_size(640, 128), block_size(20, 128)
    (128, 20)
    """
    if block != "auto":
        return min(block, total)
    count = max(-(-total // _BLOCK), min(fewest, total // 8), 1)
    return -(-total // count)


def _indexed(total: int, fetch: Fetch, seed: int, block: int, shard: tuple[int, int]) -> Source:
    if total == 0:
        raise DataError("the data set is empty: expected at least one sample")
    order = shuffled(total, seed)
    count = -(-total // block)
    if shard[1] > count:
        raise _too_many_shards(shard, f"{total} samples", count, block)
    numbers = range(shard[0], count, shard[1])
    blocks = [Piece(n, order[n * block : (n + 1) * block]) for n in numbers]

    def batches(batch_size: int) -> Iterator[Batch]:
        runs = _runs(blocks, max(1, batch_size // block))
        groups = [group for run in runs for group in _fitting(run, batch_size)]
        wanted = [np.concatenate([piece.indices for piece in group]) for group in groups]
        for group, indices, samples in zip(groups, wanted, fetch(wanted), strict=True):
            if size(samples) != len(indices):
                raise DataError(
                    f"asked the data set for {len(indices)} samples, it gave {size(samples)}; a "
                    "collate function must keep every sample"
                )
            yield Batch(group, samples)

    first = next(fetch([blocks[0].indices[:_TRIAL]]))
    expected = sum(len(piece.indices) for piece in blocks)
    return Source(batches, first, block, total, expected, ordered=True)


def _too_many_shards(shard: tuple[int, int], what: str, count: int, block: int) -> DataError:
    """Some would be empty, and what cannot be recorded is missing for ever when the rest merge."""
    return DataError(
        f"shard {shard[0]} of {shard[1]}: {what} make {count} blocks of {block}, too few for "
        f"{shard[1]} shards; use at most {count}, or a smaller block"
    )


def _runs(items: Iterable[Any], length: int) -> Iterator[list[Any]]:
    remaining = iter(items)
    while run := list(itertools.islice(remaining, length)):
        yield run


def _fitting(run: list[Piece], batch_size: int) -> list[list[Piece]]:
    """What becomes of successive blocks: one batch together, or several batches of a large one.

    >>> [[len(piece.indices) for piece in batch] for batch in _fitting([Piece(0, np.arange(8))], 3)]
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


def _stream(stream: Iterable[Any], block: BlockSize, shard: tuple[int, int]) -> Source:
    block = _BLOCK if block == "auto" else block
    filled = (batch for batch in stream if size(batch))
    head = next(filled, None)
    if head is None:
        raise DataError("the data are empty: expected at least one sample")

    def numbered() -> Iterator[tuple[int, Any]]:
        count = 0
        for part in _blocks(itertools.chain([head], filled), block):
            yield count, part
            count += 1
        if shard[1] > count:
            raise _too_many_shards(shard, "the stream's samples", count, block)

    def batches(batch_size: int) -> Iterator[Batch]:
        own = itertools.islice(numbered(), shard[0], None, shard[1])
        for run in _runs(own, max(1, batch_size // block)):
            pieces = [Piece(n, n * block + np.arange(size(part))) for n, part in run]
            samples, start = join([part for _, part in run]), 0
            run.clear()  # of what has been copied
            for group in _fitting(pieces, batch_size):
                stop = start + sum(len(piece.indices) for piece in group)
                yield Batch(group, take(samples, slice(start, stop)))
                start = stop

    # A copy, since the model may write into what it is tried on.
    first = tree_map(
        lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf,
        take(head, slice(0, _TRIAL)),
    )
    return Source(batches, first, block, None, None, ordered=False)


def _blocks(stream: Iterable[Any], block: int) -> Iterator[Any]:
    """The samples of a stream cut anew, so many at a time."""
    waiting: list[Any] = []
    count = 0
    for batch in stream:
        waiting.append(batch)
        count += size(batch)
        if count < block:
            continue
        whole, left = join(waiting), count % block
        waiting.clear()
        for start in range(0, count - left, block):
            yield take(whole, slice(start, start + block))
        if left:
            waiting.append(take(whole, slice(count - left, count)))
        count = left
    if waiting:
        yield take(join(waiting), slice(0, count))
