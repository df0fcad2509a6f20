"""Summaries of a network's predictions or embeddings, collected during a recording pass.

`OutputSummary` keeps for each row of the blocks: all log-probabilities, or top classes, class
groups and sketches beyond 1,024 classes, or the logits of independent labels; and the correct class
or labels where they are known. `EmbeddingSummary` takes its place where a network returns
embeddings, and keeps those of the first places of the seeded order.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .._data.batches import batch_labels, num_samples
from .._data.sources import Batch
from .._models.capture import Rows
from .._models.embeddings import SEQUENCE_POOLS, EmbeddingsReader, find_embeddings_reader
from .._models.language_models import token_ids
from .._models.layer_outputs import Pool
from .._models.logits import LogitsReader
from .._models.run import ModelPass
from .._ops.class_sketch import ClassSketch, row_keys
from .._ops.devices import copy_all_to_host, copy_to_device_async
from ..errors import warn
from ..representation.embeddings import Embeddings, directions, embedded_blocks
from ..representation.outputs import (
    CLASS_GROUPS,
    MIN_LOG_P,
    TOP_CLASSES,
    Outputs,
    class_groups,
    join_outputs,
)
from ..representation.representation import Representation
from ..representation.schema import MAX_CLASSES, MAX_DIMENSIONS, MAX_FULL_CLASSES, MAX_LABELS

_MAX_BYTES_ON_DEVICE = 2**26  # of summaries that stay there, so that nobody waits for them
MAX_FULL_BYTES = 2**31  # of all probabilities, where they stay in this process
_LOGITS_AT_ONCE = {"cpu": 2**20, "cuda": 2**24}  # logits that are widened to float32 at a time


class OutputSummary:
    """Summaries of logits: `see` those of a batch, `end` it, and take the `result`."""

    def __init__(
        self,
        base: Representation | None = None,
        *,
        causal: bool = False,
        independent: bool = False,
        seed: int = 0,
        full_rows: int | None = None,
    ) -> None:
        """
        Args:
            base: a base, whose likely classes are noted as well.
            causal: whether the right class of a token is the next one.
            independent: whether outputs are labels, of a multi-label network.
            seed: of the sketches over classes.
            full_rows: the most rows that can come, if every probability of each is kept where
                that takes no more than `MAX_FULL_BYTES`. Files cannot hold such outputs.
        """
        self._full_rows = full_rows
        self._causal = causal
        self._independent = independent
        self._seed = seed
        # the likely classes of the base, and their places in the order
        self._base_top = None if base is None or base.predictions is None else base.predictions.top
        self._base_places = None if base is None else _row_places(base)
        self._places: list[np.ndarray] = []  # in the order, of the rows that were kept
        self._parts: list[Outputs] = []  # of these rows; later ones may be on a device still
        self._waiting = 0  # bytes of these
        self._seen: Tensor | None = None
        self._tables: dict[torch.device, _ClassTables] = {}

    def see(self, logits: Tensor | None) -> None:  # (rows, classes)
        """The logits of every row of the present batch; None where they are not to be kept."""
        self._seen = logits

    def are_defined(self) -> Tensor | None:  # (rows,) bool
        """The rows of the present batch whose logits give a prediction: no NaN, and not all -inf.

        A logit of +inf gives one only where labels are independent.
        """
        if self._seen is None:
            return None
        if self._independent:
            return ~self._seen.isnan().any(-1)
        return self._seen.amax(-1).isfinite()  # NaN if any is

    def end(self, batch: Batch, rows: Rows, which: np.ndarray, places: np.ndarray) -> None:
        """Keep the rows `which` of the batch, which lie at these places of the order."""
        logits, self._seen = self._seen, None
        if logits is None or not len(which):
            return
        if len(which) < len(logits):
            logits = logits[copy_to_device_async(torch.from_numpy(which), logits.device)]
        classes = logits.shape[-1]
        if self._independent:
            labels = right_labels(batch, classes)
        elif (labels := right_classes(batch, causal=self._causal)) is not None:
            labels = torch.where(labels < classes, labels, -1)  # others are no class of it
        if labels is not None:
            sample, token = rows.sample[which], rows.token[which]
            labels = labels[sample] if batch.drawn is None else labels[sample, token]
        others = self._asked_for(places, logits.device)
        index = batch.indices[rows.sample[which]].astype(np.uint64)
        if batch.drawn is not None:  # each token has signs of its own
            tokens = batch.drawn.positions.shape[1]
            index = index * np.uint64(tokens) + rows.token[which].astype(np.uint64)
        part = self._summary(logits, labels, others, row_keys(self._seed, index))
        self._places.append(places)
        self._parts.append(part)
        self._waiting += sum(x.nbytes for x in part.tensors().values())
        if self._waiting > _MAX_BYTES_ON_DEVICE:
            self._fetch()

    def _asked_for(self, places: np.ndarray, device: torch.device) -> Tensor | None:
        """The classes that the base had at its top, in the rows at these places."""
        if self._base_top is None or self._base_places is None:
            return None
        at = np.searchsorted(self._base_places, places).clip(max=len(self._base_places) - 1)
        if not np.array_equal(self._base_places[at], places):
            return None
        return copy_to_device_async(self._base_top[torch.from_numpy(at)], device)

    def _summary(
        self, z: Tensor, labels: Tensor | None, others: Tensor | None, keys: Tensor
    ) -> Outputs:
        if self._independent:
            return Outputs(z.shape[-1], label_logits=z.float(), labels=labels)
        full_bytes = math.inf if self._full_rows is None else 4 * self._full_rows * z.shape[-1]
        many = z.shape[-1] > MAX_FULL_CLASSES and full_bytes > MAX_FULL_BYTES
        keys = copy_to_device_async(keys, z.device) if many else keys
        step = max(1, _LOGITS_AT_ONCE.get(z.device.type, _LOGITS_AT_ONCE["cpu"]) // z.shape[-1])
        kept: list[dict[str, Tensor]] = []
        for i, some in enumerate(z.split(step)):
            log_p = F.log_softmax(some.float(), -1)
            if many:
                rows = slice(i * step, i * step + len(some))
                asked = None if others is None else others[rows]
                kept.append(self._tables_on(z).summary(log_p, asked, keys[rows]))
            else:
                kept.append({"every": log_p})
        found = {name: torch.cat([one[name] for one in kept]) for name in kept[0]}
        return Outputs(z.shape[-1], **found, labels=labels)

    def _fetch(self) -> None:
        """Copy to the host what waits on a device: seldom, as the host then waits for it."""
        self._parts, self._waiting = [_outputs_on_host(part) for part in self._parts], 0

    def _tables_on(self, z: Tensor) -> _ClassTables:
        if z.device not in self._tables:
            self._tables[z.device] = _ClassTables(z.shape[-1], z.device)
        return self._tables[z.device]

    def result(self) -> Outputs | None:
        """Of all rows that were kept, in their order; None if none were."""
        if not self._places:
            return None
        if len({part.first.device for part in self._parts}) > 1:
            self._fetch()  # else all are still on one device, and are put in order there
        order = torch.from_numpy(np.argsort(np.concatenate(self._places)))
        joined = join_outputs(self._parts, order)
        return None if joined is None else _outputs_on_host(joined)


@functools.lru_cache(maxsize=2)
def _padded_groups(classes: int) -> tuple[Tensor, Tensor]:  # (places, groups) each
    """The classes of each group, and which places of a group have one; others have any class."""
    group = class_groups(classes)
    counts = group.bincount(minlength=CLASS_GROUPS)
    inside = torch.arange(int(counts.max()))[:, None] < counts
    order = torch.zeros_like(inside, dtype=torch.int64)
    order.T[inside.T] = group.argsort(stable=True)
    return order, inside


class _ClassTables:
    """What summarises rows of more than 1,024 classes: groups of classes, and the sketch."""

    def __init__(self, classes: int, device: torch.device) -> None:
        self._sketch = ClassSketch(classes, device)
        order, self._inside = (copy_to_device_async(x, device) for x in _padded_groups(classes))
        self._order = order.flatten()

    def summary(self, log_p: Tensor, others: Tensor | None, keys: Tensor) -> dict[str, Tensor]:
        """What is kept of some rows; their log-probabilities are overwritten."""
        top_log_p, top = log_p.topk(TOP_CLASSES)
        kept = {"top": top, "top_log_p": top_log_p, "sketch_key": keys}
        if others is not None:
            kept |= {"others": others, "others_log_p": log_p.gather(1, others)}
        p = log_p.exp()
        by_group = p.index_select(1, self._order).unflatten(1, self._inside.shape)
        kept["groups"] = by_group.mul_(self._inside).sum(1).log()
        del by_group
        signs = self._sketch.signs(keys)
        kept["sketch_p"] = self._sketch.sketch(p.scatter_(1, top, 0.0), signs).half()
        del p
        mean = log_p.clamp_min_(MIN_LOG_P).mean(1, keepdim=True)
        rest = log_p.sub_(mean).scatter_(1, top, 0.0)
        kept["sketch_log_p"] = self._sketch.sketch(rest, signs).half()
        return kept | {"mean_log_p": mean[:, 0]}


def _outputs_on_host(part: Outputs) -> Outputs:
    tensors = part.tensors()
    here = copy_all_to_host([*tensors.values()])
    return Outputs(part.classes, **dict(zip(tensors, here, strict=True)))


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


def find_logits_reader(
    run: ModelPass, logits: LogitsReader, *, needed: bool
) -> LogitsReader | None:
    """What reads one prediction for each row off a model's outputs; None where there is none."""
    reader = run.predictions(logits, needed=needed)
    if reader is None:
        return None
    z, drawn = reader(run.outputs), run.trial.drawn
    most, what = (MAX_LABELS, "labels") if reader.independent else (MAX_CLASSES, "classes")
    if z.shape[-1] > most:
        warn(
            f"predictions are not stored: a recording holds up to {most:,} {what}, found "
            f"{z.shape[-1]:,}"
        )
        return None
    one_each = z.shape[:2] == (num_samples(run.trial.samples), 1 if drawn is None else drawn.length)
    return reader if one_each else None


