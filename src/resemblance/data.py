"""Where samples come from: chunks of indexed samples, in an order that does not depend on a loader.

Whatever the user holds (a data set, a DataLoader, arrays, a stream of batches) becomes a `Source`
that yields `Chunk`s: a batch, the index of each sample, and the number of the block it forms. A
block is one chunk of the seeded random order; chunks are grouped into forward batches and dealt
out to shards whole, so neither batch size nor sharding changes what a block contains.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from .errors import DataError
from .sketch import mix, shuffled

_LABELS = ("labels", "label", "label_ids")
_FEWEST_BLOCKS = 16  # a small data set is cut finer, so that a jackknife has blocks to leave out


@dataclass(frozen=True)
class Chunk:
    """Samples that travel together: one block, or a run of samples beyond the last block."""

    number: int  # position in the seeded order
    indices: np.ndarray  # (n,) of the samples in the data set
    batch: Any


@dataclass(frozen=True)
class Source:
    """Forward batches, each a list of whole chunks."""

    batches: Callable[[], Iterator[list[Chunk]]]
    first: Any  # a batch of a few samples, to try the model on
    block: int  # samples in a block
    total: int | None  # samples in the whole data set, None for a stream
    expected: int | None  # samples this source will yield, None for a stream
    ordered: bool  # True when the order is ours, False when it is the stream's


# -- batches ------------------------------------------------------------------------------------


def tree_map(function: Callable[[Any], Any], batch: Any) -> Any:
    """The batch with every tensor, array or list of plain values replaced by function(it)."""
    if isinstance(batch, Tensor | np.ndarray):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: tree_map(function, value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(tree_map(function, value) for value in batch))
    if isinstance(batch, tuple | list):
        if batch and not any(
            isinstance(v, Tensor | np.ndarray | Mapping | tuple | list) for v in batch
        ):
            return function(batch)
        return type(batch)(tree_map(function, value) for value in batch)
    return batch


def leaves(batch: Any) -> list[Any]:
    """Every tensor, array or list of plain values in the batch, in order."""
    found: list[Any] = []
    tree_map(lambda leaf: found.append(leaf), batch)
    return found


def size(batch: Any) -> int:
    """The number of samples in a batch: the common length of what it holds."""
    counts = {len(leaf) for leaf in leaves(batch) if not (hasattr(leaf, "ndim") and leaf.ndim == 0)}
    if len(counts) != 1:
        what = "nothing with samples in it" if not counts else f"lengths {sorted(counts)}"
        raise DataError(
            f"expected a batch whose tensors share their first axis, found {what} in a "
            f"{type(batch).__name__}; yield a tensor, (inputs, labels) or a dict of tensors"
        )
    return counts.pop()


def take(batch: Any, where: slice | np.ndarray | Tensor) -> Any:
    """Some samples of a batch."""

    def pick(leaf: Any) -> Any:
        if hasattr(leaf, "ndim") and leaf.ndim == 0:
            return leaf
        if isinstance(leaf, Tensor):
            return leaf[where if isinstance(where, slice) else torch.as_tensor(where)]
        if isinstance(leaf, np.ndarray):
            return torch.from_numpy(np.ascontiguousarray(leaf[where]))
        return leaf[where] if isinstance(where, slice) else [leaf[int(i)] for i in where]

    return tree_map(pick, batch)


def join(batches: list[Any]) -> Any:
    """Batches one after the other, as one; sequences padded to different lengths are padded on."""
    if len(batches) == 1:
        return batches[0]
    columns = [leaves(batch) for batch in batches]
    joined = iter([_join_leaves([column[i] for column in columns]) for i in range(len(columns[0]))])
    return tree_map(lambda _: next(joined), batches[0])


def _join_leaves(parts: list[Any]) -> Any:
    if not isinstance(parts[0], Tensor | np.ndarray):
        return list(itertools.chain.from_iterable(parts))
    tensors = [torch.as_tensor(part) for part in parts]
    if tensors[0].ndim == 0:
        return tensors[0]
    lengths = {t.shape[1:] for t in tensors}
    if len(lengths) > 1 and all(t.ndim == 2 and not t.is_floating_point() for t in tensors):
        longest = max(t.shape[1] for t in tensors)  # token ids and masks: zeros are padding
        tensors = [torch.nn.functional.pad(t, (0, longest - t.shape[1])) for t in tensors]
    elif len(lengths) > 1:
        raise DataError(
            f"expected samples of one shape, found {sorted(map(tuple, lengths))} in successive "
            "batches; resize or pad them, or pass a data set, whose samples are collated together"
        )
    return torch.cat(tensors)


def inputs_of(batch: Any) -> Any:
    """What the model is called with: the batch without its labels."""
    if isinstance(batch, Mapping):
        return {key: value for key, value in batch.items() if key not in _LABELS}
    return batch[0] if isinstance(batch, tuple | list) else batch


def labels_of(batch: Any) -> Any:
    """The labels of a batch, or None."""
    if isinstance(batch, Mapping):
        return next((batch[key] for key in _LABELS if key in batch), None)
    return batch[1] if isinstance(batch, tuple | list) and len(batch) > 1 else None


def attention_mask(batch: Any) -> Tensor | None:
    """The padding mask (n, positions) of a batch of sequences, or None."""
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    return mask if isinstance(mask, Tensor) and mask.ndim == 2 else None


def to_device(batch: Any, device: torch.device | None) -> Any:
    """The batch as ordinary tensors on the model's device."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            leaf = torch.from_numpy(np.ascontiguousarray(leaf))
        if not isinstance(leaf, Tensor):
            return leaf
        if leaf.is_inference():
            leaf = leaf.clone()  # made in inference mode: autograd refuses to save it
        return leaf if device is None else leaf.to(device, non_blocking=True)

    with torch.inference_mode(False):
        return tree_map(move, batch)


def fingerprints(batch: Any, values: int = 256) -> np.ndarray:  # (n,) uint64
    """A hash of each sample's inputs, from up to 256 of its values: equal if and (nearly) only if.

    Reading evenly spaced values keeps this out of the profile; samples that differ only between
    them pass for equal, which matters for no data set but one made for the purpose.
    """
    out = np.zeros(size(batch), np.uint64)
    for leaf in leaves(inputs_of(batch)):
        if not isinstance(leaf, Tensor | np.ndarray):
            words = [hashlib.blake2b(repr(v).encode(), digest_size=8).digest() for v in leaf]
            out = mix(out, np.frombuffer(b"".join(words), np.uint64)[:, None])
        elif leaf.ndim:
            flat = torch.as_tensor(leaf).detach().reshape(len(leaf), -1)
            if flat.shape[1] > values:
                flat = flat[:, torch.linspace(0, flat.shape[1] - 1, values).long()]
            flat = flat.float() if flat.dtype == torch.bfloat16 else flat
            raw = np.ascontiguousarray(flat.cpu().numpy()).view(np.uint8)
            raw = np.pad(raw, ((0, 0), (0, -raw.shape[1] % 8)))
            out = mix(out, raw.view(np.uint64))
    return out


# -- sources ------------------------------------------------------------------------------------


