"""Where samples come from: indexed samples in an order that does not depend on a loader.

Whatever the user holds (a data set, a DataLoader, arrays, a stream) becomes a `Source`.
A *block* is a run of samples in the seeded random order, and what shards share out; a *batch* is
what a model runs on at a time. They are separate: a batch holds whole blocks or a part of one, as
its size allows, and says which in its `Piece`s. Neither batch size nor sharding changes a block.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from .._seeded_random import shuffled
from .._shown_text import shown
from ..errors import DataError, ResemblanceError, first_line
from .batches import is_plain_list, join, size, take, tree_map
from .sample_keys import KEY, Distinct, index_of
from .shares import Share
from .streams import Lazy, Stream, is_streaming_table, stream

_BLOCK = 128  # samples in a block, where nothing says otherwise
_FEWEST_BLOCKS = 16  # a small data set is cut finer, so that a jackknife has blocks to leave out
_TRIAL = 2  # samples to try the model on

Fetch = Callable[[Iterable[np.ndarray]], Iterator[Any]]  # groups of indices to batches
BlockSize = int | Literal["auto"]


@dataclass(frozen=True)
class Piece:
    """Samples of one block that travel together: all of it, or a part."""

    block: int  # its position in the seeded order
    indices: np.ndarray  # (n,) of the samples in the data set, or of their keys
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
    names: tuple[str, ...] = ()  # of samples that are known by keys, for people

    @property
    def indices(self) -> np.ndarray:
        return _indices(self.pieces)

    def name(self, i: int) -> str:
        """What to call its i-th sample."""
        return shown(self.names[i]) if self.names else str(self.indices[i])


@dataclass(frozen=True)
class Source:
    batches: Callable[[int, Share], Iterator[Batch]]  # of at most so many samples, of some blocks
    first: Any  # a batch of a few samples, to try the model on
    block: int  # samples in a block
    total: int | None  # samples in the whole data set, None for a stream
    ordered: bool  # True when the order is ours, False when it is the stream's
    keyed: bool = False  # whether an index is a sample's own in whatever order it comes

    @property
    def count(self) -> int | None:
        """Blocks in the whole data set, None for a stream."""
        return None if self.total is None else -(-self.total // self.block)

    def expected(self, share: Share) -> int | None:
        """Samples of a share, None for a stream."""
        if self.total is None or self.count is None:
            return None
        numbers = share.of(self.count)
        missing = self.count * self.block - self.total  # in the last block
        return len(numbers) * self.block - missing * int(self.count - 1 in numbers)

    def check(self, share: Share) -> None:
        """Refuse more shards than blocks: an empty one would be missing when the rest merge."""
        if self.count is not None and share.shard[1] > self.count:
            raise _too_many_shards(share.shard, f"{self.total} samples", self.count, self.block)


def source(
    data: Any,
    *,
    seed: int,
    block: BlockSize,
    fewest: int = _FEWEST_BLOCKS,
) -> Source:
    """The data as indexed samples; `fewest` is how many blocks `"auto"` makes of small data."""
    if isinstance(data, str | bytes | os.PathLike | nn.Module):
        raise _unknown(data)
    if hasattr(data, "to_numpy"):  # a table of pandas, or what is like one
        data = data.to_numpy()
    if is_streaming_table(data):
        data = stream(data)
    if isinstance(data, Stream):
        return _by_key(data, seed, block)
    if _is_arrays(data):
        return _indexed(
            size(data),
            lambda groups: (take(data, group) for group in groups),
            seed,
            block_size(size(data), block, fewest),
        )
    if isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size=_BLOCK if block == "auto" else block)
    elif _is_map_style(data):
        data = DataLoader(data)
    if isinstance(data, DataLoader):
        if _visits_all(data):
            total = len(data.dataset)  # type: ignore[arg-type]
            return _indexed(total, _loading(data), seed, block_size(total, block, fewest))
        data = _drawing_apart(data)
        data._iterator = None  # of workers that are kept for the caller
    if not isinstance(data, Iterable):
        raise _unknown(data)
    return _stream(data, block)


def _unknown(data: Any) -> DataError:
    what = type(data).__name__
    if isinstance(data, str | os.PathLike):
        what = f"{data!r}; for shards, pass resemblance.stream({os.fspath(data)!r})"
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

    def fetch(groups: Iterable[np.ndarray]) -> Iterator[Any]:
        # A lone group, as for the trial, has no use for more than one worker process.
        workers = len(list(itertools.islice(groups, loader.num_workers)))
        # A loader draws its workers' seed, from the global generator if it has none of its own.
        own = {**options, "num_workers": workers, "generator": torch.Generator()}
        wanted: Any = _Again(lambda: (group.tolist() for group in groups))
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


def _indexed(total: int, fetch: Fetch, seed: int, block: int) -> Source:
    if total == 0:
        raise DataError("the data set is empty: expected at least one sample")
    order = shuffled(total, seed)

    def batches(batch_size: int, share: Share) -> Iterator[Batch]:
        numbers = share.of(-(-total // block))

        def groups() -> Iterator[list[Piece]]:
            blocks = (Piece(int(n), order[n * block : (n + 1) * block]) for n in numbers)
            for run in _runs(blocks, max(1, batch_size // block)):
                yield from _fitting(run, batch_size)

        wanted = _Again(lambda: (_indices(group) for group in groups()))
        for group, samples in zip(groups(), fetch(wanted), strict=True):
            asked = sum(len(piece.indices) for piece in group)
            if size(samples) != asked:
                raise DataError(
                    f"asked the data set for {asked} samples, it gave {size(samples)}; a collate "
                    "function must keep every sample"
                )
            yield Batch(group, samples)

    return Source(batches, next(fetch([order[:block][:_TRIAL]])), block, total, ordered=True)


@dataclass(frozen=True)
class _Again:
    """Items that are made whenever somebody goes through them, as all at once would fill memory."""

    items: Callable[[], Iterator[Any]]

    def __iter__(self) -> Iterator[Any]:
        return self.items()


def _indices(pieces: Sequence[Piece]) -> np.ndarray:
    return np.concatenate([piece.indices for piece in pieces])


def _too_many_shards(shard: tuple[int, int], what: str, count: int, block: int) -> DataError:
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


def _stream(stream: Iterable[Any], block: BlockSize) -> Source:
    block = _BLOCK if block == "auto" else block
    filled = (batch for batch in stream if size(batch))
    head = next(filled, None)
    if head is None:
        raise _empty()
    keyed, distinct = isinstance(head, Mapping) and KEY in head, Distinct()

    def batches(batch_size: int, share: Share) -> Iterator[Batch]:
        own = share.of_stream(
            _counted(_blocks(itertools.chain([head], filled), block), share.shard, block)
        )
        for run in _runs(own, max(1, batch_size // block)):
            samples, start = join([part for _, part in run]), 0
            sizes = [(n, size(part)) for n, part in run]
            run.clear()  # of what has been copied
            names, samples = _keys_of(samples, keyed=keyed)
            pieces = _pieces(sizes, block, [index_of(name) for name in names])
            for group in _fitting(pieces, batch_size):
                stop = start + sum(len(piece.indices) for piece in group)
                part = Batch(group, take(samples, slice(start, stop)), names=names[start:stop])
                for index, name in zip(part.indices.tolist(), part.names, strict=False):
                    distinct.check(index, name)
                yield part
                start = stop

    # A copy, since the model may write into what it is tried on.
    first = tree_map(
        lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf,
        _keys_of(take(head, slice(0, _TRIAL)), keyed=keyed)[1],
    )
    return Source(batches, first, block, None, ordered=False, keyed=keyed)


def _keys_of(samples: Any, *, keyed: bool) -> tuple[tuple[str, ...], Any]:
    """The keys of a batch, if it has them, and the rest of it."""
    if not keyed:
        return (), samples
    return tuple(map(str, samples[KEY])), {
        name: value for name, value in samples.items() if not str(name).startswith("__")
    }


def _pieces(sizes: Sequence[tuple[int, int]], block: int, indices: Sequence[int]) -> list[Piece]:
    """Blocks of a stream by number and size, with the indices of keys, or else running numbers."""
    out, start = [], 0
    for number, count in sizes:
        here = np.array(indices[start : start + count], np.int64)
        out.append(Piece(number, here if indices else number * block + np.arange(count)))
        start += count
    return out


def _by_key(stream: Stream, seed: int, block: BlockSize) -> Source:
    """A stream whose samples are decoded when they are used, which is when a batch is made."""
    block = _BLOCK if block == "auto" else block
    samples, collate = stream.samples(seed), _Collate(default_collate)
    head, trial = _head(stream, samples)

    def batches(batch_size: int, share: Share) -> Iterator[Batch]:
        blocks = _runs(itertools.chain(head, samples), block)
        own = share.of_stream(_counted(blocks, share.shard, block))
        for run in _runs(own, max(1, batch_size // block)):
            waiting = [lazy for _, part in run for lazy in part]
            sizes = [(number, len(part)) for number, part in run]
            for group in _fitting(
                _pieces(sizes, block, [lazy.index for lazy in waiting]), batch_size
            ):
                count = sum(len(piece.indices) for piece in group)
                here, waiting = waiting[:count], waiting[count:]
                loaded = [stream.loaded(lazy, like=trial[0]) for lazy in here]
                yield Batch(group, collate(loaded), names=tuple(lazy.where for lazy in here))

    return Source(batches, collate(trial), block, None, ordered=False, keyed=True)


def _head(stream: Stream, samples: Iterator[Lazy]) -> tuple[list[Lazy], list[Any]]:
    """The samples at the beginning of a stream up to the first few that can be read, and those."""
    head: list[Lazy] = []
    trial: list[Any] = []
    for lazy in samples:
        head.append(lazy)
        try:
            trial.append(lazy.load())
        except ResemblanceError:
            if not stream.skip_bad:
                raise
        if len(trial) == _TRIAL:
            break
    if not trial:
        raise _empty() if not head else DataError(
            f"none of the {len(head):,} samples can be read; see one of them with --on-bad raise"
        )  # fmt: skip
    return head, trial


def _empty() -> DataError:
    return DataError("the data are empty: expected at least one sample")


def _counted(blocks: Iterable[Any], shard: tuple[int, int], block: int) -> Iterator[Any]:
    """The blocks of a stream; more shards than there are is an error at its end."""
    count = 0
    for part in blocks:
        yield part
        count += 1
    if shard[1] > count:
        raise _too_many_shards(shard, "the stream's samples", count, block)


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
