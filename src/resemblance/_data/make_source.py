"""Build a `Source` from data (`make_source`): data sets, DataLoaders, arrays, streams, iterables.

Data whose samples can be asked for by number are visited in a seeded order. A DataLoader that
covers a map-style data set lends its workers and its collate function; its own order is not used.
Other data are read once, in order: samples with keys are identified by them, others by their
running number.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from .._ops.devices import free_shared_pages
from .._utils.formatting import join_names
from .._utils.hashing import seeded_permutation
from ..errors import DataError, ResemblanceError, first_line
from .batches import (
    batch_leaves,
    concat_batches,
    is_plain_list,
    num_samples,
    take_samples,
    tree_map,
)
from .hugging_face import collate_rows, is_hf_dataset, with_tensor_columns
from .sample_hashes import KEY_FIELD, index_of_key, refuse_duplicate
from .sources import (
    DEFAULT_BLOCK,
    MIN_BLOCKS,
    TRIAL_SAMPLES,
    Batch,
    BlockSize,
    Piece,
    Share,
    Source,
    block_size,
    chunks,
    concat_indices,
    split_into_batches,
    too_many_shards_error,
)
from .streams import LazySample, Stream, stream, without_metadata

_SPREAD_SAMPLES = 64  # samples by which shards of one data set are known

Fetch = Callable[[Iterable[np.ndarray]], Iterator[Any]]  # groups of indices to batches


def make_source(
    data: Any,
    *,
    seed: int,
    block: BlockSize,
    fewest: int = MIN_BLOCKS,
    pin_memory: bool = False,
) -> Source:
    """The data as indexed samples.

    Args:
        data: whatever the user holds.
        seed: seed of their order.
        block: samples in a block.
        fewest: how many blocks `"auto"` makes of small data.
        pin_memory: whether samples of host tensors are gathered in pinned memory.

    Returns:
        A source of batches.
    """
    if isinstance(data, str | bytes | os.PathLike | nn.Module):
        raise _unsupported_data(data)
    if hasattr(data, "to_numpy"):  # a table of pandas, or what is like one
        data = data.to_numpy()
    if isinstance(data, DataLoader) and _covers_dataset(data) and _stacks_tensors(data):
        data = data.dataset
    held = list(data.tensors) if type(data) is TensorDataset else data  # a list, as batches of it
    if held is not data or _is_arrays(data):
        leaves = batch_leaves(held)
        for leaf in leaves:
            if isinstance(leaf, Tensor) and (leaf.is_meta or leaf.layout != torch.strided):
                what = "on the meta device" if leaf.is_meta else "sparse"
                raise DataError(
                    f"expected dense tensors with values as data, found one of shape "
                    f"{tuple(leaf.shape)} that is {what}; load it, or convert it with to_dense()"
                )
        total = num_samples(held)
        in_memory = not any(isinstance(leaf, np.memmap) for leaf in leaves)
        if pin_memory:
            held = tree_map(_share_memory_with_tensor, held)
        return _indexed_source(
            total,
            lambda groups: (take_samples(held, group, pin_memory=pin_memory) for group in groups),
            seed,
            block_size(total, block, fewest),
            in_memory=in_memory,
        )
    if is_hf_dataset(data, streaming=True):
        data = stream(data)
    if isinstance(data, Stream):
        return _stream_source(data, seed, block)
    indexed = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size=DEFAULT_BLOCK if block == "auto" else block)
    elif indexed and not isinstance(data, list | tuple | Mapping):  # a list holds batches
        data = DataLoader(data)
    if isinstance(data, DataLoader):
        if _covers_dataset(data):
            total = len(data.dataset)  # type: ignore[arg-type]
            fetch = _fetch_from_loader(data, pin_memory=pin_memory and torch.cuda.is_available())
            return _indexed_source(total, fetch, seed, block_size(total, block, fewest))
        data = _copy_with_own_generator(data)
        data._iterator = None  # of workers that are kept for the caller
    if not isinstance(data, Iterable):
        raise _unsupported_data(data)
    return _iterable_source(data, block)


def _unsupported_data(data: Any) -> DataError:
    what = type(data).__name__
    if isinstance(data, str | os.PathLike):
        what = f"{data!r}; for shards, pass resemblance.stream({os.fspath(data)!r})"
    return DataError(
        f"expected a data set, a DataLoader, arrays or an iterable of batches; found {what}"
    )


def _is_arrays(data: Any) -> bool:
    """Whether it is an array or several, perhaps with lists of labels or texts beside them."""
    parts = data if isinstance(data, tuple) else [data]
    parts = list(data.values()) if isinstance(data, Mapping) else parts
    others = [part for part in parts if not isinstance(part, Tensor | np.ndarray)]
    return len(others) < len(parts) and all(map(is_plain_list, others))


def _share_memory_with_tensor(leaf: Any) -> Any:
    """An array as a tensor of the same memory, where torch can have one; all else as it is."""
    if type(leaf) not in (np.ndarray, np.memmap) or leaf.dtype.kind not in "biufc":
        return leaf
    shared = leaf.flags.c_contiguous and leaf.flags.writeable and leaf.dtype.isnative
    try:
        return torch.from_numpy(leaf) if shared else leaf
    except TypeError:  # a number that torch does not have
        return leaf


def _stacks_tensors(loader: DataLoader[Any]) -> bool:
    """Whether a loader's batches are rows of tensors in memory, which need no loader."""
    plain = loader.collate_fn is default_collate and loader.worker_init_fn is None
    return plain and type(loader.dataset) is TensorDataset


