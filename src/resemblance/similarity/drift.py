"""Drift of each layer of a copy from its origin, in decibels of SQNR (`coordinates`).

Kernels do not depend on the order or basis of a layer's units. A copy that was rounded, pruned or
fine-tuned keeps its origin's units, and a network trained separately does not. So recordings of
copies can be subtracted: here layers are matched, recordings that cannot be subtracted are refused,
and `Coordinates` is the result. `drift_of_copies` has all pairs of many networks.

A sketch Y = S X P (128 × 256) holds samples X (N × D) up to two random maps that are the same for
both networks, so Y_a − Y_b is the sketch of X_a − X_b. The mean over samples is subtracted first:
Y_c = Y − c m̄ᵀ is exactly the sketch of centred samples, with c the sums of the signs and m̄ the
folded mean. Then, over sketches,

    E[‖Y_c‖² + N ‖m̄‖²] = ‖X‖²,

with a variance of 2/128 Σ_{i≠j} K_ij² from samples that share a row, K = X_c X_cᵀ, and of
2/256 Σ_{j≠l} C_jl² from features that share a column, C = XᵀX. Y holds unbiased sketches of both
sums: of the first, the off-diagonal entries of Y_c Y_cᵀ. What rows and columns both count is
subtracted once. All other values are smooth functions of such squares, with first-order errors.

Networks trained separately number their units (channels of images, else features) in any order, so
their cosine is one draw from those of all permutations of units. Mean and spread of these come from
the matrix of inner products U_uv of unit u of one network and unit v of the other, over samples and
positions: a permutation π gives Σ_u U_uπ(u). Counterparts (u = v) are excluded. The cosine must
exceed all but a stated rate of what permutations give. Beyond 256 features U is itself a sketch;
its known noise is subtracted from the spread, and added where it blurs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._ops.count_sketch import COLUMNS, column_assignment
from .._utils.formatting import printable
from ..errors import DataError, MismatchError
from ..representation.layer import Kind, Layer, Sketch
from ..representation.notes import Note, make_note
from ..representation.representation import (
    Representation,
    RepresentationLike,
    Settings,
    as_representation,
    settings_difference,
)
from ..representation.schema import (
    COUNT,
    NOTES,
    ONE,
    REAL,
    TABLE,
    TEXT,
    list_of,
    one_of,
    or_null,
)
from .divergence import LayerDivergence, first_drift
from .jackknife import effective_number, standard_error
from .pairing import (
    MATCHING_RULES,
    MatchedBy,
    Matching,
    check_recorded,
    check_same_samples,
    layer_keys,
    match_layers,
    pairing_obstacle,
)
from .results import Shape, StoredResult

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Self


_VALUE_COLUMNS = [
    name + end for name in ("decibels", "cosine", "mean_share") for end in ("", "_stderr")
]


@dataclass(frozen=True, eq=False, repr=False)
class Coordinates(StoredResult):
    """The drift of each layer of a copy `b` from its origin `a`, where both have the same units.

    Standard errors say how far a value may lie from that of the activations themselves on the
    samples recorded; they do not cover other samples. `to_frame` has one row for each layer and
    kind: layer, counterpart, kind, decibels, cosine and mean_share, each with its `_stderr`, and
    for features chance, chance_high and shared.

    Attributes:
        models: names of the two networks.
        layers: layers of `a`.
        counterparts: for each layer, its counterpart in `b`.
        matched_by: how layers were matched: by name or by position.
        kinds: features, and gradients where both recordings have them.
        decibels: −10 log₁₀ ‖X_a − X_b‖² / ‖X_a‖², the signal-to-noise ratio: 20 for a
            relative error of a tenth, 0 for an error as large as the activations; infinite
            where nothing changed. An array (kinds, layers), like the next five.
        decibels_stderr: standard error of the decibels.
        cosine: cosine of X_a and X_b; of features after subtracting their means.
        cosine_stderr: standard error of the cosine.
        mean_share: the share of ‖X_a − X_b‖² that is a change of the mean over samples.
        mean_share_stderr: standard error of that share.
        chance: for each layer, the mean cosine of features with units in random order.
        chance_high: for each layer, the cosine that a network trained independently exceeds at any
            layer with the probability `alarms`; NaN where a layer has too few units to decide, or
            is constant.
        alarms: false alarm rate of `shared`.
        floor: decibels that round-off alone leaves; a smaller change cannot be distinguished.
        samples: number of samples, or of tokens.
        tokens: tokens drawn from each sequence; None where samples are not tokens.
        left_out: layers of `a` without a counterpart of their shape.
        notes: remarks that the summary repeats.
    """

    models: tuple[str, str]
    layers: tuple[str, ...]
    counterparts: tuple[str, ...]
    matched_by: MatchedBy
    kinds: tuple[Kind, ...]
    decibels: np.ndarray  # (kinds, layers)
    decibels_stderr: np.ndarray
    cosine: np.ndarray
    cosine_stderr: np.ndarray
    mean_share: np.ndarray
    mean_share_stderr: np.ndarray
    chance: np.ndarray  # (layers,)
    chance_high: np.ndarray
    alarms: float
    floor: float
    samples: int
    tokens: int | None = None
    left_out: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()

    _kind = "coordinates"
    _also = ("shared", "shared_layers")
    _rules: ClassVar = {
        "models": list_of(TEXT, 2, 2),
        "layers": list_of(TEXT, 1),
        "counterparts": list_of(TEXT, 1),
        "matched_by": one_of(*MATCHING_RULES),
        "kinds": list_of(one_of("features", "gradients"), 1, 2),
        **dict.fromkeys(_VALUE_COLUMNS, TABLE),
        "chance": list_of(or_null(REAL)),
        "chance_high": list_of(or_null(REAL)),
        "alarms": REAL,
        "floor": REAL,
        "samples": COUNT,
        "tokens": or_null(ONE),
        "left_out": list_of(TEXT),
        "notes": NOTES,
    }

    @classmethod
    def _shapes(cls, content: Mapping[str, Any]) -> Mapping[str, Shape]:
        layers, names = len(content["layers"]), ("chance", "chance_high")
        table = len(content["kinds"]), layers
        return {**dict.fromkeys(_VALUE_COLUMNS, table), **dict.fromkeys(names, (layers,))}

    @classmethod
    def _from_dict(cls, content: Mapping[str, Any], where: str = "") -> Self:
        found = super()._from_dict(content, where)
        unchanged = np.isnan(found.decibels) & np.isnan(found.mean_share)
        found.decibels[unchanged & np.isfinite(found.cosine)] = np.inf  # null in a file
        return found

    def __getitem__(self, column: str) -> np.ndarray:  # (kinds, layers)
        if column not in _VALUE_COLUMNS:
            raise DataError(f"no column {column!r}; there are {', '.join(_VALUE_COLUMNS)}")
        found: np.ndarray = getattr(self, column)
        return found

    def _text(self) -> str:
        share = "none shared"
        if self.shared:
            share = f"same unit order, {np.nanmin(self.decibels[0], initial=np.inf):.1f} dB or more"
        return f"{self.models[0]!r}, {self.models[1]!r}, {len(self.layers)} layers, {share}"

    @property
    def shared_layers(self) -> np.ndarray:  # (layers,) bool
        """At which layers the cosine of features is above what units in any order would give."""
        above: np.ndarray = self.cosine[0] > self.chance_high
        return above

    @property
    def shared(self) -> bool:
        """Whether the units of any layer are in the same order: one descends from the other, or
        both from a third. Units with a given meaning, such as those of logits, always are."""
        return bool(self.shared_layers.any())

    def parting(self, *, least: float = 6.0) -> LayerDivergence:
        """The first layer at which the copy drifts: whose features changed significantly.

        Layers are compared in order from the input, each with the one before it, and the first
        with the rounding error of a recording. The probability of any false finding is 5 %. See
        `divergence`.

        Args:
            least: falls of no more decibels than that do not count.

        Returns:
            The layer, or that none was found, with what it is judged by.
        """
        return first_drift(self, least)

    def to_frame(self, *, always: bool = False) -> pandas.DataFrame:
        """The drift as a pandas table, see above.

        Args:
            always: keep values that mean nothing as the networks share no units; by default, these
                are NaN.

        Returns:
            A table with a row for each layer and kind.
        """
        table = super().to_frame()
        if not (always or self.shared):
            table[_VALUE_COLUMNS] = np.nan
        return table

    def _columns(self) -> Mapping[str, Any]:
        kinds, layers = len(self.kinds), len(self.layers)
        blank = np.full((kinds - 1) * layers, np.nan)
        return {
            "layer": np.tile(self.layers, kinds),
            "counterpart": np.tile(self.counterparts, kinds),
            "kind": np.repeat(self.kinds, layers),
            **{name: self[name].ravel() for name in _VALUE_COLUMNS},
            "chance": np.concatenate([self.chance, blank]),
            "chance_high": np.concatenate([self.chance_high, blank]),
            "shared": np.tile(self.shared_layers, kinds),
        }

    def _sentences(self) -> list[str]:
        a, b = (printable(model) for model in self.models)
        n, what = self.samples, "samples" if self.tokens is None else "tokens"
        lines = [
            f"{a} and {b}: {len(self.layers)} layers matched by {self.matched_by}, {n:,} {what}."
        ]
        at = np.flatnonzero(self.shared_layers)
        if self.shared:
            lines.append(
                f"Their units are in the same order, as {len(at)} of {len(self.layers)} layers "
                f"show (false-alarm rate: {self.alarms:g})."
            )
            lines += [self._changed(i) for i in range(len(self.kinds))]
            if (found := self.parting()).found:
                lines.append(found.sentence)
        else:
            lines.append(
                "Their units do not appear to be in the same order: no layer's cosine similarity "
                f"is above that of permuted units (false-alarm rate: {self.alarms:g}). SQNR is "
                "meaningless here; use compare, which does not depend on the order of units."
            )
        if self.left_out:
            lines.append(
                "Layers without a counterpart of the same shape: "
                f"{', '.join(map(printable, self.left_out))}."
            )
        return lines

    def _changed(self, kind: int) -> str:
        """The least and the most changed layer."""
        values, errors = self.decibels[kind], self.decibels_stderr[kind]
        name = self.kinds[kind].capitalize()
        if np.isnan(values).all():
            return f"{name}: no layer to compare."

        def change_at(i: int) -> str:
            layer = printable(self.layers[i])
            if np.isinf(values[i]):
                return f"not at all at {layer}"
            beyond = ", beyond what rounding leaves" if values[i] > self.floor else ""
            return f"by {values[i]:.1f} ± {errors[i]:.1f} dB at {layer}{beyond}"

        least, most = int(np.nanargmax(values)), int(np.nanargmin(values))
        return f"{name} changed least: {change_at(least)}; most: {change_at(most)}."


FALSE_ALARM_RATE = 1e-3  # of a comparison
# Of what rounding changes, in squares and of values spread evenly between two powers of two: a
# twelfth of a squared step, over their mean square.
_ROUNDING_VARIANCE = 1 / 12 / (7 / 3)


def coordinates(a: RepresentationLike, b: RepresentationLike) -> Coordinates:
    """How far each layer of a copy `b` moved from its origin `a`, in decibels, and the cosine.

    For copies, rounded, pruned or tuned: layers of one shape (matched by name, else by position)
    whose units were never exchanged. It says by itself whether that is so (`shared`), with a false
    alarm in a thousand comparisons of networks that were trained apart; where it is not so, use
    `compare`.

    ‖X_a‖² is known exactly; the rest is from sketches of 128 × 256 numbers a layer, unbiased, with
    standard errors about the values of all samples recorded. They are at most 0.2 dB and 0.03 where
    a change has ten directions or more, and 0.7 dB where it has one. Cost: a few products of such
    tables a layer, and for `shared` O(positions · units²), of at most 128 units. Channels of images
    are units; `record_arrays` keeps no channels, so give it vectors, or images that were pooled.

    Args:
        a: a recording of the origin, to which changes are relative, or the path of its file.
        b: a recording of the copy on the same samples with the same seed, or the path of its file.

    Returns:
        Decibels, cosines and shares of the mean of each layer with their standard errors.

    Raises:
        MismatchError: if samples or settings differ, or no layers of equal shape are there.

    Example:
        >>> import torch, resemblance as rs
        >>> x = torch.randn(500, 40, generator=torch.Generator().manual_seed(0))
        >>> a, b = (rs.record_arrays(y, data_id="x") for y in (x, 0.9 * x))
        >>> found = rs.coordinates(a, b)
        >>> found.shared, round(float(found.decibels[0, 0])), round(float(found.cosine[0, 0]), 3)
        (True, 20, 1.0)
    """
    a, b = as_representation(a), as_representation(b)
    check_subtractable(a, b)
    matching, pairs = layer_pairs(a, b)
    kinds, notes = comparable_kinds(a, b)
    drifts = [[pair_drift(x, y, kind, a, b) for x, y in pairs] for kind in kinds]
    columns = np.array(drifts).reshape(len(kinds), len(pairs), len(_VALUE_COLUMNS))
    chances = [
        pair_permuted_cosine(x, y, drift, a, b, FALSE_ALARM_RATE / len(pairs))
        for (x, y), drift in zip(pairs, drifts[0], strict=True)
    ]
    return Coordinates(
        models=(a.name, b.name),
        layers=tuple(one.name for one, _ in pairs),
        counterparts=tuple(two.name for _, two in pairs),
        matched_by=matching.by,
        kinds=kinds,
        **dict(zip(_VALUE_COLUMNS, np.moveaxis(columns, -1, 0), strict=True)),
        chance=np.array([x.mean for x in chances]),
        chance_high=np.array([x.high for x in chances]),
        alarms=FALSE_ALARM_RATE,
        floor=_rounding_floor(a, b),
        samples=a.samples,
        tokens=a.settings.tokens_of_each,
        left_out=tuple(x.name for x in a if all(x is not one for one, _ in pairs)),
        notes=notes,
    )


def centred_sketch(layer: Layer, kind: Kind, rep: Representation) -> CentredSketch:
    """The sketch of one layer of a recording, less its mean."""
    sketch, signs = layer.recorded(kind).sketch, layer.sketch_signs
    if sketch is None or signs is None:
        raise MismatchError(
            f"{rep.name!r} has no drift sketches (recorded by version {rep.made.resemblance}); "
            "record it again"
        )
    return CentredSketch.of(sketch, signs, rep.samples)


def pair_drift(x: Layer, y: Layer, kind: Kind, a: Representation, b: Representation) -> LayerDrift:
    """The drift from layer x of a to layer y of b."""
    one, two = centred_sketch(x, kind, a), centred_sketch(y, kind, b)
    trace = x.recorded(kind).trace
    return layer_drift(one, two, trace=trace, dim=x.dim, centre=kind == "features")


def pair_permuted_cosine(
    x: Layer, y: Layer, drift: LayerDrift, a: Representation, b: Representation, rate: float
) -> PermutedCosine:
    """What the cosine of features would be with units in random order."""
    one, two = centred_sketch(x, "features", a), centred_sketch(y, "features", b)
    return permuted_cosine(one, two, drift.cosine, x, a.settings, rate)


def check_subtractable(a: Representation, b: Representation) -> None:
    """An error if one recording cannot be subtracted from the other."""
    for rep in (a, b):
        for layer in rep:
            centred_sketch(layer, "features", rep)
    check_recorded(a, b, "features")
    check_same_samples(a, b)
    if trouble := settings_difference(a, b, ("seed",)):
        raise MismatchError(f"expected sketches of one seed; {trouble}; record both with one")
    trouble = pairing_obstacle(a, b)
    if trouble is None and not torch.equal(a.layers[0].sketch_signs, b.layers[0].sketch_signs):  # type: ignore[arg-type]
        trouble = "different samples were skipped as not finite in the two recordings"
    if trouble:
        raise MismatchError(
            f"the recordings must have the same samples in the same order; {trouble}; record both "
            "again on the same data"
        )


def layer_pairs(
    a: Representation, b: Representation
) -> tuple[Matching, Sequence[tuple[Layer, Layer]]]:
    """Counterparts of equal shape."""
    matching = match_layers(layer_keys(a), layer_keys(b), np.zeros((len(a), len(b))))
    if matching.by == "similarity":
        raise MismatchError(
            f"expected copies, with layers of the same names or shapes; found {len(a)} layers in "
            f"{a.name!r} and {len(b)} different ones in {b.name!r}; use compare, which does not "
            "need the same units"
        )
    together = [(a.layers[i], b.layers[j]) for i, j in enumerate(matching.columns) if j is not None]
    pairs = [(x, y) for x, y in together if (x.dim, x.shape) == (y.dim, y.shape)]
    if not pairs:
        x, y = together[0]
        raise MismatchError(
            f"expected layers of equal shape, found {x.shape} at {x.name!r} of {a.name!r} and "
            f"{y.shape} at {y.name!r} of {b.name!r}, and no layers that match; use compare, which "
            "does not need the same units"
        )
    return matching, pairs


def subtractable_pairs(
    a: Representation, b: Representation
) -> Sequence[tuple[Layer, Layer]] | None:
    """Counterparts of equal shape; None if one recording cannot be subtracted from the other."""
    try:
        check_subtractable(a, b)
        return layer_pairs(a, b)[1]
    except MismatchError:
        return None


def comparable_kinds(
    a: Representation, b: Representation
) -> tuple[tuple[Kind, ...], tuple[Note, ...]]:
    """What can be compared, and why gradients cannot be where both have them."""
    if not all(layer.gradients is not None for rep in (a, b) for layer in rep):
        return ("features",), ()
    if trouble := settings_difference(a, b, ("target", "beta")):
        return ("features",), (make_note("other-gradients", difference=trouble),)
    return ("features", "gradients"), ()


def rounding_step(rep: Representation) -> float:
    """The distance of 1 to the next number of the precision that a network was run in."""
    kind = getattr(torch, (rep.made.autocast or rep.made.dtype).removeprefix("torch."), None)
    half = kind in (torch.float16, torch.bfloat16)
    return torch.finfo(kind if half else torch.float32).eps  # type: ignore[arg-type]


def _rounding_floor(a: Representation, b: Representation) -> float:
    """Decibels that rounding gives: of each side's features to its dtype, and of sums to float32.

    Networks round at every layer, so that changes somewhat below it may be rounding as well.
    """
    steps = [torch.finfo(torch.float32).eps] * 2 + [rounding_step(rep) for rep in (a, b)]
    return -10 * math.log10(_ROUNDING_VARIANCE * sum(step**2 for step in steps))


# -- one layer, from sketches --


class CentredSketch(NamedTuple):
    """The sketch of samples less their mean, and √N times that mean, folded."""

    table: Tensor  # (128, 256) float64
    mean: Tensor  # (256,) float64

    @classmethod
    def of(cls, sketch: Sketch, signs: Tensor, samples: int) -> CentredSketch:
        """From what a recording holds; `signs` (128,) are the sums of those of each row."""
        mean = sketch.total.double() / samples
        table = sketch.table.double() - torch.outer(signs.double(), mean)
        return cls(table, mean * samples**0.5)

    def squared_norms(self) -> tuple[float, float]:
        """Of the centred samples, and of their mean."""
        return float(self.table.square().sum()), float(self.mean.square().sum())

    def is_constant(self, least: float) -> bool:
        """Whether differences between samples make up no more than a share of the squares."""
        centred, mean = self.squared_norms()
        return centred <= least * (centred + mean)

    def __sub__(self, other: CentredSketch) -> CentredSketch:
        return CentredSketch(self.table - other.table, self.mean - other.mean)


class Measurement(NamedTuple):
    """A value and its standard error: how far it may lie from that of the vectors themselves."""

    value: float
    stderr: float


_NOT_MEASURED = Measurement(math.nan, math.nan)


class LayerDrift(NamedTuple):
    """What became of one kind of vector at one layer."""

    decibels: Measurement  # −10 log₁₀ ‖X_a − X_b‖² / ‖X_a‖²
    cosine: Measurement
    mean_share: Measurement  # of ‖X_a − X_b‖², what the change of the mean makes up


def layer_drift(
    a: CentredSketch,
    b: CentredSketch,
    *,
    trace: float,  # ‖X_a‖², which is known exactly
    dim: int,
    centre: bool,  # whether the cosine is of centred vectors
) -> LayerDrift:
    """The change from a to b and the cosine between them.

    Bias: none in ‖X_a − X_b‖²; in its logarithm and in ratios, that of second order, within the
    standard error. Cost: a few products of 128 × 256 matrices.
    """
    change, folded = a - b, dim > COLUMNS
    centred, mean = change.squared_norms()
    total = centred + mean
    cosine = _cosine_with_error(a, b, folded=folded, centre=centre)
    if total == 0:
        unchanged = Measurement(drift_decibels(total, trace), math.nan)
        return LayerDrift(unchanged, cosine, _NOT_MEASURED)
    slope, share = torch.full((1, 1), 1 / total, dtype=torch.float64), mean / total
    relative = _sketch_error([change], slope, slope, folded)
    of_share = _sketch_error([change], -share * slope, (1 - share) * slope, folded)
    moved = Measurement(drift_decibels(total, trace), 10 / math.log(10) * relative)
    return LayerDrift(moved if trace > 0 else _NOT_MEASURED, cosine, Measurement(share, of_share))


def drift_decibels(change: float, trace: float) -> float:
    """−10 log₁₀ of a change over ‖X_a‖²: infinite for no change, NaN if ‖X_a‖² is 0."""
    if not trace > 0:
        return math.nan
    return -10 * math.log10(change / trace) if change > 0 else math.inf


class PopulationError(NamedTuple):
    """The standard error of a change in decibels about the population of samples."""

    stderr: float  # dB
    df: float  # degrees of freedom of `stderr`
    effective_rows: float  # how many of the 128 rows the change effectively lies in


def population_error(
    moved: CentredSketch, norms: Tensor, *, samples: int, tokens: int, dim: int
) -> PopulationError:
    """How far the decibels of a change may lie from those of the population of samples.

    Each row of a sketch holds different samples, so the spread between rows shows both the error of
    sampling and the noise of the sketch. Three parts are added to it. The change of the mean is
    known but for the fold, and its sampling error is that of the projections on it. ‖X_a‖² has the
    sampling error of the squared norms. All rows share the fold of the features, whose error is
    that of `change`. The parts are taken as independent. As samples with large norms change most,
    errors of ‖X_a − X_b‖² and ‖X_a‖² partly cancel, which this leaves out.

    Args:
        moved: the sketch of X_a − X_b.
        norms: squared norms of single samples of a, NaN where unknown.
        samples: the number of samples, or of tokens.
        tokens: tokens per sequence; 1 for independent samples. Rows mix sequences, so the variance
            is multiplied by it, which is the largest design effect there can be.
        dim: the width of the vectors before the fold.

    Returns:
        The standard error, its degrees of freedom, and the effective number of rows.
    """
    total = sum(moved.squared_norms())
    rows = moved.table.square().sum(1) / total
    deviations = (rows - rows.mean()) * (len(rows) / (len(rows) - 1)) ** 0.5
    of_rows, df = standard_error([deviations])
    of_mean = 2 * float((moved.table @ moved.mean).norm()) / (samples**0.5 * total)
    known = norms[norms.isfinite()].double()
    of_norms = float(known.std() / known.mean()) / samples**0.5
    slope = torch.full((1, 1), 1 / total, dtype=torch.float64)
    _, of_columns, of_both = _variances([moved], slope, slope, dim > COLUMNS)
    variance = tokens * (float(of_rows) ** 2 + of_mean**2 + of_norms**2)
    variance += max(0.0, of_columns - of_both)
    return PopulationError(
        10 / math.log(10) * variance**0.5, float(df), float(effective_number(rows))
    )


def sketched_cosine(a: CentredSketch, b: CentredSketch, *, centre: bool) -> float:
    """⟨X_a, X_b⟩ / ‖X_a‖ ‖X_b‖ with all three from the sketches; NaN where a norm is zero."""
    inner = _inner_products([a, b], centre=centre)
    square = float(inner[0, 0] * inner[1, 1])
    return max(-1.0, min(1.0, float(inner[0, 1]) / square**0.5)) if square > 0 else math.nan


def _cosine_with_error(
    a: CentredSketch, b: CentredSketch, *, folded: bool, centre: bool
) -> Measurement:
    """The cosine, with its error: the errors of the product and of both norms go together.

    Of normal entries its error is (1 − cosine²) times what a cosine near zero has. What is missing
    from 1 is known up to a factor, so where it comes out small, so does its error: as much is added
    as that factor is uncertain.
    """
    cosine = sketched_cosine(a, b, centre=centre)
    if math.isnan(cosine):
        return _NOT_MEASURED
    norms = _inner_products([a, b], centre=centre).diagonal()
    form = (1 - torch.eye(2, dtype=torch.float64)) * 0.5 / norms.prod().sqrt()
    form -= cosine / 2 * (1 / norms).diag()
    of_mean = torch.zeros_like(form) if centre else form
    error, missing = _sketch_error([a, b], form, of_mean, folded), 1 - abs(cosine)
    return Measurement(cosine, error * (1 + error / max(error, missing, 1e-300)))


def _inner_products(sketches: Sequence[CentredSketch], *, centre: bool) -> Tensor:  # (k, k)
    tables, means = (torch.stack(x) for x in zip(*sketches, strict=True))
    inner = tables.flatten(1) @ tables.flatten(1).T
    return inner if centre else inner + means @ means.T


def _sketch_error(
    sketches: Sequence[CentredSketch],  # k of them
    form: Tensor,  # (k, k): the slope along the inner products of sketches
    of_mean: Tensor,  # (k, k): and along those of their means
    folded: bool,  # whether features met in columns
) -> float:
    """The standard error of a sum Σ B_xy (⟨X_x, X_y⟩ − …) over sketches, from what they hold."""
    rows, columns, both = _variances(sketches, form, of_mean, folded)
    return max(rows + columns - both, rows, columns) ** 0.5


def _variances(
    sketches: Sequence[CentredSketch], form: Tensor, of_mean: Tensor, folded: bool
) -> tuple[float, float, float]:
    """The variances of such a sum from samples that share a row and from features that share a
    column, and what both of them count; the last two are zero if nothing was folded."""
    tables, means = (torch.stack(x) for x in zip(*sketches, strict=True))
    mixed = torch.einsum("xy,yrc->xrc", form, tables)
    rows = _off_diagonal_variance(torch.einsum("xrc,xsc->rs", mixed, tables))
    if not folded:
        return rows, 0.0, 0.0
    columns = torch.einsum("xrc,xrd->cd", mixed, tables) + means.T @ of_mean @ means
    once = torch.einsum("xrc,yrc->xy", mixed, tables)
    both = 2 * float((once @ once).trace()) / tables[0].numel()
    return rows, _off_diagonal_variance(columns), both


def _off_diagonal_variance(kernel: Tensor) -> float:  # (m, m), symmetric
    """The variance that sharing one of m places gives."""
    apart = kernel - kernel.diagonal().diag()
    return 2 / (len(kernel) - 1) * float(apart.square().sum())


_MAX_UNITS = 128  # of which pairs are looked at
_PERMUTATIONS = 20_000


class PermutedCosine(NamedTuple):
    """Cosines between networks whose units are in any order."""

    mean: float
    high: float  # which only the stated rate of them exceeds; NaN where units are too few to tell


def unit_count(layer: Layer, pool: str) -> int:
    """How many units a layer's vector has; of images, its channels, each with all its positions."""
    if pool != "flatten" or layer.dim != math.prod(layer.shape) or len(layer.shape) < 2:
        return layer.dim
    return layer.shape[0] if len(layer.shape) > 2 else layer.shape[1]


