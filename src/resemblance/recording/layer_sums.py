"""One layer's running sums: what a pass keeps of it while samples stream by.

Per batch and layer, the features f (n, d) and gradients g (n, d) are read a few times: for exact
Gram matrices inside each block (`block_kernels`), for the buckets F̃, G̃ (M × min(d, max_dim)) and
the sketch in coordinates, and for squared norms and inner products, which are handed on. Nothing
here grows with the number of samples but the blocks, which are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from .._ops import fused_sketch
from .._ops.coordinate_sketch import ROWS, WIDTH, columns, from_buckets
from .._ops.count_sketch import add_to_buckets, bucket_kernel
from .._ops.device_copies import sent_home
from .._ops.feature_fold import Fold
from .._ops.host_memory import zeros_apart
from ..representation.layer import Buckets, Kind, Layer, Recorded, Sketch, Sums
from ..representation.settings import Settings
from .block_kernels import BlockKernels, Vectors, pack
from .norms_and_products import OfLayer
from .waiting_vectors import WaitingRoom

_FORMED_AT_ONCE = {"cuda": 2**27}  # bytes of accumulators, of several layers, by device
_FOLDED_AT_ONCE = {"cpu": 32}  # vectors, by device: a cache's worth


@dataclass(frozen=True)
class Plan:
    """What happens to the rows of one forward batch, the same for every layer."""

    buckets: tuple[Tensor, Tensor] | None  # bucket and sign (n, t) of each; None if not kept
    blocks: list[tuple[int, int]]  # rows [start, stop) of each kept block; they come first
    parted: bool = False  # the one block is a part: it waits until it
    ends: bool = True  # is whole
    rows: tuple[Tensor, Tensor] | None = None  # of the sketch, where buckets do not tell them

    def on(self, device: torch.device) -> Plan:
        """The same for layers on another device than most."""

        def moved(pair: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor] | None:
            return None if pair is None else (pair[0].to(device), pair[1].to(device))

        return replace(self, buckets=moved(self.buckets), rows=moved(self.rows))


class LayerSums:
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
        room: WaitingRoom | None = None,  # for vectors that wait, which layers share
    ) -> None:
        self.name, self.shape, self.dim, self.settings = name, shape, dim, settings
        self.channels, self.channels_last = channels, channels_last
        self.width = min(dim, settings.max_dim or dim)
        self.faint = False  # whether samples differ by less than their dtype can hold
        self._few, self._room = few, room
        self._deterministic = deterministic
        self._kinds: tuple[Kind, ...] = ()
        self._dtype, self._device = torch.float32, torch.device("cpu")
        self._blocks: BlockKernels | None = None
        self._folds: dict[int, Fold] = {}  # by width
        # by what is sketched and whether into rows: the table (M or 128, width), total (width,)
        self._tables: dict[tuple[Kind, bool], tuple[Tensor, Tensor]] = {}
        self._buckets: dict[Kind, Sequence[Tensor]] = {}  # triangle, diagonal, F̃ f̄, ‖f̄‖²
        self._sketched: dict[Kind, Sketch] = {}
        self._here: dict[tuple[str, Kind], list[Tensor]] = {}  # what was formed, on the host

    def add(
        self, features: Tensor, gradients: Tensor | None, plan: Plan
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
                self._blocks = BlockKernels(self.settings, self._few, vectors, self._room)
            self._kinds, kernels = tuple(vectors), Vectors()
            if self._blocks.all_wait or (plan.parted and plan.blocks):
                self._blocks.wait(vectors)
            elif not plan.parted:
                kernels = self._blocks.add(vectors, plan.blocks)
            much = gradients is not None or plan.buckets is not None or plan.rows is not None
            if much and fused_sketch.available(features) and not self._deterministic:
                norms, inner = self._add_fused(vectors, plan)
            else:
                norms, inner = self._add_plain(vectors, kernels, plan)
            if plan.parted and plan.ends:
                self.end_block()
            return norms, inner

    def end_block(self) -> None:
        """The parts that wait are a whole block."""
        if self._blocks is not None:
            with self._plain_arithmetic():
                self._blocks.end_block()

    @property
    def nbytes(self) -> int:
        """Of the accumulators."""
        return sum(x.nbytes for pair in self._tables.values() for x in pair)

    def _plain_arithmetic(self) -> torch.autocast:
        """Outside of the caller's autocast, which would round the factors of Gram matrices."""
        return torch.autocast(self._device.type, enabled=False)

    def _add_plain(
        self, vectors: Vectors, kernels: Vectors, plan: Plan
    ) -> tuple[Vectors, Tensor | None]:
        """Buckets, sketch and moments in plain PyTorch: squared norms, ⟨f, g⟩ of each sample."""
        norms: Vectors = {}
        for kind, x in vectors.items():
            norms[kind] = _squared_norms(x, kernels.get(kind), plan.blocks)
            step = _FOLDED_AT_ONCE.get(x.device.type, len(x))
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
            on_cpu = device.type == "cpu"
            table = zeros_apart(size, width) if on_cpu else torch.zeros(size, width, device=device)
            total = torch.zeros(width, device=device, dtype=torch.float64)
            self._tables[kind, into_rows] = table, total
        return self._tables[kind, into_rows]

    def _end(self) -> dict[Kind, tuple[Tensor, Tensor]]:
        """Buckets and totals of which kernels are to be formed, in the order of slots."""
        assert self._blocks is not None
        with self._plain_arithmetic():
            self._blocks.finish()
        for (kind, into_rows), (table, total) in self._tables.items():
            order = self._fold(into_rows, table.device).in_order
            self._tables[kind, into_rows] = order(table), order(total)
        for kind in self._kinds:
            rows, buckets = (self._tables.get((kind, into_rows)) for into_rows in (True, False))
            if self._nested and buckets is not None:
                rows = from_buckets(buckets[0]), buckets[1]
            if rows is not None and kind != "elementwise":
                self._sketched[kind] = Sketch(*self._columns(*rows))
        return {kind: pair for (kind, into_rows), pair in self._tables.items() if not into_rows}

    def _columns(self, rows: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (128, w) and total (w,) of the sketch, folded to its columns."""
        fold = partial(columns, dim=self.dim, seed=self.settings.seed)
        if not rows.is_cuda:
            return fold(rows).float(), fold(total[None])[0]
        both = fold(torch.cat([rows.double(), total[None]]))  # a GPU is told once
        return both[:-1].float(), both[-1]

    def result(
        self,
        *,
        sizes: tuple[int, ...],  # of the blocks
        moments: OfLayer,
        signs: Tensor | None,
        sketch_signs: Tensor,
        keep_sums: bool,
    ) -> Layer:
        """The layer's share of a Representation, with its accumulators if they are to be kept."""
        assert self._blocks is not None
        kernels, here = self._blocks, self._here
        (share,) = here.get(("share", "features"), [0.0])
        self.faint = self._is_faint(float(share))

        def recorded(kind: Kind) -> Recorded | None:
            if kind not in self._kinds:
                return None
            blocks, whole = kernels.result(here.get(("kernels", kind)), sizes)
            buckets, sketch = here.get(("buckets", kind)), here.get(("sketch", kind))
            tables = self._tables.get((kind, False), ())
            return Recorded(
                trace=moments.traces[kind],
                blocks=blocks,
                whole=whole,
                norms=moments.norms[kind] if kind != "elementwise" else None,
                sketch=Sketch(*sketch) if sketch else None,
                buckets=Buckets(*buckets[:3], mean_norm=float(buckets[3])) if buckets else None,
                sums=Sums(*(x.cpu() for x in tables)) if keep_sums and tables else None,
            )

        features = recorded("features")
        assert features is not None
        return Layer(
            name=self.name,
            shape=self.shape,
            dim=self.dim,
            folded=self.width < self.dim,
            features=features,
            gradients=recorded("gradients"),
            elementwise=recorded("elementwise"),
            products=moments.products,
            signs=signs,
            sketch_signs=sketch_signs,
        )

    def _formed(self) -> dict[tuple[str, Kind], list[Tensor]]:
        """What a result is made of, where it lies."""
        assert self._blocks is not None
        buckets = {("buckets", kind): list(x) for kind, x in self._buckets.items()}
        sketch = {("sketch", kind): [x.table, x.total] for kind, x in self._sketched.items()}
        return {**self._blocks.formed(), **buckets, **sketch}

    def _is_faint(self, share: float) -> bool:
        """Whether rounding to the vectors' own dtype is a hundredth of what a mean leaves over."""
        if self._dtype not in (torch.float16, torch.bfloat16):
            return False
        return 1 - share < 100 * torch.finfo(self._dtype).eps ** 2 / 12


def finish(layers: Sequence[LayerSums], count: int) -> None:
    """Form everything that a Representation holds, where it lies, without waiting for it."""
    groups: dict[object, list[tuple[LayerSums, Kind, tuple[Tensor, Tensor]]]] = {}
    for layer in layers:
        for kind, pair in layer._end().items():
            like = pair[0].shape, pair[0].device
            groups.setdefault(like, []).append((layer, kind, pair))
    for group in groups.values():
        table = group[0][2][0]
        step = max(1, _FORMED_AT_ONCE.get(table.device.type, 0) // table.nbytes)
        for start in range(0, len(group), step):
            some = group[start : start + step]
            pairs = zip(*(pair for *_, pair in some), strict=True)
            tables, totals = (torch.stack(x) if len(x) > 1 else x[0][None] for x in pairs)
            formed = zip(*bucket_kernel(tables, totals, count), strict=True)
            for (layer, kind, _), each in zip(some, formed, strict=True):
                layer._buckets[kind] = each
    pack_kernels(layers)


def send(layers: Sequence[LayerSums]) -> Callable[[], None]:
    """Have what was formed copied to the host; the function returned waits until it is there."""
    formed = [layer._formed() for layer in layers]
    arrived = sent_home([x for each in formed for group in each.values() for x in group])

    def fetch() -> None:
        here = iter(arrived())
        for layer, each in zip(layers, formed, strict=True):
            layer._here = {key: [next(here) for _ in group] for key, group in each.items()}

    return fetch


def pack_kernels(layers: Iterable[LayerSums]) -> None:
    """Pack the exact kernels that wait for it, of all layers together."""
    pack(layer._blocks for layer in layers if layer._blocks is not None)


def nests(settings: Settings) -> bool:
    """Whether buckets lie in rows of the sketch, so that one can be made from the other."""
    many = settings.buckets > 0 and settings.buckets % ROWS == 0
    return many and settings.per_sample == 1


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
