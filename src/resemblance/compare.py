"""`compare`: two Representations in, a table of similarities with standard errors out.

This module decides which estimator may be used, refuses what cannot be compared, and holds the
result. The arithmetic is in `from_blocks` (exact kernels of shared samples) and `from_buckets`
(sketches of any data).
"""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import from_blocks, from_buckets, indices, kernels
from .errors import DataError, FormatError, MismatchError, MissingExtra, ResemblanceWarning
from .files import write_atomically
from .representation import Representation, difference

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

ESTIMATORS = ("auto", "blocks", "buckets", "paper")
_UNPAIRED = (
    "the two networks saw different samples, which are paired by position alone: such scores mean "
    "little in theory. No labels are needed, so record both on one shared set of samples instead"
)
_PRODUCT = (
    "the product of bucket kernels is not a sketch of the product kernel (different samples of a "
    "bucket meet in it): compare such scores only with each other"
)
_NBS = (
    "NBS from a sketch or from blocks lies above that of all samples where kernels have many "
    "directions: compare such scores only with each other"
)


@dataclass(frozen=True)
class Match:
    """For each layer of the rows, its counterpart among the columns."""

    rows: tuple[str, ...]
    nearest: tuple[str, ...]  # most similar layer
    nearest_scores: tuple[float, ...]
    aligned: tuple[str, ...]  # the best choice that keeps the order of layers
    aligned_scores: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """Similarities of the layers of two networks. Rows are layers of `a`, columns those of `b`."""

    models: tuple[str, str]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    scores: np.ndarray  # (rows, columns); NaN where a layer is constant on these data
    stderr: np.ndarray
    chance: np.ndarray | None  # mean score when samples are paired at random; None if not known
    chance_high: np.ndarray | None  # its 95 % quantile
    kernel: str
    index: str
    centre: bool
    estimator: str  # "blocks", "buckets" or "paper"
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
        best = scores.argmax(1)
        total, came_from = scores[0].copy(), []
        for row in scores[1:]:
            upto = np.maximum.accumulate(total)
            # the first column that reaches the running maximum
            where = np.maximum.accumulate(np.where(total == upto, np.arange(len(total)), 0))
            came_from.append(where)
            total = row + upto
        path = [int(total.argmax())]
        for where in reversed(came_from):
            path.append(int(where[path[-1]]))
        path.reverse()
        return Match(
            rows=self.rows,
            nearest=tuple(self.columns[j] for j in best),
            nearest_scores=tuple(float(self.scores[i, j]) for i, j in enumerate(best)),
            aligned=tuple(self.columns[j] for j in path),
            aligned_scores=tuple(float(self.scores[i, j]) for i, j in enumerate(path)),
        )

    def by_layer(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Score, standard error and chance (mean, high) of each row with its counterpart.

        The counterpart is the layer of the same name where all agree, else the aligned one.
        """
        if self.same_layers:
            columns = list(range(len(self.rows)))
        else:
            columns = [self.columns.index(name) for name in self.match().aligned]
        at = (np.arange(len(self.rows)), columns)
        chance = None
        if self.chance is not None and self.chance_high is not None:
            chance = np.stack([self.chance[at], self.chance_high[at]])
        return self.scores[at], self.stderr[at], chance

    def summary(self) -> str:
        """The comparison in a few plain sentences."""
        value, error, chance = self.by_layer()
        which = "same-named" if self.same_layers else "aligned"
        lines = [f"{self.models[0]} and {self.models[1]}: {self.heading}."]
        if np.isnan(value).all():
            lines.append("No layer has a defined score.")
            return "\n".join([*lines, *(f"Note: {note}." for note in self.notes)])
        low, high = int(np.nanargmin(value)), int(np.nanargmax(value))
        lines.append(
            f"Mean over {which} layers {np.nanmean(value):.3f}; most alike at {self.rows[high]} "
            f"({_with_error(value[high], error[high])}), least at {self.rows[low]} "
            f"({_with_error(value[low], error[low])})."
        )
        if chance is not None:
            above = int((value > chance[1]).sum())
            lines.append(
                f"Unrelated samples would score {np.nanmean(chance[0]):.3f} on average; "
                f"{above} of {len(value)} layers lie above the 95 % level of chance."
            )
        return "\n".join([*lines, *(f"Note: {note}." for note in self.notes)])

    def plot(self) -> Figure:
        """A map of all pairs of layers beside a layer-by-layer curve with error bars."""
        from . import plot

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
        try:
            import pandas
        except ImportError as error:
            raise MissingExtra(
                "to_frame needs pandas: pip install 'resemblance[frames]'"
            ) from error
        shape = self.scores.shape
        blank = np.full(shape, np.nan)
        return pandas.DataFrame(
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


# -- comparing ----------------------------------------------------------------------------------


def compare(
    a: Representation,
    b: Representation,
    *,
    kernel: str = "product",
    index: str = "cka",
    centre: bool | None = None,
    estimator: str = "auto",
) -> Comparison:
    """How alike two networks are, layer by layer, with standard errors and a chance level.

    Args:
        a, b: from `record`, with the same seed and settings.
        kernel: `features` (same eyes?), `gradients` (same aims?), `product` (both: the paper's),
            `sum`, `elementwise`, `transport`.
        index: `cka`, `cka-debiased` (chance is zero, whatever the number of samples), `nbs`,
            `spectral` (needs no pairing of samples), `rsa`. On centred features NBS is the
            Procrustes similarity. The CCA family needs the features themselves, which a
            Representation does not keep; CKA took its place because CCA cannot tell apart
            layers wider than the number of samples (Kornblith et al. 2019).
        centre: take the mean over samples off first. None does so for `features`, where the mean
            otherwise drowns everything, and not for the others, as in the paper.
        estimator: `blocks` (exact kernels of shared samples: unbiased, with a chance level),
            `buckets` (sketches: any two data sets), `paper` (Algorithm 1 as published). `auto`
            takes blocks when both networks saw the same samples, else buckets; for `nbs` it
            takes buckets, whose bias is smaller.

    Bias and cost: see `from_blocks.scores` and `from_buckets.scores`.

    >>> import torch, resemblance as rs
    >>> x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    >>> rep = rs.record_arrays(x, data_id="x")
    >>> float(rs.compare(rep, rep, kernel="features").scores[0, 0].round(6))
    1.0
    """
    kernels.check(kernel)
    indices.check(index)
    if estimator not in ESTIMATORS:
        raise DataError(f"estimator must be one of {', '.join(ESTIMATORS)}; found {estimator!r}")
    check_recorded(a, b, kernel)
    estimator = _choose(a, b, index, estimator)
    if centre is None:
        centre = kernel == "features" and estimator != "paper"
    paired = same_samples(a, b)
    if estimator == "blocks":
        samples = (sum(a.block_sizes), sum(b.block_sizes))
        estimate = _from_blocks(a, b, kernel, index, centre, paired)
    else:
        samples = (a.samples, b.samples)
        estimate = from_buckets.scores(a, b, kernel, index, centre, paper=estimator == "paper")
    notes = _notes(kernel, index, estimator)
    alarms = [] if paired or index == "spectral" else [_UNPAIRED]
    alarms += _constant_layers(a, b, estimate.alive)
    for alarm in alarms:
        warnings.warn(alarm, ResemblanceWarning, stacklevel=2)
    return Comparison(
        models=(a.name, b.name),
        rows=tuple(a.layer_names),
        columns=tuple(b.layer_names),
        scores=estimate.scores,
        stderr=estimate.stderr,
        chance=estimate.chance,
        chance_high=estimate.chance_high,
        kernel=kernel,
        index=index,
        centre=centre,
        estimator=estimator,
        paired=paired,
        samples=samples,
        notes=(*notes, *alarms),
    )


def _choose(a: Representation, b: Representation, index: str, estimator: str) -> str:
    """The estimator to use, or an error that says why the one asked for cannot be."""
    no_block = no_blocks(a, b, paired=index != "spectral")
    no_bucket = no_buckets(a, b)
    if estimator == "auto":
        # NBS grows with fewer samples than directions, and there are more buckets than block rows
        sketched = index == "nbs" and not no_bucket and a.settings.buckets > a.settings.block
        estimator = "buckets" if no_block or sketched else "blocks"
    if index in ("rsa", "cka-debiased") and estimator != "blocks":
        raise MismatchError(
            f"{index} needs blocks of shared samples: {no_block or f'estimator is {estimator!r}'}; "
            "record both on the same samples, or use index='cka'"
        )
    if estimator == "blocks" and no_block:
        raise MismatchError(
            f"blocks cannot be compared: {no_block}; record both with the same data, seed and "
            "block size, or use estimator='buckets'"
        )
    if estimator != "blocks" and no_bucket:
        raise MismatchError(
            f"buckets cannot be compared: {no_bucket}; record both with the same sketch"
            + (f" (nor can blocks: {no_block})" if no_block else ", or use estimator='blocks'")
        )
    return estimator


def _from_blocks(
    a: Representation, b: Representation, kernel: str, index: str, centre: bool, paired: bool
) -> from_blocks.Estimate:
    if index == "nbs":
        return from_blocks.nbs_scores(a, b, kernel, centre)
    if index == "spectral":
        together = paired and a.block_numbers == b.block_numbers
        return from_blocks.spectral_scores(a, b, kernel, centre, paired=together)
    return from_blocks.scores(a, b, kernel, index, centre)


def _notes(kernel: str, index: str, estimator: str) -> list[str]:
    """What the reader of a score should know about how it was made."""
    notes = []
    if kernel == "product" and estimator == "buckets":
        notes.append(_PRODUCT)
    if index == "nbs":
        notes.append(_NBS)
    if kernel == "transport":
        notes.append(
            f"transport inverts K_f on eigenvalues above {kernels.TRANSPORT_FLOOR:g} of their mean"
        )
    return notes


def _constant_layers(
    a: Representation, b: Representation, alive: tuple[np.ndarray, np.ndarray]
) -> list[str]:
    """A sentence on each layer whose scores are undefined."""
    dead = {
        (rep.name, name): None  # once, also when a network is compared with itself
        for rep, lives in zip((a, b), alive, strict=True)
        for name, live in zip(rep.layer_names, lives, strict=True)
        if not live
    }
    return [constant_layer(model, name) for model, name in dead]


def constant_layer(model: str, name: str) -> str:
    """What to say of a layer with no direction."""
    return (
        f"layer {name!r} of {model!r} is constant on these data, or nearly so: its scores are "
        "undefined"
    )


def same_samples(a: Representation, b: Representation) -> bool:
    """Whether both were recorded on the same samples, by fingerprint."""
    return a.samples == b.samples and a.data["fingerprint"] == b.data["fingerprint"]


def no_blocks(a: Representation, b: Representation, *, paired: bool = True) -> str | None:
    """Why the blocks of two Representations cannot be compared, or None if they can."""
    if not a.block_sizes or not b.block_sizes:
        return "no blocks were recorded"
    sizes = max(a.block_sizes), max(b.block_sizes)
    if min(sizes) < 2:
        return "a single sample has no pairs"
    if not paired:
        return None if sizes[0] == sizes[1] else f"block differs: {sizes[0]} and {sizes[1]} samples"
    if not same_samples(a, b):
        return "they were recorded on different samples"
    trouble = difference(a, b, ("seed", "block"))
    if trouble is None and (a.block_sizes, a.block_numbers) != (b.block_sizes, b.block_numbers):
        return "their blocks hold different samples"
    return trouble


def no_buckets(a: Representation, b: Representation) -> str | None:
    """Why the buckets of two Representations cannot be compared, or None if they can."""
    if not a.settings.buckets or not b.settings.buckets:
        return "none were recorded"
    return difference(a, b, ("seed", "buckets", "per_sample", "max_dim"))


def check_recorded(a: Representation, b: Representation, kernel: str) -> None:
    """An error if a kernel was not recorded, or not in the same way, by both."""
    for rep in (a, b):
        for kind in kernels.needs(kernel):
            if kind not in rep[0].kinds:
                remedy = (
                    "record it again with elementwise=True"
                    if kind == "elementwise"
                    else "use kernel='features', or record it again with gradients"
                )
                raise MismatchError(
                    f"kernel {kernel!r} needs {kind}, which {rep.name!r} lacks; {remedy}"
                )
    names = ["pool"] if kernel == "features" else ["pool", "target", "beta"]
    trouble = difference(a, b, names)
    if trouble:
        raise MismatchError(f"{trouble}; record both with the same setting")