def permuted_cosine(
    a: CentredSketch,
    b: CentredSketch,
    cosine: Measurement,
    layer: Layer,
    settings: Settings,
    rate: float,
) -> PermutedCosine:
    """What `layer` would give were its units numbered anew, and the level that marks more.

    Cost: O(positions · min(units, 128)²).
    """
    count, seed = unit_count(layer, settings.pool), settings.seed
    norm = float(a.table.norm() * b.table.norm())
    if not norm > 0 or math.lgamma(count + 1) < -math.log(rate):
        return PermutedCosine(math.nan, math.nan)  # so few units have too few orders
    inner = a.table.T @ b.table / norm  # (256, 256)
    column, sign = _columns_by_unit(layer, count, seed)
    each = torch.zeros(column.shape[1], COLUMNS, dtype=torch.float64)  # (positions, 256)
    each.scatter_add_(1, column.T, sign.T)
    every = float(((each @ inner) * each).sum() - inner.diagonal()[column].sum())
    mean = every / (count - 1)
    folded = layer.dim > COLUMNS
    positions = column.shape[1]
    noise = positions * float(inner.square().mean()) if folded else 0.0  # of an entry of U
    some = torch.arange(count)[:: -(-count // _MAX_UNITS)]
    u = _unit_inner_products(inner, column[some], sign[some], neutral=mean / count)
    spread = float(u.square().sum()) * (count / len(u)) ** 2
    if folded:
        unsure = 2 * 2**0.5 * count * noise  # of the noise, which is a sum of squares
        spread = max(0.0, spread - count**2 * noise) + unsure * (positions > 1)
        spread += float(inner.square().sum())
    variance = spread / (count - 1) + noise + cosine.stderr**2
    return PermutedCosine(mean, mean + _permutation_tail(u, rate, seed) * variance**0.5)


def _columns_by_unit(
    layer: Layer, count: int, seed: int
) -> tuple[Tensor, Tensor]:  # (units, positions)
    """The column and sign of each feature, unit by unit."""
    images = len(layer.shape) > 2
    whole = images and layer.dim == math.prod(layer.shape)  # whose channels have folds of their own
    column, sign = column_assignment(layer.dim, seed, layer.shape[0] if whole else 1)
    if images and count == layer.shape[0]:
        return column.unflatten(0, (count, -1)), sign.unflatten(0, (count, -1))
    return column.unflatten(0, (-1, count)).T, sign.unflatten(0, (-1, count)).T


def _unit_inner_products(inner: Tensor, column: Tensor, sign: Tensor, *, neutral: float) -> Tensor:
    """U of some units, counterparts left out, less what is common to a row or a column of it."""
    u = torch.zeros(len(column), len(column), dtype=torch.float64)
    for at, s in zip(column.T, sign.T, strict=True):
        u += inner[at[:, None], at] * torch.outer(s, s)
    u.fill_diagonal_(neutral)
    return u - u.mean(0) - u.mean(1, keepdim=True) + u.mean()


def _permutation_tail(u: Tensor, rate: float, seed: int) -> float:
    """How many standard deviations hold all but a rate of permutations: of few units, more.

    That of the normal distribution or what permutations show, if that is farther.
    """
    every = np.tile(np.arange(len(u)), (_PERMUTATIONS, 1))
    draws = torch.from_numpy(np.random.default_rng(seed % 2**64).permuted(every, axis=1))
    sums = u[torch.arange(len(u)), draws].sum(1)
    normal = -NormalDist().inv_cdf(rate)
    deviation = float(sums.std())
    if not deviation > 0:
        return normal
    beyond = min(_PERMUTATIONS, max(1, int(rate * _PERMUTATIONS)))
    farthest = float(sums.topk(beyond).values[-1] - sums.mean())
    return max(normal, farthest / deviation)
