"""Drift between all pairs of many networks, without standard errors (`drift_of_copies`).

A product of the sketches of all layers finds the pairs in which a layer's features have a cosine
above a half; only for those is it tested, as in `coordinates`, whether the units are in the same
order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .._ops.count_sketch import COLUMNS, ROWS
from ..representation.layer import Kind, Layer
from ..representation.representation import Representation
from .drift import (
    FALSE_ALARM_RATE,
    centred_sketch,
    comparable_kinds,
    drift_decibels,
    pair_drift,
    pair_permuted_cosine,
    sketched_cosine,
    subtractable_pairs,
)

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
    """Pairs of networks in one unit order, the earlier of each as what is changed."""
    directions = [_sketch_directions(rep) for rep in reps]
    for i, j in itertools.combinations(range(len(reps)), 2):
        a, b = reps[i], reps[j]
        alike = directions[i] @ directions[j].T
        if not (alike > _MIN_COSINE).any():
            continue
        if (pairs := subtractable_pairs(a, b)) is None:
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
        drift = pair_drift(x, y, "features", a, b)
        chance = pair_permuted_cosine(x, y, drift, a, b, FALSE_ALARM_RATE / len(pairs))
        if drift.cosine.value > chance.high:  # NaN: too few units to tell
            return True
    return False
