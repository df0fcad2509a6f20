"""Where two networks part: the first layer at which their likeness falls beyond doubt.

Layers are read in the direction in which a difference spreads. Features are changed by what lies
before them, so they are read from the input on, where both networks agree by construction.
Gradients are changed by what lies behind them, so they are read from the output back. A product or
a sum of both is changed from either side, and has no direction to be read in.

Each layer's *fall*, the score of the layer read before it less its own, has a standard error of its
own from the scores with a group of samples left out: neighbours see the same samples and move
together, so that a fall is known far better than either score. A fall is tested, to one side, by
Student's t; p-values are multiplied by the number of layers (Bonferroni), so that the chance of any
false finding is at most 5 %.

A score says a difference in arithmetic as exactly as any other: the same network in bfloat16 falls
by a millionth or so at every layer, with an error bar that is smaller still. So a fall is asked to
be larger than `LEAST`, above what 16 bits were seen to leave. After layers that are alike to the
last digit, which says that both were computed alike, a ten-thousandth of that is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from .._shown_text import shown
from ..errors import DataError
from . import error_bars

if TYPE_CHECKING:
    from .comparison import Comparison

RATE = 0.05  # of any false finding among all layers of a comparison
LEAST = {"features": 1e-4, "gradients": 1e-2}  # falls that count must be larger
_COMPUTED_ALIKE = 1e-9  # 1 less a score: what float32 and packing leave of a layer and itself
_AFTER_THOSE = 1e-4  # of `LEAST`

Direction = Literal["from the input on", "from the output back"]
_ENDS: dict[Direction, str] = {"from the input on": "input", "from the output back": "output"}


@dataclass(frozen=True)
class Fall:
    """By how much the score of a layer lies below that of the layer read before it."""

    layer: str
    before: str | None  # None: the input, or the output, where the score would be 1
    fall: float
    stderr: float
    df: float  # degrees of freedom of it
    least: float  # that the fall was tested to be larger than
    p: float  # that chance alone makes it so large; of all layers together


@dataclass(frozen=True)
class Parting:
    """Where two networks part, if they are seen to; `sentence` says it in words.

    The ends of the interval, `low` and `high`, hold for whichever layer is found, each with 95 %.
    """

    found: bool
    kernel: str
    direction: Direction
    tested: tuple[Fall, ...]  # every layer, in the order of reading
    layer: str | None = None  # of the rows; this and what follows are None if none was found
    counterpart: str | None = None  # of the columns
    position: int | None = None  # of the layer among the rows
    before: str | None = None  # the layer read before it; None where it was the first
    fall: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""  # of falls: dB where layers are compared in coordinates

    @property
    def after(self) -> str | None:
        """The fall is from the layer `before` to the layer `after`, at which they have parted."""
        return self.layer

    @property
    def sentence(self) -> str:
        """The answer in words."""
        unit = f" {self.unit}" if self.unit else ""
        if self.layer is None:
            least = max(fall.least for fall in self.tested)
            return (
                f"No layer stands out: read {self.direction}, none of {len(self.tested)} has "
                f"{self.kernel} that fall by more than {least:g}{unit} beyond chance."
            )
        end = _ENDS[self.direction]
        since = f"1, the score at the {end}" if self.before is None else shown(self.before)
        if unit:
            since = "what rounding leaves" if self.before is None else shown(self.before)
        form = ".1f" if unit else ".2g"
        return (
            f"Read {self.direction}, {self.kernel} part at {shown(self.layer)}, which lies "
            f"{self.fall:{form}} ({self.low:{form}} to {self.high:{form}}){unit} below {since}."
        )


def parting(of: Comparison, least: float | None = None) -> Parting:
    """The first layer whose fall is larger than `least` beyond doubt; see `Comparison.parting`.

    Bias: none of a fall, whose error is that of scores. Of layers in the order of reading,
    fall_i = s_(i−1) − s_i with s_0 = 1; t_i = (fall_i − least) / error_i, found where the upper
    tail of Student's t is below 0.05 / layers. An error of zero leaves no doubt either way.
    """
    replicates = _usable(of)
    if least is not None and not (isinstance(least, Real) and 0 <= least < 1):
        raise DataError(f"least must lie between 0 and 1, as falls do; found {least!r}")
    direction: Direction = "from the input on"
    scores = of.by_layer()[0]
    order = np.flatnonzero(np.isfinite(scores) & np.isfinite(replicates).all(0))
    if of.kernel == "gradients":
        direction, order = "from the output back", order[::-1]
    if not len(order):
        raise DataError(
            "no layer has a score with a standard error, so no fall can be tested; record layers "
            "that are not constant on these data, on more samples"
        )
    fall = -np.diff(scores[order], prepend=1.0)
    left_out = -np.diff(replicates[:, order], prepend=1.0, axis=1)
    deviations = error_bars.left_out(torch.from_numpy(left_out))
    error, df = (x.numpy() for x in error_bars.standard_error([deviations]))
    bound = _least(scores[order], LEAST[of.kernel]) if least is None else np.full(len(fall), least)
    number = len(order)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.nan_to_num((fall - bound) / error, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    p = np.minimum(1.0, number * error_bars.student_tail(t, df))
    names = [of.rows[i] for i in order]
    table = np.stack([fall, error, df, bound, p], 1).tolist()
    pairs = zip(names, [None, *names], table, strict=False)
    tested = tuple(Fall(layer, before, *numbers) for layer, before, numbers in pairs)
    first = next((i for i, each in enumerate(tested) if each.p < RATE), None)
    if first is None:
        return Parting(False, of.kernel, direction, tested)
    row = int(order[first])
    column = of.matched[row]
    wide = float(error_bars.student_t(1 - 2 * RATE / number, df[first : first + 1])[0])
    most = 2.0 if of.index in ("cka-debiased", "rsa") else 1.0
    size, either = tested[first].fall, wide * tested[first].stderr
    return Parting(
        found=True,
        kernel=of.kernel,
        direction=direction,
        tested=tested,
        layer=tested[first].layer,
        counterpart=None if column is None else of.columns[column],
        position=row,
        before=tested[first].before,
        fall=size,
        low=size - either,
        high=min(size + either, most),
    )


def if_found(of: Comparison) -> Parting | None:
    """The parting of a comparison that can be asked for one, and has one."""
    try:
        found = parting(of)
    except DataError:
        return None
    return found if found.found else None


def _usable(of: Comparison) -> np.ndarray:  # (groups, rows)
    """The scores with groups left out, or an error that says why falls cannot be tested."""
    if of.kernel not in LEAST:
        raise DataError(
            f"the {of.kernel} kernel is changed by what lies before a layer and by what lies "
            "behind it, so it has no direction in which to look for where networks part; compare "
            "with kernel='features' or kernel='gradients'"
        )
    if not of.paired:
        raise DataError(
            "the two networks saw different samples, so they part before the first layer; record "
            "both on the same samples"
        )
    if of.replicates is None:
        raise DataError(
            "this comparison does not hold its scores with groups of samples left out, by which "
            "falls between layers are tested, as those saved by version 0.1 do not; compare the "
            "recordings again"
        )
    if len(of.replicates) < 2:
        raise DataError(
            f"falls between layers are tested by leaving out groups of samples; expected two or "
            f"more of them, found {len(of.replicates)}; record more samples, or smaller blocks"
        )
    return of.replicates


def _least(scores: np.ndarray, least: float) -> np.ndarray:  # (layers,), in order of reading
    """What each fall must be larger than: less once layers were seen to be computed alike.

    >>> [float(x) for x in _least(np.array([1.0, 1.0, 0.9, 0.9]), 1e-4)]
    [0.0001, 1e-08, 1e-08, 0.0001]
    """
    alike = np.logical_and.accumulate(1 - scores <= _COMPUTED_ALIKE)
    return np.where(np.concatenate([[False], alike[:-1]]), least * _AFTER_THOSE, least)
