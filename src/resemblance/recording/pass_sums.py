"""A pass's running sums: those of each layer, and what the layers share.

`begin` a batch, `consume` each layer's features and gradients of it, `end` it; then `result`.
Buckets, signs and blocks are the same for all layers of a batch, and a sample that is not finite
at one layer is refused, or left out, at all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .._data.batches import attention_mask
from .._data.sources import Batch
from .._model import pooling
from .._model.call_trace import bare_name
from .._model.picked_tokens import Rows
from .._ops import coordinate_sketch
from .._ops.count_sketch import CountSketch
from .._ops.device_copies import on_the_way, without_waiting
from ..errors import DataError, warn
from ..representation.layer import NORMS_KEPT, Kind
from ..representation.provenance import DataInfo, Made, ModelInfo
from ..representation.representation import Representation
from ..representation.settings import Settings
from .kept_outputs import KeptOutputs
from .layer_sums import LayerSums, Plan, finish, nests, pack_kernels, send
from .norms_and_products import Norms, NormsAndProducts
from .seen_samples import SeenSamples
from .sorted_stream_warning import OrderCheck
from .token_rows import RowsOfBlocks
from .waiting_vectors import WaitingRoom

_HASHED_THERE = {"cuda"}  # devices that hash samples in one reading
_BATCHES_AHEAD = 4  # that the host may be of a GPU, so that neither waits for the other


@dataclass(frozen=True)
class Handling:
    """How samples are taken in."""

    pool: pooling.Pool = "flatten"
    on_bad: Literal["raise", "skip"] = "raise"
    data_id: str | None = None  # None: samples are told apart by content
    deterministic: bool = False
    watch_order: bool = False  # of a stream, which may be sorted
    keyed: bool = False  # indices are those of samples' keys
    channels_last: frozenset[str] = frozenset()  # layers whose channels the network has last

    def __post_init__(self) -> None:
        if self.on_bad not in ("raise", "skip"):
            raise DataError(f'on_bad must be "raise" or "skip"; found {self.on_bad!r}')


class PassSums:
    """Blocks, buckets and moments of all layers while samples stream by."""

    def __init__(
        self,
        settings: Settings,
        names: list[str],  # of the layers, in order of execution
        how: Handling,
        device: torch.device | None = None,
        *,
        few: int = 0,  # samples in all, if their whole kernels may be kept
        outputs: KeptOutputs | None = None,
    ) -> None:
        self.outputs = outputs
        self.settings, self.names, self.how, self._few = settings, names, how, few
        self.order = OrderCheck() if how.watch_order else None
        self._device = device or torch.device("cpu")
        self._sketch = (
            CountSketch(settings.buckets, settings.seed, settings.per_sample)
            if settings.buckets
            else None
        )
        self._layers: dict[int, LayerSums] = {}
        self._moments = NormsAndProducts()
        self._rooms: dict[torch.device, WaitingRoom] = {}
        self.samples = self.skipped = 0
        self._unfinished = True
        self._sizes: list[int] = []
        self._numbers: list[int] = []
        self._open = 0  # samples of a block that is not whole yet
        self._places: list[np.ndarray] = []  # in the order, of the first samples that came
        self._placed = 0  # how many
        self._signs = torch.zeros(settings.buckets)
        self._sketch_rows = coordinate_sketch.rows(settings.seed)
        self._row_signs = torch.zeros(coordinate_sketch.ROWS)
        # buckets tell the rows at every layer
        self._one_sketch = nests(settings) and settings.max_dim == coordinate_sketch.WIDTH
        self._seen = SeenSamples(how.data_id, keyed=how.keyed)
        self._token_rows = RowsOfBlocks(settings.block)
        self._verdicts: list[tuple[Any, Tensor, torch.cuda.Event | None, Any]] = []

    @property
    def nbytes(self) -> int:
        """Of the accumulators, which are nearly all that a checkpoint holds."""
        return sum(layer.nbytes for layer in self._layers.values())

    def begin(self, batch: Batch, samples: Any) -> None:
        """Fix what is common to all layers of the next batch, whose samples may be on a device."""
        self._batch = batch
        self._pieces, self._indices, self._rows = batch.pieces, batch.indices, Rows(batch)
        self._drawn, self._mask = batch.drawn, attention_mask(samples)
        self._seen.begin(
            samples if self._device.type in _HASHED_THERE else batch.samples, batch.drawn
        )
        self._norms: Norms = {}  # finite where a sample is
        self._inner: dict[int, Tensor] = {}
        self._held: dict[int, tuple[Tensor, Tensor | None]] = {}
        if self.how.on_bad == "raise":
            self._plan = self._make_plan(np.ones(len(self._indices), bool))
        if all(piece.block >= self.settings.windows for piece in self._pieces):
            pack_kernels(self._layers.values())  # no more blocks are kept

    def consume(self, i: int, features: Tensor, gradients: Tensor | None) -> None:
        """Take in one layer's features and gradients of the present batch."""
        pool, shape = self.how.pool, tuple(features.shape[1:])
        channels = pooling.channels_of(pool, features)
        last = (
            self._layers[i].channels_last
            if i in self._layers
            else self._may_lie(features, channels)
        )
        if last:  # so that flattening copies nothing
            features = features.movedim(1, -1)
            gradients = None if gradients is None else gradients.movedim(1, -1)
        f = pooling.apply(pool, features, self._mask, gradient=False)
        g = None
        if gradients is not None:
            g = pooling.apply(pool, gradients, self._mask, gradient=True)
        self._check_width(i, shape, f, channels, last)
        if self.how.on_bad == "raise":
            self._add(i, f, g)
            return
        # A sample is left out of all layers, so all must be seen first. Without gradients the
        # forward pass is still under way, and may write over what is held.
        self._held[i] = (f.clone() if g is None else f, g)
        self._norms["features", i] = _squared_norms(f).to(self._device)
        if g is not None:
            self._norms["gradients", i] = _squared_norms(g).to(self._device)

    def _may_lie(self, features: Tensor, channels: int) -> bool:
        """Whether vectors are taken as they lie, channels last: where channels fold apart."""
        widths = (self.settings.max_dim or channels, coordinate_sketch.WIDTH)
        return 1 < channels <= min(widths) and pooling.is_channels_last(features)

    def _check_width(
        self,
        i: int,
        shape: tuple[int, ...],
        vectors: Tensor,
        channels: int,
        channels_last: bool,
    ) -> None:
        name, width = self.names[i], vectors.shape[1]
        if i not in self._layers:
            self._layers[i] = LayerSums(
                name,
                shape,
                width,
                self.settings,
                few=self._few,
                channels=channels,
                channels_last=channels_last,
                deterministic=self.how.deterministic,
                room=self._rooms.setdefault(vectors.device, WaitingRoom()),
            )
        if width != self._layers[i].dim:
            raise DataError(
                f"layer {name!r}: expected vectors of width {self._layers[i].dim} as in the first "
                f'batch, found {width}; with inputs of varying size use pool="mean", "first" '
                'or "last"'
            )

    def _add(self, i: int, f: Tensor, g: Tensor | None) -> None:
        plan = self._plan if f.device == self._device else self._plan.on(f.device)
        norms, inner = self._layers[i].add(f, g, plan)
        for kind, norm in norms.items():
            self._norms[kind, i] = norm.to(self._device)
        if inner is not None:
            self._inner[i] = inner.to(self._device)
        if self.order is not None and i == len(self.names) - 1:
            self.order.add(f, self._spans, ends=self._plan.ends)

    def end(self) -> None:
        """Finish the batch: refuse or leave out what was not finite."""
        where, norms = self._norms_by_row()
        finite = norms.isfinite()
        keep = np.ones(len(self._indices), bool)
        if self.how.on_bad == "raise":
            self._add_moments(where, norms)
            of_rows = replace(self._batch, samples=None), self._rows.sample
            self._verdicts.append((where, *on_the_way(finite), of_rows))
            self._refuse_bad(_BATCHES_AHEAD if finite.is_cuda else 0)
        else:
            bad = self._rows.sample[~finite.all(0).cpu().numpy()]
            keep[bad] = False  # with all its tokens
            self._plan = self._make_plan(keep)
            rows = torch.from_numpy(np.flatnonzero(keep[self._rows.sample]))
            for i, (f, g) in self._held.items():
                if len(rows):
                    at = rows.to(f.device)
                    self._add(i, f[at], None if g is None else g[at])
                elif self._plan.ends:
                    self._layers[i].end_block()
            if len(rows):
                self._add_moments(*self._norms_by_row())
            if self.order is not None and self._plan.ends:
                self.order.end_block()
            self._held = {}
        self.samples += int(keep.sum()) * self.settings.tokens
        self.skipped += int((~keep).sum())
        blocks = [piece for piece in self._pieces if piece.block < self.settings.windows]
        self._seen.end(self._indices, keep, [(len(x.indices), x.ends) for x in blocks])
        self._seen.settle(_BATCHES_AHEAD if finite.is_cuda else 0)
        places, kept = self._places_of_rows(), keep[self._rows.sample]
        if self._placed < NORMS_KEPT + self.settings.block * self.settings.tokens:
            self._places.append(places[kept])  # by which norms are put in order, as far as kept
            self._placed += len(self._places[-1])
        if self.outputs is not None:
            last = self.settings.windows * self.settings.tokens * self.settings.block
            which = np.flatnonzero(kept & (places < last))
            self.outputs.end(self._batch, self._rows, which, places[which])

    def _norms_by_row(self) -> tuple[list[tuple[Kind, int]], Tensor]:  # (keys, n)
        where = sorted(self._norms)
        return where, torch.stack([self._norms[key] for key in where])

    def _add_moments(self, where: list[tuple[Kind, int]], norms: Tensor) -> None:
        inner = [self._inner[i] for i in sorted(self._inner)]
        self._moments.add(where, norms, torch.stack(inner) if inner else None)

    def _places_of_rows(self) -> np.ndarray:  # (rows,)
        """Where in the order the rows of the batch lie: block after block."""
        block, tokens = self.settings.block, np.arange(self.settings.tokens)[:, None]
        places = []
        for piece in self._pieces:
            if piece.starts:
                self._offset = 0
            inside = self._offset + np.arange(len(piece.indices))
            self._offset += len(piece.indices)
            places.append(((piece.block * len(tokens) + tokens) * block + inside).ravel())
        return np.concatenate(places)

    def _refuse_bad(self, unread: int = 0) -> None:
        """Read the verdicts on all batches but the latest `unread`, which may be under way.

        An error names where it began: features go bad forwards, gradients backwards.
        """
        while len(self._verdicts) > unread:
            where, finite, arrived, rows = self._verdicts.pop(0)
            if arrived is not None:
                arrived.synchronize()
            if not finite.all():
                self._refuse(where, finite, *rows)

    def _refuse(
        self,
        where: list[tuple[Kind, int]],
        finite: Tensor,
        batch: Batch,
        sample: np.ndarray,  # (rows,) of the batch
    ) -> None:
        row = int((~finite.all(0)).nonzero()[0])
        bad = [key for key, ok in zip(where, finite[:, row].tolist(), strict=True) if not ok]
        features = [i for kind, i in bad if kind == "features"]
        kind, i = ("features", min(features)) if features else max(bad, key=lambda key: key[1])
        raise DataError(
            f"NaN or Inf (or a norm beyond float32) in the {kind} of layer {self.names[i]!r} at "
            f"sample {batch.name(sample[row])}; repair the sample or the model, or pass "
            'on_bad="skip"'
        )

    def _make_plan(self, keep: np.ndarray) -> Plan:
        """Rows to buckets and blocks; blocks that lost samples are shorter."""
        tokens = self.settings.tokens
        spans: list[tuple[int, int]] = []
        self._spans: list[tuple[int, int]] = []  # also of blocks that are not kept
        start = done = 0
        for piece in self._pieces:
            begin, start = start, start + len(piece.indices)
            kept = int(keep[begin:start].sum())
            here = [(done + i * kept, done + (i + 1) * kept) for i in range(tokens if kept else 0)]
            self._spans += here
            if piece.block < self.settings.windows:
                spans += here
                self._open += kept
                if self._drawn is not None:
                    at = np.flatnonzero(keep[begin:start]) + begin
                    self._token_rows.add(self._indices[at], self._drawn.positions[at])
                if piece.ends and self._open:
                    if self._drawn is not None:
                        self._token_rows.end()
                    self._sizes += [self._open] * tokens
                    self._numbers += [piece.block * tokens + i for i in range(tokens)]
                    self._open = 0
            done += kept * tokens
        last = self._pieces[-1]
        parted = not (last.starts and last.ends)
        kept_rows = keep[self._rows.sample]
        # modulo 2⁶⁴, which the hash of a key may well go beyond
        wide = self._indices[self._rows.sample].astype(np.uint64) * np.uint64(tokens)
        indices = (wide + self._rows.token.astype(np.uint64))[kept_rows]
        buckets = self._assigned(self._sketch, indices, self._signs) if self._sketch else None
        rows = self._assigned(self._sketch_rows, indices, self._row_signs, unused=self._one_sketch)
        return Plan(buckets, spans, parted, last.ends, rows)

    def _assigned(
        self, sketch: CountSketch, indices: np.ndarray, signs: Tensor, *, unused: bool = False
    ) -> tuple[Tensor, Tensor] | None:
        """The place and sign of each sample, on the device; the signs are added up."""
        h, s = sketch.assign(indices)
        signs.index_add_(0, h.flatten(), s.flatten())
        if unused:
            return None
        return without_waiting(h, self._device), without_waiting(s, self._device)

    def finish(self) -> None:
        """Have every layer form what it holds; a GPU is told so before it is waited for."""
        unfinished, self._unfinished = self._unfinished, False
        if unfinished and self.samples:
            layers = list(self._layers.values())
            finish(layers, self.samples)
            self._fetch = send(layers)
            self._fetch_moments = self._moments.send(np.concatenate(self._places))
        coordinate_sketch.forget()

    def settle(self) -> None:
        """Take in what the host learns of samples: their hashes, and whether all are finite."""
        self._seen.settle()
        self._refuse_bad()

    def result(
        self, *, model: ModelInfo, data: DataInfo, made: Made, keep_sums: bool
    ) -> Representation:
        """The Representation of what was consumed."""
        self.finish()
        self.settle()
        if not self.samples:
            raise DataError("nothing was recorded: every sample was skipped as not finite")
        shared: dict[str, Any] = {
            "sizes": tuple(self._sizes),
            "signs": self._signs if self._sketch else None,
            "sketch_signs": self._row_signs,
            "keep_sums": keep_sums,
        }
        self._fetch()
        each = self._fetch_moments()
        layers = tuple(
            self._layers[i].result(moments=each[i], **shared) for i in sorted(self._layers)
        )
        last = self.how.channels_last
        layers = tuple(
            replace(x, bare_name=bare_name(x.name), channels_last=x.name in last) for x in layers
        )
        faint = [x.name for x in self._layers.values() if x.faint]
        if faint:
            warn(_FAINT.format(", ".join(faint)))
        return Representation(
            layers=layers,
            settings=self.settings,
            samples=self.samples,
            model=model,
            data=replace(data, skipped=self.skipped, **self._seen.fingerprints()),
            made=made,
            block_sizes=tuple(self._sizes),
            block_numbers=tuple(self._numbers),
            block_hashes=tuple(self._seen.block_hashes),
            label_hashes=self._seen.label_hashes,
            rows=self._token_rows.result(),
            outputs=None if self.outputs is None else self.outputs.result(),
        )


_FAINT = (
    "samples differ by little more than the rounding of half precision at {}, where features have "
    "a large mean: centred scores there are those of rounding errors as well; record in float32"
)


def _squared_norms(x: Tensor) -> Tensor:  # (n, d) -> (n,)
    """In float32, as they are recorded: not finite where a vector, or its square, is not."""
    return torch.linalg.vector_norm(x.float(), dim=1).square()
