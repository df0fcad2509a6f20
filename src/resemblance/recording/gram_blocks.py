"""Exact Gram matrices of one layer's blocks, packed as they arrive.

The vectors of a block that arrives in several batches are buffered until the block is complete, on
the GPU or, where it has no room, on the host. With up to 1,024 samples (unless they are tokens, or
the vectors take more than 1 GiB) all vectors are buffered and the full Gram matrix is stored. Where
a large mean would drown the differences between samples, it is subtracted first: from the vectors
if they are float32 and float32 products would lose precision, else from the Gram matrix before it
is packed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .._ops.devices import (
    copy_all_to_host_async,
    copy_to_device_async,
    free_gpu_memory,
    group_by_size,
)
from .._ops.gram import block_grams, block_grams_without_mean
from .._ops.packing import pack16, subtract_block_mean
from ..representation.layer import Blocks, Kind, Whole
from ..representation.representation import Settings


class GrowingRows:
    """Rows that come a few at a time, side by side in memory that doubles when it is full.

    A list of small pieces would fragment the heap: strewn among a network's tensors, which come and
    go, they would keep the C library from using the gaps between them again.
    """

    def __init__(self) -> None:
        self._rows, self._count = torch.empty(0, dtype=torch.float32), 0

    def append(self, new: Tensor) -> None:
        total = self._count + len(new)
        if not self._count:
            self._rows = new
        else:
            if total > len(self._rows):
                full, self._rows = self._rows, new.new_empty(2 * total, *new.shape[1:])
                self._rows[: self._count] = full[: self._count]
            self._rows[self._count : total] = new
        self._count = total

    def __len__(self) -> int:
        return self._count

    def whole(self) -> Tensor:
        return self._rows[: self._count].clone()


_MIN_DEVICE_BYTES = 2**31  # bytes on a device, of all layers together


class VectorBuffer:
    """The room on one device that the layers of a pass share.

    On a GPU it is a quarter of what is free as the first vectors come, and 2 GiB at least.
    """

    def __init__(self, room: int | None = None) -> None:
        self._left = room

    def taken_in(self, x: Tensor) -> Tensor:
        """The tensor where it lies, or a copy on the host where there is no more room for it."""
        if x.device.type == "cpu":
            return x
        if self._left is None:
            free = free_gpu_memory(x.device) if x.is_cuda else 0
            self._left = max(_MIN_DEVICE_BYTES, free // 4)
        if x.nbytes <= self._left:
            self._left -= x.nbytes
            return x
        return x.cpu()

    def back(self, x: Tensor, device: torch.device) -> Tensor:
        """The tensor on its device, which makes room for others."""
        if self._left is not None and x.device.type != "cpu":
            self._left += x.nbytes
        return x.to(device, non_blocking=True)


MAX_BUFFERED_BYTES = 2**30  # of a layer's vectors, for the full Gram matrix to be stored
_LARGE_MEAN = 0.9  # of a trace: float32 products begin to lose what it hides
_MIN_ROWS_TO_JUDGE = 8  # that share a mean, for a network's rounding to be blamed for what is left
_JUDGED_ASYNC = {"cuda"}  # devices that would be waited for
# Bytes of kernels that are packed together, by device: of several layers on a GPU, of one in a
# processor's cache. It takes ten times that.
_PACKED_AT_ONCE = {"cuda": 2**26, "cpu": 2**19}

Vectors = dict[Kind, Tensor]  # each (n, d)
Spans = list[tuple[int, int]]  # rows [start, stop) of each block


class _UnpackedKernels(NamedTuple):
    """Gram matrices that wait to be packed."""

    kernel: Tensor  # (blocks, B, B)
    counts: list[int]  # samples in each
    offset: Tensor | None  # (blocks, B), where a mean was taken off the vectors


class GramBlocks:
    """Kernels of features, gradients and their elementwise product, block by block.

    `add` whole blocks, or let parts `wait` and `end_block`; then `finish`, and take the `result`.
    """

    def __init__(
        self, settings: Settings, few: int, first: Vectors, room: VectorBuffer | None = None
    ) -> None:
        self._settings, self._kinds = settings, tuple(first)
        self._room, self._device = room or VectorBuffer(), first["features"].device
        each = sum(x.element_size() * x.shape[1] for x in first.values())
        # whether all samples wait, few as they are, for the one kernel of all
        self.all_wait = 0 < few * each <= MAX_BUFFERED_BYTES
        self._waiting: list[Vectors] = []
        self._apart: dict[Kind, bool] = {}  # whether means are taken off the vectors themselves
        # of the first blocks, and what tells, which may be on its way
        self._verdict: tuple[dict[Kind, _UnpackedKernels], Callable[[], list[Tensor]]] | None = None
        self._loose: dict[Kind, list[_UnpackedKernels]] = {}
        self._packed: dict[Kind, tuple[GrowingRows, ...]] = {}  # triangles, diagonals, offsets
        # shares of traces that means carry, of blocks large enough to tell
        self._shares: dict[Kind, list[Tensor]] = {}

    def wait(self, vectors: Vectors) -> None:
        """Keep a part of a block until the rest has come."""
        if "gradients" not in vectors:  # the forward pass is under way, and may write over these
            vectors = {kind: x.clone() for kind, x in vectors.items()}
        self._waiting.append({kind: self._room.taken_in(x) for kind, x in vectors.items()})

    def end_block(self) -> None:
        """The parts that wait are a whole block."""
        if self._waiting and not self.all_wait:
            self._add_waiting(self._settings.block)

    def _add_waiting(self, size: int | None = None) -> None:
        parts, self._waiting = self._waiting, []
        tokens = self._settings.tokens
        joined: Vectors = {}
        for kind in self._kinds:
            here = [self._room.back(part.pop(kind), self._device) for part in parts]
            joined[kind] = torch.cat([x.unflatten(0, (tokens, -1)) for x in here], 1)
        count = joined["features"].shape[1]
        spans = [(i * count, (i + 1) * count) for i in range(tokens)]
        self.add({kind: x.flatten(0, 1) for kind, x in joined.items()}, spans, size or count)

    def add(self, vectors: Vectors, spans: Spans, size: int | None = None) -> Vectors:
        """Gram matrices (blocks, B, B), packed a few at a time; with all others on a GPU.

        Returns those whose diagonals are the squared norms.
        """
        out: Vectors = {}
        if not spans:
            return out
        size = size or self._settings.block
        self._read_verdict()
        counts = [stop - start for start, stop in spans]
        open_: list[Kind] = []  # kinds of which it is not known yet whether means are subtracted
        if max(counts) > 1:  # the mean of a single row is all of it
            single = [kind for kind, x in vectors.items() if x.dtype == torch.float32]
            open_ = [kind for kind in single if kind not in self._apart]
        late = open_ if self._device.type in _JUDGED_ASYNC and not self.all_wait else []
        plain = [kind for kind in vectors if kind not in late and not self._apart.get(kind)]
        pairs: tuple[tuple[Kind, ...], ...] = (("features", "gradients"), ("elementwise",))
        for pair in pairs:
            kinds = [kind for kind in pair if kind in plain]
            if kinds:
                kernels = block_grams([vectors[kind] for kind in kinds], spans, size)
                out.update(zip(kinds, kernels, strict=True))
        if open_ and not late:  # judged by the first blocks
            first = [_UnpackedKernels(out[kind], counts, None) for kind in open_]
            means = torch.stack([_mean_share(part) for part in first]).tolist()
            self._apart |= {kind: x > _LARGE_MEAN for kind, x in zip(open_, means, strict=True)}
        for kind in self._kinds:
            if self._apart.get(kind) or kind in late:
                kernel, offset = block_grams_without_mean(vectors[kind], spans, size)
                out.pop(kind, None)
            else:
                kernel, offset = out[kind], None
            held = self._loose.get(kind, [])
            if held and (held[-1].offset is None) != (offset is None):
                pack_blocks([self])
            self._loose.setdefault(kind, []).append(_UnpackedKernels(kernel, counts, offset))
        if late:
            parts = {kind: self._loose[kind][-1] for kind in late}
            shares = torch.stack([_mean_share(x) for x in parts.values()])
            self._verdict = parts, copy_all_to_host_async([shares])
        waiting = sum(part.kernel.nbytes for parts in self._loose.values() for part in parts)
        if self._device.type == "cpu" and waiting >= _PACKED_AT_ONCE["cpu"]:
            pack_blocks([self])
        return out

    def _read_verdict(self) -> None:
        """Read the shares of the first blocks' means, which were subtracted; restore small means.

        So a GPU is not waited for while it has nothing else to do.
        """
        if self._verdict is None:
            return
        (parts, arrived), self._verdict = self._verdict, None
        for (kind, part), share in zip(parts.items(), arrived()[0].tolist(), strict=True):
            self._apart[kind] = share > _LARGE_MEAN
            if not self._apart[kind]:
                self._loose[kind] = [_restore_mean(part)]

    def loose(self) -> list[tuple[Kind, list[_UnpackedKernels]]]:
        """Kernels that wait to be packed, which are handed over."""
        self._read_verdict()
        waiting, self._loose = self._loose, {}
        return list(waiting.items())

    def packed(self, kind: Kind, new: Sequence[Tensor], shares: Tensor | None) -> None:
        """Take in triangles, diagonals and offsets, and shares of means where they were judged."""
        rows = self._packed.setdefault(kind, (GrowingRows(), GrowingRows(), GrowingRows()))
        for row, values in zip(rows, new, strict=True):
            row.append(values)
        if shares is not None and len(shares):
            self._shares.setdefault(kind, []).append(shares)

    def finish(self) -> None:
        """Have all that is left wait to be packed."""
        if self.all_wait:
            self._add_waiting()
        size = self._settings.block
        if self._settings.blocks and not self._packed and not self._loose:
            nothing = _UnpackedKernels(torch.zeros(0, size, size, dtype=torch.float32), [], None)
            self._loose = {kind: [nothing] for kind in self._kinds}

    def formed(self) -> dict[tuple[str, Kind], list[Tensor]]:
        """What results are made of, where it lies: kernels, and shares of means."""
        kernels = self._packed.items()
        found = {("kernels", kind): [row.whole() for row in rows] for kind, rows in kernels}
        shares = {("share", kind): [torch.cat(x).amax()] for kind, x in self._shares.items()}
        return {**found, **shares}

    def result(
        self, kernels: Sequence[Tensor] | None, sizes: tuple[int, ...]
    ) -> tuple[Blocks | None, Whole | None]:
        """What was kept of a kind, as blocks of these sizes or as the kernel of all samples."""
        if kernels is None:
            return None, None
        triangle, diagonal, offset = kernels
        kept = Blocks(triangle, diagonal, offset if offset.any() else None)
        return (None, Whole(kept, sizes)) if self.all_wait else (kept, None)


def _mean_share(part: _UnpackedKernels) -> Tensor:  # ()
    """The share of the largest block's trace that its mean carries."""
    largest = part.counts.index(max(part.counts))
    n = part.counts[largest]
    kernel = part.kernel[largest, :n, :n].double()
    taken = 0 if part.offset is None else 2 * part.offset[largest, :n].mean()
    return (kernel.mean() + taken) / (kernel.diagonal().mean() + taken)


