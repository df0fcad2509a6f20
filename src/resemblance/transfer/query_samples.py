"""The samples that every candidate is run on: at most a few thousand, drawn once.

The draw is stratified: each class by its share, and at least one sample of each, so that rare
classes are kept. It depends on the seed only. Data without a length are read from the beginning
until there are enough samples, which are kept in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Subset

from .._data.batches import (
    as_labels,
    batch_labels,
    check_classes,
    concat_batches,
    num_samples,
    take_samples,
)
from .._data.make_source import make_source
from .._data.sources import Share
from .._utils.hashing import seeded_permutation
from ..errors import DataError

MAX_SAMPLES = 5000  # the cost of kernel ridge is of the third power
_BATCH_SIZE = 128
_MSG_UNLABELLED = (
    "the data have no labels, and without labels no score ranked networks reliably (measured on "
    "several collections); label some samples, a few hundred are enough, and pass `labels` or "
    "(inputs, labels)"
)


@dataclass(frozen=True)
class Query:
    """Samples as `record` takes them, and the label of each, by position."""

    samples: Any
    labels: np.ndarray  # (n,)
    count: int
    total: int | None  # before the draw; None if not all were read

    @property
    def classes(self) -> int:
        return len(np.unique(self.labels))


def draw_query(
    data: Any, labels: Any = None, *, at_most: int = MAX_SAMPLES, seed: int = 0
) -> Query:
    """At most so many samples of the data, with their labels.

    Args:
        data: as in `record`, with labels in it or without.
        labels: one per sample, in the order of the data; None for those in the data.

    Raises:
        DataError: if there are no labels, or if they are not classes.

    >>> import torch
    >>> query = draw_query(torch.zeros(100, 2), [0] * 90 + [1] * 10, at_most=20)
    >>> query.count, np.bincount(query.labels).tolist()
    (20, [18, 2])
    """
    given = None if labels is None else as_labels(labels)
    data = _arrays_or_loader(data, at_most, seed)
    total: int = len(data.dataset) if isinstance(data, DataLoader) else num_samples(data)  # type: ignore[arg-type]
    if not total:
        raise DataError("the data are empty; expected samples to run candidates on")
    if given is not None and len(given) != total:
        raise DataError(
            f"expected one label per sample, found {len(given)} labels for {total} samples; pass "
            "them in the order of the data"
        )
    own = _labels_in_data(data) if given is None else given
    if own is None:
        raise DataError(_MSG_UNLABELLED)
    _check_classes(own, at_most)
    if total <= at_most:
        return Query(data, own, total, total)
    kept = stratified_positions(own, at_most, seed)
    own = own[kept]
    if isinstance(data, DataLoader):
        some: Any = Subset(data.dataset, kept.tolist())
        data = DataLoader(some, batch_size=data.batch_size, collate_fn=data.collate_fn)
    else:
        data = take_samples(data, kept)
    return Query(data, own, len(kept), total)


def _check_classes(labels: np.ndarray, at_most: int) -> None:
    """Refuse labels of which leave-one-out can learn nothing, or of which no draw has them all."""
    classes = len(check_classes(labels))  # two or more
    if classes == len(labels) or classes > at_most:
        raise DataError(
            f"expected classes with several samples each, found {classes} labels that differ among "
            f"{len(labels)} samples, of which {min(at_most, len(labels))} are used; pass classes, "
            "not quantities"
        )


def stratified_positions(
    labels: np.ndarray, count: int, seed: int
) -> np.ndarray:  # (n,) -> positions
    """Positions of `count` samples, of each class its share and one at least, sorted.

    >>> stratified_positions(np.array([0, 0, 0, 0, 1]), 2, seed=0)[-1]
    np.int64(4)
    """
    order = seeded_permutation(len(labels), seed)
    found, numbers = np.unique(labels[order], return_inverse=True)
    places = [order[numbers == c] for c in range(len(found))]
    wanted = np.array([len(place) * count / len(labels) for place in places])
    quota = np.maximum(np.floor(wanted), 1).astype(int)
    for c in np.argsort(quota - wanted, kind="stable"):  # those that lost most by rounding, first
        if quota.sum() < count and quota[c] < len(places[c]):
            quota[c] += 1
    while quota.sum() > max(count, len(found)):  # rare classes took more than their share
        quota[quota.argmax()] -= 1
    return np.sort(np.concatenate([p[:q] for p, q in zip(places, quota, strict=True)]))


def _arrays_or_loader(data: Any, at_most: int, seed: int) -> Any:
    """Arrays, or a loader of a data set; of what can only be read once, the beginning as arrays."""
    if isinstance(data, tuple | Mapping) or hasattr(data, "ndim"):
        return data
    dataset = data.dataset if isinstance(data, DataLoader) else data
    indexed = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if indexed and not isinstance(dataset, list):  # a list holds batches
        return data if isinstance(data, DataLoader) else DataLoader(data)
    parts, count = [], 0
    source = make_source(data, seed=seed, block=_BATCH_SIZE)
    for batch in source.batches(_BATCH_SIZE, Share()):
        parts.append(batch.samples)
        count += num_samples(batch.samples)
        if count >= at_most:
            break
    return take_samples(concat_batches(parts), slice(0, at_most))


def _labels_in_data(data: Any) -> np.ndarray | None:
    """The labels in the data, for which a data set is read through once."""
    batches = [data]
    if isinstance(data, DataLoader):
        options: Any = {"batch_size": _BATCH_SIZE, "collate_fn": data.collate_fn}
        batches = DataLoader(data.dataset, **options)  # type: ignore[assignment]
    parts = []
    for labels in map(batch_labels, batches):
        if labels is None:
            return None
        parts.append(as_labels(labels))
    return np.concatenate(parts)