def _covers_dataset(loader: DataLoader[Any]) -> bool:
    """Whether a loader gives each sample of a map-style data set once, in whatever order."""
    sampler: Any = loader.sampler
    once = type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )
    batched = loader.batch_size is not None
    return once and batched and not isinstance(loader.dataset, IterableDataset)


class _Freeing:
    """Frees shared memory of batches beside the thread that copies them, at most two behind it."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "freeing")  # whose thread starts with the first
        self._waiting: deque[Future[None]] = deque()

    def free(self, tensors: list[Tensor]) -> None:
        self._waiting.append(self._executor.submit(self._free, tensors))
        if len(self._waiting) > 2:
            self._waiting.popleft().result()

    @staticmethod
    def _free(tensors: list[Tensor]) -> None:
        for x in tensors:
            free_shared_pages(x)

    def close(self) -> None:
        self._executor.shutdown()


_FREEING: dict[
    int | None, _Freeing
] = {}  # of each loader that runs, by a number that its batches carry
_NUMBERS = itertools.count()


class _WorkerBatch:
    """A batch of a worker process, which the loader's own thread moves into pinned memory.

    torch has a thread that calls `pin_memory` of what worker processes send. It unpickles and
    copies beside the caller's thread, which launches kernels; freeing takes as long as copying
    and has a thread of its own.
    """

    def __init__(self, samples: Any, most: int, freeing: int | None = None) -> None:
        self.samples = samples
        self._most = most  # bytes that are pinned
        self._freeing = freeing  # in _FREEING, where nobody else has the memory of its tensors

    def pin_memory(self) -> _WorkerBatch:
        """The batch in pinned memory, unless that would be a lot; its own memory is freed."""
        leaves = [x for x in batch_leaves(self.samples) if isinstance(x, Tensor)]
        on_host = all(x.device.type == "cpu" and x.layout == torch.strided for x in leaves)
        if not on_host or sum(x.nbytes for x in leaves) > self._most:
            return self
        samples = tree_map(lambda x: x.pin_memory() if isinstance(x, Tensor) else x, self.samples)
        if (freeing := _FREEING.get(self._freeing)) is not None:
            freeing.free(leaves)
        return _WorkerBatch(samples, self._most)


def _samples_of(batch: Any) -> Any:
    return batch.samples if isinstance(batch, _WorkerBatch) else batch


def _collate_to_be_pinned(
    collate: Callable[[Any], Any], most: int, freeing: int | None, samples: Any
) -> _WorkerBatch:
    return _WorkerBatch(collate(samples), most, freeing)


_PINNED_BYTES = 2**32  # the most of all batches that wait for a pass


def _fetch_from_loader(loader: DataLoader[Any], *, pin_memory: bool = False) -> Fetch:
    options: dict[str, Any] = {
        "worker_init_fn": loader.worker_init_fn,
        "timeout": loader.timeout,
        "multiprocessing_context": loader.multiprocessing_context,
        "prefetch_factor": loader.prefetch_factor,
    }
    dataset, collate = loader.dataset, loader.collate_fn
    if is_hf_dataset(dataset) and collate is default_collate:
        dataset = with_tensor_columns(dataset)
        collate = collate if dataset is loader.dataset else collate_rows

    def fetch(groups: Iterable[np.ndarray]) -> Iterator[Any]:
        remaining = iter(groups)
        # A lone group, as for the trial, has no use for more than one worker process.
        head = list(itertools.islice(remaining, loader.num_workers))
        # A loader draws its workers' seed, from the global generator if it has none of its own.
        groups_of_numbers: Any = (group.tolist() for group in itertools.chain(head, remaining))
        put_together: Callable[[Any], Any] = partial(_collate_samples, collate)
        # the caller's own pinning knows the caller's own kinds of batches
        pinned = pin_memory and len(head) > 0
        pinned &= collate is default_collate or not loader.pin_memory
        number = next(_NUMBERS)
        if pinned:
            most = _PINNED_BYTES // (len(head) * (loader.prefetch_factor or 1))
            # torch's own collate function stacks samples in new memory
            own = number if collate is default_collate else None
            put_together = partial(_collate_to_be_pinned, put_together, most, own)
        batches = iter(
            DataLoader(
                dataset,
                batch_sampler=groups_of_numbers,
                collate_fn=put_together,
                num_workers=len(head),
                generator=torch.Generator(),
                pin_memory=pinned or loader.pin_memory,
                **options,
            )
        )
        if pinned:  # from here on: a batch that came before frees its memory where it is deleted
            _FREEING[number] = _Freeing()
        try:
            yield from map(_samples_of, batches)
        except DataError as error:  # from a worker process with its traceback in the message
            message = str(error).strip().splitlines()[-1]
            raise DataError(message.removeprefix("resemblance.errors.DataError: ")) from error
        finally:
            if end := getattr(batches, "_shutdown_workers", None):
                end()  # which a traceback that somebody keeps would put off
            if pinned:
                _FREEING.pop(number).close()
                # torch's thread set the number of threads that later threads begin with
                torch.set_num_threads(torch.get_num_threads())

    return fetch


def _copy_with_own_generator(holder: Any) -> Any:
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
            object.__setattr__(apart, name, _copy_with_own_generator(getattr(holder, name)))
    return apart


def _indexed_source(
    total: int, fetch: Fetch, seed: int, block: int, *, in_memory: bool = False
) -> Source:
    if total == 0:
        raise DataError("the data set is empty: expected at least one sample")
    order = seeded_permutation(total, seed)

    def fetched(groups: Callable[[], Iterable[np.ndarray]]) -> Iterator[Any]:
        remaining = fetch(groups())
        for indices in groups():
            if (samples := next(remaining, None)) is None:
                raise DataError(
                    f"the data set raised StopIteration at sample {join_names(indices, 3)}: a "
                    "next() in its __getitem__ or collate_fn has nothing left to return. Catch it "
                    "there, or give next() a default"
                )
            if num_samples(samples) != len(indices):
                raise DataError(
                    f"asked the data set for {len(indices)} samples, it gave "
                    f"{num_samples(samples)}; a collate function must keep every sample"
                )
            yield samples

    def batches(batch_size: int, share: Share) -> Generator[Batch, None, None]:
        numbers = share.of(-(-total // block))

        def groups() -> Iterator[list[Piece]]:
            blocks = (Piece(int(n), order[n * block : (n + 1) * block]) for n in numbers)
            for run in chunks(blocks, max(1, batch_size // block)):
                yield from split_into_batches(run, batch_size)

        yield from map(Batch, groups(), fetched(lambda: map(concat_indices, groups())))

    first = next(fetched(lambda: [order[:block][:TRIAL_SAMPLES]]))
    places = np.linspace(0, total - 1, min(total, _SPREAD_SAMPLES)).astype(np.int64)
    some = partial(fetch, [order[i : i + 1] for i in places])  # which may be of different lengths
    return Source(batches, first, block, total, order="seeded", in_memory=in_memory, some=some)


# -- data that are read once, in order ------------------------------------------------------------

# the samples, the names and the indices of several blocks; no names and indices without keys
SplitKeys = Callable[[Any], tuple[Any, tuple[str, ...], list[int]]]


def _collate_samples(collate: Callable[[Any], Any], samples: Any) -> Any:
    """A loader's own way of making a batch of samples, with an error that says what they were."""
    try:
        return collate(samples)
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        raise DataError(
            f"samples cannot be collated into a batch ({first_line(error)}); return tensors of one "
            "shape, for example with a transform, or pass a DataLoader with its own collate_fn"
        ) from error


