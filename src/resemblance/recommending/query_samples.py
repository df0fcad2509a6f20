"""The samples that every candidate is run on: at most a few thousand, drawn once.

With labels they are drawn by class, each class by its share (and at least one of it), so that rare
classes are not lost; without, at random. The draw is a function of the seed. What has no length is
read from its beginning until there are enough, and kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Subset

from .._data import labels as label_checks
from .._data.batches import join, labels_of, size, take
from .._data.shares import Share
from .._data.sources import source
from .._seeded_random import shuffled
from ..errors import DataError

AT_MOST = 5000  # the cost of kernel ridge is of the third power
_BATCH = 128


@dataclass(frozen=True)
class Query:
    """Samples as `record` takes them, and the label of each, by position."""

    samples: Any
    labels: np.ndarray | None  # (n,)
    count: int
    total: int | None  # before the draw; None if not all were read

    @property
    def classes(self) -> int | None:
        return None if self.labels is None else len(np.unique(self.labels))


def drawn(data: Any, labels: Any = None, *, at_most: int = AT_MOST, seed: int = 0) -> Query:
    """At most so many samples of the data, with their labels if there are any.

    Args:
        data: as in `record`, with labels in it or without.
        labels: one a sample, in the order of the data; None for those in the data.

    >>> import torch
    >>> query = drawn(torch.zeros(100, 2), [0] * 90 + [1] * 10, at_most=20)
    >>> query.count, np.bincount(query.labels).tolist()
    (20, [18, 2])
    """
    given = None if labels is None else label_checks.as_labels(labels)
    data = _indexable(data, at_most, seed)
    total = _length(data) or 0
    if not total:
        raise DataError("the data are empty; expected samples to run candidates on")
    if given is not None and len(given) != total:
        raise DataError(
            f"expected one label a sample, found {len(given)} labels for {total} samples; pass "
            "them in the order of the data"
        )
    own = given if given is not None else _own_labels(data, total)
    if own is not None:
        _check_classes(own, at_most)
    kept = _positions(own, total, at_most, seed)
    if len(kept) == total:
        return Query(data, own, total, total)
    return Query(_some(data, kept), None if own is None else own[kept], len(kept), total)


def _check_classes(labels: np.ndarray, at_most: int) -> None:
    """Refuse labels of which leave-one-out can learn nothing, or of which no draw has them all."""
    classes = len(label_checks.classes(labels))  # two or more
    if classes == len(labels) or classes > at_most:
        raise DataError(
            f"expected classes with several samples each, found {classes} labels that differ among "
            f"{len(labels)} samples, of which {min(at_most, len(labels))} are used; pass classes, "
            "not quantities, or no labels"
        )


def by_class(labels: np.ndarray, count: int, seed: int) -> np.ndarray:  # (n,) -> positions
    """Positions of `count` samples, of each class its share and one at least, sorted.

    >>> by_class(np.array([0, 0, 0, 0, 1]), 2, seed=0)[-1]
    np.int64(4)
    """
    order = shuffled(len(labels), seed)
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


def _positions(labels: np.ndarray | None, total: int, at_most: int, seed: int) -> np.ndarray:
    if total <= at_most:
        return np.arange(total)
    if labels is None:
        return np.sort(shuffled(total, seed)[:at_most])
    return by_class(labels, at_most, seed)


def _indexable(data: Any, at_most: int, seed: int) -> Any:
    """The data, or for what can be read once alone, its beginning."""
    if _length(data) is not None:
        return data
    batches = source(data, seed=seed, block=_BATCH).batches(_BATCH, Share())
    parts, count = [], 0
    for batch in batches:
        parts.append(batch.samples)
        count += size(batch.samples)
        if count >= at_most:
            break
    return take(join(parts), slice(0, at_most))


def _length(data: Any) -> int | None:
    """How many samples there are, if they can be read by position."""
    if isinstance(data, DataLoader):
        data = data.dataset
    if isinstance(data, list):  # of batches
        return None
    if isinstance(data, tuple | Mapping) or hasattr(data, "ndim"):
        return size(data)
    indexed = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    return len(data) if indexed else None


def _own_labels(data: Any, total: int) -> np.ndarray | None:
    """The labels in the data, for which a data set is read through once."""
    if isinstance(data, tuple | Mapping) or hasattr(data, "ndim"):
        found = labels_of(data)
        return None if found is None else label_checks.as_labels(found)
    first = next(iter(_batches(data, np.arange(min(2, total)))))
    if labels_of(first) is None:
        return None
    parts = [labels_of(batch) for batch in _batches(data, np.arange(total))]
    return np.concatenate([label_checks.as_labels(part) for part in parts])


def _batches(data: Any, positions: np.ndarray) -> Any:
    loader = data if isinstance(data, DataLoader) else DataLoader(data)
    samples = Subset(loader.dataset, positions.tolist())
    return DataLoader(samples, batch_size=_BATCH, collate_fn=loader.collate_fn)


def _some(data: Any, positions: np.ndarray) -> Any:
    if isinstance(data, tuple | Mapping) or hasattr(data, "ndim"):
        return take(data, positions)
    if isinstance(data, DataLoader):
        samples: Any = Subset(data.dataset, positions.tolist())
        return DataLoader(samples, batch_size=data.batch_size, collate_fn=data.collate_fn)
    return Subset(data, positions.tolist())
