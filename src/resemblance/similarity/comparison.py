"""The `Comparison` of two networks' layers, which is the result of `compare`.

A `KernelComparison` has the scores of one kernel, a `FullComparison` those of features and of
gradients with the drift of copies. Both can be summarised, plotted, turned into a data frame, saved
and loaded. No similarity is computed here; `mean_over_layers` is the one definition of a mean over
layers and its standard error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch

from .._utils.formatting import count_noun, format_score, join_error, join_names, printable
from .._utils.notebook import HeatMap
from ..representation.notes import Note
from ..representation.schema import (
    COUNT,
    MAPPING,
    NOTES,
    ONE,
    REAL,
    TABLE,
    TEXT,
    YES_NO,
    list_of,
    one_of,
    optional,
    or_null,
)
from .agreement import AnyBehaviour, Behaviour
from .divergence import (
    LayerDivergence,
    divergence_if_tested,
    first_divergence,
)
from .drift import Coordinates
from .indices.registry import score_bounds
from .jackknife import jackknife_error, student_interval
from .kernels import ESTIMATORS, KERNELS, Estimator, Index, Kernel
from .neighbours import EmbeddingBehaviour
from .pairing import (
    MATCHING_RULES,
    LayerKey,
    MatchedBy,
    Matching,
    align_layers,
    match_layers,
)
from .permutations import permuted_level, permuted_p_value, q_values
from .results import Content, Plotted, Shape, StoredResult, count_samples
from .same_function import SameFunction

if TYPE_CHECKING:
    from typing_extensions import Self

_NORMAL_DF = 1000.0  # degrees of freedom: nearly normal
_ADDED_IN_0_2 = ("df", "p_value", "replicates", "n_eff", "effective_blocks")  # not in files of 0.1


@dataclass(frozen=True)
class Match:
    """For each layer of the rows, the most similar one among the columns."""

    rows: tuple[str, ...]
    nearest: tuple[str, ...]  # most similar layer
    nearest_scores: tuple[float, ...]
    aligned: tuple[str, ...]  # the best choice that keeps the order of layers
    aligned_scores: tuple[float, ...]


class BestPair(NamedTuple):
    """The most similar pair of layers, whose chance level is that of the best of all pairs."""

    row: str
    column: str
    score: float
    chance_high: float  # 95 % level of the highest score of the table; NaN without permutations
    calibrated: float  # how far above that level, from 0 to 1
    p_value: float

    def __repr__(self) -> str:
        numbers = (f"{x:.3g}" for x in (self.chance_high, self.calibrated, self.p_value))
        score, (high, calibrated, p) = format_score(self.score)[0], numbers
        return (
            f"BestPair(row={self.row!r}, column={self.column!r}, score={score}, "
            f"chance_high={high}, calibrated={calibrated}, p_value={p})"
        )


class Comparison(Plotted, StoredResult):
    """How similar the layers of two networks are, by features and gradients or by one kernel.

    `comparison["features"]` and `comparison["gradients"]` are the comparisons by one kernel, with
    scores, standard errors and more (`KernelComparison`). Without `kernel`, `compare` returns a
    `FullComparison`, which holds both; with it, the `KernelComparison` itself, so that its `scores`
    need no index.

    Attributes:
        notes: what a reader should know before using the result, see `Note`.
        coordinates: the drift of each layer; None if not known.
    """

    _kind = "comparison"
    notes: tuple[Note, ...]
    coordinates: Coordinates | None = None

    @property
    def parts(self) -> tuple[KernelComparison, ...]:
        """The comparisons by one kernel that it holds."""
        raise NotImplementedError

    def _maps(self) -> Iterator[HeatMap]:
        for part in self.parts:
            title = f"{part.kernel}: {' × '.join(part.models)}"
            yield HeatMap(title, part.scores, part.rows, part.columns)

    def _table(self) -> Mapping[str, Any]:
        columns = self._columns()
        matched = np.flatnonzero(columns["counterpart"])
        if not len(matched):
            matched = np.arange(len(columns["row"]))
        names = [x for x in ("kernel", "row", "column", "score", "stderr") if x in columns]
        return {name: np.asarray(columns[name])[matched] for name in names}

    def __getitem__(self, kernel: str) -> KernelComparison:
        for part in self.parts:
            if part.kernel == kernel:
                return part
        held = " and ".join(repr(part.kernel) for part in self.parts)
        raise KeyError(f"no comparison for kernel {kernel!r}; available: {held}")

    @classmethod
    def _from_dict(cls, content: Mapping[str, Any], where: str = "") -> Self:
        if cls is not Comparison:
            return super()._from_dict(content, where)
        kind = FullComparison if "features" in content else KernelComparison
        return kind._from_dict(content, where)  # type: ignore[return-value]


class _StoredBehaviour(Content):
    """What a file says of behaviour: of predictions, or of embeddings."""

    @classmethod
    def _from_dict(cls, content: Mapping[str, Any], where: str = "") -> Any:
        kind = EmbeddingBehaviour if "neighbours" in content else Behaviour
        return kind._from_dict(content, where)


@dataclass(frozen=True, eq=False, repr=False)
class KernelComparison(Comparison):
    """Similarities of the layers of two networks by one kernel. Rows are layers of `a`.

    `stderr` says how far a score may lie from its target. With up to 1,024 samples the score itself
    is exact, and the target is what as many samples drawn anew would score on average. Beyond, the
    score is estimated from a part of all pairs, and the target is the score of all samples that
    were recorded. For tokens it is always what other sequences would score on average.
    `cka-debiased` does not depend on the number of samples: its target is always the
    population's. None of them covers another training run.

    `plot` draws a heatmap of all pairs of layers beside a curve over layers with error bars, in
    which a ring marks the layer where the networks diverge. `to_frame` has one row for each pair of
    layers: row, column, score, stderr, low, high (of the 95 % interval), df, chance, chance_high,
    p_value, q_value, calibrated, n_eff_row, n_eff_column, effective_blocks, counterpart (whether
    the two are) and matched_by.

    Attributes:
        models: names of the two networks.
        rows: layers of the first network.
        columns: layers of the second network.
        scores: similarity of each row with each column; NaN where a layer is constant on the data.
        stderr: standard error of each score.
        chance: mean score when samples are paired at random; None if not known.
        chance_high: 95 % quantile of that score; None if not known.
        kernel: name of the kernel.
        index: name of the similarity index.
        centre: whether the kernels were centred.
        estimator: how the scores were estimated.
        paired: whether both networks were recorded on the same samples.
        samples: number of samples that entered the scores, of each network.
        notes: remarks that the summary repeats.
        df: degrees of freedom of each standard error; None if not known.
        p_value: the probability that samples paired at random score as high; None if not known.
        permuted_best: the largest score of the table with samples in each of the random orders
            that `permutations` asked for; None without.
        replicates: scores of each row and its counterpart with one group of samples left out, an
            array (groups, rows); None if not known.
        n_eff: effective sample size of each row's and each column's kernel, in samples or, for
            tokens, in sequences; None if not known.
        effective_blocks: effective number of blocks behind each score; None if not known.
        matched_by: how counterparts were found: by `name` (for copies, whatever wraps them), by
            `position` (as many layers of the same shapes) or by `similarity` (the alignment of
            scores, which flatters; side by side with features, gradients are compared at the
            counterparts that features have).
        matched: for each row, the index of its counterpart among the columns; None if it has none.
        tokens: tokens drawn from each sequence; None where samples are not tokens.
        behaviour: how differently the networks predict, or embed; None if not known.
    """

    models: tuple[str, str]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    scores: np.ndarray  # (rows, columns)
    stderr: np.ndarray
    chance: np.ndarray | None
    chance_high: np.ndarray | None
    kernel: Kernel
    index: Index
    centre: bool
    estimator: Estimator
    paired: bool
    samples: tuple[int, int]
    notes: tuple[Note, ...]
    df: np.ndarray | None = None
    p_value: np.ndarray | None = None
    permuted_best: np.ndarray | None = None  # (permutations,)
    replicates: np.ndarray | None = None  # (groups, rows)
    n_eff: tuple[np.ndarray, np.ndarray] | None = None  # (rows,), (columns,)
    effective_blocks: np.ndarray | None = None  # (rows, columns)
    matched_by: MatchedBy = None  # type: ignore[assignment]  # None: by names and scores, as below
    matched: tuple[int | None, ...] = None  # type: ignore[assignment]
    tokens: int | None = None
    behaviour: AnyBehaviour | None = None

    _rules: ClassVar = {
        "models": list_of(TEXT, 2, 2),
        "rows": list_of(TEXT, 1),
        "columns": list_of(TEXT, 1),
        "scores": TABLE,
        "stderr": TABLE,
        "chance": or_null(TABLE),
        "chance_high": or_null(TABLE),
        "kernel": one_of(*KERNELS),
        "index": TEXT,
        "centre": YES_NO,
        "estimator": one_of(*ESTIMATORS),
        "paired": YES_NO,
        "samples": list_of(COUNT, 2, 2),
        "notes": NOTES,
        **{key: optional(or_null(TABLE)) for key in _ADDED_IN_0_2},
        "permuted_best": optional(or_null(list_of(or_null(REAL)))),
        "matched_by": optional(one_of(*MATCHING_RULES)),  # nor were these
        "matched": optional(list_of(or_null(COUNT))),
        "tokens": optional(or_null(ONE)),
        "behaviour": optional(or_null(MAPPING)),
    }
    _parts: ClassVar = {"behaviour": _StoredBehaviour}

    def __post_init__(self) -> None:
        if self.matched_by is None or self.matched is None:
            sides = ([LayerKey(name) for name in names] for names in (self.rows, self.columns))
            found = match_layers(*sides, self.scores)
            object.__setattr__(self, "matched_by", found.by)
            object.__setattr__(self, "matched", found.columns)

    def _text(self) -> str:
        score = _score_with_error(*self.mean())
        return f"{self.models[0]!r}, {self.models[1]!r}, {score}, {self.heading}"

    @property
    def parts(self) -> tuple[KernelComparison, ...]:
        """This comparison alone."""
        return (self,)

    @property
    def heading(self) -> str:
        """What was computed, from what, on how many samples."""
        centred = "centred " if self.centre else ""
        count = count_samples(self.samples[0], self.tokens and self.samples[0] // self.tokens)
        if not self.paired:
            count = count.replace(" ", f" and {self.samples[1]:,} unpaired ", 1)
        return f"{self.index} of {centred}{self.kernel}, from {self.estimator}, {count}"

    @property
    def same_layers(self) -> bool:
        """Whether both networks have the same layers, so that the diagonal means something."""
        return self.rows == self.columns

    @property
    def calibrated(self) -> np.ndarray | None:
        """How far each score lies above chance, on a scale from 0 at its 95 % level to 1.

        (score − chance_high) / (best possible score − chance_high), and 0 at chance or below
        (Gröger et al. 2026). None if the chance level or the best possible score is not known.
        """
        best = score_bounds(self.index)[1]
        if self.chance_high is None or not np.isfinite(best):
            return None
        return _calibrate(self.scores, self.chance_high, best)

    @property
    def q_value(self) -> np.ndarray | None:
        """P-values corrected for the number of pairs of layers, after Benjamini and Hochberg.

        Calling all pairs with a q-value of at most 0.05 related makes a share of 5 % of those
        calls wrong on average. None if p-values are not known.
        """
        return None if self.p_value is None else q_values(self.p_value)

    def best(self) -> BestPair:
        """The pair of layers with the highest score, corrected for having chosen it.

        Its chance level is that of the highest score of the whole table: with samples in each of
        the random orders that `permutations` asked for, all pairs are compared, and the highest
        score is taken as here.

        Returns:
            The pair with its score; without `permutations`, what is corrected is NaN.
        """
        if np.isnan(self.scores).all():
            return BestPair("", "", *[np.nan] * 4)
        at = np.unravel_index(np.nanargmax(self.scores), self.scores.shape)
        score, high, p = self.scores[at], np.array(np.nan), np.array(np.nan)
        if self.permuted_best is not None:
            high = permuted_level(score, self.permuted_best)
            p = permuted_p_value(score, self.permuted_best)
        calibrated = _calibrate(score, high, score_bounds(self.index)[1])
        names = self.rows[at[0]], self.columns[at[1]]
        return BestPair(*names, *(float(x) for x in (score, high, calibrated, p)))

    def match(self) -> Match:
        """The most similar column of each row, and the best alignment that keeps layer order.

        The alignment maximises the sum of scores over all ways of giving each row a column such
        that later rows never get earlier columns. Both are found by scores alone, whatever the
        layers are called; `counterparts` are the layers that belong together.

        Returns:
            The names and scores of both choices.
        """
        nearest = np.nan_to_num(self.scores, nan=-1.0).argmax(1).tolist()
        return Match(self.rows, *self._chosen(nearest), *self._chosen(align_layers(self.scores)))

    def _chosen(self, columns: Sequence[int]) -> tuple[tuple[str, ...], tuple[float, ...]]:
        scores = (float(row[j]) for row, j in zip(self.scores, columns, strict=True))
        return tuple(self.columns[j] for j in columns), tuple(scores)

    @property
    def matching(self) -> Matching:
        """The counterpart of each row, and how it was found."""
        return Matching(self.matched_by, self.matched)

    def counterparts(self) -> tuple[np.ndarray, np.ndarray]:
        """Where in the table the rows that have a counterpart stand with it.

        Returns:
            Indices of the rows, and indices of their columns.
        """
        pairs = [(i, j) for i, j in enumerate(self.matched) if j is not None]
        rows, columns = np.array(pairs, dtype=int).reshape(-1, 2).T
        return rows, columns

    def of_counterparts(self, table: np.ndarray) -> np.ndarray:  # (..., rows, columns)
        """What a table of all pairs has for each row with its counterpart.

        Args:
            table: an array (..., rows, columns), such as `scores`.

        Returns:
            An array (..., rows); NaN for rows without a counterpart.
        """
        rows, columns = self.counterparts()
        out = np.full(table.shape[:-1], np.nan)
        out[..., rows] = table[..., rows, columns]
        return out

    def without_counterpart(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Layers of each network that were matched with none of the other's.

        By similarity, every layer of the rows has one, and columns may serve for several or none.

        Returns:
            Names of the first network's layers, and of the second's.
        """
        if self.matched_by == "similarity":
            return (), ()
        rows = tuple(x for x, j in zip(self.rows, self.matched, strict=True) if j is None)
        return rows, tuple(x for j, x in enumerate(self.columns) if j not in self.matched)

    def unmatched_sentences(self) -> Iterator[str]:
        """A sentence for each network that has layers without a counterpart.

        Yields:
            The sentences.
        """
        for model, names in zip(self.models, self.without_counterpart(), strict=True):
            if names:
                yield f"Layers of {printable(model)} without a counterpart: {join_names(names)}."

    def by_layer(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Score, standard error and chance level of each row with its counterpart.

        Returns:
            Scores (rows,), standard errors (rows,), and the mean and 95 % chance level
            (2, rows), which is None if not known; NaN for rows without a counterpart.
        """
        chance = None
        if self.chance is not None and self.chance_high is not None:
            chance = np.stack([self.of_counterparts(x) for x in (self.chance, self.chance_high)])
        return self.of_counterparts(self.scores), self.of_counterparts(self.stderr), chance

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """The lower and upper ends of intervals that hold the target of each score (see above).

        Student's t, with as many degrees of freedom as the standard errors were seen to have: few
        where a few samples dominate. Ends are kept in the range of the index. Bias, which
        buckets and NBS have, is not covered.

        Args:
            level: the probability that an interval holds its target, 0.95 by default.

        Returns:
            Lower and upper ends, arrays (rows, columns).
        """
        df = np.full(self.scores.shape, _NORMAL_DF) if self.df is None else self.df
        low, high = student_interval(self.scores, self.stderr, df, level)
        bounds = score_bounds(self.index)
        return np.clip(low, *bounds), np.clip(high, *bounds)

    def mean(self) -> tuple[float, float]:
        """The mean over rows with their counterparts, and its standard error.

        Layers without a counterpart or a score are left out.

        Returns:
            The mean and its standard error, which is NaN if not known.
        """
        value, error = mean_over_layers(self.by_layer()[0], self.replicates)
        return float(value), float(error)

    def parting(self, *, least: float | None = None) -> LayerDivergence:
        """The first layer at which the two networks diverge: where scores drop significantly.

        Features are compared in order from the input, where both networks agree. Gradients flow
        backwards, so they are compared in order from the output. Every drop from one scored layer
        to the next, the first one from 1, is tested with the jackknife of the difference. The
        probability of any false finding among all layers is 5 %.

        Args:
            least: falls that are no larger do not count. None takes 1e-4 for features and 1e-2 for
                gradients, above what 16-bit arithmetic leaves of a network and itself, and a
                ten-thousandth of that after layers that are exactly alike.

        Returns:
            The `layer`, the size of its `fall` with an interval, all that was `tested`, and a
            `sentence`.

        Raises:
            DataError: for other kernels, which mix both directions, for different samples, and for
                files that do not hold `replicates`.
        """
        return first_divergence(self, least)

    def carried_by(self) -> str | None:
        """On how many samples, and blocks of them, scores rest.

        Returns:
            A sentence without its full stop; None if not known.
        """
        if self.n_eff is None:
            return None
        samples = self.of_counterparts(np.minimum.outer(*self.n_eff))
        if not np.isfinite(samples).any():
            return None
        count = self.samples[0] // (self.tokens or 1)
        what = "samples" if self.tokens is None else "sequences"
        out = f"Effective sample size {_range_text(samples)} of {count:,} {what} (n_eff)"
        if self.effective_blocks is not None:
            blocks = self.of_counterparts(self.effective_blocks)
            out += f", scores on {_range_text(blocks)} blocks" if np.isfinite(blocks).any() else ""
        return out

    def _sentences(self) -> list[str]:
        value, error, chance = self.by_layer()
        lines = [f"{printable(self.models[0])} and {printable(self.models[1])}: {self.heading}."]
        if np.isnan(value).all():
            lines.append("No layer has a defined score.")
        else:
            there = self.counterparts()[0]
            missing = int(np.isnan(value[there]).sum())
            without = f" ({missing} layers without a score excluded)" if missing else ""
            most, least = (
                f"{printable(self.rows[i])} ({_score_with_error(value[i], error[i])})"
                for i in (np.nanargmax(value), np.nanargmin(value))
            )
            lines.append(
                f"Mean over layers matched by {self.matched_by} {_score_with_error(*self.mean())}"
                f"{without}; highest at {most}, lowest at {least}."
            )
            if chance is not None:
                lines.append(
                    f"Randomly paired samples would score {np.nanmean(chance[0]):.3f} on average; "
                    f"{(value > chance[1]).sum()} of {len(there)} layers are above the 95 % chance "
                    "level."
                )
            if self.permuted_best is not None:
                best = self.best()
                lines.append(
                    f"The best of {self.scores.size} pairs, {printable(best.row)} with "
                    f"{printable(best.column)}, scores {best.score:.3f}, calibrated "
                    f"{best.calibrated:.3f} (p = {best.p_value:.2g}, corrected for taking the "
                    "best)."
                )
            if (tested := divergence_if_tested(self)) and tested.found:
                lines.append(tested.sentence)
        if self.behaviour is not None and self.models[0] != self.models[1]:
            lines.append(self.behaviour.summary())
        lines += self.unmatched_sentences()
        if carried := self.carried_by():
            lines.append(f"{carried}.")
        return lines

    def _columns(self) -> Mapping[str, Any]:
        shape = self.scores.shape
        blank = np.full(shape, np.nan)
        low, high = self.interval()
        of_rows, of_columns = (blank[:, 0], blank[0]) if self.n_eff is None else self.n_eff
        belong = np.zeros(shape, dtype=bool)
        belong[self.counterparts()] = True
        tables = {
            "score": self.scores,
            "stderr": self.stderr,
            "low": low,
            "high": high,
            "df": self.df,
            "chance": self.chance,
            "chance_high": self.chance_high,
            "p_value": self.p_value,
            "q_value": self.q_value,
            "calibrated": self.calibrated,
            "n_eff_row": np.broadcast_to(of_rows[:, None], shape),
            "n_eff_column": np.broadcast_to(of_columns, shape),
            "effective_blocks": self.effective_blocks,
            "counterpart": belong,
        }
        return {
            "row": np.repeat(self.rows, shape[1]),
            "column": np.tile(self.columns, shape[0]),
            **{key: (blank if x is None else x).ravel() for key, x in tables.items()},
            "matched_by": self.matched_by,
        }

    @classmethod
    def _shapes(cls, content: Mapping[str, Any]) -> Mapping[str, Shape]:
        rows, columns = len(content["rows"]), len(content["columns"])
        matched = content.get("matched", [None] * rows)
        if len(matched) != rows or any(j is not None and j >= columns for j in matched):
            raise ValueError(f"matched must name one of {columns} columns for each of {rows} rows")
        tables = ("scores", "stderr", "chance", "chance_high", "df", "p_value", "effective_blocks")
        return {
            **dict.fromkeys(tables, (rows, columns)),
            "permuted_best": (-1,),
            "replicates": (-1, rows),
            "n_eff": [(rows,), (columns,)],
        }


@dataclass(frozen=True, eq=False, repr=False)
class FullComparison(Comparison):
    """Features and gradients of two networks side by side, with their predictions and drift.

    It has no scores of its own: those are in `comparison["features"]` and
    `comparison["gradients"]`. `plot` draws a heatmap for each kernel beside the curves of both;
    `to_frame` has one row for each kernel and pair of layers: kernel, then row, column, score,
    stderr, low, high, df, chance, chance_high, p_value, q_value, calibrated, n_eff_row,
    n_eff_column, effective_blocks, counterpart and matched_by, as of a `KernelComparison`.

    Attributes:
        features: the comparison by features.
        gradients: the comparison by gradients; None if they cannot be compared, and a note says
            why.
        coordinates: the drift of each layer (`rs.coordinates`), which means something if `shared`;
            None if the recordings cannot be subtracted.
        notes: what a reader should know before using the result. Those of one kernel name it.
        same_function: what became of each layer where predictions are equal but for rounding and
            units are not: permuted, rescaled or rotated; None otherwise.
    """

    features: KernelComparison
    gradients: KernelComparison | None = None
    coordinates: Coordinates | None = None
    notes: tuple[Note, ...] = ()
    same_function: SameFunction | None = None

    _rules: ClassVar = {
        "same_function": optional(or_null(MAPPING)),
        "features": MAPPING,
        "gradients": or_null(MAPPING),
        "coordinates": or_null(MAPPING),
        "notes": NOTES,
    }
    _parts: ClassVar = {
        "features": KernelComparison,
        "gradients": KernelComparison,
        "coordinates": Coordinates,
        "same_function": SameFunction,
    }

    def __getattr__(self, name: str) -> Any:
        if hasattr(KernelComparison, name) or name in KernelComparison.__dataclass_fields__:
            raise AttributeError(
                f"{name!r} belongs to a single kernel, but this comparison has features and "
                f'gradients: use c["features"].{name}, or compare with `kernel="features"`'
            )
        raise AttributeError(f"a comparison has no {name!r}")

    @property
    def parts(self) -> tuple[KernelComparison, ...]:
        """The comparisons by features and, if there is one, by gradients."""
        return (self.features, self.gradients) if self.gradients else (self.features,)

    @property
    def models(self) -> tuple[str, str]:
        """Names of the two networks."""
        return self.features.models

    @property
    def behaviour(self) -> AnyBehaviour | None:
        """How differently the networks predict, or embed; None if not known."""
        return self.features.behaviour

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings, under the same keys whatever is known.

        Returns:
            The fields by name, with `parting` (where networks diverge by each kernel) and
            `behaviour`; None where something is not known.
        """
        found = super().to_dict()
        divergences: dict[str, Any] = {"features": None, "gradients": None}
        for part in self.parts:
            if tested := divergence_if_tested(part):
                divergences[part.kernel] = {k: x for k, x in vars(tested).items() if k != "tested"}
        return {**found, "parting": divergences, "behaviour": found["features"]["behaviour"]}

    def _text(self) -> str:
        means = (f"{x.kernel} {_score_with_error(*x.mean())}" for x in self.parts)
        return f"{self.models[0]!r}, {self.models[1]!r}, {', '.join(means)}, {self.heading}"

    @property
    def heading(self) -> str:
        """What was computed, from what, on how many samples."""
        kinds = [f"{'centred ' if x.centre else ''}{x.kernel}" for x in self.parts]
        starts = [f"{x.index} of {kind}" for x, kind in zip(self.parts, kinds, strict=True)]
        ends = {x.heading.removeprefix(y) for x, y in zip(self.parts, starts, strict=True)}
        if len(ends) > 1:
            return "; ".join(x.heading for x in self.parts)
        return f"{starts[0]}{' and '.join(['', *kinds[1:]])}{ends.pop()}"

    def _sentences(self) -> Iterator[str]:
        yield f"{printable(self.models[0])} and {printable(self.models[1])}: {self.heading}."
        yield self._means()
        for part in self.parts:
            if tested := divergence_if_tested(part):
                yield tested.sentence
        if self.behaviour is not None:
            yield self.behaviour.summary()
        if self.same_function is not None:
            yield from self.same_function.sentences()
        yield from self.features.unmatched_sentences()

    def _means(self) -> str:
        means, total = [], len(self.features.rows)
        for part in self.parts:
            count = int(np.isfinite(part.by_layer()[0]).sum())
            some = "" if count == total else f" (of {count} layers)"
            mean = f"{_score_with_error(*part.mean())}{some}" if count else "none"
            means.append(f"{part.kernel} {mean}")
        rules = {part.matched_by for part in self.parts}
        by = f" by {rules.pop()}" if len(rules) == 1 else ""
        return f"Mean over {count_noun(total, 'layer', 'layers')} matched{by}: {', '.join(means)}."

    def _columns(self) -> Mapping[str, Any]:
        number = self.features.scores.size
        tables = [part._columns() for part in self.parts]
        return {
            "kernel": np.repeat([part.kernel for part in self.parts], number),
            **{
                name: np.concatenate([np.broadcast_to(table[name], number) for table in tables])
                for name in tables[0]
            },
        }


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
    error = np.full(number.shape, np.nan)
    with np.errstate(invalid="ignore"):
        value = np.where(there, scores, 0.0).sum(0) / number
        if replicates is not None and len(replicates) > 1:
            left_out = np.where(there, replicates, 0.0).sum(1) / number
            error = jackknife_error(torch.from_numpy(left_out)).numpy()
    return value, error


def _calibrate(scores: np.ndarray, chance_high: np.ndarray, best: float) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return ((scores - chance_high) / (best - chance_high)).clip(0, 1)


def _range_text(numbers: np.ndarray) -> str:
    ends = (f"{end(numbers):,.0f}" for end in (np.nanmin, np.nanmax))
    return " to ".join(dict.fromkeys(ends))


def _score_with_error(value: float, error: float) -> str:
    return join_error(format_score(value, error))
