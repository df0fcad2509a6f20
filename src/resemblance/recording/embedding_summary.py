"""Embeddings of a network without predictions, collected during a recording pass.

`EmbeddingSummary` takes the place of `OutputSummary`: it sees each batch's vectors and keeps those
of the first places of the seeded order.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .._data.batches import num_samples
from .._data.sources import Batch
from .._models.capture import Rows
from .._models.embeddings import EmbeddingsReader, find_embeddings_reader
from .._models.layer_outputs import Pool
from .._models.logits import LogitsReader
from .._models.run import ModelPass
from .._ops.devices import copy_all_to_host, copy_to_device_async
from ..errors import warn
from ..representation.embeddings import (
    MAX_DIMENSIONS,
    Embeddings,
    directions,
    embedded_blocks,
)


class EmbeddingSummary:
    """Embeddings: `see` those of a batch, `end` it, and take the `result`."""

    def __init__(self, block: int) -> None:
        self._places_kept = embedded_blocks(block) * block
        self._places: list[np.ndarray] = []  # in the order, of the rows that were kept
        self._parts: list[Tensor] = []  # of these rows; later ones may be on a device still
        self._none: Tensor | None = None  # no rows, of as many dimensions
        self._seen: Tensor | None = None

    def see(self, vectors: Tensor) -> None:  # (rows, d)
        """The embedding of every row of the present batch."""
        self._seen = vectors

    def are_defined(self) -> Tensor | None:  # (rows,) bool
        """The rows of the present batch whose embeddings are finite."""
        return None if self._seen is None else self._seen.isfinite().all(-1)

    def end(self, batch: Batch, rows: Rows, which: np.ndarray, places: np.ndarray) -> None:
        """Keep what belongs to the first places, of the rows `which` of the batch."""
        vectors, self._seen = self._seen, None
        if vectors is None:
            return
        self._none = directions(vectors[:0])
        kept = places < self._places_kept
        if kept.any():
            at = copy_to_device_async(torch.from_numpy(which[kept]), vectors.device)
            self._parts.append(directions(vectors[at]))
            self._places.append(places[kept])

    def result(self) -> Embeddings | None:
        """Of all rows that were kept, in their order; None if nothing was seen."""
        if self._none is None:
            return None
        order = np.argsort(np.concatenate([np.zeros(0, np.int64), *self._places]))
        on_host = copy_all_to_host([self._none, *self._parts])
        return Embeddings(torch.cat(on_host)[torch.from_numpy(order)])


def find_embeddings(run: ModelPass, logits: LogitsReader, pool: Pool) -> EmbeddingsReader | None:
    """What reads one embedding for each sample off a model's outputs; None where there is none."""
    samples = num_samples(run.trial.samples)
    if run.trial.drawn is not None:
        return None
    reader = find_embeddings_reader(logits, run.outputs, samples, pool)
    if reader is not None and (width := reader(run.outputs).shape[-1]) > MAX_DIMENSIONS:
        warn(
            f"no embeddings are kept: files hold up to {MAX_DIMENSIONS:,} dimensions, not {width:,}"
        )
        return None
    return reader