def find_embeddings(run: ModelPass, logits: LogitsReader, pool: Pool) -> EmbeddingsReader | None:
    """What reads one embedding for each sample off a model's outputs; None where there is none."""
    samples = num_samples(run.trial.samples)
    if run.trial.drawn is not None:
        return None
    reader = find_embeddings_reader(logits, run.outputs, samples, pool)
    if reader is None and logits.option == "none" and pool in SEQUENCE_POOLS:
        warn(
            f"no embeddings are stored: `pool={pool!r}` reads them off hidden states, which this "
            "model does not return (a causal language model returns logits). Record the model "
            "without its head"
        )
    if reader is not None and (width := reader(run.outputs).shape[-1]) > MAX_DIMENSIONS:
        warn(
            f"embeddings are not stored: a recording holds up to {MAX_DIMENSIONS:,} dimensions, "
            f"found {width:,}"
        )
        return None
    return reader


def _row_places(rep: Representation) -> np.ndarray | None:
    """Where in the order the rows of a recording's blocks lie; None if some were skipped."""
    blocks = zip(rep.block_numbers, rep.block_sizes, strict=True)
    places = [number * rep.settings.block + np.arange(size) for number, size in blocks]
    return np.concatenate(places) if places and not rep.data.skipped else None


def right_classes(batch: Batch, *, causal: bool) -> Tensor | None:  # (n,) or (n, tokens)
    """The class that is right for each sample, or token, -1 where that is not known; or None.

    Of a causal model it is the token that comes next in the text.
    """
    if batch.drawn is not None:
        return _next_tokens(batch) if causal else None
    found = _numeric_labels(batch)
    if found is None or found.is_floating_point() or found.ndim != 1:
        return None
    return torch.where(found >= 0, found.long(), -1)


