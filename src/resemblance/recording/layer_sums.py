"""One layer's running sums: what a pass keeps of it while samples stream by.

Per batch and layer, the features f (n, d) and gradients g (n, d) are read a few times: for exact
Gram matrices inside each block (`block_kernels`), for the buckets F̃, G̃ (M × min(d, max_dim)) and
the sketch in coordinates, and for sums over samples. Nothing here grows with the number of samples
but the blocks and the squared norms, both of which are bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .._ops import fused_sketch
from .._ops.coordinate_sketch import ROWS, WIDTH, columns, from_buckets
from .._ops.count_sketch import add_to_buckets, bucket_kernel
from .._ops.feature_fold import Fold
from ..representation.layer import (
    NORMS_KEPT,
    Buckets,
    Kind,
    Layer,
    Products,
    Recorded,
    Sketch,
    Sums,
)
from ..representation.settings import Settings
from .block_kernels import BlockKernels, Rows, Vectors
from .waiting_vectors import WaitingRoom

# Batches whose norms a GPU sums up together. On a CPU nothing small waits, as with `Rows`.
_BATCHES_HELD = 32


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
        self._norms: list[tuple[Vectors, Tensor | None]] = []  # of late batches, with their ⟨f, g⟩
        self._each_norm: dict[Kind, Rows] = {}
        self._moments: dict[str, Tensor] = {}

    def add(self, features: Tensor, gradients: Tensor | None, plan: Plan) -> Vectors:
        """Take in a batch (n, d); returns squared norms (n,), finite where the samples are."""
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
            self._norms.append((norms, inner))
            if plan.parted and plan.ends:
                self.end_block()
            if len(self._norms) == (_BATCHES_HELD if features.is_cuda else 1):
                self._add_moments()
            return norms

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
            each = self._each_norm.setdefault(kind, Rows())
            if kind != "elementwise" and len(each) < NORMS_KEPT:
                each.append(norm.float())
        self._norms = []

    def finish(self, count: int) -> None:
        """Form everything that a Representation holds, where it lies, without waiting for it."""
        self._add_moments()
        assert self._blocks is not None
        with self._plain_arithmetic():
            self._blocks.finish()
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
        assert self._blocks is not None
        kernels, shares = self._blocks, self._blocks.shares
        values = torch.stack([*self._moments.values(), *shares.values()]).tolist()
        moments = dict(zip(self._moments, values, strict=False))
        of_means = dict(zip(shares, values[len(moments) :], strict=True))
        self.faint = self._is_faint(of_means.get("features", 0.0))

        def recorded(kind: Kind) -> Recorded | None:
            if kind not in self._kinds:
                return None
            blocks, whole = kernels.result(kind, sizes)
            buckets = [x.cpu() for x in self._buckets.get(kind, ())]
            tables = self._tables.get((kind, False), ())
            sketch = self._sketched.get(kind)
            return Recorded(
                trace=moments[f"trace_{kind}"],
                blocks=blocks,
                whole=whole,
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

    def _is_faint(self, share: float) -> bool:
        """Whether rounding to the vectors' own dtype is a hundredth of what a mean leaves over."""
        if self._dtype not in (torch.float16, torch.bfloat16):
            return False
        return 1 - share < 100 * torch.finfo(self._dtype).eps ** 2 / 12


def nests(settings: Settings) -> bool:
    """Whether buckets lie in rows of the sketch, so that one can be made from the other."""
    many = settings.buckets > 0 and settings.buckets % ROWS == 0
    return many and settings.per_sample == 1


def _in_places(norms: Rows, places: Tensor) -> Tensor:
    """Squared norms by place in the order, as far as they are kept; NaN where none came."""
    here = norms.whole().cpu()[: len(places)]
    at = places[: len(here)]
    if len(at) and torch.equal(at, torch.arange(len(at))):  # none is missing
        return here[:NORMS_KEPT].clone()
    here, at = here[at < NORMS_KEPT], at[at < NORMS_KEPT]
    out = torch.full((int(at.max()) + 1 if len(at) else 0,), torch.nan)
    out[at] = here
    return out


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
