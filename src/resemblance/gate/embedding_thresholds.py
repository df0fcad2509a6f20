"""Thresholds on embeddings: bounds of neighbour overlap, and of the share of small cosines.

The overlap of nearest neighbours is a mean over queries: every second sample is one, the others are
the pool that neighbours are taken from. Given the pool, queries are independent and have a betting
bound. So the bound is about all queries of the population, in this pool. A copy passes only if the
limit is above what random pairings of the queries reach, and so only if a permutation test shows
that the embeddings are related. A percentile of cosines is judged as a rate, with Clopper and
Pearson's bounds over samples.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..representation.embeddings import MAX_EMBEDDINGS
from ..representation.notes import Note, make_note
from ..representation.representation import Representation
from ..similarity.neighbours import (
    NeighbourLists,
    comparable_embeddings,
    sample_cosines,
    share_basis,
)
from .bounds import Bounds, Measurement, mean_bounds, mean_decides, rate_bounds
from .thresholds import Threshold, format_near_one

_PERMUTATIONS = 199  # so that the least p-value is 0.005
_CHANCE_QUANTILE = 0.96  # a pass lies above it, so by a permutation test p is below 5 %
_MAX_REPEATED = 0.01  # share of samples that repeat others
_SAME_FUNCTION = 0.5  # overlap from which embeddings in another basis are not called damaged


@dataclass(eq=False)
class EmbeddingThresholds:
    """Neighbours and cosines of two recordings' embeddings, with their bounds.

    Attributes:
        base: the recording of the base.
        copy: the recording of the copy, on the same samples.
        notes: about the samples, once a threshold was judged.
    """

    base: Representation
    copy: Representation
    notes: list[Note] = field(default_factory=list)

    def neighbours(self, threshold: Threshold) -> Measurement:
        """The mean overlap of nearest neighbours: betting bounds over queries, given the pool."""
        lists, missing = self._lists, 1 - self._lists.overlap
        if len(missing) < 2:
            return Measurement(reason="a single query has no chance level; record more samples")
        bounds = mean_bounds(missing, 1.0)
        found = Measurement(Bounds(1 - bounds.value, 1 - bounds.high, 1 - bounds.low))
        by_chance = self._by_chance
        high = float(np.quantile(by_chance, _CHANCE_QUANTILE))
        found.remarks = (
            f"the {lists.k} nearest neighbours of {lists.queries:,} queries among {lists.pool:,} "
            "different samples; bounds hold for new queries on this pool; unrelated embeddings "
            f"share {format_near_one(float(by_chance.mean()))}",
        )
        if threshold.limit <= high:
            found.withhold(
                "the limit is below the chance level: unrelated embeddings share up to "
                f"{format_near_one(high)}; choose a higher limit"
            )
        elif repeated := self._repeated:
            found.withhold(
                f"{repeated:,} of {len(self._vectors[0]):,} samples are duplicates, whose nearest "
                "neighbours are each other in any network; record each sample once"
            )
        decides = mean_decides(missing, 1.0, 1 - threshold.limit)
        found.plan(threshold, decides, len(missing))
        if found.needed is not None:
            found.needed *= 2  # every second sample is a query
        return _within_file(found)

    def cosine(self, threshold: Threshold) -> Measurement:
        """The share of samples with a cosine below a limit: Clopper and Pearson's bounds."""
        one, two = self._vectors
        if not (shared := share_basis(one, two)):
            overlap = float(self._lists.overlap.mean())
            if one.shape[1] != two.shape[1] or overlap >= _SAME_FUNCTION:
                return Measurement(
                    reason="the embeddings do not appear to share a basis, without which cosine "
                    f"similarity is meaningless; they have {format_near_one(overlap)} of their "
                    "neighbours in common: use min-neighbours",
                    can_decide=False,
                )
        cosines = sample_cosines(one, two)
        below = (cosines < threshold.limit).astype(float)
        found = Measurement(rate_bounds(float(below.mean()), len(below)))
        at = float(np.quantile(cosines, threshold.allowed))
        found.remarks = (
            f"p{threshold.percentile:02g} of these {len(below):,} samples is {format_near_one(at)}",
        )
        if not shared and found.status(threshold) != "failed":
            found.withhold("the embeddings do not appear to share a basis")

        def decides(n: int, generator: np.random.Generator) -> bool:
            drawn = rate_bounds(generator.binomial(n, below.mean()) / n, n)
            return drawn.high <= threshold.allowed or drawn.low > threshold.allowed

        return _within_file(found.plan(threshold, decides, len(below)))

    @functools.cached_property
    def _vectors(self) -> tuple[Tensor, Tensor]:  # (rows, d) each
        one, two = (x.vectors for x in comparable_embeddings(self.base, self.copy))
        if 2 * (distinct := _count_distinct(one, two)) < len(one):
            self.notes.append(
                make_note("repeated-samples", distinct=distinct, samples=len(one), unit="samples")
            )
        return one, two

    @functools.cached_property
    def _repeated(self) -> int:
        """The number of samples that repeat others; 0 where so few do that it makes no odds."""
        one, two = self._vectors
        repeated = len(one) - _count_distinct(one, two)
        return repeated if repeated > _MAX_REPEATED * len(one) else 0

    @functools.cached_property
    def _lists(self) -> NeighbourLists:
        return NeighbourLists(*self._vectors, ranks=False)

    @functools.cached_property
    def _by_chance(self) -> np.ndarray:  # (_PERMUTATIONS,)
        """Mean overlaps of queries paired at random."""
        paired, generator = self._lists.paired, np.random.default_rng(0)
        at = np.arange(len(paired))
        orders = (generator.permutation(len(paired)) for _ in range(_PERMUTATIONS))
        return np.array([paired[at, order].mean() for order in orders])


def _count_distinct(one: Tensor, two: Tensor) -> int:
    """Different samples: two that both networks embed alike are one, repeated."""
    return len(torch.unique(torch.cat([one, two], 1), dim=0))


def _within_file(found: Measurement) -> Measurement:
    """The same, where so many samples would decide that files do not hold their embeddings."""
    if found.needed is not None and found.needed > MAX_EMBEDDINGS:
        found.reason = (
            f"about {found.needed:,} samples would decide, but a recording holds the embeddings of "
            f"{MAX_EMBEDDINGS:,} at most; choose a limit further away"
        )
        found.needed, found.can_decide = None, False
    return found
