"""Accumulator of one layer: its buckets, sketch, Gram blocks and moments while batches stream by.

Per batch, the features f (n, d) and gradients g (n, d) are read a few times: for exact Gram
matrices inside each block, for the buckets F̃, G̃ (M × min(d, max_dim)) and the sketch in
coordinates, and for squared norms and inner products, which are returned to the caller. Memory does
not grow with the number of samples except for the blocks, which are bounded.

`Moments` sums ‖f‖², ‖g‖², ‖f‖²‖g‖² and powers of ⟨f, g⟩ in float64, and keeps the squared norms of
the first samples. All layers of a batch are summed together, because on a GPU one launch per layer
costs more than the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._ops import fused_sketch
from .._ops.count_sketch import (
    COLUMNS,
    ROWS,
    WIDTH,
    add_to_buckets,
    bucket_kernel,
    project_columns,
    rows_from_buckets,
)
from .._ops.devices import (
    copy_all_to_host_async,
    copy_to_device_async,
    group_by_size,
    zeros_in_own_pages,
)
from .._ops.fold import Fold
from ..representation.layer import NORMS_KEPT, Buckets, Kind, Layer, Products, Recorded, Sketch
from ..representation.representation import Settings
from .gram_blocks import (
    MAX_BUFFERED_BYTES,
    GramBlocks,
    GrowingRows,
    VectorBuffer,
    Vectors,
    pack_blocks,
)

_BUCKET_BYTES_AT_ONCE = {"cuda": 2**27}  # bytes of accumulators, of several layers, by device
_ROWS_FOLDED_AT_ONCE = {"cpu": 32}  # vectors, by device: a cache's worth


@dataclass(frozen=True)
class BatchPlan:
    """What happens to the rows of one forward batch, the same for every layer."""

    buckets: tuple[Tensor, Tensor] | None  # bucket and sign (n, t) of each; None if not kept
    blocks: list[tuple[int, int]]  # rows [start, stop) of each kept block; they come first
    parted: bool = False  # the one block is a part: it waits until it
    ends: bool = True  # is whole
    rows: tuple[Tensor, Tensor] | None = None  # of the sketch, where buckets do not tell them

    def on(self, device: torch.device) -> BatchPlan:
        """The same for layers on another device than most."""
        pairs = (self.buckets, self.rows)
        buckets, rows = (x if x is None else (x[0].to(device), x[1].to(device)) for x in pairs)
        return replace(self, buckets=buckets, rows=rows)


class LayerAccumulator:
    """Blocks, buckets and sketch of one layer: `add` batches, `finish`, `send`, take the `result`.

    Layers are finished together and sent to the host together, so that a GPU is told everything
    first and seldom waited for.
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
        room: VectorBuffer | None = None,  # for vectors that wait, which layers share
    ) -> None:
        self.name, self.shape, self.dim, self.settings = name, shape, dim, settings
        self.channels, self.channels_last = channels, channels_last
        self.width = min(dim, settings.max_dim or dim)
        # whether the buckets lie in the rows of the sketch, slot for slot
        self._nested = buckets_nest_in_sketch(settings) and self.width == min(dim, WIDTH)
        self.faint = False  # whether samples differ by less than their dtype can hold
        self._few, self._room = few, room
        self._deterministic = deterministic
        self._kinds: tuple[Kind, ...] = ()
        self._dtype, self._device = torch.float32, torch.device("cpu")
        self._blocks: GramBlocks | None = None
        self._folds: dict[int, Fold] = {}  # by width
        # by what is sketched and whether into rows: the table (M or 128, width), total (width,)
        self._tables: dict[tuple[Kind, bool], tuple[Tensor, Tensor]] = {}
        # by what it is and its kind, what a result is made of; on the host in the end
        self._formed: dict[tuple[str, Kind], list[Tensor]] = {}

    def add(
        self, features: Tensor, gradients: Tensor | None, plan: BatchPlan
    ) -> tuple[Vectors, Tensor | None]:
        """Take in a batch (n, d); returns squared norms (n,), finite if samples are, and ⟨f, g⟩."""
        device = torch.cuda.device_of(features)  # Triton launches on the current one
        with device, torch.autocast(features.device.type, enabled=False), torch.no_grad():
            self._dtype, self._device = features.dtype, features.device
            vectors: Vectors = {"features": features.contiguous()}
            if gradients is not None:
                # float16 features come with float32 gradients, which would vanish in float16
                both = torch.promote_types(features.dtype, gradients.dtype)
                vectors["features"] = vectors["features"].to(both)
                vectors["gradients"] = gradients.to(both).contiguous()
                if self.settings.elementwise:
                    f, g = vectors["features"].float(), vectors["gradients"].float()
                    vectors["elementwise"] = f * g
            if self._blocks is None:
                self._blocks = GramBlocks(self.settings, self._few, vectors, self._room)
            self._kinds, kernels = tuple(vectors), Vectors()
            if self._blocks.all_wait or (plan.parted and plan.blocks):
                self._blocks.wait(vectors)
            elif not plan.parted:
                kernels = self._blocks.add(vectors, plan.blocks)
            much = gradients is not None or plan.buckets is not None or plan.rows is not None
            if much and fused_sketch.can_fuse(features) and not self._deterministic:
                norms, inner = self._add_fused(vectors, plan)
            else:
                norms, inner = self._add_plain(vectors, kernels, plan)
            if plan.parted and plan.ends:
                self.end_block()
            return norms, inner

    def end_block(self) -> None:
        """The parts that wait are a whole block."""
        if self._blocks is not None:
            with torch.autocast(self._device.type, enabled=False):
                self._blocks.end_block()

    @property
    def nbytes(self) -> int:
        """Of the accumulators."""
        return sum(x.nbytes for pair in self._tables.values() for x in pair)

    def _add_plain(
        self, vectors: Vectors, kernels: Vectors, plan: BatchPlan
    ) -> tuple[Vectors, Tensor | None]:
        """Buckets, sketch and moments in plain PyTorch: squared norms, ⟨f, g⟩ of each sample."""
        norms: Vectors = {}
        for kind, x in vectors.items():
            norms[kind] = squared_norms(x, kernels.get(kind), plan.blocks)
            step = _ROWS_FOLDED_AT_ONCE.get(x.device.type, len(x))
            for into_rows, to in self._sketches(kind, plan):
                table, total = self._table(kind, into_rows, x.device)
                fold = self._fold(into_rows, x.device)
                for some, *places in zip(*(y.split(step) for y in (x, *to)), strict=True):
                    folded = fold(some.float())
                    total += folded.sum(0)
                    add_to_buckets(table, folded, *places, deterministic=self._deterministic)
        if "gradients" not in vectors:
            return norms, None
        f, g = vectors["features"].float(), vectors["gradients"].float()
        return norms, torch.einsum("nd,nd->n", f, g)

    def _add_fused(self, vectors: Vectors, plan: BatchPlan) -> tuple[Vectors, Tensor | None]:
        """The same in one read of features and gradients, on a GPU."""
        norms: Vectors = {}
        inner = None
        pairs: list[tuple[Kind, ...]] = [("features", "gradients"), ("elementwise",)]
        for pair in pairs:
            kinds = [kind for kind in pair if kind in vectors]
            if not kinds:
                continue
            x, y = vectors[kinds[0]], vectors[kinds[1]] if len(kinds) > 1 else None
            sketches = self._sketches(kinds[0], plan)
            for into_rows, to in sketches:
                tables = [self._table(kind, into_rows, x.device) for kind in kinds]
                fold = self._fold(into_rows, x.device)
                sums = fused_sketch.sketch_batch(x, y, fold, to, tables)
            if not sketches:
                sums = fused_sketch.sketch_batch(x, y, None, None, [])
            norms |= zip(kinds, sums[:2], strict=False)
            if y is not None:
                inner = sums[2]
        return norms, inner

    def _sketches(self, kind: Kind, plan: BatchPlan) -> list[tuple[bool, tuple[Tensor, Tensor]]]:
        """Buckets, if kept, and rows of the sketch (True), each with samples' places and signs."""
        into_rows = plan.rows if kind != "elementwise" and not self._nested else None
        both = [(False, plan.buckets), (True, into_rows)]
        return [(into_rows, to) for into_rows, to in both if to is not None]

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
            table = zeros_in_own_pages(size, width, device)
            total = torch.zeros(width, device=device, dtype=torch.float64)
            self._tables[kind, into_rows] = table, total
        return self._tables[kind, into_rows]

    def _end(self) -> dict[Kind, tuple[Tensor, Tensor]]:
        """Form the sketch; buckets and totals of which kernels are to be formed, by slot."""
        assert self._blocks is not None
        # the caller's autocast would round the factors of Gram matrices
        with torch.autocast(self._device.type, enabled=False):
            self._blocks.finish()
        for (kind, into_rows), (table, total) in self._tables.items():
            order = self._fold(into_rows, table.device).in_order
            self._tables[kind, into_rows] = order(table), order(total)
        buckets = {kind: pair for (kind, rows), pair in self._tables.items() if not rows}
        sketched = {kind: pair for (kind, rows), pair in self._tables.items() if rows}
        for kind, (table, total) in (buckets if self._nested else sketched).items():
            if kind != "elementwise":
                rows = rows_from_buckets(table) if self._nested else table
                both = torch.cat([rows.double(), total[None]])
                both = project_columns(both, self.dim, self.settings.seed)
                self._formed["sketch", kind] = [both[:-1].float(), both[-1].clone()]
        return buckets

    def result(
        self,
        *,
        sizes: tuple[int, ...],  # of the blocks
        moments: LayerMoments,
        signs: Tensor | None,
        sketch_signs: Tensor,
        keep_sums: bool,
    ) -> Layer:
        """The layer's share of a Representation, with its accumulators if they are to be kept."""
        assert self._blocks is not None
        kernels, formed = self._blocks, self._formed
        (share,) = formed.get(("share", "features"), [0.0])
        if self._dtype in (torch.float16, torch.bfloat16):  # a hundredth of what a mean leaves over
            self.faint = 1 - float(share) < 100 * torch.finfo(self._dtype).eps ** 2 / 12

        def recorded(kind: Kind) -> Recorded:
            blocks, whole = kernels.result(formed.get(("kernels", kind)), sizes)
            buckets, sketch = formed.get(("buckets", kind)), formed.get(("sketch", kind))
            tables = self._tables.get((kind, False), ())
            return Recorded(
                trace=moments.traces[kind],
                blocks=blocks,
                whole=whole,
                norms=moments.norms[kind] if kind != "elementwise" else None,
                sketch=Sketch(*sketch) if sketch else None,
                buckets=Buckets(*buckets[:3], mean_norm=float(buckets[3])) if buckets else None,
                sums=Sketch(*(x.cpu() for x in tables)) if keep_sums and tables else None,
            )

        kinds: dict[str, Any] = {kind: recorded(kind) for kind in self._kinds}
        return Layer(
            name=self.name,
            shape=self.shape,
            dim=self.dim,
            folded=self.width < self.dim,
            products=moments.products,
            signs=signs,
            sketch_signs=sketch_signs,
            **kinds,
        )


