"""Comparison: the similarities of two networks' layers, as a result to read, draw and keep.

Made by `compare`; nothing here computes a similarity.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._by_content import by_content
from .._shown_text import shown
from ..errors import DataError, optional
from ..representation import schema
from ..representation.schema import COUNT, TABLE, TEXT, YES_NO, list_of, one_of, or_null
from . import result_files
from .combinations import ESTIMATORS, INDICES, KERNELS, Estimator, Index, Kernel
from .error_bars import student_t
from .layer_matching import RULES, Known, MatchedBy, Matching, align, match
from .result_files import plain as plain
from .result_files import table
from .same_predictions import Behaviour

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from .parting_layer import Parting

_MANY = 1000.0  # degrees of freedom: nearly normal
_LATER = ("df", "replicates", "n_eff", "effective_blocks")  # not in files of 0.1
_NAMED = 8  # layers without a counterpart that a summary names
_RULES = {  # of a file
    "models": list_of(TEXT, 2, 2),
    "rows": list_of(TEXT, 1),
    "columns": list_of(TEXT, 1),
    "scores": TABLE,
    "stderr": TABLE,
    "chance": or_null(TABLE),
    "chance_high": or_null(TABLE),
    "kernel": one_of(*KERNELS),
    "index": one_of(*INDICES),
    "centre": YES_NO,
    "estimator": one_of(*ESTIMATORS),
    "paired": YES_NO,
    "samples": list_of(COUNT, 2, 2),
    "notes": list_of(TEXT),
    **{key: schema.optional(or_null(TABLE)) for key in _LATER},
    "matched_by": schema.optional(one_of(*RULES)),  # nor were these
    "matched": schema.optional(list_of(or_null(COUNT))),
    "tokens": schema.optional(or_null(schema.ONE)),
    "behaviour": schema.optional(or_null(schema.MAPPING)),
}


@dataclass(frozen=True)
class Match:
    """For each layer of the rows, the most similar one among the columns."""

    rows: tuple[str, ...]
    nearest: tuple[str, ...]  # most similar layer
    nearest_scores: tuple[float, ...]
    aligned: tuple[str, ...]  # the best choice that keeps the order of layers
    aligned_scores: tuple[float, ...]


@by_content
@dataclass(frozen=True, eq=False)
class Comparison:
    """Similarities of the layers of two networks. Rows are layers of `a`, columns those of `b`.

    `stderr` says how far a score may lie from its target. Of up to 1,024 samples the score itself
    is exact, and the target is what as many samples drawn anew would score on average. Beyond, the
    score is estimated from a part of all pairs, and the target is the score of all samples that
    were recorded. Of tokens it is always what other sequences would score on average.
    `cka-debiased` does not depend on the number of samples: its target is always the
    population's. None of them covers another training run.

    `matched_by` says how counterparts were found: by `name` (those of copies, whatever wraps them),
    by `position` (as many layers of the same shapes) or by `similarity` (the alignment of scores,
    which flatters). They are what means and curves over layers are made of.
    """

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
    df: np.ndarray | None = None  # degrees of freedom of `stderr`, see `interval`
    replicates: np.ndarray | None = None  # (groups, rows): of each row with its counterpart, the
    # scores with one group of samples left out
    n_eff: tuple[np.ndarray, np.ndarray] | None = None  # samples, or of tokens sequences, that
    # carry a kernel, each side's
    effective_blocks: np.ndarray | None = None  # (rows, columns): that carry a score
    matched_by: MatchedBy = None  # type: ignore[assignment]  # None: by names and scores, as below
    matched: tuple[int | None, ...] = None  # type: ignore[assignment]  # of each row, the column of
    # its counterpart; None: it has none
    tokens: int | None = None  # of each sequence, where these are the samples
    behaviour: Behaviour | None = None  # how differently the networks predict; None if not known

    def __post_init__(self) -> None:
        if self.matched_by is None or self.matched is None:
            sides = ([Known(name) for name in names] for names in (self.rows, self.columns))
            found = match(*sides, self.scores)
            object.__setattr__(self, "matched_by", found.by)
            object.__setattr__(self, "matched", found.columns)

    def __repr__(self) -> str:
        return f"Comparison({self.models[0]!r}, {self.models[1]!r}, {self.heading})"

    @property
    def heading(self) -> str:
        """What was computed, from what, on how many samples."""
        centred = "centred " if self.centre else ""
        n = f"{self.samples[0]:,}"
        if not self.paired:
            n += f" and {self.samples[1]:,} unpaired"
        what = "samples"
        if self.tokens is not None:
            what = f"tokens of {self.samples[0] // self.tokens:,} sequences"
        return f"{self.index} of {centred}{self.kernel}, from {self.estimator}, {n} {what}"

    @property
    def same_layers(self) -> bool:
        """Whether both networks have the same layers, so that the diagonal means something."""
        return self.rows == self.columns

    def match(self) -> Match:
        """The most similar column of each row, and the best alignment that keeps layer order.

        The alignment maximises the sum of scores over all ways of giving each row a column such
        that later rows never get earlier columns. Both are found by scores alone, whatever the
        layers are called; `counterparts` are the layers that belong together.
        """
        nearest = np.nan_to_num(self.scores, nan=-1.0).argmax(1).tolist()
        return Match(self.rows, *self._chosen(nearest), *self._chosen(align(self.scores)))

    def _chosen(self, columns: Sequence[int]) -> tuple[tuple[str, ...], tuple[float, ...]]:
        scores = (float(row[j]) for row, j in zip(self.scores, columns, strict=True))
        return tuple(self.columns[j] for j in columns), tuple(scores)

    @property
    def matching(self) -> Matching:
        """The counterpart of each row, and how it was found."""
        return Matching(self.matched_by, self.matched)

    def counterparts(self) -> tuple[np.ndarray, np.ndarray]:
        """Where in the table the rows that have a counterpart stand with it, as indices."""
        pairs = [(i, j) for i, j in enumerate(self.matched) if j is not None]
        rows, columns = np.array(pairs, dtype=int).reshape(-1, 2).T
        return rows, columns

    def of_counterparts(self, table: np.ndarray) -> np.ndarray:  # (..., rows, columns)
        """What a table of all pairs has for each row with its counterpart; NaN if it has none."""
        rows, columns = self.counterparts()
        out = np.full(table.shape[:-1], np.nan)
        out[..., rows] = table[..., rows, columns]
        return out

    def without_counterpart(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Layers of each network that were matched with none of the other's.

        By similarity, every layer of the rows has one, and columns may serve for several or none.
        """
        if self.matched_by == "similarity":
            return (), ()
        rows = tuple(x for x, j in zip(self.rows, self.matched, strict=True) if j is None)
        return rows, tuple(x for j, x in enumerate(self.columns) if j not in self.matched)

    def by_layer(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Score, standard error and chance (mean, high) of each row with its counterpart.

        NaN for rows that have none.
        """
        chance = None
        if self.chance is not None and self.chance_high is not None:
            chance = np.stack([self.of_counterparts(x) for x in (self.chance, self.chance_high)])
        return self.of_counterparts(self.scores), self.of_counterparts(self.stderr), chance

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """The lower and upper ends of intervals that hold the target of each score (see above).

        Student's t, with as many degrees of freedom as the standard errors were seen to have: few
        where few samples carry a score. Ends are kept in the range of the index. Bias, which
        buckets and NBS have, is not covered.
        """
        if not (isinstance(level, Real) and 0 < level < 1):
            raise DataError(f"level must lie between 0 and 1; found {level!r}")
        df = np.full(self.scores.shape, _MANY) if self.df is None else self.df
        wide = student_t(level, df) * self.stderr
        low = -1.0 if self.index in ("cka-debiased", "rsa") else 0.0
        return np.clip(self.scores - wide, low, 1.0), np.clip(self.scores + wide, low, 1.0)

    def mean(self) -> tuple[float, float]:
        """The mean over rows with their counterparts, and its standard error.

        See `mean_over_layers`: layers without a counterpart or a score are left out.
        """
        value, error = mean_over_layers(self.by_layer()[0], self.replicates)
        return float(value), float(error)

    def parting(self, *, least: float | None = None) -> Parting:
        """Where the two networks part: the first layer at which scores fall beyond doubt.

        Features are read from the input on, where both agree. Gradients flow backwards through
        whatever differs, so they are read from the output back. Every fall from a layer to the next
        that has a score, the first one from 1, is tested with the jackknife of the difference;
        the chance of any false finding among all layers is 5 %. The result has the `layer`, the
        size of its `fall` with an interval, all that was `tested`, and a `sentence`.

        Args:
            least: falls that are no larger do not count. None takes 1e-4 for features and 1e-2 for
                gradients, above what 16-bit arithmetic leaves of a network and itself, and a
                ten-thousandth of that after layers that are exactly alike.

        Other kernels mix both directions and are refused, as are comparisons of different samples
        and those of files that do not hold what is left out. See `parting_layer`.
        """
        from .parting_layer import parting

        return parting(self, least)

    def carried_by(self) -> str | None:
        """On how many samples, and blocks of them, scores rest, in words; None if not known."""
        at = rows, columns = self.counterparts()
        if self.n_eff is None:
            return None
        samples = np.minimum(self.n_eff[0][rows], self.n_eff[1][columns])
        if not np.isfinite(samples).any():
            return None
        count = self.samples[0] // (self.tokens or 1)
        what = "samples" if self.tokens is None else "sequences"
        out = f"Kernels rest on {_from_to(samples)} of {count:,} {what} (n_eff)"
        if self.effective_blocks is not None and np.isfinite(self.effective_blocks[at]).any():
            out += f", scores on {_from_to(self.effective_blocks[at])} blocks"
        return out

    def summary(self) -> str:
        """The comparison in a few plain sentences."""
        from .parting_layer import if_found

        value, error, chance = self.by_layer()
        lines = [f"{shown(self.models[0])} and {shown(self.models[1])}: {self.heading}."]
        if np.isnan(value).all():
            lines.append("No layer has a defined score.")
        else:
            there = self.counterparts()[0]
            missing = int(np.isnan(value[there]).sum())
            without = f" ({missing} without a score left out)" if missing else ""
            most, least = (
                f"{shown(self.rows[i])} ({_with_error(value[i], error[i])})"
                for i in (np.nanargmax(value), np.nanargmin(value))
            )
            lines.append(
                f"Mean over layers matched by {self.matched_by} {_with_error(*self.mean())}"
                f"{without}; most alike at {most}, least at {least}."
            )
            if chance is not None:
                lines.append(
                    f"Unrelated samples would score {np.nanmean(chance[0]):.3f} on average; "
                    f"{(value > chance[1]).sum()} of {len(there)} layers lie above the 95 % level "
                    "of chance."
                )
            if found := if_found(self):
                lines.append(found.sentence)
        if self.behaviour is not None and self.models[0] != self.models[1]:
            lines.append(self.behaviour.summary())
        for model, names in zip(self.models, self.without_counterpart(), strict=True):
            if names:
                lines.append(f"Without a counterpart, of {shown(model)}: {_listed(names)}.")
        if carried := self.carried_by():
            lines.append(f"{carried}.")
        return "\n".join([*lines, *(f"Note: {note}." for note in self.notes)])

    def plot(self) -> Figure:
        """A map of all pairs of layers beside a layer-by-layer curve with error bars.

        A ring marks where the networks part, if they are seen to.
        """
        from ..views import figures as plot
        from .parting_layer import if_found

        rows, columns = len(self.rows), len(self.columns)
        wide, tall = min(12.0, 0.5 * columns + 2.5), min(12.0, max(4.2, 0.42 * rows + 1.8))
        figure = plot.figure(wide + 5.0, tall)
        left, right = figure.subplots(1, 2, width_ratios=[wide, 5.0])
        image = plot.heatmap(left, self.scores, self.rows, self.columns)
        figure.colorbar(image, ax=left, shrink=0.8, pad=0.02)
        left.set(xlabel=plot.literal(self.models[1]), ylabel=plot.literal(self.models[0]))
        value, error, chance = self.by_layer()
        found = if_found(self)
        mark = found.position if found else None
        plot.curve(right, value, error, self.rows, chance=chance, mark=mark)
        right.set_ylim(min(0.0, float(np.nanmin(value, initial=0.0))), 1.03)
        right.set_title(f"layers matched by {self.matched_by}", fontsize=9, loc="left")
        if chance is not None or mark is not None:
            right.legend(frameon=False, fontsize=8)
        figure.suptitle(self.heading, fontsize=10)
        return figure

    def to_frame(self) -> pandas.DataFrame:
        """One row for each pair of layers: row, column, score, stderr, low, high (of the 95 %
        interval), df, chance, chance_high, what carries it (n_eff_row, n_eff_column,
        effective_blocks), whether the two are counterparts, and what those were matched_by."""
        shape = self.scores.shape
        blank = np.full(shape, np.nan)
        low, high = self.interval()
        of_rows, of_columns = (blank[:, 0], blank[0]) if self.n_eff is None else self.n_eff
        belong = np.zeros(shape, dtype=bool)
        belong[self.counterparts()] = True
        return optional("pandas", "pandas", "frames").DataFrame(
            {
                "row": np.repeat(self.rows, shape[1]),
                "column": np.tile(self.columns, shape[0]),
                "score": self.scores.ravel(),
                "stderr": self.stderr.ravel(),
                "low": low.ravel(),
                "high": high.ravel(),
                "df": (blank if self.df is None else self.df).ravel(),
                "chance": (blank if self.chance is None else self.chance).ravel(),
                "chance_high": (blank if self.chance_high is None else self.chance_high).ravel(),
                "n_eff_row": np.repeat(of_rows, shape[1]),
                "n_eff_column": np.tile(of_columns, shape[0]),
                "effective_blocks": (
                    blank if self.effective_blocks is None else self.effective_blocks
                ).ravel(),
                "counterpart": belong.ravel(),
                "matched_by": self.matched_by,
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; NaN becomes None."""
        found = {name: plain(value) for name, value in asdict(self).items() if name != "behaviour"}
        predicted = None if self.behaviour is None else self.behaviour.to_dict()
        return {**found, "behaviour": predicted}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the comparison as JSON; `Comparison.load` reads it."""
        return result_files.write(path, "comparison", self.to_dict())

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Comparison:
        """The Comparison in a file that `save` wrote."""
        values = result_files.read(path, "comparison", "Comparison", _RULES, _values)
        return Comparison(**values)


def _values(content: dict[str, Any]) -> dict[str, Any]:
    """The fields of a Comparison from what a file holds."""
    values = {f.name: content[f.name] for f in fields(Comparison) if f.default is MISSING}
    values |= {key: content.get(key) for key in _LATER}
    shape = (len(values["rows"]), len(values["columns"]))
    for key in ("scores", "stderr", "chance", "chance_high", "df", "effective_blocks"):
        if values[key] is not None:
            values[key] = table(values[key], shape)
    if values["replicates"] is not None:
        values["replicates"] = table(values["replicates"], (-1, shape[0]))
    if values["n_eff"] is not None:
        sides = zip(values["n_eff"], shape, strict=True)
        values["n_eff"] = tuple(table(x, (n,)) for x, n in sides)
    if "matched_by" in content and "matched" in content:
        _check_matched(content["matched"], *shape)
        values |= {"matched_by": content["matched_by"], "matched": content["matched"]}
    values["tokens"] = content.get("tokens")
    predicted = content.get("behaviour")
    values["behaviour"] = None if predicted is None else Behaviour.of(predicted)
    for key in ("models", "rows", "columns", "samples", "notes", "matched"):
        values[key] = None if values.get(key) is None else tuple(values[key])
    return values


def mean_over_layers(
    scores: np.ndarray,  # (layers, ...)
    replicates: np.ndarray | None = None,  # (groups, layers, ...)
) -> tuple[np.ndarray, np.ndarray]:
    """The mean over layers and its standard error: the one definition, for everyone.

    The mean is over the layers that have a score, which are in their range one by one; NaN where
    none has. The standard error is the jackknife's, from the scores with each group of samples left
    out, so it knows that layers see the same samples; NaN where those are not known.

    >>> left_out = np.array([[0.4, 0.9], [0.6, 0.9]])  # the second layer does not move
    >>> mean, error = mean_over_layers(np.array([0.5, 0.9]), left_out)
    >>> round(float(mean), 3), round(float(error), 3)
    (0.7, 0.05)
    """
    there = np.isfinite(scores)
    number = there.sum(0)

    def mean(x: np.ndarray, axis: int) -> np.ndarray:
        total = np.where(there, x, 0.0).sum(axis)
        return np.where(number > 0, total / np.maximum(number, 1), np.nan)

    if replicates is None:
        return mean(scores, 0), np.full(number.shape, np.nan)
    left_out = mean(replicates, 1)
    k = len(left_out)
    variance = ((left_out - left_out.mean(0)) ** 2).sum(0) * (k - 1) / max(k, 1)
    return mean(scores, 0), np.sqrt(variance) if k > 1 else np.full(number.shape, np.nan)


def _check_matched(matched: Sequence[int | None], rows: int, columns: int) -> None:
    if len(matched) != rows or any(j is not None and j >= columns for j in matched):
        raise ValueError(f"matched must name one of {columns} columns for each of {rows} rows")


def _listed(names: Iterable[str]) -> str:
    """Names, and of very many the number of those left out."""
    every = [shown(name) for name in names]
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return ", ".join(every[:_NAMED]) + more


def _from_to(numbers: np.ndarray) -> str:
    ends = (f"{end(numbers):,.0f}" for end in (np.nanmin, np.nanmax))
    return " to ".join(dict.fromkeys(ends))


def _with_error(value: float, error: float) -> str:
    return f"{value:.3f}" if np.isnan(error) else f"{value:.3f} ± {error:.3f}"
