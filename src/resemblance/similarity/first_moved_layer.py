"""Where a copy begins to move away from its origin, in the coordinates that both share.

Features are changed by what lies before them, so layers are read from the input on. A copy is its
origin, to round-off, up to the first layer that was changed; from there on the change is carried
along, and grows or shrinks slowly. So the answer is the first layer whose change lies more than
`LEAST` decibels above that of the layer before, or above round-off, beyond doubt.

The errors are those of the sketches, nearly normal; p-values are multiplied by the number of layers
(Bonferroni), so that the chance of any false finding is at most 5 %.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import DataError
from . import error_bars
from .parting_layer import RATE, Fall, Parting

if TYPE_CHECKING:
    from .coordinates_by_layer import Coordinates

LEAST = 6.0  # decibels: four times the change of the layer before
_ROUND_OFF = 25.0  # decibels below the floor of precision that layers of a network add up to
_MANY = 1e6  # degrees of freedom: normal


def first_moved(of: Coordinates, least: float = LEAST) -> Parting:
    """The first layer that moved by more than `least` decibels; see `Coordinates.parting`."""
    if not of.shared:
        raise DataError(
            f"{of.models[0]!r} and {of.models[1]!r} share no coordinates, so no layer moved from "
            "one to the other; compare(kernel='features').parting() needs none"
        )
    if not least > 0:
        raise DataError(f"least must be a number of decibels above 0; found {least!r}")
    order = np.flatnonzero(~np.isnan(of.decibels[0]))
    quiet = of.floor - _ROUND_OFF
    level = np.minimum(of.decibels[0, order], quiet)
    error = np.where(of.decibels[0, order] < quiet, of.decibels_stderr[0, order], 0.0)
    fall = -np.diff(level, prepend=quiet)
    stderr = np.hypot(error, np.concatenate([[0.0], error[:-1]]))
    df = np.full(len(order), _MANY)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.nan_to_num((fall - least) / stderr, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    p = np.minimum(1.0, len(order) * error_bars.student_tail(t, df))
    names = [of.layers[i] for i in order]
    table = np.stack([fall, stderr, df, np.full(len(order), least), p], 1).tolist()
    pairs = zip(names, [None, *names], table, strict=False)
    tested = tuple(Fall(layer, before, *numbers) for layer, before, numbers in pairs)
    first = next((i for i, each in enumerate(tested) if each.p < RATE), None)
    if first is None:
        return Parting(False, "features", "from the input on", tested, unit="dB")
    wide = float(error_bars.student_t(1 - 2 * RATE / len(order), df[:1])[0]) * tested[first].stderr
    return Parting(
        found=True,
        kernel="features",
        direction="from the input on",
        tested=tested,
        layer=tested[first].layer,
        counterpart=of.counterparts[order[first]],
        position=int(order[first]),
        before=tested[first].before,
        fall=tested[first].fall,
        low=tested[first].fall - wide,
        high=tested[first].fall + wide,
        unit="dB",
    )