def estimate_layer_bytes(settings: Settings, dim: int, samples: int | None, *, few: bool) -> int:
    """About how much host memory a layer takes, without what the network takes.

    Args:
        settings: of the pass.
        dim: width of the layer's vectors.
        samples: how many there are, None where that is not known.
        few: whether the full Gram matrix of all samples is stored.
    """
    n, m, block = samples or 0, settings.buckets, settings.block
    kinds = 1 + settings.gradients + settings.elementwise
    vectors = 4 * n * dim * kinds if few else 0
    if 0 < vectors <= MAX_BUFFERED_BYTES:
        kernels = kinds * n**2
    else:
        windows = min(settings.windows, -(-n // block))
        vectors, kernels = 0, kinds * windows * settings.tokens * block**2
    tables = 4 * m * min(dim, settings.max_dim or dim) + 4 * ROWS * COLUMNS
    if not buckets_nest_in_sketch(settings):
        tables += 4 * ROWS * min(dim, WIDTH)
    return vectors + kernels + kinds * (tables + 3 * m**2 // 2)


def finish_layers(layers: Sequence[LayerAccumulator], count: int) -> None:
    """Form everything that a Representation holds, where it lies, without waiting for it."""
    groups: dict[object, list[tuple[LayerAccumulator, Kind, tuple[Tensor, Tensor]]]] = {}
    for layer in layers:
        for kind, pair in layer._end().items():
            like = pair[0].shape, pair[0].device
            groups.setdefault(like, []).append((layer, kind, pair))
    for group in groups.values():
        sizes = [table.nbytes for _, _, (table, _) in group]
        most = _BUCKET_BYTES_AT_ONCE.get(group[0][2][0].device.type, 0)
        for some in group_by_size(group, sizes, most):
            pairs = zip(*(pair for *_, pair in some), strict=True)
            tables, totals = (torch.stack(x) if len(x) > 1 else x[0][None] for x in pairs)
            formed = zip(*bucket_kernel(tables, totals, count), strict=True)
            for (layer, kind, _), each in zip(some, formed, strict=True):
                layer._formed["buckets", kind] = list(each)
    pack_kernels(layers)
    for layer in layers:
        if layer._blocks is not None:
            layer._formed |= layer._blocks.formed()


def send_to_host(layers: Sequence[LayerAccumulator]) -> Callable[[], None]:
    """Have what was formed copied to the host; the function returned waits until it is there."""
    groups = [group for layer in layers for group in layer._formed.values()]
    arrived = copy_all_to_host_async([x for group in groups for x in group])

    def fetch() -> None:
        here = iter(arrived())
        for group in groups:
            group[:] = [next(here) for _ in group]

    return fetch


def pack_kernels(layers: Iterable[LayerAccumulator]) -> None:
    """Pack the exact kernels that wait for it, of all layers together."""
    pack_blocks(layer._blocks for layer in layers if layer._blocks is not None)


def buckets_nest_in_sketch(settings: Settings) -> bool:
    """Whether buckets lie in rows of the sketch, so that one can be made from the other."""
    return settings.per_sample == 1 and settings.buckets > 0 and settings.buckets % ROWS == 0


def squared_norms(
    x: Tensor, kernels: Tensor | None = None, spans: Sequence[tuple[int, int]] = ()
) -> Tensor:
    """‖x_i‖² of rows (n, d) in float32: not finite where a row, or its square, is not.

    Those of blocks are read off the diagonals of their kernels, except for float32 on a GPU, which
    may have rounded the factors.
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


# -- moments of all layers --

# Batches that are summed up together, by device. On a CPU nothing small waits, as with `Rows`.
_BATCHES_PER_SUM = {"cuda": 32}

NormsByLayer = dict[tuple[Kind, int], Tensor]  # of each kind and layer, one of each sample (n,)


@dataclass(frozen=True)
class LayerMoments:
    """What came together for one layer."""

    traces: dict[Kind, float]
    norms: dict[Kind, Tensor]  # by place in the order, as far as they are kept
    products: Products | None


class Moments:
    """Sums in float64 over the samples that come, and the first of the norms themselves."""

    def __init__(self) -> None:
        self._keys: list[tuple[Kind, int]] = []  # of the rows of norms, kind after kind
        self._held: list[tuple[Tensor, Tensor | None]] = []  # of late batches
        self._sums: dict[str, Tensor] = {}
        self._norms = GrowingRows()

    def add(self, keys: list[tuple[Kind, int]], norms: Tensor, inner: Tensor | None) -> None:
        """Take in a batch: ‖x‖² (keys, n), sorted by kind and layer, and ⟨f, g⟩ (layers, n)."""
        self._keys = keys
        self._held.append((norms, inner))
        if len(self._held) >= _BATCHES_PER_SUM.get(norms.device.type, 1):
            self.settle()

    def settle(self) -> None:
        """Add up the batches held, where they lie."""
        if not self._held:
            return
        norms = torch.cat([norms for norms, _ in self._held], 1).double()
        inners = [inner for _, inner in self._held if inner is not None]
        self._held = []
        found = {"traces": norms.sum(1)}
        if inners:
            inner = torch.cat(inners, 1).double()
            found["norms"] = (norms[self._at("features")] * norms[self._at("gradients")]).sum(1)
            found |= {"inner": inner.sum(1), "inner_squared": (inner**2).sum(1)}
            found["inner_fourth"] = (inner**4).sum(1)
        for name, value in found.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        if len(self._norms) < NORMS_KEPT:
            self._norms.append(norms.float().T.contiguous())

    def _at(self, kind: Kind) -> slice:
        """The rows of a kind, which follow each other."""
        rows = [row for row, key in enumerate(self._keys) if key[0] == kind]
        return slice(rows[0], rows[-1] + 1)

    def send(self, places: np.ndarray) -> Callable[[], dict[int, LayerMoments]]:
        """Have all that came sent to the host; the function returned waits for it, by layer.

        `places` are those in the order of the samples that came.
        """
        self.settle()
        names = list(self._sums)
        norms = _norms_by_place(self._norms.whole(), places)
        # on the host each in memory of its own, as it is once it has come there from a GPU
        apart = norms if norms.is_cuda else [row.clone() for row in norms]
        arrived = copy_all_to_host_async([*self._sums.values(), *apart])

        def result() -> dict[int, LayerMoments]:
            here = arrived()
            sums = {name: x.tolist() for name, x in zip(names, here, strict=False)}
            traces, norms = sums.pop("traces"), here[len(names) :]
            out: dict[int, LayerMoments] = {}
            for row, (kind, i) in enumerate(self._keys):
                if i not in out:
                    each = {name: values[len(out)] for name, values in sums.items()}
                    out[i] = LayerMoments({}, {}, Products(**each) if each else None)
                out[i].traces[kind], out[i].norms[kind] = traces[row], norms[row]
            return out

        return result


def _norms_by_place(
    norms: Tensor, places: np.ndarray
) -> Tensor:  # (n, keys), (n,) -> (keys, places)
    """Norms by place in the order, as far as they are kept; NaN where none came."""
    norms, places = norms[: len(places)], places[: len(norms)]
    near = np.flatnonzero(places < NORMS_KEPT)
    count = int(places[near].max()) + 1 if len(near) else 0
    to, of = (copy_to_device_async(torch.from_numpy(x), norms.device) for x in (places[near], near))
    out = norms.new_full((norms.shape[1], count), torch.nan)
    return out.index_copy_(1, to, norms.index_select(0, of).T)
