"""Where samples come from: indexed samples in an order that does not depend on a loader.

Whatever the user holds (a data set, a DataLoader, arrays, a stream of batches) becomes a `Source`.
A *block* is a run of samples in the seeded random order, and what shards share out; a *batch* is
what a model runs on at a time. They are separate: a batch holds whole blocks or a part of one, as
its size allows, and says which in its `Piece`s. Neither batch size nor sharding changes a block.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from .._seeded_hash import shuffled
from ..errors import DataError
from .batches import join, size, take, tree_map

_FEWEST_BLOCKS = 16  # a small data set is cut finer, so that a jackknife has blocks to leave out
_TRIAL = 2  # samples to try the model on

Fetch = Callable[[list[np.ndarray]], Iterator[Any]]  # groups of indices to batches


@dataclass(frozen=True)
class Piece:
    """Samples of one block that travel together: all of it, or a part."""

    block: int  # its position in the seeded order
    indices: np.ndarray  # (n,) of the samples in the data set
    starts: bool = True  # whether the block begins with it
    ends: bool = True  # whether the block is whole with it


@dataclass(frozen=True)
class Batch:
    """What a model runs on at a time: whole blocks, or a part of one."""

    pieces: list[Piece]
    samples: Any  # a tensor, or a tuple or dict of them

    @property
    def indices(self) -> np.ndarray:
        return np.concatenate([piece.indices for piece in self.pieces])


@dataclass(frozen=True)
class Source:
    """Samples in blocks, handed out in batches."""

    batches: Callable[[int], Iterator[Batch]]  # of at most so many samples
    first: Any  # a batch of a few samples, to try the model on
    block: int  # samples in a block
    total: int | None  # samples in the whole data set, None for a stream
    expected: int | None  # samples this source will yield, None for a stream
    ordered: bool  # True when the order is ours, False when it is the stream's


def source(data: Any, *, seed: int, block: int, shard: tuple[int, int]) -> Source:
    """Chunks of whatever `data` is; see the module's paragraph."""
    if isinstance(data, DataLoader):
        if not _visits_all(data):
            return _stream(_drawing_apart(data), block, shard)
        total, fetch = len(data.dataset), _loading(data.dataset, _options(data))  # type: ignore[arg-type]
    elif isinstance(data, IterableDataset):
        loader = DataLoader(data, batch_size=block, generator=torch.Generator())
        return _stream(loader, block, shard)
    elif _is_arrays(data):
        total, fetch = size(data), lambda groups: (take(data, group) for group in groups)
    elif _is_map_style(data):
        total, fetch = len(data), _loading(data, {})
    elif isinstance(data, Iterable):
        return _stream(data, block, shard)
    else:
        raise DataError(
            "expected a data set, a DataLoader, arrays or an iterable of batches; "
            f"found {type(data).__name__}"
        )
    return _indexed(total, fetch, seed, block, shard)


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


def _options(loader: DataLoader[Any]) -> dict[str, Any]:
    options = {
        "num_workers": loader.num_workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "worker_init_fn": loader.worker_init_fn,
        "timeout": loader.timeout,
    }
    if loader.num_workers:
        options["multiprocessing_context"] = loader.multiprocessing_context
        options["prefetch_factor"] = loader.prefetch_factor
    return options


def _loading(dataset: Any, options: dict[str, Any]) -> Fetch:
    def fetch(groups: list[np.ndarray]) -> Iterator[Any]:
        # A lone group, as for the trial, has no use for more than one worker process.
        workers = min(options.get("num_workers", 0), len(groups))
        # A loader draws its workers' seed, from the global generator if it has none of its own.
        own = {**options, "num_workers": workers, "generator": torch.Generator()}
        return iter(DataLoader(dataset, batch_sampler=[group.tolist() for group in groups], **own))

    return fetch