def right_labels(batch: Batch, labels: int) -> Tensor | None:  # (n, labels) int16
    """Whether each label is right for each sample, -1 where that is not known; or None."""
    found = _numeric_labels(batch)
    if batch.drawn is not None or found is None or found.numel() != len(found) * labels:
        return None
    found = found.reshape(-1, labels)
    return torch.where((found == 0) | (found == 1), found, -1).to(torch.int16)


def _numeric_labels(batch: Batch) -> Tensor | None:  # (n, ...)
    """The labels of a batch on the host, if it has numbers, one row a sample."""
    labels: Any = batch_labels(batch.samples)
    try:
        found = torch.as_tensor(labels).cpu()
    except (TypeError, ValueError, RuntimeError):
        return None
    return found if found.ndim and len(found) == len(batch.indices) else None


def _next_tokens(batch: Batch) -> Tensor:
    assert batch.drawn is not None
    _, ids = token_ids(batch.samples)
    mask = batch.samples.get("attention_mask") if isinstance(batch.samples, dict) else None
    real = np.ones_like(ids) if mask is None else np.asarray(torch.as_tensor(mask).cpu())
    after = np.pad(np.where(real != 0, ids, -1)[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
    return torch.from_numpy(np.take_along_axis(after, batch.drawn.positions, 1)).long()
