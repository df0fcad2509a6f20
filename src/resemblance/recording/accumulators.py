"""Accumulators of a recording pass: running sums of all layers, and what the layers share.

Per batch, call `begin`, then `consume` for each layer's features and gradients, then `end`;
`result` returns the Representation. Buckets, signs and blocks are the same for all layers of a
batch. A sample with NaN or Inf at one layer is refused, or skipped, at all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._data.batches import attention_mask
from .._data.sample_hashes import SampleFingerprints
from .._data.sources import Batch
from .._models.capture import Rows
from .._models.layer_outputs import image_channels, is_channels_last, pool_values
from .._models.wrappers import strip_wrapper_prefixes
from .._ops.count_sketch import ROWS, WIDTH, CountSketch, clear_projection_cache, row_sketch
from .._ops.devices import copy_to_device_async, copy_to_host_async
from ..errors import DataError, warn
from ..representation.layer import NORMS_KEPT, Kind, Layer
from ..representation.representation import (
    DataInfo,
    Made,
    ModelInfo,
    Representation,
    Settings,
    TokenRows,
)
from .config import RecordConfig
from .gram_blocks import VectorBuffer
from .layer_accumulator import (
    BatchPlan,
    LayerAccumulator,
    Moments,
    NormsByLayer,
    buckets_nest_in_sketch,
    finish_layers,
    pack_kernels,
    send_to_host,
    squared_norms,
)
from .output_summary import EmbeddingSummary, OutputSummary
from .stream_order import OrderCheck

_HASHED_ON_DEVICE = {"cuda"}  # devices that hash samples in one reading
_BATCHES_AHEAD = 4  # that the host may be of a GPU, so that neither waits for the other


class Origin(NamedTuple):
    """Where a recording comes from, but for the hashes of its samples."""

    model: Callable[[], ModelInfo]  # which may wait for a GPU to hash the weights
    data: DataInfo
    made: Made


class Accumulators:
    """Blocks, buckets and moments of all layers while samples stream by."""

    def __init__(
        self,
        config: RecordConfig,
        settings: Settings,
        names: list[str],  # of the layers, in order of execution
        origin: Origin,
        device: torch.device | None = None,
        *,
        keep_sums: bool = False,  # whether results have the accumulators
        channels_last: frozenset[str] = frozenset(),  # layers whose channels the network has last
        outputs: Callable[[], OutputSummary | EmbeddingSummary] | None = None,  # if any are kept
    ) -> None:
        self.config, self.settings, self.names, self.origin = config, settings, names, origin
        self._keep_sums, self._channels_last, self._make_outputs = keep_sums, channels_last, outputs
        self._few = config.full_gram_samples(origin.data.total, settings)
        self.order = None if origin.data.order == "seeded" else OrderCheck()  # it may be sorted
        self._device = device or torch.device("cpu")
        self._sketch = (
            CountSketch(settings.buckets, settings.seed, settings.per_sample)
            if settings.buckets
            else None
        )
        self._sketch_rows = row_sketch(settings.seed)
        # buckets tell the rows at every layer
        self._one_sketch = buckets_nest_in_sketch(settings) and settings.max_dim == WIDTH
        self._start()

    def _start(self) -> None:
        """Begin with nothing consumed; only the check of the order goes on."""
        self.outputs = None if self._make_outputs is None else self._make_outputs()
        self._layers: dict[int, LayerAccumulator] = {}
        self._moments = Moments()
        self._rooms: dict[torch.device, VectorBuffer] = {}
        self.samples = self.skipped = 0
        self._unfinished = True
        self._stored: Counter[int] = Counter()  # samples in each window whose blocks are stored
        # where in the order tokens in stored blocks lie, their sequence and position
        self._tokens: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._places: list[np.ndarray] = []  # in the order, of the first samples that came
        self._placed = 0  # how many
        self._signs = torch.zeros(self.settings.buckets, dtype=torch.float32)
        self._row_signs = torch.zeros(ROWS, dtype=torch.float32)
        self._seen = SampleFingerprints(
            self.config.data_id,
            stored=self.settings.windows,
            keyed=self.origin.data.order == "keyed",
            sum_blocks=self.config.checkpoint is not None,
        )
        self._verdicts: list[tuple[Any, Tensor, torch.cuda.Event | None, Any]] = []

    @property
    def nbytes(self) -> int:
        """Of the accumulators, which are nearly all that a checkpoint holds."""
        return sum(layer.nbytes for layer in self._layers.values())

    def begin(self, batch: Batch, samples: Any) -> None:
        """Fix what is common to all layers of the next batch, whose samples may be on a device."""
        self._batch = batch
        self._pieces, self._indices, self._rows = batch.pieces, batch.indices, Rows(batch)
        self._mask = attention_mask(samples)
        self._seen.begin(samples if self._device.type in _HASHED_ON_DEVICE else batch.samples)
        self._norms: NormsByLayer = {}  # finite where a sample is
        self._inner: dict[int, Tensor] = {}
        self._held: dict[int, tuple[Tensor, Tensor | None]] = {}
        if self.config.on_bad == "raise":
            self._plan = self._make_plan(np.ones(len(self._indices), bool))
        if all(piece.block >= self.settings.windows for piece in self._pieces):
            pack_kernels(self._layers.values())  # no more blocks are kept

    def see(self, outputs: Tensor) -> None:
        """Take in the logits, or embeddings, of the present batch's rows."""
        if outputs.ndim > 2:  # hidden states, which become one vector as those of layers do
            outputs = pool_values(self.config.pool, outputs, self._mask, gradient=False)
        if self.outputs is not None:
            self.outputs.see(outputs)

    def consume(self, i: int, features: Tensor, gradients: Tensor | None) -> None:
        """Take in one layer's features and gradients of the present batch."""
        pool, shape, layer = self.config.pool, tuple(features.shape[1:]), self._layers.get(i)
        channels = image_channels(pool, features)
        # where channels fold apart, vectors are taken as they lie: flattening copies nothing
        fold_apart = 1 < channels <= min(self.settings.max_dim or channels, WIDTH)
        last = layer.channels_last if layer else fold_apart and is_channels_last(features)
        if last:
            features = features.movedim(1, -1)
            gradients = None if gradients is None else gradients.movedim(1, -1)
        f, g = pool_values(pool, features, self._mask, gradient=False), None
        if gradients is not None:
            g = pool_values(pool, gradients, self._mask, gradient=True)
        if layer is None:
            layer = self._layers[i] = LayerAccumulator(
                self.names[i],
                shape,
                f.shape[1],
                self.settings,
                few=self._few,
                channels=channels,
                channels_last=last,
                deterministic=self.config.deterministic,
                room=self._rooms.setdefault(f.device, VectorBuffer()),
            )
        if f.shape[1] != layer.dim:
            raise DataError(
                f"layer {layer.name!r}: expected vectors of width {layer.dim} as in the first "
                f'batch, found {f.shape[1]}; with inputs of varying size use `pool="mean"`, '
                '"first" or "last"'
            )
        if self.config.on_bad == "raise":
            self._add(i, f, g)
            return
        # A sample is left out of all layers, so all must be seen first. Without gradients the
        # forward pass is still under way, and may write over what is held.
        self._held[i] = (f.clone() if g is None else f, g)
        self._norms["features", i] = squared_norms(f).to(self._device)
        if g is not None:
            self._norms["gradients", i] = squared_norms(g).to(self._device)

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
        if self.outputs is not None and (defined := self.outputs.are_defined()) is not None:
            finite = torch.cat([finite, defined[None].to(finite.device)])
        keep = np.ones(len(self._indices), bool)
        ahead = _BATCHES_AHEAD if finite.is_cuda else 0
        if self.config.on_bad == "raise":
            self._add_moments(where, norms)
            of_rows = replace(self._batch, samples=None), self._rows.sample
            self._verdicts.append((where, *copy_to_host_async(finite), of_rows))
            self._refuse_bad(ahead)
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
        self._seen.end(self._batch, keep)
        self._seen.settle(ahead)
        self._end_rows(keep[self._rows.sample])

    def _end_rows(self, kept: np.ndarray) -> None:  # (rows,) bool
        """Note where in the order the rows of the batch lie, and keep what is stored of some."""
        tokens, places = self.settings.tokens, self._places_of_rows()
        if self._placed < NORMS_KEPT + self.settings.block * tokens:
            self._places.append(places[kept])  # by which norms are put in order, as far as kept
            self._placed += len(self._places[-1])
        last = self.settings.windows * tokens * self.settings.block
        which = np.flatnonzero(kept & (places < last))
        if self.outputs is not None:
            self.outputs.end(self._batch, self._rows, which, places[which])
        if self._batch.drawn is not None and len(which):
            sample, token = self._rows.sample[which], self._rows.token[which]
            positions = self._batch.drawn.positions[sample, token]
            self._tokens.append((places[which], self._indices[sample], positions))

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

        An error names where it began: features go bad forwards, then outputs, and gradients
        backwards.
        """
        while len(self._verdicts) > unread:
            where, finite, arrived, (batch, sample) = self._verdicts.pop(0)
            if arrived is not None:
                arrived.synchronize()
            if finite.all():
                continue
            row = int((~finite.all(0)).nonzero()[0])
            of_layers, of_outputs = finite[: len(where), row].tolist(), finite[len(where) :, row]
            bad = [key for key, ok in zip(where, of_layers, strict=True) if not ok]
            features = [key for key in bad if key[0] == "features"]
            what = "NaN or Inf in the model's outputs"
            if features or of_outputs.all():
                kind, i = min(features) if features else max(bad, key=lambda key: key[1])
                layer = f"layer {self.names[i]!r}"
                what = f"NaN or Inf (or a norm beyond float32) in the {kind} of {layer}"
            raise DataError(
                f"{what} at sample {batch.name(sample[row])}; repair the sample or the model, or "
                'pass `on_bad="skip"`'
            )

    def _make_plan(self, keep: np.ndarray) -> BatchPlan:
        """Rows to buckets and blocks; blocks that lost samples are shorter."""
        tokens = self.settings.tokens
        self._spans: list[tuple[int, int]] = []  # also of blocks that are not stored
        stored = start = done = 0
        for piece in self._pieces:
            begin, start = start, start + len(piece.indices)
            kept = int(keep[begin:start].sum())
            for _ in range(tokens if kept else 0):
                self._spans.append((done, done + kept))
                done += kept
            if piece.block < self.settings.windows:
                self._stored[piece.block] += kept
                stored = len(self._spans)
        last = self._pieces[-1]
        parted = not (last.starts and last.ends)
        kept_rows = keep[self._rows.sample]
        # modulo 2⁶⁴, which the hash of a key may well go beyond
        wide = self._indices[self._rows.sample].astype(np.uint64) * np.uint64(tokens)
        indices = (wide + self._rows.token.astype(np.uint64))[kept_rows]
        buckets = self._assigned(self._sketch, indices, self._signs) if self._sketch else None
        rows = self._assigned(self._sketch_rows, indices, self._row_signs, unused=self._one_sketch)
        return BatchPlan(buckets, self._spans[:stored], parted, last.ends, rows)

    def _assigned(
        self, sketch: CountSketch, indices: np.ndarray, signs: Tensor, *, unused: bool = False
    ) -> tuple[Tensor, Tensor] | None:
        """The place and sign of each sample, on the device; the signs are added up."""
        h, s = sketch.assign(indices)
        signs.index_add_(0, h.flatten(), s.flatten())
        if unused:
            return None
        return copy_to_device_async(h, self._device), copy_to_device_async(s, self._device)

    def finish(self) -> None:
        """Have every layer form what it holds; a GPU is told so before it is waited for."""
        unfinished, self._unfinished = self._unfinished, False
        if unfinished and self.samples:
            layers = list(self._layers.values())
            finish_layers(layers, self.samples)
            self._fetch = send_to_host(layers)
            self._fetch_moments = self._moments.send(np.concatenate(self._places))
        clear_projection_cache()

    def block_hashes(self, blocks: Sequence[int]) -> dict[int, int]:
        """32 bits of the samples and labels of each of these blocks, with `checkpoint`."""
        return {block: self._seen.block_hash(block) for block in blocks}

    def result(self) -> Representation | None:
        """The Representation of what was consumed; None if there was no sample."""
        self.finish()
        self._seen.settle()
        self._refuse_bad()
        if not self.samples:
            if not self.skipped:
                return None
            raise DataError("nothing was recorded: every sample was skipped as not finite")
        tokens = self.settings.tokens
        stored = [window for window, size in self._stored.items() if size]
        sizes = tuple(self._stored[window] for window in stored for _ in range(tokens))
        shared: dict[str, Any] = {
            "sizes": sizes,
            "signs": self._signs if self._sketch else None,
            "sketch_signs": self._row_signs,
            "keep_sums": self._keep_sums,
        }
        self._fetch()
        each = self._fetch_moments()
        layers = tuple(
            replace(
                self._layers[i].result(moments=each[i], **shared),
                bare_name=strip_wrapper_prefixes(self.names[i]),
                channels_last=self.names[i] in self._channels_last,
            )
            for i in sorted(self._layers)
        )
        if faint := [x.name for x in self._layers.values() if x.faint]:
            warn(_MSG_ROUNDING_DOMINATES.format(", ".join(faint)))
        if tiny := self._underflowing(layers):
            warn(_MSG_GRADIENTS_UNDERFLOW.format(", ".join(tiny)))
        return Representation(
            layers=layers,
            settings=self.settings,
            samples=self.samples,
            model=self.origin.model(),
            data=replace(self.origin.data, skipped=self.skipped, **self._seen.fingerprints()),
            made=self.origin.made,
            block_sizes=sizes,
            block_numbers=tuple(tokens * window + i for window in stored for i in range(tokens)),
            block_hashes=self._seen.block_hashes,
            label_hashes=self._seen.label_hashes,
            rows=self._token_rows(sizes) if self._tokens else None,
            outputs=None if self.outputs is None else self.outputs.result(),
        )

    def _token_rows(self, sizes: Sequence[int]) -> TokenRows:
        """The tokens in stored blocks of these sizes, block by block."""
        places, *both = (np.concatenate(parts) for parts in zip(*self._tokens, strict=True))
        inside = torch.arange(self.settings.block) < torch.tensor(sizes, dtype=torch.int64)[:, None]
        rows = torch.full((2, *inside.shape), -1, dtype=torch.int64)
        rows[:, inside] = torch.from_numpy(np.stack(both)[:, np.argsort(places)].astype(np.int64))
        return TokenRows(*(row.clone() for row in rows))

    def _underflowing(self, layers: Sequence[Layer]) -> list[str]:
        """Layers whose gradients have squares that float32 cannot hold.

        Where only some layers have no gradient at all, those have none.
        """
        rms = {
            x.name: (x.gradients.trace / self.samples / x.dim) ** 0.5
            for x in layers
            if x.gradients is not None
        }
        small = {name: size for name, size in rms.items() if size < _MIN_GRADIENT_RMS}
        return [name for name, size in small.items() if size or len(small) == len(rms)]


_MIN_GRADIENT_RMS = 1e-18  # of gradients: squares below 1e-38 lose digits, or are zero
_MSG_GRADIENTS_UNDERFLOW = (
    "gradients at {} are so small (root mean square below 1e-18) that their squares underflow in "
    "float32, and gradient scores there are wrong. Use a smaller `beta`, or scale the loss up, "
    "such as `target=lambda outputs, batch: 1e12 * loss(outputs, batch)`"
)
_MSG_ROUNDING_DOMINATES = (
    "samples differ by little more than the rounding of half precision at {}, where features have "
    "a large mean: centred scores there are those of rounding errors as well; record in float32"
)
