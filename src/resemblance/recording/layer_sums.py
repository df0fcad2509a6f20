"""One layer's running sums: what a pass keeps of it while samples stream by.

Per batch and layer, the features f (n, d) and gradients g (n, d) are read a few times: for exact
Gram matrices inside each block, for the buckets F̃, G̃ (M × min(d, max_dim)), and for sums over
samples. A block that comes in several batches waits until it is whole; of few samples all wait, and
their kernel is kept whole. Nothing here grows with the number of samples but the blocks and the
squared norms, both of which are bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .._ops import fused_sketch
from .._ops.coordinate_sketch import ROWS, WIDTH, columns, from_buckets
from .._ops.count_sketch import add_to_buckets, bucket_kernel
from .._ops.feature_fold import Fold
from .._ops.gram_matrices import grams
from .._ops.packed_kernels import pack16, without_mean
from ..representation.layer import (
    NORMS_KEPT,
    Blocks,
    Buckets,
    Kind,
    Layer,
    Products,
    Recorded,
    Sketch,
    Sums,
    Whole,
)
from ..representation.settings import Settings

# Batches whose norms a GPU sums up together. On a CPU nothing small waits: strewn among a network's
# tensors, which come and go, it would keep the C library from using the gaps between them again.
_BATCHES_HELD = 32
_WAITING_BYTES = 2**30  # of one layer's vectors: more are not kept for the kernel of all samples
_LARGE_MEAN = 0.9  # of a trace: float32 products begin to lose what it hides
_ROWS_TO_JUDGE = 8  # by which a mean is called large

Vectors = dict[Kind, Tensor]  # each (n, d)


@dataclass(frozen=True)
class Plan:
    """What happens to the rows of one forward batch, the same for every layer."""

    buckets: tuple[Tensor, Tensor] | None  # bucket and sign (n, t) of each; None if not kept
    blocks: list[tuple[int, int]]  # rows [start, stop) of each kept block; they come first
    parted: bool = False  # the one block is a part: it waits until it
    ends: bool = True  # is whole
    rows: tuple[Tensor, Tensor] | None = None  # of the sketch, where buckets do not tell them


class _Kernels(NamedTuple):
    """Gram matrices that wait to be packed."""

    kernel: Tensor  # (blocks, B, B)
    counts: list[int]  # samples in each
    offset: Tensor | None  # (blocks, B), where a mean was taken off the vectors


class LayerSums:
    """Blocks, buckets, sketch and moments of one layer: `add` batches, `finish`, take the `result`.

    All layers are finished before any result is taken, so that a GPU is told everything first.
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dim: int,
        settings: Settings,
        *,
        few: int = 0,  # samples in all, if their whole kernel may be kept
        channels: int = 1,  # of images, whose memory may lie in one order or the other
        channels_last: bool = False,  # vectors come as (..., channels), unlike `shape`
        deterministic: bool = False,
    ) -> None:
        self.name, self.shape, self.dim, self.settings = name, shape, dim, settings
        self.channels, self.channels_last = channels, channels_last
        self.width = min(dim, settings.max_dim or dim)
        self.faint: list[Kind] = []  # whose samples differ by less than their dtype can hold
        self._few = few
        self._deterministic = deterministic
        self._kinds: tuple[Kind, ...] = ()
        self._dtype = torch.float32
        self._waiting: list[Vectors] = []  # parts of a block that is not whole yet
        self._apart: dict[Kind, bool] = {}  # whether means are taken off the vectors themselves
        self._loose: dict[Kind, list[_Kernels]] = {}
        self._packed: dict[Kind, tuple[_Rows, ...]] = {}  # triangles, diagonals, offsets
        self._shares: dict[Kind, Tensor] = {}  # the largest of a trace that a mean carries
        self._folds: dict[int, Fold] = {}  # by width
        # by what is sketched and whether into rows: the table (M or 128, width), total (width,)
        self._tables: dict[tuple[Kind, bool], tuple[Tensor, Tensor]] = {}
        self._norms: list[tuple[Vectors, Tensor | None]] = []  # of late batches, with their ⟨f, g⟩
        self._each_norm: dict[Kind, _Rows] = {}
        self._moments: dict[str, Tensor] = {}

    def add(self, features: Tensor, gradients: Tensor | None, plan: Plan) -> Vectors:
        """Take in a batch (n, d); returns squared norms (n,), finite where the samples are."""
        device = torch.cuda.device_of(features)  # Triton launches on the current one
        with device, torch.autocast(features.device.type, enabled=False), torch.no_grad():
            self._dtype = features.dtype
            vectors: Vectors = {"features": features.contiguous()}
            if gradients is not None:
                # float16 features come with float32 gradients, which would vanish in float16
                both = torch.promote_types(features.dtype, gradients.dtype)
                vectors["features"] = vectors["features"].to(both)
                vectors["gradients"] = gradients.to(both).contiguous()
                if self.settings.elementwise:
                    f, g = vectors["features"].float(), vectors["gradients"].float()
                    vectors["elementwise"] = f * g
            self._begin(vectors)
            kernels: Vectors = {}
            if self._few or (plan.parted and plan.blocks):
                self._wait(vectors)
            elif not plan.parted:
                kernels = self._add_blocks(vectors, plan.blocks, self.settings.block)
            much = gradients is not None or plan.buckets is not None or plan.rows is not None
            if much and fused_sketch.available(features) and not self._deterministic:
                norms, inner = self._add_fused(vectors, plan)
            else:
                norms, inner = self._add_plain(vectors, kernels, plan)
            self._norms.append((norms, inner))
            if plan.parted and plan.ends:
                self.end_block()
            if len(self._norms) == (_BATCHES_HELD if features.is_cuda else 1):
                self._add_moments()
            return norms

    def _begin(self, vectors: Vectors) -> None:
        """With the first batch, see whether there is room for the vectors of all samples."""
        if not self._kinds:
            self._kinds = tuple(vectors)
            each = sum(x.element_size() * x.shape[1] for x in vectors.values())
            if self._few * each > _WAITING_BYTES:
                self._few = 0

    def _wait(self, vectors: Vectors) -> None:
        if "gradients" not in vectors:  # the forward pass is under way, and may write over these
            vectors = {kind: x.clone() for kind, x in vectors.items()}
        self._waiting.append(vectors)

    def end_block(self) -> None:
        """The parts that wait are a whole block."""
        if self._waiting and not self._few:
            self._add_waiting(self.settings.block)

    def _add_waiting(self, size: int | None = None) -> None:
        parts, self._waiting = self._waiting, []
        joined = {kind: torch.cat([part[kind] for part in parts]) for kind in parts[0]}
        parts.clear()
        count = len(joined["features"])
        self._add_blocks(joined, [(0, count)], size or count)

    def _add_blocks(self, vectors: Vectors, spans: list[tuple[int, int]], size: int) -> Vectors:
        """Gram matrices (blocks, B, B), packed at once on a CPU, all together on a GPU.

        A GPU would spend more time on being told to pack a block than on everything else. Returns
        those whose diagonals are the squared norms.
        """
        out: Vectors = {}
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
                self._pack_blocks()
            self._loose.setdefault(kind, []).append(_Kernels(kernel, counts, offset))
        if not vectors["features"].is_cuda or not spans:
            self._pack_blocks()
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

    def _pack_blocks(self) -> None:
        for kind, parts in self._loose.items():
            size = parts[0].kernel.shape[-1]
            kernel = torch.cat([part.kernel for part in parts])
            if parts[0].offset is None:
                counts = torch.tensor([n for part in parts for n in part.counts])
                kernel, offset, share = without_mean(kernel, counts.to(kernel.device))
                if len(share):
                    most = self._shares.get(kind, share.new_zeros(()))
                    self._shares[kind] = torch.maximum(most, share.amax())
            else:
                offset = torch.cat([part.offset for part in parts if part.offset is not None])
            rows = self._packed.setdefault(kind, (_Rows(), _Rows(), _Rows()))
            new = (*pack16(kernel, size), offset.float())
            for row, values in zip(rows, new, strict=True):
                row.append(values)
        self._loose = {}

    def _add_plain(
        self, vectors: Vectors, kernels: Vectors, plan: Plan
    ) -> tuple[Vectors, Tensor | None]:
        """Buckets, sketch and moments in plain PyTorch: squared norms, ⟨f, g⟩ of each sample."""
        norms: Vectors = {}
        for kind, x in vectors.items():
            norms[kind] = _squared_norms(x, kernels.get(kind), plan.blocks)
            for into_rows, to in self._sketches(kind, plan):
                table, total = self._table(kind, into_rows, x.device)
                folded = self._fold(into_rows, x.device)(x.float())
                total += folded.sum(0)
                add_to_buckets(table, folded, *to, deterministic=self._deterministic)
        if "gradients" not in vectors:
            return norms, None
        f, g = vectors["features"].float(), vectors["gradients"].float()
        return norms, torch.einsum("nd,nd->n", f, g)

    def _add_fused(self, vectors: Vectors, plan: Plan) -> tuple[Vectors, Tensor | None]:
        """The same in one read of features and gradients, on a GPU."""
        norms: Vectors = {}
        inner = None
        pairs: list[tuple[Kind, ...]] = [("features", "gradients"), ("elementwise",)]
        for pair in pairs:
            kinds = [kind for kind in pair if kind in vectors]
            if not kinds:
                continue
            x, y = vectors[kinds[0]], vectors[kinds[1]] if len(kinds) > 1 else None
            device = x.device
            sketches = self._sketches(kinds[0], plan)
            for into_rows, to in sketches:
                tables = [self._table(kind, into_rows, device) for kind in kinds]
                found = fused_sketch.sketch(x, y, self._fold(into_rows, device), to, tables)
            if not sketches:
                found = fused_sketch.sketch(x, y, None, None, [])
            norms |= zip(kinds, found[:2], strict=False)
            if y is not None:
                inner = found[2]
        return norms, inner

    def _sketches(self, kind: Kind, plan: Plan) -> list[tuple[bool, tuple[Tensor, Tensor]]]:
        """Buckets, if kept, and rows of the sketch (True), each with samples' places and signs."""
        out = []
        if plan.buckets is not None:
            out.append((False, plan.buckets))
        if plan.rows is not None and kind != "elementwise" and not self._nested:
            out.append((True, plan.rows))
        return out

    @property
    def _nested(self) -> bool:
        """Whether the buckets lie in the rows of the sketch, slot for slot."""
        return nests(self.settings) and self.width == min(self.dim, WIDTH)

    def _fold(self, into_rows: bool, device: torch.device) -> Fold:
        width = WIDTH if into_rows else self.width
        if width not in self._folds:
            self._folds[width] = Fold(
                self.dim,
                width,
                self.settings.seed,
                device,
                channels=self.channels,
                channels_last=self.channels_last,
            )
        return self._folds[width]

    def _table(self, kind: Kind, into_rows: bool, device: torch.device) -> tuple[Tensor, Tensor]:
        """The buckets, or rows, and the total of one kind, which are added to."""
        if (kind, into_rows) not in self._tables:
            width = self._fold(into_rows, device).width
            size = ROWS if into_rows else self.settings.buckets
            table = torch.zeros(size, width, device=device)
            total = torch.zeros(width, device=device, dtype=torch.float64)
            self._tables[kind, into_rows] = table, total
        return self._tables[kind, into_rows]

    def _add_moments(self) -> None:
        """Sums over the samples of the batches held, in float64 on the device."""
        if not self._norms:
            return
        every, inners = zip(*self._norms, strict=True)
        norms = {kind: torch.cat([each[kind] for each in every]).double() for kind in every[0]}
        values = {f"trace_{kind}": norm for kind, norm in norms.items()}
        if inners[0] is not None:
            inner = torch.cat(inners).double()
            values["norms"] = norms["features"] * norms["gradients"]
            values |= {"inner": inner, "inner_squared": inner**2, "inner_fourth": inner**4}
        for key, value in values.items():
            self._moments[key] = self._moments.get(key, 0) + value.sum()
        for kind, norm in norms.items():
            each = self._each_norm.setdefault(kind, _Rows())
            if kind != "elementwise" and len(each) < NORMS_KEPT:
                each.append(norm.float())
        self._norms = []

    def finish(self, count: int) -> None:
        """Form everything that a Representation holds, where it lies, without waiting for it."""
        self._add_moments()
        if self._few:
            self._add_waiting()
        size = self.settings.block
        if self.settings.blocks and not self._packed and not self._loose:
            nothing = _Kernels(torch.zeros(0, size, size), [], None)
            self._loose = {kind: [nothing] for kind in self._kinds}
        self._pack_blocks()
        self._buckets: dict[Kind, Sequence[Tensor]] = {}
        self._sketched: dict[Kind, Sketch] = {}
        for (kind, into_rows), (table, total) in self._tables.items():
            order = self._fold(into_rows, table.device).in_order
            self._tables[kind, into_rows] = order(table), order(total)
        for kind in self._kinds:
            buckets, rows = (self._tables.get((kind, into_rows)) for into_rows in (False, True))
            if buckets is not None:
                *kernel, self._moments[f"mean_{kind}"] = bucket_kernel(*buckets, count)
                self._buckets[kind] = kernel
                if self._nested:
                    rows = from_buckets(buckets[0]), buckets[1]
            if rows is not None and kind != "elementwise":
                self._sketched[kind] = Sketch(*self._columns(*rows))

    def _columns(self, rows: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (128, w) and total (w,) of the sketch, folded to its columns."""
        table = torch.cat([rows.double(), total[None]])
        both = columns(table, self.dim, self.settings.seed)
        return both[:-1].float(), both[-1]

    def result(
        self,
        *,
        sizes: tuple[int, ...],  # of the blocks
        places: Tensor,  # in the order, of each sample that came
        signs: Tensor | None,
        sketch_signs: Tensor,
        keep_sums: bool,
    ) -> Layer:
        """The layer's share of a Representation, with its accumulators if they are to be kept."""
        values = torch.stack([*self._moments.values(), *self._shares.values()]).tolist()
        moments = dict(zip(self._moments, values, strict=False))
        shares = dict(zip(self._shares, values[len(moments) :], strict=True))
        self.faint = [kind for kind, share in shares.items() if self._is_faint(kind, share)]

        def recorded(kind: Kind) -> Recorded | None:
            if kind not in self._kinds:
                return None
            blocks = [rows.whole().cpu() for rows in self._packed.get(kind, ())]
            kept = None
            if blocks:
                triangle, diagonal, offset = blocks
                kept = Blocks(triangle, diagonal, offset if offset.any() else None)
            buckets = [x.cpu() for x in self._buckets.get(kind, ())]
            tables = self._tables.get((kind, False), ())
            sketch = self._sketched.get(kind)
            return Recorded(
                trace=moments[f"trace_{kind}"],
                blocks=kept if not self._few else None,
                whole=Whole(kept, sizes) if self._few and kept is not None else None,
                norms=_in_places(self._each_norm[kind], places) if kind != "elementwise" else None,
                sketch=Sketch(sketch.table.cpu(), sketch.total.cpu()) if sketch else None,
                buckets=Buckets(*buckets, mean_norm=moments[f"mean_{kind}"]) if buckets else None,
                sums=Sums(*(x.cpu() for x in tables)) if keep_sums and tables else None,
            )

        features = recorded("features")
        assert features is not None
        names = ("norms", "inner", "inner_squared", "inner_fourth")
        return Layer(
            name=self.name,
            shape=self.shape,
            dim=self.dim,
            folded=self.width < self.dim,
            features=features,
            gradients=recorded("gradients"),
            elementwise=recorded("elementwise"),
            products=Products(*(moments[x] for x in names)) if "inner" in moments else None,
            signs=signs,
            sketch_signs=sketch_signs,
        )

    def _is_faint(self, kind: Kind, share: float) -> bool:
        """Whether rounding to the vectors' own dtype is a hundredth of what a mean leaves over."""
        if kind != "features" or self._dtype not in (torch.float16, torch.bfloat16):
            return False
        return 1 - share < 100 * torch.finfo(self._dtype).eps ** 2 / 12


def nests(settings: Settings) -> bool:
    """Whether buckets lie in rows of the sketch, so that one can be made from the other."""
    many = settings.buckets > 0 and settings.buckets % ROWS == 0
    return many and settings.per_sample == 1


def _in_places(norms: _Rows, places: Tensor) -> Tensor:
    """Squared norms by place in the order, as far as they are kept; NaN where none came."""
    here = norms.whole().cpu()[: len(places)]
    at = places[: len(here)]
    if len(at) and int(at[-1]) == len(at) - 1:  # places ascend: none is missing
        return here[:NORMS_KEPT].clone()
    here, at = here[at < NORMS_KEPT], at[at < NORMS_KEPT]
    out = torch.full((int(at.max()) + 1 if len(at) else 0,), torch.nan)
    out[at] = here
    return out


def _grams_without_mean(
    x: Tensor, spans: list[tuple[int, int]], size: int
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


class _Rows:
    """Rows that come a few at a time, side by side in memory that doubles when it is full.

    A list of small pieces would fragment the heap, as norms that wait would.
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


def _squared_norms(x: Tensor, kernels: Tensor | None, spans: list[tuple[int, int]]) -> Tensor:
    """‖x_i‖² of rows (n, d), in float32; those of blocks come from the diagonals of their kernels.

    A GPU may have rounded the factors of float32 products, but no others.
    """
    known: list[Tensor] = []
    if kernels is not None and not (x.is_cuda and x.dtype == torch.float32):
        diagonals = kernels.diagonal(dim1=1, dim2=2)
        known = [row[: stop - start] for row, (start, stop) in zip(diagonals, spans, strict=True)]
        x = x[spans[-1][1] :]
    if x.is_cuda:  # in one read, whatever the dtype
        rest = torch.linalg.vector_norm(x, dim=1, dtype=torch.float32).square_()
    else:
        rest = torch.einsum("nd,nd->n", x.float(), x.float())
    return torch.cat([*known, rest]) if known else rest
