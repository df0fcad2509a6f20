"""One layer's exact kernels: Gram matrices of its blocks, packed as they come.

A block that arrives in several batches waits until it is whole. Of few samples all wait, and their
kernel is kept whole, as one block. Where a large mean would drown the differences of samples it is
taken off first: off the vectors, where they are float32 and float32 products would lose what it
hides, else off the kernel, where packing would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .._ops.device_copies import sent_home, without_waiting
from .._ops.gram_matrices import grams, grams_without_mean
from .._ops.host_memory import zeros_apart
from .._ops.packed_kernels import pack16, without_mean
from ..representation.layer import Blocks, Kind, Whole
from ..representation.settings import Settings
from .growing_rows import Rows
from .waiting_vectors import WaitingRoom

_WAITING_BYTES = 2**30  # of one layer's vectors: more are not kept for the kernel of all samples
_LARGE_MEAN = 0.9  # of a trace: float32 products begin to lose what it hides
_ROWS_TO_TELL = 8  # that share a mean, for a network's rounding to be blamed for what is left
_JUDGED_LATE = {"cuda"}  # devices that would be waited for
# Bytes of kernels that are packed together, by device: of several layers on a GPU, of one in a
# processor's cache. It takes ten times that.
_PACKED_AT_ONCE = {"cuda": 2**26, "cpu": 2**19}

Vectors = dict[Kind, Tensor]  # each (n, d)
Spans = list[tuple[int, int]]  # rows [start, stop) of each block


class _Kernels(NamedTuple):
    """Gram matrices that wait to be packed."""

    kernel: Tensor  # (blocks, B, B)
    counts: list[int]  # samples in each
    offset: Tensor | None  # (blocks, B), where a mean was taken off the vectors


class BlockKernels:
    """Kernels of features, gradients and their elementwise product, block by block.

    `add` whole blocks, or let parts `wait` and `end_block`; then `finish`, and take the `result`.
    """

    def __init__(
        self, settings: Settings, few: int, first: Vectors, room: WaitingRoom | None = None
    ) -> None:
        self._settings, self._kinds = settings, tuple(first)
        self._room, self._device = room or WaitingRoom(), first["features"].device
        each = sum(x.element_size() * x.shape[1] for x in first.values())
        # whether all samples wait, few as they are, for the one kernel of all
        self.all_wait = 0 < few * each <= _WAITING_BYTES
        self._waiting: list[Vectors] = []
        self._apart: dict[Kind, bool] = {}  # whether means are taken off the vectors themselves
        # of the first blocks, and what tells, which may be on its way
        self._verdict: tuple[dict[Kind, _Kernels], Callable[[], list[Tensor]]] | None = None
        self._loose: dict[Kind, list[_Kernels]] = {}
        self._held: dict[Kind, Tensor] = {}  # on a CPU, the memory that these lie in
        self._packed: dict[Kind, tuple[Rows, ...]] = {}  # triangles, diagonals, offsets
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
        size = size or self._settings.block
        self._read_verdict()
        counts = [stop - start for start, stop in spans]
        open_ = self._to_judge(vectors, counts)
        late = open_ if self._device.type in _JUDGED_LATE and not self.all_wait else []
        plain = [kind for kind in vectors if kind not in late and not self._apart.get(kind)]
        pairs: tuple[tuple[Kind, ...], ...] = (("features", "gradients"), ("elementwise",))
        for kinds in pairs if spans else ():
            found = [kind for kind in kinds if kind in plain]
            if found:
                kernels = grams([vectors[kind] for kind in found], spans, size)
                out.update(zip(found, kernels, strict=True))
        if open_ and not late:
            self._judge({kind: out[kind] for kind in open_}, counts)
        for kind in self._kinds if spans else ():
            if self._apart.get(kind) or kind in late:
                kernel, offset = grams_without_mean(vectors[kind], spans, size)
                out.pop(kind, None)
            else:
                kernel, offset = out[kind], None
            held = self._loose.get(kind, [])
            if held and (held[-1].offset is None) != (offset is None):
                pack([self])
            if self._device.type == "cpu" and not self.all_wait:
                kernel = self._together(kind, kernel)
            self._loose.setdefault(kind, []).append(_Kernels(kernel, counts, offset))
        if late:
            parts = {kind: self._loose[kind][-1] for kind in late}
            self._verdict = parts, sent_home([torch.stack([_share(x) for x in parts.values()])])
        if self._device.type == "cpu" and self._loose_bytes >= _PACKED_AT_ONCE["cpu"]:
            pack([self])
        return out

    def _together(self, kind: Kind, kernel: Tensor) -> Tensor:
        """Kernels copied beside those that wait, if they are few enough to wait.

        Strewn among a network's own tensors, they would keep the C library from using its memory
        again.
        """
        new, size, _ = kernel.shape
        most = _PACKED_AT_ONCE["cpu"] // (4 * size * size)  # fewer than that wait
        if new >= most:
            return kernel
        start = sum(len(part.kernel) for part in self._loose.get(kind, []))
        if kind not in self._held:
            self._held[kind] = zeros_apart(2 * most * size, size).view(-1, size, size)
        return self._held[kind][start : start + new].copy_(kernel)

    @property
    def _loose_bytes(self) -> int:
        return sum(part.kernel.nbytes for parts in self._loose.values() for part in parts)

    def _to_judge(self, vectors: Vectors, counts: list[int]) -> list[Kind]:
        """Kinds of which it is not known yet whether means are taken off the vectors."""
        if max(counts, default=0) < 2:  # whose mean is all of it
            return []
        single = [kind for kind, x in vectors.items() if x.dtype == torch.float32]
        return [kind for kind in single if kind not in self._apart]

    def _judge(self, kernels: Vectors, counts: list[int]) -> None:
        """With the first blocks, see where a mean must be taken off before the Gram matrix."""
        first = counts.index(max(counts))
        n = counts[first]
        some = torch.stack([kernel[first, :n, :n] for kernel in kernels.values()]).double()
        means = (some.mean((-1, -2)) / some.diagonal(dim1=-2, dim2=-1).mean(-1)).tolist()
        for kind, mean in zip(kernels, means, strict=True):
            self._apart[kind] = mean > _LARGE_MEAN

    def _read_verdict(self) -> None:
        """What `_judge` would have said of the first blocks, which had their means taken off.

        So that a GPU is not waited for while it has nothing else to do. Small means are put back.
        """
        if self._verdict is None:
            return
        (parts, arrived), self._verdict = self._verdict, None
        for (kind, part), share in zip(parts.items(), arrived()[0].tolist(), strict=True):
            self._apart[kind] = share > _LARGE_MEAN
            if not self._apart[kind]:
                self._loose[kind] = [_with_mean(part)]

    def loose(self) -> list[tuple[Kind, list[_Kernels]]]:
        """Kernels that wait to be packed, which are handed over."""
        self._read_verdict()
        waiting, self._loose = self._loose, {}
        return list(waiting.items())

    def packed(self, kind: Kind, new: Sequence[Tensor], shares: Tensor | None) -> None:
        """Take in triangles, diagonals and offsets, and shares of means where they were judged."""
        rows = self._packed.setdefault(kind, (Rows(), Rows(), Rows()))
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
            nothing = _Kernels(torch.zeros(0, size, size), [], None)
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


def _share(part: _Kernels) -> Tensor:  # ()
    """Of the trace of the largest block, that its mean carries."""
    assert part.offset is not None
    first = part.counts.index(max(part.counts))
    n = part.counts[first]
    kernel, taken = part.kernel[first, :n, :n], 2 * part.offset[first, :n].mean()
    return (kernel.mean() + taken) / (kernel.diagonal().mean() + taken)


def _with_mean(part: _Kernels) -> _Kernels:
    """The kernels themselves, where a mean was taken off."""
    u = part.offset
    assert u is not None
    kernel = part.kernel + u[:, :, None] + u[:, None, :]
    for block, n in zip(kernel, part.counts, strict=True):
        if n < len(block):
            block[n:] = block[:, n:] = 0
    return _Kernels(kernel, part.counts, None)


def pack(layers: Iterable[BlockKernels]) -> None:
    """Pack the kernels that wait, of several layers together, where they lie.

    A GPU would spend more time on being told to pack a block than on everything else.
    """
    groups: dict[object, list[tuple[BlockKernels, Kind, list[_Kernels]]]] = {}
    for layer in layers:
        for kind, parts in layer.loose():
            first = parts[0]
            like = first.kernel.shape[-1], first.kernel.device, first.offset is None
            groups.setdefault(like, []).append((layer, kind, parts))
    for group in groups.values():
        each = max(sum(part.kernel.nbytes for part in parts) for _, _, parts in group)
        device = group[0][2][0].kernel.device
        step = max(1, _PACKED_AT_ONCE.get(device.type, 0) // max(1, each))
        for start in range(0, len(group), step):
            some = group[start : start + step]
            found, shares = _packed([part for _, _, parts in some for part in parts])
            sizes = [sum(len(part.counts) for part in parts) for _, _, parts in some]
            splits = zip(*(x.split(sizes) for x in found), strict=True)
            of_means = shares.split(sizes) if shares is not None else [None] * len(some)
            for (layer, kind, _), new, share in zip(some, splits, of_means, strict=True):
                layer.packed(kind, new, share)


def _packed(parts: Sequence[_Kernels]) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """Triangles, diagonals and offsets of kernels; shares of their means if these are taken off."""
    kernel = torch.cat([part.kernel for part in parts])
    share = None
    if parts[0].offset is None:
        counts = torch.tensor([n for part in parts for n in part.counts])
        counts = without_waiting(counts, kernel.device)
        kernel, offset, share = without_mean(kernel, counts)
        share = torch.where(counts < _ROWS_TO_TELL, 0.0, share)
    else:
        offset = torch.cat([part.offset for part in parts if part.offset is not None])
    return (*pack16(kernel, kernel.shape[-1]), offset.float()), share