def _iterable_source(stream: Iterable[Any], block: BlockSize) -> Source:
    """A source of an iterable of batches, which are cut anew into blocks."""
    size = DEFAULT_BLOCK if block == "auto" else block
    filled = (batch for batch in stream if num_samples(batch))
    head = next(filled, None)
    if head is None:
        raise DataError(_MSG_EMPTY)
    keyed, seen = isinstance(head, Mapping) and KEY_FIELD in head, set[int]()

    def split_keys(samples: Any) -> tuple[Any, tuple[str, ...], list[int]]:
        if not keyed:
            return samples, (), []
        names = tuple(map(str, samples[KEY_FIELD]))
        return without_metadata(samples), names, [index_of_key(name) for name in names]

    def batches(batch_size: int, share: Share) -> Generator[Batch, None, None]:
        blocks = _rebatch(itertools.chain([head], filled), size)
        for batch in _stream_batches(blocks, size, batch_size, share, split_keys):
            for index, name in zip(batch.indices.tolist(), batch.names, strict=False):
                refuse_duplicate(index, name, seen)
            yield batch

    # A copy, since the model may write into what it is tried on.
    first = tree_map(
        lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf,
        split_keys(take_samples(head, slice(0, TRIAL_SAMPLES)))[0],
    )
    return Source(batches, first, size, None, order="keyed" if keyed else "stream", in_memory=True)


