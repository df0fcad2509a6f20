"""One layer's exact kernels: Gram matrices of its blocks, packed as they come.

A block that arrives in several batches waits until it is whole. Of few samples all wait, and their
kernel is kept whole, as one block. Where a large mean would drown the differences of samples it is
taken off first: off the vectors, where they are float32 and float32 products would lose what it
hides, else off the kernel, where packing would.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .._ops.gram_matrices import grams
from .._ops.packed_kernels import pack16, without_mean
from ..representation.layer import Blocks, Kind, Whole
from ..representation.settings import Settings
from .waiting_vectors import WaitingRoom

_WAITING_BYTES = 2**30  # of one layer's vectors: more are not kept for the kernel of all samples
_LARGE_MEAN = 0.9  # of a trace: float32 products begin to lose what it hides
_ROWS_TO_JUDGE = 8  # by which a mean is called large

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
        self._loose: dict[Kind, list[_Kernels]] = {}
        self._packed: dict[Kind, tuple[Rows, ...]] = {}  # triangles, diagonals, offsets
        self.shares: dict[Kind, Tensor] = {}  # the largest of a trace that a mean carries

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
        """Gram matrices (blocks, B, B), packed at once on a CPU, all together on a GPU.

        A GPU would spend more time on being told to pack a block than on everything else. Returns
        those whose diagonals are the squared norms.
        """
        out: Vectors = {}
        size = size or self._settings.block
        pairs: tuple[tuple[Kind, ...], ...] = (("features", "gradients"), ("elementwise",))
        for kinds in pairs if spans else ():
            found = [kind for kind in kinds if kind in vectors and not self._apart.get(kind)]
            if found:
                kernels = grams([vectors[kind] for kind in found], spans, size)
                out.update(zip(found, kernels, strict=True))
        counts = [stop - start for start, stop in spans]
        self._judge(vectors, out, counts)
        for kind in self._kinds if spans else ():
            if self._apart.get(kind):
                kernel, offset = _grams_without_mean(vectors[kind], spans, size)
                out.pop(kind, None)
            else:
                kernel, offset = out[kind], None
            held = self._loose.get(kind, [])
            if held and (held[-1].offset is None) != (offset is None):
                self._pack()
            self._loose.setdefault(kind, []).append(_Kernels(kernel, counts, offset))
        if not vectors["features"].is_cuda or not spans:
            self._pack()
        return out

    def _judge(self, vectors: Vectors, kernels: Vectors, counts: list[int]) -> None:
        """With the first blocks, see where a mean must be taken off before the Gram matrix."""
        float32 = [kind for kind in kernels if vectors[kind].dtype == torch.float32]
        open_ = [kind for kind in float32 if kind not in self._apart]  # a GPU is waited for, once
        if not open_ or max(counts) < _ROWS_TO_JUDGE:
            return
        first = counts.index(max(counts))
        n = counts[first]
        some = torch.stack([kernels[kind][first, :n, :n] for kind in open_]).double()
        means = (some.mean((-1, -2)) / some.diagonal(dim1=-2, dim2=-1).mean(-1)).tolist()
        for kind, mean in zip(open_, means, strict=True):
            self._apart[kind] = mean > _LARGE_MEAN

    def _pack(self) -> None:
        for kind, parts in self._loose.items():
            size = parts[0].kernel.shape[-1]
            kernel = torch.cat([part.kernel for part in parts])
            if parts[0].offset is None:
                counts = torch.tensor([n for part in parts for n in part.counts])
                kernel, offset, share = without_mean(kernel, counts.to(kernel.device))
                enough = torch.where(counts.to(share.device) < _ROWS_TO_JUDGE, 0.0, share)
                if len(share):
                    most = self.shares.get(kind, share.new_zeros(()))
                    self.shares[kind] = torch.maximum(most, enough.amax())
            else:
                offset = torch.cat([part.offset for part in parts if part.offset is not None])
            rows = self._packed.setdefault(kind, (Rows(), Rows(), Rows()))
            new = (*pack16(kernel, size), offset.float())
            for row, values in zip(rows, new, strict=True):
                row.append(values)
        self._loose = {}

    def finish(self) -> None:
        """Pack what is left, where it lies, without waiting for it."""
        if self.all_wait:
            self._add_waiting()
        size = self._settings.block
        if self._settings.blocks and not self._packed and not self._loose:
            nothing = _Kernels(torch.zeros(0, size, size), [], None)
            self._loose = {kind: [nothing] for kind in self._kinds}
        self._pack()

    def result(self, kind: Kind, sizes: tuple[int, ...]) -> tuple[Blocks | None, Whole | None]:
        """What was kept of a kind, as blocks of these sizes or as the kernel of all samples."""
        if kind not in self._packed:
            return None, None
        triangle, diagonal, offset = (rows.whole().cpu() for rows in self._packed[kind])
        kept = Blocks(triangle, diagonal, offset if offset.any() else None)
        return (None, Whole(kept, sizes)) if self.all_wait else (kept, None)


def _grams_without_mean(
    x: Tensor, spans: Spans, size: int
) -> tuple[Tensor, Tensor]:  # (blocks, size, size), (blocks, size)
    """Gram matrices of vectors with their block's mean m taken off, and u_i = x_i·m − ½‖m‖²."""
    kernels, offsets = [], []
    for start, stop in spans:
        rows = x[start:stop]
        mean = rows.mean(0)
        (kernel,) = grams([rows - mean], [(0, stop - start)], size)
        kernels.append(kernel)
        u = rows @ mean - mean @ mean / 2
        offsets.append(F.pad(u, (0, size - len(u))))
    return torch.cat(kernels), torch.stack(offsets)


class Rows:
    """Rows that come a few at a time, side by side in memory that doubles when it is full.

    A list of small pieces would fragment the heap: strewn among a network's tensors, which come and
    go, they would keep the C library from using the gaps between them again.
    """

    def __init__(self) -> None:
        self._rows, self._count = torch.empty(0), 0

    def append(self, new: Tensor) -> None:
        total = self._count + len(new)
        if not self._count:
            self._rows = new
        elif total > len(self._rows):
            full, self._rows = self._rows, new.new_empty(2 * total, *new.shape[1:])
            self._rows[: self._count] = full[: self._count]
        if self._count:
            self._rows[self._count : total] = new
        self._count = total

    def __len__(self) -> int:
        return self._count

    def whole(self) -> Tensor:
        return self._rows[: self._count].clone()