def _restore_mean(part: _UnpackedKernels) -> _UnpackedKernels:
    """The kernels themselves, where a mean was taken off."""
    u = part.offset
    assert u is not None
    kernel = part.kernel + u[:, :, None] + u[:, None, :]
    for block, n in zip(kernel, part.counts, strict=True):
        if n < len(block):
            block[n:] = block[:, n:] = 0
    return _UnpackedKernels(kernel, part.counts, None)


def pack_blocks(layers: Iterable[GramBlocks]) -> None:
    """Pack the kernels that wait, of several layers together, where they lie.

    A GPU would spend more time on being told to pack a block than on everything else.
    """
    groups: dict[object, list[tuple[GramBlocks, Kind, list[_UnpackedKernels]]]] = {}
    for layer in layers:
        for kind, parts in layer.loose():
            first = parts[0]
            like = first.kernel.shape[-1], first.kernel.device, first.offset is None
            groups.setdefault(like, []).append((layer, kind, parts))
    for group in groups.values():
        sizes = [sum(part.kernel.nbytes for part in parts) for _, _, parts in group]
        most = _PACKED_AT_ONCE.get(group[0][2][0].kernel.device.type, 0)
        for some in group_by_size(group, sizes, most):
            found, shares = _pack_together([part for _, _, parts in some for part in parts])
            blocks = [sum(len(part.counts) for part in parts) for _, _, parts in some]
            splits = zip(*(x.split(blocks) for x in found), strict=True)
            of_means = shares.split(blocks) if shares is not None else [None] * len(some)
            for (layer, kind, _), new, share in zip(some, splits, of_means, strict=True):
                layer.packed(kind, new, share)


def _pack_together(parts: Sequence[_UnpackedKernels]) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """Triangles, diagonals and offsets of kernels; shares of their means if these are taken off."""
    kernel = torch.cat([part.kernel for part in parts])
    share = None
    if parts[0].offset is None:
        counts = torch.tensor([n for part in parts for n in part.counts], dtype=torch.int64)
        counts = copy_to_device_async(counts, kernel.device)
        kernel, offset, share = subtract_block_mean(kernel, counts)
        share = torch.where(counts < _MIN_ROWS_TO_JUDGE, 0.0, share)
    else:
        offset = torch.cat([part.offset for part in parts if part.offset is not None])
    return (*pack16(kernel, kernel.shape[-1]), offset.float()), share
