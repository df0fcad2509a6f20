"""ComparisonMatrix: similarities of many networks with each other, to read, draw and cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from .._by_content import by_content
from .._shown_text import shown
from ..errors import optional
from ..representation import schema
from ..representation.schema import COUNT, ONE, TABLE, TEXT, YES_NO, list_of, one_of, or_null
from . import result_files
from .clustering import average_linkage, cut, leaf_order
from .combinations import INDICES, KERNELS, Index, Kernel
from .predictions_of_many import BehaviourOfAll
from .result_files import plain, table

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

MatchedAllBy = Literal["name", "position", "relative depth"]
_NAMED = 12  # networks of a group that a summary names
_RULES = {
    "models": list_of(TEXT, 2),
    "scores": TABLE,
    "stderr": TABLE,
    "layers": list_of(list_of(TEXT, 1), 2),
    "kernel": one_of(*KERNELS),
    "index": one_of(*INDICES),
    "centre": YES_NO,
    "samples": COUNT,
    "averaged": list_of(list_of(COUNT)),
    "n_eff": TABLE,
    "matched_by": one_of(*get_args(MatchedAllBy)),
    "tokens": or_null(ONE),
    "behaviour": or_null(schema.MAPPING),
}


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
    behaviour: BehaviourOfAll | None = None  # how differently they predict, on all recorded blocks

    def __repr__(self) -> str:
        return f"ComparisonMatrix({len(self.models)} networks, {self.heading})"

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
        """Merges by average linkage, as SciPy has them: left, right, 1 − similarity, size."""
        return average_linkage(1 - np.nan_to_num(self.scores))

    def order(self) -> list[int]:
        """Models in the order of the dendrogram's leaves: like beside like."""
        return leaf_order(self.clusters())

    def summary(self) -> str:
        """The matrix in a few plain sentences.

        Groups are those of average linkage, cut where merges become dearer by most: at the widest
        gap between successive heights of the dendrogram.
        """
        lines = [f"{len(self.models)} networks: {shown(self.heading)}."]
        if ends := self._ends(self.scores, self.stderr, "{:.3f}", 1.0):
            most = f"Least alike are {ends[0]}, most alike {ends[1]}."
            lines.append(f"Alike: {ends[0]}." if ends[0] == ends[1] else most)
        else:
            lines.append("No pair of networks has a defined score.")
        if groups := self._groups():
            lines.append(groups)
        if (told := self.behaviour) is not None:
            ends = self._ends(told.disagreement, told.disagreement_stderr, "{:.3g} %", 100.0)
            if ends:
                what = "samples" if told.sequences is None else "tokens"
                between = f"least between {ends[0]} and most between {ends[1]}"
                if ends[0] == ends[1]:
                    between = f"between {ends[0]}"
                lines.append(f"Predictions differ {between}, of {told.samples:,} {what}.")
        return "\n".join([*lines, *self.behaviour_missing])

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
            ends.append(f"{shown(self.models[one])} and {shown(self.models[two])} ({number})")
        return ends[0], ends[1]

    def _groups(self) -> str | None:
        """The dendrogram in words, where there is something to be grouped."""
        if len(self.models) < 3:
            return None
        groups, (below, above) = cut(self.clusters())
        named = "; ".join(_listed([self.models[i] for i in group]) for group in groups)
        return (
            f"Groups by average linkage, which are merged at {1 - below:.2f} or more, and with "
            f"each other at {1 - above:.2f} or less: {named}."
        )

    def plot(self) -> Figure:
        """A clustered map with its dendrogram."""
        from ..views import figures as plot

        return plot.clustered(self.scores, self.models, self.order(), self.clusters(), self.heading)

    def to_frame(self) -> pandas.DataFrame:
        """One row for each pair of networks: a, b, score, stderr, layers (that it is the mean of),
        disagreement, disagreement_stderr, js, js_stderr, and behaviour_missing, which says why
        their predictions cannot be compared."""
        i, j = np.triu_indices(len(self.models), 1)
        blank, told = np.full(self.scores.shape, np.nan), self.behaviour
        names = ("disagreement", "disagreement_stderr", "js", "js_stderr")
        predicted = {key: (getattr(told, key) if told else blank)[i, j] for key in names}
        why = [
            told.why_not(*pair) if told else None
            for pair in zip(i.tolist(), j.tolist(), strict=True)
        ]
        return optional("pandas", "pandas", "frames").DataFrame(
            {
                "a": [self.models[at] for at in i],
                "b": [self.models[at] for at in j],
                "score": self.scores[i, j],
                "stderr": self.stderr[i, j],
                "layers": self.averaged[i, j],
                **predicted,
                "behaviour_missing": why,
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; NaN becomes None."""
        return {name: plain(value) for name, value in asdict(self).items()}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the matrix as JSON; `ComparisonMatrix.load` reads it."""
        return result_files.write(path, "matrix", self.to_dict())

    @staticmethod
    def load(path: str | os.PathLike[str]) -> ComparisonMatrix:
        """The ComparisonMatrix in a file that `save` wrote."""
        values = result_files.read(path, "matrix", "ComparisonMatrix", _RULES, _values)
        return ComparisonMatrix(**values)


def _values(content: dict[str, Any]) -> dict[str, Any]:
    """The fields of a ComparisonMatrix from what a file holds."""
    values = {key: content[key] for key in _RULES}
    number, layers = len(values["models"]), values["layers"]
    if len(layers) != number or len(set(map(len, layers))) != 1:
        raise ValueError(f"layers must be as many of each of {number} models")
    values["models"], values["layers"] = tuple(values["models"]), tuple(map(tuple, layers))
    for key in ("scores", "stderr"):
        values[key] = table(values[key], (number, number))
    values["averaged"] = table(values["averaged"], (number, number)).astype(np.int32)
    values["n_eff"] = table(values["n_eff"], (number, len(layers[0])))
    if values["behaviour"] is not None:
        values["behaviour"] = BehaviourOfAll.of(values["behaviour"])
        if values["behaviour"].models != values["models"]:
            raise ValueError("behaviour must be of the same models")
    return values


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(shown, names[:_NAMED])) + more
