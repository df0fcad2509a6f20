"""ComparisonMatrix: similarities of many networks with each other, to read, draw and cluster."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._by_content import by_content
from .clustering import average_linkage, leaf_order
from .combinations import Index, Kernel
from .comparison import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MatchedAllBy = Literal["name", "position", "relative depth"]


@by_content
@dataclass(frozen=True, eq=False)
class ComparisonMatrix:
    """Similarities of networks with each other, averaged over their matched layers."""

    models: tuple[str, ...]
    scores: np.ndarray  # (models, models)
    stderr: np.ndarray
    layers: tuple[tuple[str, ...], ...]  # of each model, the layers that were matched
    kernel: Kernel
    index: Index
    centre: bool
    samples: int
    averaged: np.ndarray  # (models, models) layers that have a score, which is their mean
    n_eff: np.ndarray  # (models, layers) samples that carry a layer's kernel
    matched_by: MatchedAllBy  # how it was found which layers belong together
    tokens: int | None = None  # of each sequence, where these are the samples

    @property
    def heading(self) -> str:
        """What was computed, from what, on how many samples."""
        centred = "centred " if self.centre else ""
        where = self.layers[0][0]
        if len(self.layers[0]) > 1:
            where = f"{len(self.layers[0])} layers matched by {self.matched_by}"
        what = "samples" if self.tokens is None else "tokens"
        return f"{self.index} of {centred}{self.kernel} at {where}, {self.samples:,} {what}"

    def clusters(self) -> np.ndarray:  # (models - 1, 4)
        """Merges by average linkage, as SciPy has them: left, right, 1 − similarity, size."""
        return average_linkage(1 - np.nan_to_num(self.scores))

    def order(self) -> list[int]:
        """Models in the order of the dendrogram's leaves: like beside like."""
        return leaf_order(self.clusters())

    def plot(self) -> Figure:
        """A clustered map with its dendrogram."""
        from ..views import figures as plot

        return plot.clustered(self.scores, self.models, self.order(), self.clusters(), self.heading)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; NaN becomes None."""
        return {name: plain(value) for name, value in asdict(self).items()}