def _drawing_apart(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A loader that gives what this one would, but moves no generator of the caller's.

    Its own generator and its sampler's are copied; where it would draw from the global one, it
    draws from a new one.
    """
    apart = copy.copy(loader)
    for name in ("sampler", "batch_sampler"):
        outer = copy.copy(getattr(loader, name))
        if hasattr(outer, "sampler"):
            outer.sampler = copy.copy(outer.sampler)
        for sampler in (outer, getattr(outer, "sampler", outer)):
            if hasattr(sampler, "generator"):
                sampler.generator = _copied_generator(sampler.generator)
        apart.__dict__[name] = outer
    apart.__dict__["_iterator"] = None  # of workers that are kept for the caller
    apart.generator = _copied_generator(loader.generator)
    return apart


def _copied_generator(generator: torch.Generator | None) -> torch.Generator:
    out = torch.Generator()
    if generator is not None:
        out.set_state(generator.get_state())
    return out


def _is_arrays(data: Any) -> bool:
    if isinstance(data, Tensor | np.ndarray):
        return True
    values = list(data.values()) if isinstance(data, Mapping) else data
    return (
        isinstance(data, tuple | Mapping)
        and bool(values)
        and all(isinstance(value, Tensor | np.ndarray) for value in values)
    )


def _is_map_style(data: Any) -> bool:
    """A list is a list of batches, though it could pass for a data set."""
    return (
        hasattr(data, "__len__")
        and hasattr(data, "__getitem__")
        and not isinstance(data, list | tuple | Mapping | str | bytes)
    )


def block_size(total: int, block: int) -> int:
    """Samples in a block: at most `block`, in nearly equal blocks, at least sixteen of them.

    >>> block_size(60_000, 128), block_size(640, 128), block_size(20, 128)
    (128, 40, 10)
    """
    count = max(-(-total // block), min(_FEWEST_BLOCKS, total // 8), 1)
    return -(-total // count)


def _indexed(total: int, fetch: Fetch, seed: int, block: int, shard: tuple[int, int]) -> Source:
    if total == 0:
        raise DataError("the data set is empty: expected at least one sample")
    block = block_size(total, block)
    order = shuffled(total, seed)
    numbers = range(shard[0], -(-total // block), shard[1])
    if not numbers:
        raise DataError(
            f"shard {shard[0]} of {shard[1]} is empty: {total} samples make "
            f"{-(-total // block)} blocks of {block}; use at most that many shards"
        )
    blocks = [Piece(n, order[n * block : (n + 1) * block]) for n in numbers]

    def batches(batch_size: int) -> Iterator[Batch]:
        groups = list(itertools.chain.from_iterable(_grouped(blocks, block, batch_size)))
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


def _grouped(blocks: Iterable[Piece], block: int, batch_size: int) -> Iterator[list[list[Piece]]]:
    """Successive blocks with what becomes of them: one batch together, or several batches of one.

    >>> [[len(piece.indices) for piece in batch] for batches in
    ...  _grouped([Piece(0, np.arange(8)), Piece(1, np.arange(5))], 8, 3) for batch in batches]
    [[3], [3], [2], [3], [2]]
    """
    remaining = iter(blocks)
    while together := list(itertools.islice(remaining, max(1, batch_size // block))):
        if batch_size >= block:
            yield [together]
            continue
        (whole,) = together
        count = -(-len(whole.indices) // batch_size)
        parts = np.array_split(whole.indices, count)
        yield [
            [Piece(whole.block, part, starts=i == 0, ends=i == count - 1)]
            for i, part in enumerate(parts)
        ]


def _stream(stream: Iterable[Any], block: int, shard: tuple[int, int]) -> Source:
    iterator = iter(stream)
    head = next((batch for batch in iterator if size(batch)), None)
    if head is None:
        raise DataError("the data are empty: expected at least one sample")
    held: dict[int, Any] = {}  # samples of blocks that are not yet handed out

    def blocks() -> Iterator[Piece]:
        waiting: list[Any] = []
        count = number = seen = 0
        for batch in itertools.chain([head], iterator, [None]):
            if batch is not None and size(batch):  # an empty batch holds nothing to lose
                waiting.append(batch)
                count += size(batch)
            while count >= block or (batch is None and count):
                whole = join(waiting)
                now = min(block, count)
                if number % shard[1] == shard[0]:
                    held[number] = take(whole, slice(0, now))
                    yield Piece(number, np.arange(seen, seen + now))
                waiting = [take(whole, slice(now, None))] if now < count else []
                count, number, seen = count - now, number + 1, seen + now

    def batches(batch_size: int) -> Iterator[Batch]:
        for groups in _grouped(blocks(), block, batch_size):
            numbers = dict.fromkeys(piece.block for group in groups for piece in group)
            samples, start = join([held.pop(number) for number in numbers]), 0
            for group in groups:
                stop = start + sum(len(piece.indices) for piece in group)
                yield Batch(group, take(samples, slice(start, stop)))
                start = stop

    # A copy, since the model may write into what it is tried on.
    first = tree_map(_copied, take(head, slice(0, _TRIAL)))
    return Source(batches, first, block, None, None, ordered=False)


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf
