"""Drift of each layer of a copy from its origin, in decibels of SQNR (`coordinates`).

Kernels do not depend on the order or basis of a layer's units. A copy that was rounded, pruned or
fine-tuned keeps its origin's units, and a network trained separately does not. So recordings of
copies can be subtracted: here layers are matched, recordings that cannot be subtracted are refused,
and `Coordinates` is the result. The arithmetic is in `drift_sketch`.

`drift_of_copies` does this for all pairs of many networks, without standard errors. A product of
the sketches of all layers finds the pairs in which a layer's features have a cosine above a half;
only for those is it tested, as in `coordinates`, whether the units are in the same order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from .._ops.count_sketch import COLUMNS, ROWS
from .._utils.formatting import printable
from ..errors import DataError, MismatchError
from ..representation.layer import Kind, Layer
from ..representation.notes import Note, make_note
from ..representation.representation import (
    Representation,
    RepresentationLike,
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
from .drift_sketch import (
    CentredSketch,
    LayerDrift,
    PermutedCosine,
    drift_decibels,
    layer_drift,
    permuted_cosine,
    sketched_cosine,
)
from .pairing import (
    MATCHING_RULES,
    MatchedBy,
    Matching,
    check_recorded,
    layer_keys,
    match_layers,
    pairing_obstacle,
    same_samples,
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
        decibels: −10 log₁₀ ‖X_a − X_b‖² / ‖X_a‖², the signal-to-noise ratio: 20 for a change of a
            tenth, 0 for one as large as the activations; infinite where nothing changed. An array
            (kinds, layers), like the next five.
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
            share = f"shared, {np.nanmin(self.decibels[0], initial=np.inf):.1f} dB or more"
        return f"{self.models[0]!r}, {self.models[1]!r}, {len(self.layers)} layers, {share}"

    @property
    def shared_layers(self) -> np.ndarray:  # (layers,) bool
        """At which layers the cosine of features is above what units in any order would give."""
        above: np.ndarray = self.cosine[0] > self.chance_high
        return above

    @property
    def shared(self) -> bool:
        """Whether the two share coordinates at any layer: one descends from the other, or both
        from a third. Units whose meaning is given, as those of logits are, are shared by all."""
        return bool(self.shared_layers.any())

    def parting(self, *, least: float = 6.0) -> LayerDivergence:
        """Where the copy begins to move: the first layer whose features changed beyond doubt.

        Layers are read from the input on, each against the one before it, the first against what
        rounding leaves of a network; the chance of any false finding is 5 %. See
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
                f"They share coordinates, as {len(at)} of {len(self.layers)} layers show "
                f"(false alarms: {self.alarms:g})."
            )
            lines += [self._changed(i) for i in range(len(self.kinds))]
            if (found := self.parting()).found:
                lines.append(found.sentence)
        else:
            lines.append(
                "They share no coordinates that could be seen: no layer's cosine is above that of "
                f"units in another order (false alarms: {self.alarms:g}). Changes by decibels "
                "mean nothing; use compare, which does not depend on coordinates."
            )
        if self.left_out:
            lines.append(
                f"Without a counterpart of their shape: {', '.join(map(printable, self.left_out))}."
            )
        return lines

    def _changed(self, kind: int) -> str:
        """The least and the most changed layer."""
        values, errors = self.decibels[kind], self.decibels_stderr[kind]
        name = self.kinds[kind].capitalize()
        if np.isnan(values).all():
            return f"{name}: no layer has any to compare."

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
    drifts = [[_pair_drift(x, y, kind, a, b) for x, y in pairs] for kind in kinds]
    columns = np.array(drifts).reshape(len(kinds), len(pairs), len(_VALUE_COLUMNS))
    chances = [
        _permuted_cosine(x, y, drift, a, b, FALSE_ALARM_RATE / len(pairs))
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
            f"expected recordings with sketches in coordinates, found {rep.name!r} without "
            f"(written by version {rep.made.resemblance}); record it again"
        )
    return CentredSketch.of(sketch, signs, rep.samples)


def _pair_drift(x: Layer, y: Layer, kind: Kind, a: Representation, b: Representation) -> LayerDrift:
    """The drift from layer x of a to layer y of b."""
    one, two = centred_sketch(x, kind, a), centred_sketch(y, kind, b)
    trace = x.recorded(kind).trace
    return layer_drift(one, two, trace=trace, dim=x.dim, centre=kind == "features")


def _permuted_cosine(
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
    if not same_samples(a, b):
        raise MismatchError(
            f"expected recordings of the same samples, found {a.samples:,} in {a.name!r} and "
            f"{b.samples:,} others in {b.name!r}; record both on one set of samples"
        )
    if trouble := settings_difference(a, b, ("seed",)):
        raise MismatchError(f"expected sketches of one seed; {trouble}; record both with one")
    trouble = pairing_obstacle(a, b)
    if trouble is None and not torch.equal(a.layers[0].sketch_signs, b.layers[0].sketch_signs):  # type: ignore[arg-type]
        trouble = "other samples were skipped as not finite in one than in the other"
    if trouble:
        raise MismatchError(
            f"expected the same samples in the same places; {trouble}; record both anew on one set"
        )


def layer_pairs(
    a: Representation, b: Representation
) -> tuple[Matching, Sequence[tuple[Layer, Layer]]]:
    """Counterparts of equal shape."""
    matching = match_layers(layer_keys(a), layer_keys(b), np.zeros((len(a), len(b))))
    if matching.by == "similarity":
        raise MismatchError(
            f"expected copies, with layers of the same names or shapes; found {len(a)} layers in "
            f"{a.name!r} and {len(b)} others in {b.name!r}; use compare, which needs no coordinates"
        )
    together = [(a.layers[i], b.layers[j]) for i, j in enumerate(matching.columns) if j is not None]
    pairs = [(x, y) for x, y in together if (x.dim, x.shape) == (y.dim, y.shape)]
    if not pairs:
        x, y = together[0]
        raise MismatchError(
            f"expected layers of equal shape, found {x.shape} at {x.name!r} of {a.name!r} and "
            f"{y.shape} at {y.name!r} of {b.name!r}, and no others that agree; use compare, which "
            "needs no coordinates"
        )
    return matching, pairs


def comparable_kinds(
    a: Representation, b: Representation
) -> tuple[tuple[Kind, ...], tuple[Note, ...]]:
    """What can be compared, and why gradients cannot be where both have them."""
    if not all(layer.gradients is not None for rep in (a, b) for layer in rep):
        return ("features",), ()
    if trouble := settings_difference(a, b, ("target", "beta")):
        return ("features",), (make_note("other-gradients", difference=trouble),)
    return ("features", "gradients"), ()


def _rounding_floor(a: Representation, b: Representation) -> float:
    """Decibels that rounding gives: of each side's features to its dtype, and of sums to float32.

    Networks round at every layer, so that changes somewhat below it may be rounding as well.
    """
    steps = [torch.finfo(torch.float32).eps] * 2
    for rep in (a, b):
        kind = getattr(torch, (rep.made.autocast or rep.made.dtype).removeprefix("torch."), None)
        half = kind in (torch.float16, torch.bfloat16)
        steps.append(torch.finfo(kind if half else torch.float32).eps)  # type: ignore[arg-type]
    return -10 * math.log10(_ROUNDING_VARIANCE * sum(step**2 for step in steps))


_MIN_COSINE = 0.5  # cosine


@dataclass(frozen=True)
class CopyDrift:
    """What became of the layers of one network in another that shares its coordinates."""

    rows: tuple[int, ...]  # places of the layers that have a counterpart of their shape
    columns: tuple[int, ...]  # places of those counterparts
    kinds: tuple[Kind, ...]
    decibels: np.ndarray  # (kinds, rows) as `Coordinates.decibels`
    decibels_back: np.ndarray  # the same change relative to the second network
    cosine: np.ndarray


def drift_of_copies(reps: Sequence[Representation]) -> Iterator[tuple[tuple[int, int], CopyDrift]]:
    """The pairs of networks that share coordinates, the earlier of each as what is changed."""
    directions = [_sketch_directions(rep) for rep in reps]
    for i, j in itertools.combinations(range(len(reps)), 2):
        a, b = reps[i], reps[j]
        alike = directions[i] @ directions[j].T
        if not (alike > _MIN_COSINE).any():
            continue
        try:
            check_subtractable(a, b)
            _, pairs = layer_pairs(a, b)
        except MismatchError:
            continue
        kinds, _ = comparable_kinds(a, b)
        values = [[_drift_values(x, y, kind, a, b) for x, y in pairs] for kind in kinds]
        decibels, back, cosine = np.moveaxis(np.array(values), -1, 0)
        if _same_units(a, b, pairs, cosine[0]):
            rows = tuple(a.layer_names.index(x.name) for x, _ in pairs)
            columns = tuple(b.layer_names.index(y.name) for _, y in pairs)
            yield (i, j), CopyDrift(rows, columns, kinds, decibels, back, cosine)


def _sketch_directions(rep: Representation) -> Tensor:  # (layers, 128 · 256)
    """Centred sketches of the features of all layers, of length 1; none if any is missing."""
    known = all(x.features.sketch is not None and x.sketch_signs is not None for x in rep)
    out = torch.empty(len(rep) if known else 0, ROWS * COLUMNS, dtype=torch.float64)
    for row, layer in zip(out, rep, strict=False):
        table = centred_sketch(layer, "features", rep).table
        row[:] = (table / table.norm()).flatten()
    return out


def _drift_values(
    x: Layer, y: Layer, kind: Kind, a: Representation, b: Representation
) -> tuple[float, float, float]:
    """The decibels relative to either network and the cosine, without standard errors."""
    one, two = centred_sketch(x, kind, a), centred_sketch(y, kind, b)
    change = sum((one - two).squared_norms())
    traces = (x.recorded(kind).trace, y.recorded(kind).trace)
    cosine = sketched_cosine(one, two, centre=kind == "features")
    return drift_decibels(change, traces[0]), drift_decibels(change, traces[1]), cosine


def _same_units(
    a: Representation, b: Representation, pairs: Sequence[tuple[Layer, Layer]], cosine: np.ndarray
) -> bool:
    """Whether a layer's cosine is above what units in any order would give, likeliest first."""
    for at in np.argsort(-np.nan_to_num(cosine, nan=-1.0)).tolist():
        if not cosine[at] > _MIN_COSINE:
            return False
        x, y = pairs[at]
        drift = _pair_drift(x, y, "features", a, b)
        chance = _permuted_cosine(x, y, drift, a, b, FALSE_ALARM_RATE / len(pairs))
        if drift.cosine.value > chance.high:  # NaN: too few units to tell
            return True
    return False
