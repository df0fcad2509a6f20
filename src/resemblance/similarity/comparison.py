"""Comparison: the similarities of two networks' layers, as a result to read, draw and keep.

Made by `compare`; nothing here computes a similarity.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._atomic_files import write_atomically
from .._by_content import by_content
from ..errors import FormatError, optional
from .combinations import Estimator, Index, Kernel

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Match:
    """For each layer of the rows, its counterpart among the columns."""

    rows: tuple[str, ...]
    nearest: tuple[str, ...]  # most similar layer
    nearest_scores: tuple[float, ...]
    aligned: tuple[str, ...]  # the best choice that keeps the order of layers
    aligned_scores: tuple[float, ...]


@by_content
@dataclass(frozen=True, eq=False)
class Comparison:
    """Similarities of the layers of two networks. Rows are layers of `a`, columns those of `b`."""

    models: tuple[str, str]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    scores: np.ndarray  # (rows, columns); NaN where a layer is constant on these data
    stderr: np.ndarray
    chance: np.ndarray | None  # mean score when samples are paired at random; None if not known
    chance_high: np.ndarray | None  # its 95 % quantile
    kernel: Kernel
    index: Index
    centre: bool
    estimator: Estimator
    paired: bool  # whether both saw the same samples
    samples: tuple[int, int]  # that entered the scores
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Comparison({self.models[0]!r}, {self.models[1]!r}, {self.heading})"

    @property
    def heading(self) -> str:
        """What was computed, from what, on how many samples."""
        centred = "centred " if self.centre else ""
        n = f"{self.samples[0]:,}"
        if not self.paired:
            n += f" and {self.samples[1]:,} unpaired"
        return f"{self.index} of {centred}{self.kernel}, from {self.estimator}, {n} samples"

    @property
    def same_layers(self) -> bool:
        """Whether both networks have the same layers, so that the diagonal means something."""
        return self.rows == self.columns

    def match(self) -> Match:
        """The most similar column of each row, and the best alignment that keeps layer order.

        The alignment maximises the sum of scores over all ways of giving each row a column such
        that later rows never get earlier columns; by dynamic programming, O(rows · columns).
        """
        scores = np.nan_to_num(self.scores, nan=-1.0)  # an undefined score is never chosen
        total, came_from = scores[0].copy(), []
        for row in scores[1:]:
            upto = np.maximum.accumulate(total)
            # the first column that reaches the running maximum
            where = np.maximum.accumulate(np.where(total == upto, np.arange(len(total)), 0))
            came_from.append(where)
            total = row + upto
        path = [int(total.argmax())]
        for where in reversed(came_from):
            path.insert(0, int(where[path[0]]))
        return Match(self.rows, *self._chosen(scores.argmax(1).tolist()), *self._chosen(path))

    def _chosen(self, columns: Sequence[int]) -> tuple[tuple[str, ...], tuple[float, ...]]:
        scores = (float(row[j]) for row, j in zip(self.scores, columns, strict=True))
        return tuple(self.columns[j] for j in columns), tuple(scores)

    def by_layer(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Score, standard error and chance (mean, high) of each row with its counterpart.

        The counterpart is the layer of the same name where all agree, else the aligned one.
        """
        names = self.rows if self.same_layers else self.match().aligned
        at = (np.arange(len(self.rows)), [self.columns.index(name) for name in names])
        chance = None
        if self.chance is not None and self.chance_high is not None:
            chance = np.stack([self.chance[at], self.chance_high[at]])
        return self.scores[at], self.stderr[at], chance

    def summary(self) -> str:
        """The comparison in a few plain sentences."""
        value, error, chance = self.by_layer()
        lines = [f"{self.models[0]} and {self.models[1]}: {self.heading}."]
        if np.isnan(value).all():
            lines.append("No layer has a defined score.")
        else:
            which = "same-named" if self.same_layers else "aligned"
            most, least = (
                f"{self.rows[i]} ({_with_error(value[i], error[i])})"
                for i in (np.nanargmax(value), np.nanargmin(value))
            )
            lines.append(
                f"Mean over {which} layers {np.nanmean(value):.3f}; most alike at {most}, least at "
                f"{least}."
            )
            if chance is not None:
                lines.append(
                    f"Unrelated samples would score {np.nanmean(chance[0]):.3f} on average; "
                    f"{(value > chance[1]).sum()} of {len(value)} layers lie above the 95 % level "
                    "of chance."
                )
        return "\n".join([*lines, *(f"Note: {note}." for note in self.notes)])

    def plot(self) -> Figure:
        """A map of all pairs of layers beside a layer-by-layer curve with error bars."""
        from ..views import figures as plot

        rows, columns = len(self.rows), len(self.columns)
        wide, tall = min(12.0, 0.5 * columns + 2.5), min(12.0, max(4.2, 0.42 * rows + 1.8))
        figure = plot.figure(wide + 5.0, tall)
        left, right = figure.subplots(1, 2, width_ratios=[wide, 5.0])
        image = plot.heatmap(left, self.scores, self.rows, self.columns)
        figure.colorbar(image, ax=left, shrink=0.8, pad=0.02)
        left.set(xlabel=self.models[1], ylabel=self.models[0])
        value, error, chance = self.by_layer()
        plot.curve(right, value, error, self.rows, chance=chance)
        right.set_ylim(min(0.0, float(np.nanmin(value, initial=0.0))), 1.03)
        right.set_title(
            "same layer" if self.same_layers else "aligned layer", fontsize=9, loc="left"
        )
        if chance is not None:
            right.legend(frameon=False, fontsize=8)
        figure.suptitle(self.heading, fontsize=10)
        return figure

    def to_frame(self) -> pandas.DataFrame:
        """One row for each pair of layers: row, column, score, stderr, chance, chance_high."""
        shape = self.scores.shape
        blank = np.full(shape, np.nan)
        return optional("pandas", "pandas", "frames").DataFrame(
            {
                "row": np.repeat(self.rows, shape[1]),
                "column": np.tile(self.columns, shape[0]),
                "score": self.scores.ravel(),
                "stderr": self.stderr.ravel(),
                "chance": (blank if self.chance is None else self.chance).ravel(),
                "chance_high": (blank if self.chance_high is None else self.chance_high).ravel(),
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; NaN becomes None."""
        return {name: plain(value) for name, value in asdict(self).items()}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the comparison as JSON; `Comparison.load` reads it."""
        text = json.dumps({"comparison": 1, **self.to_dict()}, indent=1)
        return write_atomically(path, text.encode())

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Comparison:
        """The Comparison in a file that `save` wrote."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["comparison"] != 1:
                raise ValueError(f"version {content['comparison']!r}, expected 1")
            values = {f.name: content[f.name] for f in fields(Comparison)}
            shape = (len(values["rows"]), len(values["columns"]))
            for key in ("scores", "stderr", "chance", "chance_high"):
                if values[key] is not None:
                    values[key] = np.array(values[key], dtype=float).reshape(shape)
            for key in ("models", "rows", "columns", "samples", "notes"):
                values[key] = tuple(values[key])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FormatError(
                f"{path} is not a comparison written by Comparison.save ({error!r}); save it again"
            ) from error
        return Comparison(**values)


def _with_error(value: float, error: float) -> str:
    return f"{value:.3f}" if np.isnan(error) else f"{value:.3f} ± {error:.3f}"


def plain(value: Any) -> Any:
    """Arrays and tuples as lists, NaN as None: what JSON holds."""
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value.tolist()]
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and np.isnan(value) else value