def _stream_source(stream: Stream, seed: int, block: BlockSize) -> Source:
    """A source of a `Stream`, whose samples are decoded when a batch is built of them."""
    size = DEFAULT_BLOCK if block == "auto" else block
    samples, collate = stream.samples(seed), partial(_collate_samples, default_collate)
    head: list[LazySample] = []  # up to the first few samples that can be read
    trial: list[Any] = []  # those
    while len(trial) < TRIAL_SAMPLES and (lazy := next(samples, None)) is not None:
        head.append(lazy)
        try:
            trial.append(stream.load(lazy))
        except ResemblanceError:
            if not stream.skip_bad:
                raise
    if not trial:
        unreadable = (
            f'none of the {len(head):,} samples can be read; see one of them with `on_bad="raise"`'
        )
        raise DataError(unreadable if head else _MSG_EMPTY)

    def split_keys(lazies: Any) -> tuple[Any, tuple[str, ...], list[int]]:
        return lazies, tuple(lazy.where for lazy in lazies), [lazy.index for lazy in lazies]

    def batches(batch_size: int, share: Share) -> Generator[Batch, None, None]:
        blocks = chunks(itertools.chain(head, samples), size)
        for batch in _stream_batches(blocks, size, batch_size, share, split_keys):
            decoded = [stream.load_or_skip(lazy, trial[0]) for lazy in batch.samples]
            yield replace(batch, samples=collate(decoded))

    return Source(batches, collate(trial), size, None, order="keyed")


_MSG_EMPTY = "the data are empty: expected at least one sample"


def _stream_batches(
    blocks: Iterable[Any], block: int, batch_size: int, share: Share, split_keys: SplitKeys
) -> Iterator[Batch]:
    """The batches of a share of successive blocks; more shards than blocks are an error."""

    def counted() -> Iterator[Any]:
        count = 0
        for count, part in enumerate(blocks, 1):  # noqa: B007 - counts the blocks
            yield part
        if share.shard[1] > count:
            raise too_many_shards_error(share.shard, "the stream's samples", count, block)

    for run in chunks(share.of_stream(counted()), max(1, batch_size // block)):
        sizes = [(number, num_samples(part)) for number, part in run]
        samples, names, indices = split_keys(concat_batches([part for _, part in run]))
        run.clear()  # of what has been copied
        keys = indices or [number * block + i for number, count in sizes for i in range(count)]
        parts = np.split(np.array(keys, np.int64), np.cumsum([count for _, count in sizes])[:-1])
        pieces = [Piece(number, part) for (number, _), part in zip(sizes, parts, strict=True)]
        start = 0
        for group in split_into_batches(pieces, batch_size):
            stop = start + len(concat_indices(group))
            part = take_samples(samples, slice(start, stop))
            yield Batch(group, part, names=names[start:stop])
            start = stop


def _rebatch(stream: Iterable[Any], block: int) -> Iterator[Any]:
    """The samples of a stream of batches in batches of `block` samples."""
    waiting: list[Any] = []
    count = 0
    for batch in stream:
        waiting.append(batch)
        count += num_samples(batch)
        if count < block:
            continue
        together, full = concat_batches(waiting), count // block * block
        waiting = [take_samples(together, slice(full, count))] if full < count else []
        for start in range(0, full, block):
            yield take_samples(together, slice(start, start + block))
        count -= full
    if waiting:
        yield take_samples(concat_batches(waiting), slice(0, count))
