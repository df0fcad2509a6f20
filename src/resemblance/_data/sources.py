"""Where samples come from: chunks of indexed samples, in an order that does not depend on a loader.

Whatever the user holds (a data set, a DataLoader, arrays, a stream of batches) becomes a `Source`
that yields forward batches with the `Chunk`s in them: the index of each sample, and the number of
the block that they form. A block is one chunk of the seeded random order; chunks are grouped into
batches and dealt out to shards whole, so neither batch size nor sharding changes a block.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from .._seeded_hash import shuffled
from ..errors import DataError
from .batches import join, size, take, tree_map

_FEWEST_BLOCKS = 16  # a small data set is cut finer, so that a jackknife has blocks to leave out
_TRIAL = 2  # samples to try the model on

Fetch = Callable[[list[np.ndarray]], Iterator[Any]]  # groups of indices to batches


@dataclass(frozen=True)
class Chunk:
    """Samples that travel together: one block, or a run of samples beyond the last block."""

    number: int  # position in the seeded order
    indices: np.ndarray  # (n,) of the samples in the data set


Batches = Iterator[tuple[list[Chunk], Any]]  # whole chunks, and their samples in one batch


@dataclass(frozen=True)
class Source:
    """Forward batches of whole chunks."""

    batches: Callable[[int], Batches]  # of at most so many samples, or one chunk
    first: Any  # a batch of a few samples, to try the model on
    block: int  # samples in a block
    total: int | None  # samples in the whole data set, None for a stream
    expected: int | None  # samples this source will yield, None for a stream
    ordered: bool  # True when the order is ours, False when it is the stream's


def source(data: Any, *, seed: int, block: int, shard: tuple[int, int]) -> Source:
    """Chunks of whatever `data` is; see the module's paragraph."""
    if isinstance(data, DataLoader):
        if not _visits_all(data):
            return _stream(data, block, shard)
        total, fetch = len(data.dataset), _loading(data.dataset, _options(data))  # type: ignore[arg-type]
    elif isinstance(data, IterableDataset):
        return _stream(DataLoader(data, batch_size=block), block, shard)
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


def _visits_all(loader: DataLoader) -> bool:
    """Whether a loader gives each sample of a map-style data set once, in whatever order."""
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        return False
    sampler = loader.sampler
    return type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )


def _options(loader: DataLoader) -> dict[str, Any]:
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
        sampler = [group.tolist() for group in groups]
        return iter(
            DataLoader(dataset, batch_sampler=sampler, **{**options, "num_workers": workers})
        )

    return fetch


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
    chunks = [Chunk(n, order[n * block : (n + 1) * block]) for n in numbers]

    def batches(batch_size: int) -> Batches:
        step = max(1, batch_size // block)
        groups = [chunks[i : i + step] for i in range(0, len(chunks), step)]
        wanted = [np.concatenate([chunk.indices for chunk in group]) for group in groups]
        for group, indices, batch in zip(groups, wanted, fetch(wanted), strict=True):
            if size(batch) != len(indices):
                raise DataError(
                    f"asked the data set for {len(indices)} samples, it gave {size(batch)}; a "
                    "collate function must keep every sample"
                )
            yield group, batch

    first = next(fetch([chunks[0].indices[:_TRIAL]]))
    expected = sum(len(chunk.indices) for chunk in chunks)
    return Source(batches, first, block, total, expected, ordered=True)


def _stream(stream: Iterable[Any], block: int, shard: tuple[int, int]) -> Source:
    iterator = iter(stream)
    head = next((batch for batch in iterator if size(batch)), None)
    if head is None:
        raise DataError("the data are empty: expected at least one sample")

    def chunks() -> Iterator[tuple[Chunk, Any]]:
        held: list[Any] = []
        count = number = seen = 0
        for batch in itertools.chain([head], iterator, [None]):
            if batch is not None and size(batch):  # an empty batch holds nothing to lose
                held.append(batch)
                count += size(batch)
            while count >= block or (batch is None and count):
                whole = join(held)
                now = min(block, count)
                if number % shard[1] == shard[0]:
                    yield Chunk(number, np.arange(seen, seen + now)), take(whole, slice(0, now))
                held = [take(whole, slice(now, None))] if now < count else []
                count, number, seen = count - now, number + 1, seen + now

    def batches(batch_size: int) -> Batches:
        pending = chunks()
        while group := list(itertools.islice(pending, max(1, batch_size // block))):
            yield [chunk for chunk, _ in group], join([batch for _, batch in group])

    # A copy, since the model may write into what it is tried on.
    first = tree_map(_copied, take(head, slice(0, _TRIAL)))
    return Source(batches, first, block, None, None, ordered=False)


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf
