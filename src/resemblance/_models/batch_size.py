"""Choose the batch size for `batch_size="auto"`, and split batches that run out of memory.

On a GPU small batches waste time and large ones run out of memory, so the size is computed from
the memory that a trial took per sample and from the free memory. On other devices it is fixed, and
smaller for networks with large outputs: logits over a vocabulary of 250,000 take 1 MB per position,
several times over. Results do not depend on the batch size.

A batch that exceeds the limit or runs out of memory is split in half. Its size is counted in
*cells*: samples or, for sequences, positions including padding, since memory grows with those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import torch

from .._data.batches import take_samples
from .._data.sources import Batch, Piece
from .._ops.devices import free_gpu_memory
from ..errors import DataError, warn

DEFAULT_BATCH_SIZE, _MAX_BATCH_SIZE, _TOKENS = 128, 4096, 4096
_MAX_INPUT_BYTES = 2**28  # of inputs in a batch: 446 images of 224 x 224 in float32
_MAX_OUTPUT_VALUES = 2**26  # of outputs in a batch whose size is fixed: 256 MiB in float32


def largest_batch_size(block: int, each: int, free: int, inputs: int = 1) -> int:
    """The most samples that take half of `free` bytes at `each`, in whole blocks if that is one.

    Their `inputs`, in bytes of a sample, take 256 MiB or less: a larger batch is no faster, and
    the GPU waits longer for the first.

    >>> (largest_batch_size(128, each=100 * 2**20, free=64 * 2**30),
    ...  largest_batch_size(128, each=2**30, free=2**33))
    (256, 4)
    """
    most = min(free // 2 // max(each, 1), _MAX_INPUT_BYTES // max(inputs, 1), _MAX_BATCH_SIZE)
    samples = max(1, most)
    return samples // block * block or samples


def choose_batch_size(
    device: torch.device | None,
    block: int,
    each: int,
    deterministic: bool,
    *,
    length: int = 1,
    values: int = 1,
    inputs: int = 1,
) -> int:
    """The batch size that fits.

    It is fixed on other devices than a GPU, and where runs are to agree bit for bit, as free memory
    varies: 128 samples, or as many sequences as have 4,096 tokens, and fewer where outputs are
    large.

    Args:
        device: the model's.
        block: samples in a block.
        each: bytes that a sample takes at the most, 0 if that is not known.
        deterministic: whether runs are to agree bit for bit.
        length: tokens of a sample, 1 where samples are no sequences.
        values: how many the model returns for a sample.
        inputs: bytes of a sample as the model is given it.
    """
    if device is None or device.type != "cuda" or deterministic or not each:
        usual = max(DEFAULT_BATCH_SIZE, block) if length == 1 else max(1, _TOKENS // length)
        return max(1, min(usual, _MAX_OUTPUT_VALUES // max(1, values)))
    return largest_batch_size(block, each, free_gpu_memory(device), inputs)


def count_cells(batch: Batch) -> int:
    """Samples in a batch, or positions of its sequences."""
    return len(batch.indices) * (1 if batch.drawn is None else batch.drawn.length)


def split_in_half(batch: Batch) -> tuple[Batch, Batch]:
    """A batch of two or more samples in two: between blocks, or inside the only one."""
    middle = len(batch.pieces) // 2
    first, second = batch.pieces[:middle], batch.pieces[middle:]
    if not middle:
        (whole,) = batch.pieces
        cut = len(whole.indices) // 2
        first = [Piece(whole.block, whole.indices[:cut], whole.starts, ends=False)]
        second = [Piece(whole.block, whole.indices[cut:], starts=False, ends=whole.ends)]
    at = sum(len(piece.indices) for piece in first)
    return (
        Batch(first, take_samples(batch.samples, slice(0, at)), names=batch.names[:at]),
        Batch(second, take_samples(batch.samples, slice(at, None)), names=batch.names[at:]),
    )


class BatchSplitter:
    """Splits batches that exceed a limit or ran out of memory.

    A batch is split as it came from the source and its halves are prepared anew: tokens must not
    be drawn from sequences in which drawn tokens are masked already. Draws depend on the seed, the
    index of a sequence and its tokens alone, so splitting does not change them.
    """

    def __init__(self, limit: int | None, prepare: Callable[[Batch], Batch]) -> None:
        self.limit = limit  # cells of the largest batch to try
        self.proven = 0  # cells of the largest that ran
        self._prepare = prepare  # adds decoder inputs, draws tokens and masks them
        self._waiting: deque[Batch] = deque()  # as they came from the source

    def batches(self, source: Iterator[Batch]) -> Iterator[Batch]:
        """The prepared batches of a source, split while they exceed the limit."""
        for whole in source:
            self._waiting.append(whole)
            while self._waiting:
                self._unprepared = self._waiting.popleft()
                batch = self._prepare(self._unprepared)
                if (
                    self.limit is None
                    or count_cells(batch) <= self.limit
                    or len(batch.indices) == 1
                ):
                    yield batch
                else:
                    self._split()

    def _split(self) -> None:
        """Queue both halves of the latest batch."""
        self._waiting.extendleft(reversed(split_in_half(self._unprepared)))

    def ran(self, batch: Batch) -> None:
        self.proven = max(self.proven, count_cells(batch))

    def did_not_fit(self, batch: Batch, error: BaseException) -> None:
        """Split the latest batch of `batches`, lower the limit to half of it, and warn."""
        count = len(batch.indices)
        if count == 1:
            raise DataError(
                "out of memory with a single sample per batch; use shorter samples, lower "
                "precision, fewer layers, gradient checkpointing or `gradients=False`"
            ) from error
        self.limit = max(1, count_cells(batch) // 2)
        warn(
            f"out of memory with a batch of {count} samples; continuing with {count // 2} per batch"
        )
        self._split()
        torch.cuda.empty_cache()
