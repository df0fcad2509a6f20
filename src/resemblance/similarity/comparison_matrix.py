"""The `ComparisonMatrix` of many networks, the result of `compare_all`, with clustering.

It can be summarised, plotted, turned into a data frame, saved and loaded. No similarity is computed
here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from .._utils.formatting import join_names, printable
from .._utils.notebook import HeatMap
from ..representation.schema import (
    COUNT,
    MAPPING,
    ONE,
    TABLE,
    TEXT,
    YES_NO,
    list_of,
    one_of,
    or_null,
)
from .agreement_matrix import BehaviourMatrix, check_models
from .indices.registry import index_names
from .kernels import KERNELS, Index, Kernel
from .results import Plotted, Shape, StoredResult


def average_linkage(distance: np.ndarray) -> np.ndarray:  # (n, n) -> (n-1, 4)
    """Agglomerative clustering by mean distance, also of a single item.

    >>> average_linkage(np.array([[0, 1, 4], [1, 0, 4], [4, 4, 0.0]])).tolist()
    [[0.0, 1.0, 1.0, 2.0], [2.0, 3.0, 4.0, 3.0]]
    """
    from scipy.cluster import hierarchy

    if len(distance) < 2:
        return np.empty((0, 4))
    return hierarchy.linkage(distance[np.triu_indices(len(distance), 1)], "average")


def leaf_order(links: np.ndarray) -> list[int]:
    """The leaves of a dendrogram from one end to the other."""
    from scipy.cluster import hierarchy

    return hierarchy.leaves_list(links).tolist() if len(links) else [0]


def cut_tree(links: np.ndarray) -> tuple[list[list[int]], tuple[float, float]]:
    """Groups of leaves, cut at the widest gap between successive heights of two merges or more.

    The heights on either side of the gap come with them. Groups stand in the order of their first
    leaves.

    >>> cut_tree(np.array([[0, 1, 0.1, 2], [2, 3, 0.2, 2], [4, 5, 0.9, 4]]))
    ([[0, 1], [2, 3]], (0.2, 0.9))
    """
    from scipy.cluster import hierarchy

    heights = links[:, 2]
    merged = int(np.diff(heights).argmax()) + 1
    number = len(links) + 1 - merged
    group = hierarchy.cut_tree(links, number)[:, 0]
    groups = sorted(np.flatnonzero(group == i).tolist() for i in range(number))
    return groups, (float(heights[merged - 1]), float(heights[merged]))


MatchedAllBy = Literal["name", "position", "relative depth"]


@dataclass(frozen=True, eq=False, repr=False)
class ComparisonMatrix(Plotted, StoredResult):
    """Similarities of networks with each other, averaged over their matched layers.

    `plot` draws a clustered heatmap with its dendrogram. The groups in the summary are those of
    average linkage, cut at the widest gap between successive heights of the dendrogram. `to_frame`
    has one row for each pair of networks: a, b, score, stderr, layers (that it is the mean of),
    disagreement, disagreement_stderr, js, js_stderr, and behaviour_missing, which says why their
    predictions cannot be compared.

    Attributes:
        models: names of the networks.
        scores: mean similarity of each pair over their layers, an array (models, models).
        stderr: standard error of each score.
        layers: for each network, the layers that were matched.
        kernel: name of the kernel.
        index: name of the similarity index.
        centre: whether the kernels were centred.
        samples: number of samples, or of tokens.
        averaged: for each pair, how many layers have a score, which the mean is over.
        n_eff: effective sample size of each layer's kernel, an array (models, layers).
        matched_by: how layers were matched: by name, position or relative depth.
        tokens: tokens drawn from each sequence; None where samples are not tokens.
        behaviour: how differently the networks predict on all recorded blocks; None if not known.
    """

    models: tuple[str, ...]
    scores: np.ndarray  # (models, models)
    stderr: np.ndarray
    layers: tuple[tuple[str, ...], ...]
    kernel: Kernel
    index: Index
    centre: bool
    samples: int
    averaged: np.ndarray  # (models, models)
    n_eff: np.ndarray  # (models, layers)
    matched_by: MatchedAllBy
    tokens: int | None = None
    behaviour: BehaviourMatrix | None = None

    _kind = "matrix"
    _rules: ClassVar = {
        "models": list_of(TEXT, 2),
        "scores": TABLE,
        "stderr": TABLE,
        "layers": list_of(list_of(TEXT, 1), 2),
        "kernel": one_of(*KERNELS),
        "index": one_of(*index_names()),
        "centre": YES_NO,
        "samples": COUNT,
        "averaged": list_of(list_of(COUNT)),
        "n_eff": TABLE,
        "matched_by": one_of(*get_args(MatchedAllBy)),
        "tokens": or_null(ONE),
        "behaviour": or_null(MAPPING),
    }
    _parts: ClassVar = {"behaviour": BehaviourMatrix}

    def __post_init__(self) -> None:
        object.__setattr__(self, "averaged", self.averaged.astype(np.int32))

    def _text(self) -> str:
        value = self.scores[np.triu_indices(len(self.models), 1)]
        mean = np.nanmean(value) if np.isfinite(value).any() else np.nan
        return f"{len(self.models)} networks, {mean:.3f} on average, {self.heading}"

    @property
    def heading(self) -> str:
        """What was computed, from what, on how many samples."""
        centred = "centred " if self.centre else ""
        where = self.layers[0][0]
        if len(self.layers[0]) > 1:
            where = f"{len(self.layers[0])} layers matched by {self.matched_by}"
        what = "samples" if self.tokens is None else "tokens"
        return f"{self.index} of {centred}{self.kernel} at {where}, {self.samples:,} {what}"

    @property
    def behaviour_missing(self) -> tuple[str, ...]:
        """Why some networks cannot be compared by what they predict; empty if all were."""
        return () if self.behaviour is None else self.behaviour.missing

    def clusters(self) -> np.ndarray:  # (models - 1, 4)
        """Merges by average linkage, as SciPy has them: left, right, 1 − similarity, size.

        Returns:
            An array (models − 1, 4), a merge in each row, as `scipy.cluster.hierarchy` takes it.
        """
        return average_linkage(1 - np.nan_to_num(self.scores))

    def order(self) -> list[int]:
        """Models in the order of the dendrogram's leaves: like beside like.

        Returns:
            Positions of the models, each once.
        """
        return leaf_order(self.clusters())

    def _sentences(self) -> list[str]:
        lines = [f"{len(self.models)} networks: {printable(self.heading)}."]
        if ends := self._ends(self.scores, self.stderr, "{:.3f}", 1.0):
            most = f"Least similar: {ends[0]}. Most similar: {ends[1]}."
            lines.append(f"Alike: {ends[0]}." if ends[0] == ends[1] else most)
        else:
            lines.append("No pair of networks has a defined score.")
        if groups := self._groups():
            lines.append(groups)
        if (shares := self.behaviour) is not None:
            ends = self._ends(shares.disagreement, shares.disagreement_stderr, "{:.3g} %", 100.0)
            if ends:
                what = "samples" if shares.sequences is None else "tokens"
                between = f"least between {ends[0]} and most between {ends[1]}"
                if ends[0] == ends[1]:
                    between = f"between {ends[0]}"
                lines.append(f"Of {shares.samples:,} {what}, predictions differ {between}.")
        return [*lines, *self.behaviour_missing]

    def _ends(
        self, values: np.ndarray, errors: np.ndarray, form: str, unit: float
    ) -> tuple[str, str] | None:
        """The pairs with the lowest and the highest value, with their errors."""
        i, j = np.triu_indices(len(self.models), 1)
        found = values[i, j]
        if np.isnan(found).all():
            return None
        ends = []
        for at in (np.nanargmin(found), np.nanargmax(found)):
            one, two = i[at], j[at]
            number = form.format(unit * found[at])
            if np.isfinite(errors[one, two]):
                number += f" ± {form.format(unit * errors[one, two])}"
            ends.append(
                f"{printable(self.models[one])} and {printable(self.models[two])} ({number})"
            )
        return ends[0], ends[1]

    def _groups(self) -> str | None:
        """The dendrogram in words, where there is something to be grouped."""
        if len(self.models) < 3:
            return None
        groups, (below, above) = cut_tree(self.clusters())
        named = "; ".join(join_names([self.models[i] for i in group]) for group in groups)
        return (
            f"Groups by average linkage (within groups at least {1 - below:.2f}, between groups at "
            f"most {1 - above:.2f}): {named}."
        )

    def _maps(self) -> Iterator[HeatMap]:
        order = self.order()
        names = [self.models[i] for i in order]
        yield HeatMap(
            f"{self.index} of {self.kernel}", self.scores[np.ix_(order, order)], names, names
        )

    def _columns(self) -> Mapping[str, Any]:
        i, j = np.triu_indices(len(self.models), 1)
        blank, behaviour = np.full(self.scores.shape, np.nan), self.behaviour
        names = ("disagreement", "disagreement_stderr", "js", "js_stderr")
        pairs = zip(i.tolist(), j.tolist(), strict=True)
        return {
            "a": [self.models[at] for at in i],
            "b": [self.models[at] for at in j],
            "score": self.scores[i, j],
            "stderr": self.stderr[i, j],
            "layers": self.averaged[i, j],
            **{key: (getattr(behaviour, key) if behaviour else blank)[i, j] for key in names},
            "behaviour_missing": [
                behaviour.why_not(*pair) if behaviour else None for pair in pairs
            ],
        }

    @classmethod
    def _shapes(cls, content: Mapping[str, Any]) -> Mapping[str, Shape]:
        number, layers = len(content["models"]), content["layers"]
        if len(layers) != number or len(set(map(len, layers))) != 1:
            raise ValueError(f"layers must be as many of each of {number} models")
        check_models(content)
        tables = dict.fromkeys(("scores", "stderr", "averaged"), (number, number))
        return {**tables, "n_eff": (number, len(layers[0]))}
