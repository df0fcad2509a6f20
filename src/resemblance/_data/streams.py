"""`stream`: shards, streaming data sets and other rows as data, shuffled in a seeded buffer.

Samples are known by their keys, so that buckets, sketches and fingerprints are the same in
whatever order they come. They are decoded when a batch is made of them: what another process, an
earlier start or another shard takes is read, but not decoded.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._seeded_random import shuffled
from .._shown_text import shown
from .._whole_numbers import whole_number
from ..errors import DataError, ResemblanceError, first_line
from .batches import leaves, tree_map
from .sample_keys import KEY, Distinct, index_of
from .shard_files import rows_of, shard_files
from .shuffle_buffer import shuffled_in_buffer
from .stream_rows import Row, plain_sample, size_of

BUFFER = 10_000  # samples that wait, where nothing says otherwise


@dataclass(frozen=True)
class Lazy:
    """A sample that is not decoded yet."""

    index: int  # by which it is known
    where: str  # for people
    weight: int  # bytes, about
    load: Callable[[], Any]


@dataclass(frozen=True)
class Stream:
    """Samples in a seeded order of their own; see `stream`."""

    ordered: Callable[[int], Iterator[Lazy]]  # by seed, before the buffer
    buffer: int = BUFFER
    skip_bad: bool = False  # what cannot be read becomes a sample that is not finite
    limit: int = 0  # samples, after the buffer; 0 for all

    def samples(self, seed: int) -> Iterator[Lazy]:
        """All samples, each once."""
        found = shuffled_in_buffer(
            _distinct(self.ordered(seed)), seed, self.buffer, lambda lazy: lazy.weight
        )
        return itertools.islice(found, self.limit or None)

    def loaded(self, lazy: Lazy, like: Any = None) -> Any:
        """A sample; of one that cannot be read, NaN in place of the numbers of one `like` it."""
        try:
            return lazy.load()
        except ResemblanceError:
            if not self.skip_bad or not any(map(_is_real, leaves(like))):
                raise
            return tree_map(_not_finite, like)


def stream(
    data: Any, sample: Callable[[Mapping[str, Any]], Any] | None = None, *, buffer: int = BUFFER
) -> Stream:
    """Data that are read once, in order, as something that `record` takes.

    Args:
        data: tar shards as WebDataset has them, or Parquet files: a file, a folder of them, a
            pattern (`"shards-{000..010}.tar"`, `"*.parquet"`) or a list of files. Or a streaming
            data set of the library datasets, or any iterable of rows that are dicts.
        sample: makes of a row what a data set gives: a tensor, (inputs, label) or a dict of the
            model's arguments. A row of a tar shard has a field for each ending (`row["jpg"]`, a
            PIL image; `row["cls"]`, `row["json"]`, `row["npy"]`, `row["txt"]`), others have their
            columns; `row["__key__"]` is the key. None takes the image, resized to 224 pixels and
            normalised as for ImageNet, or else the array, with the label if there is one; rows of
            other iterables are taken as they are.
        buffer: samples that wait for a random one of them to go on, less where they take 1 GiB.
            Of files that hold one class each, `record` says which share of the order is left.

    The order is a function of record's seed. A sample is known by its key (in a tar shard its path
    up to the first dot, else `__key__`, else the Parquet file and row, or the running number), so
    that recordings of the same samples in other orders can be compared by buckets. It is decoded
    only if it is used: those of other shards of a pass, or that a checkpoint has, are not.

    >>> import torch, resemblance as rs
    >>> rows = [{"__key__": f"{i:03}", "x": torch.randn(4)} for i in range(200)]
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> rs.record(net, rs.stream(rows, lambda row: row["x"]), progress=False).samples
    200
    """
    buffer = whole_number("buffer", buffer, 1)
    if not (sample is None or callable(sample)):
        raise DataError(f"sample must be a function of a row; found {sample!r}")
    paths = _paths(data)
    if paths is not None:
        files = [file for path in paths for file in shard_files(path)]
        return of_files(files, sample or plain_sample, buffer=buffer)
    if not isinstance(data, Iterable) or isinstance(data, Mapping | Tensor):
        raise DataError(
            "expected shards by name, a streaming data set or an iterable of rows; found "
            f"{type(data).__name__}; other data need no stream"
        )
    return Stream(lambda _: _numbered(data, sample), buffer)


def of_files(files: Sequence[Path], sample: Callable[[Row], Any], **options: Any) -> Stream:
    """Shards, one after the other in a seeded order."""

    def ordered(seed: int) -> Iterator[Lazy]:
        for i in shuffled(len(files), seed):
            yield from (_lazy(row, sample) for row in rows_of(files[i]))

    return Stream(ordered, **options)


def of_rows(
    rows: Callable[[], Iterator[Row]], sample: Callable[[Row], Any], **options: Any
) -> Stream:
    """Rows in their own order before the buffer."""
    return Stream(lambda _: (_lazy(row, sample) for row in rows()), **options)


def _lazy(row: Row, sample: Callable[[Row], Any]) -> Lazy:
    return Lazy(row.index, row.where, row.weight, _loading(sample, row, row.where))


def is_streaming_table(data: Any) -> bool:
    """Whether it is a streaming data set of the library datasets, which need not be loaded."""
    library = sys.modules.get("datasets")
    kind = getattr(library, "IterableDataset", None)
    return kind is not None and isinstance(data, kind)


def _paths(data: Any) -> list[str | os.PathLike[str]] | None:
    if isinstance(data, str | os.PathLike):
        return [data]
    several = isinstance(data, list | tuple) and len(data) > 0
    return list(data) if several and all(isinstance(x, str | os.PathLike) for x in data) else None


def _numbered(rows: Iterable[Any], sample: Callable[[Any], Any] | None) -> Iterator[Lazy]:
    """Rows by their key, or else by their running number, which no shuffling changes."""
    for number, row in enumerate(rows):
        key = row.get(KEY) if isinstance(row, Mapping) else None
        index = index_of(key) if isinstance(key, str) else number
        where = key if isinstance(key, str) else str(number)
        weight = sum(map(size_of, row.values())) if isinstance(row, Mapping) else size_of(row)
        yield Lazy(index, where, weight, _loading(sample or _as_it_is, row, where))


def _as_it_is(row: Any) -> Any:
    """A row without what is said about it, in names such as `__key__` and `__url__`."""
    if not isinstance(row, Mapping):
        return row
    return {name: value for name, value in row.items() if not str(name).startswith("__")}


def _loading(sample: Callable[[Any], Any], row: Any, where: str) -> Callable[[], Any]:
    def load() -> Any:
        try:
            return sample(row)
        except ResemblanceError:
            raise
        except Exception as error:  # of the caller's own function
            raise DataError(
                f"no sample can be made of {shown(where)} ({type(error).__name__}: "
                f"{first_line(error)}); repair it or the function that makes samples"
            ) from error

    return load


def _distinct(lazies: Iterable[Lazy]) -> Iterator[Lazy]:
    distinct = Distinct()
    for lazy in lazies:
        distinct.check(lazy.index, lazy.where)
        yield lazy


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _not_finite(leaf: Any) -> Any:
    return torch.full_like(leaf, torch.nan) if _is_real(leaf) else leaf
