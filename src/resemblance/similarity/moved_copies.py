"""How far the layers of copies moved, among many networks, from one product of all their sketches.

The values of `coordinates`, without standard errors, for the pairs of networks that share
coordinates. Sketches of all layers are multiplied at once; whether coordinates are shared is then
asked, as `coordinates` asks it, of pairs that have a layer whose features' cosine exceeds a half:
those changed by less than about as much as there was to change.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import MismatchError
from ..representation.layer import Kind, Layer
from ..representation.representation import Representation
from .exchanged_units import chance
from .shared_coordinates import FALSE_ALARMS, check, counterparts, kinds_of
from .sketched_change import Centred, change

_ALIKE = 0.5  # cosine
_NOTHING = 1e-13  # of a squared norm: what round-off leaves of no change


@dataclass(frozen=True)
class Moved:
    """What became of the layers of one network in another that shares its coordinates."""

    rows: tuple[int, ...]  # places of the layers that have a counterpart of their shape
    kinds: tuple[Kind, ...]
    decibels: np.ndarray  # (kinds, rows) as `Coordinates.decibels`
    cosine: np.ndarray


def moved_copies(reps: Sequence[Representation]) -> Iterator[tuple[tuple[int, int], Moved]]:
    """The pairs of networks that share coordinates, the earlier of each as what is changed."""
    inner = {kind: _Inner(reps, kind) for kind in ("features", "gradients")}
    for i, j in itertools.combinations(range(len(reps)), 2):
        a, b = reps[i], reps[j]
        alike = inner["features"].cosines(i, j)
        if alike is None or not np.nanmax(alike, initial=0.0) > _ALIKE:
            continue
        try:
            check(a, b)
            _, pairs = counterparts(a, b)
        except MismatchError:
            continue
        kinds, _ = kinds_of(a, b)
        places = [(_place(a, x), _place(b, y)) for x, y in pairs]
        found = [inner[kind].changes(i, j, places) for kind in kinds]
        decibels, cosine = (np.stack(x) for x in zip(*found, strict=True))
        if _shared(a, b, pairs, cosine[0]):
            yield (i, j), Moved(tuple(row for row, _ in places), kinds, decibels, cosine)


class _Inner:
    """Inner products of the sketches of all layers, and of their means."""

    def __init__(self, reps: Sequence[Representation], kind: Kind) -> None:
        self._kind, self._ends, sketches = kind, [0], []
        self._traces: list[float] = []
        for rep in reps:
            every = [_sketch(layer, kind, rep.samples) for layer in rep]
            known = [x for x in every if x is not None]
            if len(known) == len(every):
                sketches += known
                self._traces += [layer.recorded(kind).trace for layer in rep]
            self._ends.append(len(sketches))
        self._tables, self._means = (
            _gram([getattr(x, name) for x in sketches]) for name in ("table", "mean")
        )

    def cosines(self, i: int, j: int) -> np.ndarray | None:  # (layers, layers)
        """Of all layers of two networks; None where one has no sketches."""
        rows, columns = (slice(*self._ends[k : k + 2]) for k in (i, j))
        if rows.start == rows.stop or columns.start == columns.stop:
            return None
        own = np.sqrt(self._tables.diagonal())
        with np.errstate(divide="ignore", invalid="ignore"):
            out: np.ndarray = self._tables[rows, columns] / np.outer(own[rows], own[columns])
        return out

    def changes(
        self, i: int, j: int, places: Sequence[tuple[int, int]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Decibels and cosines of layers at some places, as in `sketched_change`."""
        x, y = np.array(places).T + np.array([[self._ends[i]], [self._ends[j]]])
        both = self._tables + self._means
        of = self._tables if self._kind == "features" else both
        trace = np.array(self._traces)[x]
        total = both[x, x] + both[y, y] - 2 * both[x, y]
        total = np.where(total > _NOTHING * (both[x, x] + both[y, y]), total, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            decibels = np.where(trace > 0, -10 * np.log10(total / trace), np.nan)
            cosine = of[x, y] / np.sqrt(of[x, x] * of[y, y])
        return decibels, np.clip(cosine, -1, 1)


def _gram(vectors: Sequence[Tensor]) -> np.ndarray:
    if not vectors:
        return np.zeros((0, 0))
    flat = torch.stack([x.flatten() for x in vectors])
    return (flat @ flat.T).numpy()


def _sketch(layer: Layer, kind: Kind, samples: int) -> Centred | None:
    sketch = layer.recorded(kind).sketch if kind in layer.kinds else None
    if sketch is None or layer.sketch_signs is None:
        return None
    return Centred.of(sketch, layer.sketch_signs, samples)


def _place(rep: Representation, layer: Layer) -> int:
    return next(i for i, x in enumerate(rep) if x is layer)


def _shared(
    a: Representation, b: Representation, pairs: Sequence[tuple[Layer, Layer]], cosine: np.ndarray
) -> bool:
    """Whether a layer's cosine is above what units in any order would give, likeliest first."""
    for at in np.argsort(-np.nan_to_num(cosine, nan=-1.0)).tolist():
        if not cosine[at] > _ALIKE:
            return False
        x, y = pairs[at]
        one, two = _sketch(x, "features", a.samples), _sketch(y, "features", b.samples)
        assert one is not None
        assert two is not None
        exact = change(one, two, trace=x.recorded("features").trace, dim=x.dim, centre=True)
        level = chance(one, two, exact.cosine, x, a.settings, FALSE_ALARMS / len(pairs)).high
        if not math.isnan(level) and exact.cosine.value > level:
            return True
    return False