def source(data: Any, *, seed: int, block: int, batch_size: int, shard: tuple[int, int]) -> Source:
    """Chunks of whatever `data` is; see the module's paragraph."""
    loader_options: dict[str, Any] = {}
    if isinstance(data, DataLoader):
        whole = type(data.sampler) is SequentialSampler or (
            type(data.sampler) is RandomSampler
            and not data.sampler.replacement
            and data.sampler.num_samples == len(data.sampler.data_source)
        )
        if isinstance(data.dataset, IterableDataset) or data.batch_size is None or not whole:
            return _stream(data, block, batch_size, shard)
        loader_options = {
            "num_workers": data.num_workers,
            "collate_fn": data.collate_fn,
            "pin_memory": data.pin_memory,
            "worker_init_fn": data.worker_init_fn,
            "timeout": data.timeout,
        }
        data = data.dataset
    if isinstance(data, IterableDataset):
        return _stream(DataLoader(data, batch_size=block), block, batch_size, shard)
    if _is_arrays(data):
        fetch: Callable[[list[np.ndarray]], Iterator[Any]]
        total = size(data)
        fetch = lambda groups: (take(data, group) for group in groups)  # noqa: E731
    elif (
        hasattr(data, "__len__")
        and hasattr(data, "__getitem__")
        and not isinstance(data, list | tuple | Mapping)
    ):
        total = len(data)
        fetch = lambda groups: iter(  # noqa: E731
            DataLoader(data, batch_sampler=[g.tolist() for g in groups], **loader_options)
        )
    elif isinstance(data, Iterable):
        return _stream(data, block, batch_size, shard)
    else:
        raise DataError(
            "expected a data set, a DataLoader, arrays or an iterable of batches; "
            f"found {type(data).__name__}"
        )
    return _indexed(total, fetch, seed, block, batch_size, shard)


def _is_arrays(data: Any) -> bool:
    if isinstance(data, Tensor | np.ndarray):
        return True
    if isinstance(data, Mapping):
        return bool(data) and all(isinstance(v, Tensor | np.ndarray) for v in data.values())
    return (
        isinstance(data, tuple)
        and bool(data)
        and all(isinstance(v, Tensor | np.ndarray) for v in data)
    )


def block_size(total: int, block: int) -> int:
    """Samples in a block: at most `block`, blocks of nearly equal size, at least sixteen of them."""
    count = max(-(-total // block), min(_FEWEST_BLOCKS, total // 8), 1)
    return -(-total // count)


def _indexed(
    total: int,
    fetch: Callable[[list[np.ndarray]], Iterator[Any]],
    seed: int,
    block: int,
    batch_size: int,
    shard: tuple[int, int],
) -> Source:
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
    chunks = [order[n * block : (n + 1) * block] for n in numbers]
    per_batch = max(1, batch_size // block)
    groups = [range(i, min(i + per_batch, len(chunks))) for i in range(0, len(chunks), per_batch)]

    def batches() -> Iterator[list[Chunk]]:
        fetched = fetch([np.concatenate([chunks[i] for i in group]) for group in groups])
        for group, batch in zip(groups, fetched, strict=True):
            found, wanted = size(batch), sum(len(chunks[i]) for i in group)
            if found != wanted:
                raise DataError(f"asked the data set for {wanted} samples, it gave {found}")
            start, out = 0, []
            for i in group:
                stop = start + len(chunks[i])
                out.append(Chunk(numbers[i], chunks[i], take(batch, slice(start, stop))))
                start = stop
            yield out

    first = next(iter(fetch([chunks[0][:2]])))
    return Source(batches, first, block, total, sum(map(len, chunks)), ordered=True)


def _stream(stream: Iterable[Any], block: int, batch_size: int, shard: tuple[int, int]) -> Source:
    iterator = iter(stream)
    head = next((batch for batch in iterator if size(batch)), None)
    if head is None:
        raise DataError("the data are empty: expected at least one sample")
    per_batch = max(1, batch_size // block)

    def chunks() -> Iterator[Chunk]:
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
                    yield Chunk(number, np.arange(seen, seen + now), take(whole, slice(0, now)))
                held = [take(whole, slice(now, None))]
                count, number, seen = count - now, number + 1, seen + now

    def batches() -> Iterator[list[Chunk]]:
        pending = chunks()
        while group := list(itertools.islice(pending, per_batch)):
            yield group

    first = take(head, slice(0, min(2, size(head))))
    return Source(batches, first, block, None, None, ordered=False)
