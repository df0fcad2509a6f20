"""Streams (`stream`): shards, streaming data sets and rows as data, with a shuffle buffer.

Samples are identified by their keys, so buckets, sketches and sample hashes do not depend on the
order. They are decoded only when a batch is built: samples that belong to another process, shard or
checkpoint are read but not decoded.

The order is a function of the seed and of the stream alone. A buffer that holds all samples
shuffles them fully; a smaller one preserves part of the order, less the larger it is.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from .._utils.formatting import printable
from .._utils.hashing import BUFFER, random_bits
from .._utils.validation import check_integer
from ..errors import DataError, ResemblanceError, first_line
from .batches import batch_leaves, tree_map
from .decoding import Row, approximate_bytes, default_sample
from .sample_hashes import KEY_FIELD, index_of_key, refuse_duplicate
from .shard_files import find_shards, shard_rows

T = TypeVar("T")

_RANDOM_CHUNK = 4096  # random numbers that are made at a time
_MAX_BUFFER_BYTES = 2**30  # bytes that may wait


def shuffle_buffered(
    items: Iterable[T],
    seed: int,
    size: int,
    weight: Callable[[T], int] = lambda _: 0,  # bytes
    room: int = _MAX_BUFFER_BYTES,
) -> Iterator[T]:
    """The items in another order, of which `size`, and `room` bytes, wait at most.

    >>> sorted(shuffle_buffered("abcdef", seed=0, size=3))
    ['a', 'b', 'c', 'd', 'e', 'f']
    """
    draws = (
        word
        for start in itertools.count(0, _RANDOM_CHUNK)
        for word in random_bits(seed, BUFFER, np.arange(start, start + _RANDOM_CHUNK)).tolist()
    )
    held: list[T] = []
    bytes_held = 0

    def pop_random() -> T:
        nonlocal bytes_held
        at = (next(draws) >> 32) * len(held) >> 32
        held[at], held[-1] = held[-1], held[at]
        bytes_held -= weight(held[-1])
        return held.pop()

    for item in items:
        held.append(item)
        bytes_held += weight(item)
        while held and (len(held) >= size or bytes_held > room):
            yield pop_random()
    while held:
        yield pop_random()


DEFAULT_BUFFER = 10_000  # samples that wait, where nothing says otherwise


@dataclass(frozen=True)
class LazySample:
    """A sample that is not decoded yet."""

    index: int  # by which it is known
    where: str  # for people
    weight: int  # bytes, about
    row: Any


@dataclass(frozen=True)
class Stream:
    """Samples in a seeded order of their own; see `stream`."""

    rows: Callable[[int], Iterable[Any]]  # by seed, before the buffer
    sample: Callable[[Any], Any]  # makes a sample of a row
    buffer: int = DEFAULT_BUFFER
    skip_bad: bool = False  # what cannot be read becomes a sample that is not finite
    limit: int = 0  # samples, after the buffer; 0 for all

    def samples(self, seed: int) -> Iterator[LazySample]:
        """All samples, each once: known by a key, else by a number that no shuffling changes."""
        seen = set[int]()

        def checked() -> Iterator[LazySample]:
            for number, row in enumerate(self.rows(seed)):
                key = row.get(KEY_FIELD) if isinstance(row, Mapping) else None
                keyed = isinstance(key, str)
                index = index_of_key(str(key)) if keyed else number
                where = row.where if isinstance(row, Row) else str(key if keyed else number)
                refuse_duplicate(index, where, seen)
                weight = approximate_bytes(row.encoded if isinstance(row, Row) else row)
                yield LazySample(index, where, weight, row)

        shuffled = shuffle_buffered(checked(), seed, self.buffer, lambda lazy: lazy.weight)
        return itertools.islice(shuffled, self.limit or None)

    def load(self, lazy: LazySample) -> Any:
        """A sample, decoded."""
        try:
            return self.sample(lazy.row)
        except ResemblanceError:
            raise
        except Exception as error:  # of the caller's own function
            raise DataError(
                f"cannot build a sample from {printable(lazy.where)} ({type(error).__name__}: "
                f"{first_line(error)}); fix it, or the function that builds samples"
            ) from error

    def load_or_skip(self, lazy: LazySample, like: Any) -> Any:
        """A sample; of one that cannot be read, NaN in place of the numbers of one `like` it."""

        def is_float(leaf: Any) -> bool:
            return isinstance(leaf, Tensor) and leaf.is_floating_point()

        try:
            return self.load(lazy)
        except ResemblanceError:
            if not self.skip_bad or not any(map(is_float, batch_leaves(like))):
                raise
            return tree_map(lambda x: torch.full_like(x, torch.nan) if is_float(x) else x, like)


def stream(
    data: Any,
    sample: Callable[[Mapping[str, Any]], Any] | None = None,
    *,
    buffer: int = DEFAULT_BUFFER,
) -> Stream:
    """Data that are read once, in order, such as tar shards and Parquet files, for `record`.

    The order is a function of record's seed. A sample is identified by its key (in a tar shard its
    path up to the first dot, else `__key__`, else the Parquet file and row, or the running number),
    so recordings of the same samples in different orders can be compared by buckets. A sample is
    decoded only if it is used: those of a different shard of a pass, or that a checkpoint already
    has, are not.

    Args:
        data: tar shards as WebDataset writes them, or Parquet files: a file, a folder, a pattern
            (`"shards-{000..010}.tar"`, `"*.parquet"`) or a list of files. Or a streaming data set
            of the library datasets, or any iterable of rows that are dicts.
        sample: a function that turns a row into a sample: a tensor, (inputs, label) or a dict of
            the model's arguments. A row of a tar shard has a field for each file extension
            (`row["jpg"]`, a PIL image; `row["cls"]`, `row["json"]`, `row["npy"]`, `row["txt"]`), a
            row of other data its columns; `row["__key__"]` is the key. None takes the image,
            resized to 224 pixels and normalised as for ImageNet, or else the array, with the label
            if there is one; rows of other iterables are taken as they are.
        buffer: size of the shuffle buffer in samples, less where they take 1 GiB. If files hold one
            class each, `record` reports how much of the order remains.

    Returns:
        A source for `record`.

    Example:
        >>> import torch, resemblance as rs
        >>> rows = [{"__key__": f"{i:03}", "x": torch.randn(4)} for i in range(200)]
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> rs.record(net, rs.stream(rows, lambda row: row["x"]), progress=False).samples
        200
    """
    buffer = check_integer("buffer", buffer, 1)
    if not (sample is None or callable(sample)):
        raise DataError(f"sample must be a function of a row; found {sample!r}")
    paths = data if isinstance(data, list | tuple) else [data]
    if paths and all(isinstance(path, str | os.PathLike) for path in paths):
        files = [file for path in paths for file in find_shards(path)]
        return Stream(partial(shard_rows, files), sample or default_sample, buffer)
    if not isinstance(data, Iterable) or isinstance(data, Mapping | Tensor):
        raise DataError(
            "expected shards by name, a streaming data set or an iterable of rows; found "
            f"{type(data).__name__}; other data need no stream"
        )
    return Stream(lambda _: data, sample or without_metadata, buffer)


def without_metadata(row: Any) -> Any:
    """A row without what is said about it, in names such as `__key__` and `__url__`."""
    if not isinstance(row, Mapping):
        return row
    return {name: value for name, value in row.items() if not str(name).startswith("__")}
