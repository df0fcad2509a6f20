"""One layer's running sums: what a pass keeps of it while samples stream by.

Per batch and layer, the features f (n, d) and gradients g (n, d) are read a few times: for exact
Gram matrices inside each block, for the buckets F̃, G̃ (M × min(d, max_dim)), and for sums over
samples. A block that comes in several batches waits until it is whole. Nothing here grows with the
number of samples but the blocks, which are bounded by their setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .._ops import fused_sketch
from .._ops.count_sketch import add_to_buckets, bucket_kernel
from .._ops.feature_fold import Fold
from .._ops.gram_matrices import grams
from .._ops.packed_kernels import pack16
from ..representation.layer import Blocks, Buckets, Kind, Layer, Products, Recorded, Sums
from ..representation.settings import Settings

# Batches whose norms a GPU sums up together. On a CPU nothing small waits: strewn among a network's
# tensors, which come and go, it would keep the C library from using the gaps between them again.
_BATCHES_HELD = 32

Vectors = dict[Kind, Tensor]  # each (n, d)


@dataclass(frozen=True)
class Plan:
    """What happens to the rows of one forward batch, the same for every layer."""

    buckets: tuple[Tensor, Tensor] | None  # bucket and sign (n, t) of each; None if not kept
    blocks: list[tuple[int, int]]  # rows [start, stop) of each kept block; they come first
    parted: bool = False  # the one block is a part: it waits until it
    ends: bool = True  # is whole


class LayerSums:
    """Blocks, buckets and moments of one layer: `add` batches, `finish`, and take the `result`.

    All layers are finished before any result is taken, so that a GPU is told everything first.
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dim: int,
        settings: Settings,
        *,
        deterministic: bool = False,
    ) -> None:
        self.name, self.shape, self.dim, self.settings = name, shape, dim, settings
        self.width = min(dim, settings.max_dim or dim)
        self._deterministic = deterministic
        self._kinds: tuple[Kind, ...] = ()
        self._waiting: list[Vectors] = []  # parts of a block that is not whole yet
        self._loose: dict[Kind, list[Tensor]] = {}  # kernels (blocks, B, B) to be packed together
        self._packed: dict[Kind, tuple[_Rows, _Rows]] = {}  # triangles and diagonals of blocks
        self._fold: Fold | None = None
        self._tables: dict[Kind, tuple[Tensor, Tensor]] = {}  # buckets (M, width), total (width,)
        self._norms: list[tuple[Vectors, Tensor | None]] = []  # of late batches, with their ⟨f, g⟩
        self._moments: dict[str, Tensor] = {}

    def add(self, features: Tensor, gradients: Tensor | None, plan: Plan) -> Vectors:
        """Take in a batch (n, d); returns squared norms (n,), finite where the samples are."""
        device = torch.cuda.device_of(features)  # Triton launches on the current one
        with device, torch.autocast(features.device.type, enabled=False), torch.no_grad():
            vectors: Vectors = {"features": features.contiguous()}
            if gradients is not None:
                # float16 features come with float32 gradients, which would vanish in float16
                both = torch.promote_types(features.dtype, gradients.dtype)
                vectors["features"] = vectors["features"].to(both)
                vectors["gradients"] = gradients.to(both).contiguous()
                if self.settings.elementwise:
                    f, g = vectors["features"].float(), vectors["gradients"].float()
                    vectors["elementwise"] = f * g
            self._kinds = tuple(vectors)
            kernels: Vectors = {}
            if not plan.parted:
                kernels = self._add_blocks(vectors, plan.blocks)
            elif plan.blocks:
                self._wait(vectors)
            much = gradients is not None or plan.buckets is not None
            if much and fused_sketch.available(features) and not self._deterministic:
                norms, inner = self._add_fused(vectors, plan.buckets)
            else:
                norms, inner = self._add_plain(vectors, kernels, plan)
            self._norms.append((norms, inner))
            if plan.parted and plan.ends:
                self.end_block()
            if len(self._norms) == (_BATCHES_HELD if features.is_cuda else 1):
                self._add_moments()
            return norms

    def _wait(self, vectors: Vectors) -> None:
        if "gradients" not in vectors:  # the forward pass is under way, and may write over these
            vectors = {kind: x.clone() for kind, x in vectors.items()}
        self._waiting.append(vectors)

    def end_block(self) -> None:
        """The parts that wait are a whole block."""
        if self._waiting:
            parts, self._waiting = self._waiting, []
            whole = {kind: torch.cat([part[kind] for part in parts]) for kind in parts[0]}
            self._add_blocks(whole, [(0, len(whole["features"]))])

    def _add_blocks(self, vectors: Vectors, spans: list[tuple[int, int]]) -> Vectors:
        """Gram matrices (blocks, B, B), packed at once on a CPU, all together on a GPU.

        A GPU would spend more time on being told to pack a block than on everything else.
        """
        out: Vectors = {}
        pairs: tuple[tuple[Kind, ...], ...] = (("features", "gradients"), ("elementwise",))
        for kinds in pairs if spans else ():
            found = [kind for kind in kinds if kind in vectors]
            if found:
                kernels = grams([vectors[kind] for kind in found], spans, self.settings.block)
                out.update(zip(found, kernels, strict=True))
        for kind, kernel in out.items():
            self._loose.setdefault(kind, []).append(kernel)
        if not vectors["features"].is_cuda or not spans:
            self._pack_blocks()
        return out

    def _pack_blocks(self) -> None:
        for kind, kernels in self._loose.items():
            rows = self._packed.setdefault(kind, (_Rows(), _Rows()))
            for part, new in zip(
                rows, pack16(torch.cat(kernels), self.settings.block), strict=True
            ):
                part.append(new)
        self._loose = {}

    def _add_plain(
        self, vectors: Vectors, kernels: Vectors, plan: Plan
    ) -> tuple[Vectors, Tensor | None]:
        """Buckets and moments in plain PyTorch: squared norms, and ⟨f, g⟩ of each sample."""
        norms: Vectors = {}
        for kind, x in vectors.items():
            norms[kind] = _squared_norms(x, kernels.get(kind), plan.blocks)
            if plan.buckets is not None:
                table, total = self._table(kind, x.device)
                folded = self._folded(x.device)(x.float())
                total += folded.sum(0)
                add_to_buckets(table, folded, *plan.buckets, deterministic=self._deterministic)
        if "gradients" not in vectors:
            return norms, None
        f, g = vectors["features"].float(), vectors["gradients"].float()
        return norms, torch.einsum("nd,nd->n", f, g)

    def _add_fused(
        self, vectors: Vectors, buckets: tuple[Tensor, Tensor] | None
    ) -> tuple[Vectors, Tensor | None]:
        """The same in one read of features and gradients, on a GPU."""

        def sketched(first: Kind, second: Kind | None = None) -> tuple[Tensor, ...]:
            x, y = vectors[first], None if second is None else vectors[second]
            if buckets is None:
                return fused_sketch.sketch(x, y, None, None, [])
            tables = [self._table(kind, x.device) for kind in (first, second) if kind is not None]
            return fused_sketch.sketch(x, y, self._folded(x.device), buckets, tables)

        norms: Vectors = {}
        inner = None
        if "gradients" in vectors:
            norms["features"], norms["gradients"], inner = sketched("features", "gradients")
        else:
            norms["features"], _, _ = sketched("features")
        if "elementwise" in vectors:
            norms["elementwise"], _, _ = sketched("elementwise")
        return norms, inner

    def _folded(self, device: torch.device) -> Fold:
        if self._fold is None:
            self._fold = Fold(self.dim, self.width, self.settings.seed, device)
        return self._fold

    def _table(self, kind: Kind, device: torch.device) -> tuple[Tensor, Tensor]:
        """The buckets (M, width) and the total (width,) of one kind, which are added to."""
        if kind not in self._tables:
            table = torch.zeros(self.settings.buckets, self.width, device=device)
            total = torch.zeros(self.width, device=device, dtype=torch.float64)
            self._tables[kind] = table, total
        return self._tables[kind]

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
        self._norms = []

    def finish(self, count: int) -> None:
        """Form everything that a Representation holds, where it lies, without waiting for it."""
        self._add_moments()
        size = self.settings.block
        if self.settings.blocks and not self._packed and not self._loose:
            self._loose = {kind: [torch.zeros(0, size, size)] for kind in self._kinds}
        self._pack_blocks()
        self._sketched: dict[Kind, Sequence[Tensor]] = {}
        for kind, (table, total) in self._tables.items():
            *kernel, self._moments[f"mean_{kind}"] = bucket_kernel(table, total, count)
            self._sketched[kind] = kernel

    def result(self, signs: Tensor | None, *, keep_sums: bool) -> Layer:
        """The layer's share of a Representation, with its accumulators if they are to be kept."""
        values = torch.stack(list(self._moments.values())).tolist()
        moments = dict(zip(self._moments, values, strict=True))

        def recorded(kind: Kind) -> Recorded | None:
            if kind not in self._kinds:
                return None
            blocks = [rows.whole().cpu() for rows in self._packed.get(kind, ())]
            buckets = [x.cpu() for x in self._sketched.get(kind, ())]
            sums = [x.cpu() for x in self._tables.get(kind, ())] if keep_sums else []
            return Recorded(
                trace=moments[f"trace_{kind}"],
                blocks=Blocks(*blocks) if blocks else None,
                buckets=Buckets(*buckets, mean_norm=moments[f"mean_{kind}"]) if buckets else None,
                sums=Sums(*sums) if sums else None,
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
        )


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
