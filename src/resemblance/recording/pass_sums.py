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

from .._data import sample_hashes
from .._data.batches import attention_mask
from .._data.sources import Batch
from .._model import pooling
from .._ops.count_sketch import CountSketch
from .._ops.device_copies import without_waiting
from .._seeded_random import absorb
from ..errors import DataError
from ..representation.provenance import DataInfo, Made, ModelInfo
from ..representation.representation import Representation
from ..representation.settings import Settings
from .layer_sums import LayerSums, Plan
from .sorted_stream_warning import OrderCheck

_BATCHES_AHEAD = 4  # that the host may be of a GPU, so that neither waits for the other


@dataclass(frozen=True)
class Handling:
    """How samples are taken in."""

    pool: pooling.Pool = "flatten"
    on_bad: Literal["raise", "skip"] = "raise"
    data_id: str | None = None  # None: samples are told apart by content
    deterministic: bool = False
    watch_order: bool = False  # of a stream, which may be sorted

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
    ) -> None:
        self.settings, self.names, self.how = settings, names, how
        self.order = OrderCheck() if how.watch_order else None
        self._device = device or torch.device("cpu")
        self._sketch = (
            CountSketch(settings.buckets, settings.seed, settings.per_sample)
            if settings.buckets
            else None
        )
        self._layers: dict[int, LayerSums] = {}
        self._samples = self._skipped = 0
        self._sizes: list[int] = []
        self._numbers: list[int] = []
        self._open = 0  # samples of a block that is not whole yet
        self._signs = torch.zeros(settings.buckets)
        self._sum_of_hashes = 0
        self._verdicts: list[tuple[Any, Tensor, torch.cuda.Event | None, np.ndarray]] = []

    def begin(self, batch: Batch) -> None:
        """Fix what is common to all layers of the next batch."""
        self._pieces, self._indices = batch.pieces, batch.indices
        self._mask = attention_mask(batch.samples)
        self._hashes = (
            sample_hashes.of_samples(batch.samples)
            if self.how.data_id is None
            else sample_hashes.of_name(self.how.data_id, len(self._indices))
        )
        self._finite: dict[tuple[str, int], Tensor] = {}  # a number a sample, finite if it is
        self._held: dict[int, tuple[Tensor, Tensor | None]] = {}
        if self.how.on_bad == "raise":
            self._plan = self._make_plan(np.ones(len(self._indices), bool))

    def consume(self, i: int, features: Tensor, gradients: Tensor | None) -> None:
        """Take in one layer's features and gradients of the present batch."""
        pool = self.how.pool
        if pool == "flatten":
            features, gradients = pooling.in_memory_order(features, gradients)
        f = pooling.apply(pool, features, self._mask, gradient=False)
        g = None
        if gradients is not None:
            g = pooling.apply(pool, gradients, self._mask, gradient=True)
        self._check_width(i, features, f)
        if self.how.on_bad == "raise":
            self._add(i, f, g)
            return
        # A sample is left out of all layers, so all must be seen first. Without gradients the
        # forward pass is still under way, and may write over what is held.
        self._held[i] = (f.clone() if g is None else f, g)
        self._finite["features", i] = torch.where(torch.isfinite(f).all(1), 0.0, torch.nan)
        if g is not None:
            self._finite["gradients", i] = torch.where(torch.isfinite(g).all(1), 0.0, torch.nan)

    def _check_width(self, i: int, features: Tensor, vectors: Tensor) -> None:
        name, width = self.names[i], vectors.shape[1]
        if i not in self._layers:
            shape = tuple(features.shape[1:])
            self._layers[i] = LayerSums(
                name, shape, width, self.settings, deterministic=self.how.deterministic
            )
        if width != self._layers[i].dim:
            raise DataError(
                f"layer {name!r}: expected vectors of width {self._layers[i].dim} as in the first "
                f'batch, found {width}; with inputs of varying size use pool="mean", "first" '
                'or "last"'
            )

    def _add(self, i: int, f: Tensor, g: Tensor | None) -> None:
        for kind, norm in self._layers[i].add(f, g, self._plan).items():
            self._finite[kind, i] = norm
        if self.order is not None and i == len(self.names) - 1:
            self.order.add(f, self._plan.blocks, ends=self._plan.ends)

    def end(self) -> None:
        """Finish the batch: refuse or leave out what was not finite."""
        where = sorted(self._finite)
        finite = torch.stack([self._finite[key] for key in where]).isfinite()
        hashes, indices = self._hashes, self._indices
        if self.how.on_bad == "raise":
            self._verdicts.append((where, *_on_the_way(finite), self._indices))
            self._refuse_bad(_BATCHES_AHEAD if finite.is_cuda else 0)
        else:
            keep = finite.all(0).cpu().numpy()
            self._plan = self._make_plan(keep)
            rows = torch.from_numpy(np.flatnonzero(keep)).to(self._device)
            for i, (f, g) in self._held.items():
                if len(rows):
                    self._add(i, f[rows], None if g is None else g[rows])
                elif self._plan.ends:
                    self._layers[i].end_block()
            if self.order is not None and self._plan.ends:
                self.order.end_block()
            self._held = {}
            hashes, indices = hashes[keep], indices[keep]
        self._samples += len(indices)
        self._skipped += len(self._indices) - len(indices)
        hashes = absorb(hashes, indices.astype(np.uint64)[:, None])
        total = int(hashes.sum(dtype=np.uint64))  # which wraps around at 2⁶⁴
        self._sum_of_hashes = (self._sum_of_hashes + total) % 2**64

    def _refuse_bad(self, unread: int = 0) -> None:
        """Read the verdicts on all batches but the latest `unread`, which may be under way.

        An error names where it began: features go bad forwards, gradients backwards.
        """
        while len(self._verdicts) > unread:
            where, finite, arrived, indices = self._verdicts.pop(0)
            if arrived is not None:
                arrived.synchronize()
            if not finite.all():
                self._refuse(where, finite, indices)

    def _refuse(self, where: list[tuple[str, int]], finite: Tensor, indices: np.ndarray) -> None:
        row = int((~finite.all(0)).nonzero()[0])
        bad = [key for key, ok in zip(where, finite[:, row].tolist(), strict=True) if not ok]
        features = [i for kind, i in bad if kind == "features"]
        kind, i = ("features", min(features)) if features else max(bad, key=lambda key: key[1])
        raise DataError(
            f"NaN or Inf (or a norm beyond float32) in the {kind} of layer {self.names[i]!r} at "
            f'sample {indices[row]}; repair the sample or the model, or pass on_bad="skip"'
        )

    def _make_plan(self, keep: np.ndarray) -> Plan:
        """Rows to buckets and blocks; blocks that lost samples are shorter."""
        spans: list[tuple[int, int]] = []
        start = done = 0
        for piece in self._pieces:
            kept = int(keep[start : start + len(piece.indices)].sum())
            start += len(piece.indices)
            if piece.block < self.settings.blocks:
                if kept:
                    spans.append((done, done + kept))
                self._open += kept
                if piece.ends and self._open:
                    self._sizes.append(self._open)
                    self._numbers.append(piece.block)
                    self._open = 0
            done += kept
        last = self._pieces[-1]
        parted = not (last.starts and last.ends)
        if self._sketch is None:
            return Plan(None, spans, parted, last.ends)
        h, s = self._sketch.assign(self._indices[keep])
        self._signs.index_add_(0, h.flatten(), s.flatten())
        assigned = (without_waiting(h, self._device), without_waiting(s, self._device))
        return Plan(assigned, spans, parted, last.ends)

    def result(
        self, *, model: ModelInfo, data: DataInfo, made: Made, keep_sums: bool
    ) -> Representation:
        """The Representation of what was consumed."""
        self._refuse_bad()
        if not self._samples:
            why = (
                "every sample was skipped as not finite"
                if self._skipped
                else "this shard of the stream holds no block; use fewer shards"
            )
            raise DataError(f"nothing was recorded: {why}")
        for layer in self._layers.values():
            layer.finish(self._samples)
        signs = self._signs if self._sketch else None
        return Representation(
            layers=tuple(
                self._layers[i].result(signs, keep_sums=keep_sums) for i in sorted(self._layers)
            ),
            settings=self.settings,
            samples=self._samples,
            model=model,
            data=replace(data, fingerprint=f"{self._sum_of_hashes:016x}", skipped=self._skipped),
            made=made,
            block_sizes=tuple(self._sizes),
            block_numbers=tuple(self._numbers),
        )


def _on_the_way(flags: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """The flags on the host, and what to wait for before reading them."""
    if not flags.is_cuda:
        return flags, None
    host = torch.empty(flags.shape, dtype=torch.bool, pin_memory=True)
    host.copy_(flags, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()
    return host, arrived
