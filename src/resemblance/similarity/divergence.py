"""The first layer at which two networks diverge, by CKA or by drift in decibels.

Layers are read in the direction in which a difference spreads: features from the input on,
gradients from the output back. A product or a sum of both is changed from either side, so it has no
such direction.

Each layer's *drop*, the score of the layer before it minus its own, has its own standard error from
the scores with a group of samples left out: neighbouring layers see the same samples, so a drop is
known far better than either score. Drops are tested one-sided by Student's t, and p-values are
multiplied by the number of layers (Bonferroni), so that the chance of any false finding is at most
5 %. CKA resolves differences in arithmetic: the same network in bfloat16 drops by about a millionth
at every layer. So a drop must exceed a minimum, above what 16 bits were seen to leave; after layers
that are identical to the last digit, a ten-thousandth of it is enough.

For copies with the same units (`Coordinates`), the first layer is the one whose drift lies more
than 6 dB above that of the layer before, or above round-off. Up to it, the copy is its origin but
for round-off; from there on the drift is carried along and changes slowly. The errors are those of
the sketches, nearly normal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from .._utils.formatting import printable
from ..errors import DataError
from . import jackknife
from .indices.registry import score_bounds

if TYPE_CHECKING:
    from .comparison import KernelComparison
    from .drift import Coordinates


FALSE_FINDING_RATE = 0.05  # of any false finding among all layers of a comparison
MIN_DROPS = {"features": 1e-4, "gradients": 1e-2}  # falls that count must be larger
_IDENTICAL = 1e-9  # 1 less a score: what float32 and packing leave of a layer and itself
_AFTER_IDENTICAL = 1e-4  # of `MIN_DROPS`

Direction = Literal["from the input on", "from the output back"]


@dataclass(frozen=True)
class LayerDrop:
    """By how much the score of a layer lies below that of the layer read before it."""

    layer: str
    before: str | None  # None: the input, or the output, where the score would be 1
    fall: float
    stderr: float
    df: float  # degrees of freedom of it
    least: float  # that the fall was tested to be larger than
    p: float  # that chance alone makes it so large; of all layers together


@dataclass(frozen=True)
class LayerDivergence:
    """The first layer at which two networks diverge, if there is one.

    Attributes:
        found: whether the networks diverge at any layer; if not, what describes the layer is None.
        kernel: the kernel whose scores were read: features or gradients.
        direction: from the input on, or from the output back.
        tested: the test of every layer, in the order of reading.
        layer: the first layer that diverges.
        counterpart: its counterpart in the second network.
        position: index of the layer among the rows.
        before: the layer read before it; None if it was the first.
        fall: how far the score falls from the layer before to this one.
        low: lower end of an interval of the fall, exceeded with 95 %, whichever layer is found.
        high: upper end of such an interval.
        unit: unit of the fall: dB for the drift of copies, empty for scores.
    """

    found: bool
    kernel: str
    direction: Direction
    tested: tuple[LayerDrop, ...]
    layer: str | None = None
    counterpart: str | None = None
    position: int | None = None
    before: str | None = None
    fall: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""

    @property
    def sentence(self) -> str:
        """The answer in words."""
        unit = f" {self.unit}" if self.unit else ""
        if self.layer is None:
            least = max(fall.least for fall in self.tested)
            count = len(self.tested)
            where = "the only layer" if count == 1 else f"any of {count} layers"
            return f"No significant drop of {self.kernel} at {where} (more than {least:g}{unit})."
        if self.before is None and not unit:  # nothing was read that it could have diverged from
            last = "last" if self.kernel == "gradients" else "first"
            return (
                f"{self.kernel.capitalize()} differ from the {last} layer compared on: the score "
                f"at {printable(self.layer)} is {self.fall:.2g} below 1 ({self.low:.2g} to "
                f"{self.high:.2g})."
            )
        what = "SQNR" if unit else "the score"
        start = " from the level of rounding" if unit else ""
        since = start if self.before is None else f" from {printable(self.before)}"
        form = ".1f" if unit else ".2g"
        first = f"{self.kernel} first diverge at {printable(self.layer)}"
        first = f"Going back from the output, {first}" if self.kernel == "gradients" else first
        return (
            f"{first[0].upper()}{first[1:]}: {what} drops by {self.fall:{form}}{unit}{since} "
            f"({self.low:{form}} to {self.high:{form}})."
        )


def first_divergence(of: KernelComparison, least: float | None = None) -> LayerDivergence:
    """The first layer whose fall is larger than `least` beyond doubt.

    Bias: none of a fall, whose error is that of scores. Of layers in the order of reading,
    fall_i = s_(i−1) − s_i with s_0 = 1; t_i = (fall_i − least) / error_i, found where the upper
    tail of Student's t is below 0.05 / layers. An error of zero leaves no doubt either way.
    """
    replicates = _checked_replicates(of)
    if least is not None and not (isinstance(least, Real) and 0 <= least < 1):
        raise DataError(f"`least` must be between 0 and 1; found {least!r}")
    direction: Direction = "from the input on"
    scores = of.by_layer()[0]
    order = np.flatnonzero(np.isfinite(scores) & np.isfinite(replicates).all(0))
    if of.kernel == "gradients":
        direction, order = "from the output back", order[::-1]
    if not len(order):
        raise DataError(
            "no layer has a score with a standard error, so no drop can be tested; record layers "
            "that are not constant on these data, on more samples"
        )
    fall = -np.diff(scores[order], prepend=1.0)
    left_out = -np.diff(replicates[:, order], prepend=1.0, axis=1)
    deviations = jackknife.jackknife_deviations(torch.from_numpy(left_out))
    error, df = (x.numpy() for x in jackknife.standard_error([deviations]))
    bound = np.full(len(fall), least)
    if least is None:
        bound = _min_drops(scores[order], MIN_DROPS[of.kernel])
    lowest, highest = score_bounds(of.index)
    names = (of.rows, [None if j is None else of.columns[j] for j in of.matched])
    drops = np.stack([fall, error, df, bound], 1)
    return _tested_drops(of.kernel, direction, names, order, drops, most=highest - lowest)


def divergence_if_tested(of: KernelComparison) -> LayerDivergence | None:
    """What the test for a divergence found; None where it cannot be made."""
    try:
        return first_divergence(of)
    except DataError:
        return None


def _checked_replicates(of: KernelComparison) -> np.ndarray:  # (groups, rows)
    """The scores with groups left out, or an error that says why falls cannot be tested."""
    if of.kernel not in MIN_DROPS:
        raise DataError(
            f"the {of.kernel} kernel depends on the layers before and after, so there is no "
            "direction in which to search for a divergence; compare with `kernel='features'` or "
            "`kernel='gradients'`"
        )
    if not of.paired:
        raise DataError(
            "the two recordings used different samples, so they differ before the first layer; "
            "record both networks on the same samples"
        )
    if of.replicates is None:
        raise DataError(
            "this comparison has no jackknife replicates, which the test needs (version 0.1 did "
            "not save them); compare the recordings again"
        )
    if len(of.replicates) < 2:
        raise DataError(
            "the test needs at least two groups of samples to leave out, found "
            f"{len(of.replicates)}; record more samples, or smaller blocks"
        )
    return of.replicates


def _min_drops(scores: np.ndarray, least: float) -> np.ndarray:  # (layers,), in order of reading
    """What each fall must be larger than: less once layers were seen to be computed alike.

    >>> [float(x) for x in _min_drops(np.array([1.0, 1.0, 0.9, 0.9]), 1e-4)]
    [0.0001, 1e-08, 1e-08, 0.0001]
    """
    alike = np.logical_and.accumulate(1 - scores <= _IDENTICAL)
    return np.where(np.concatenate([[False], alike[:-1]]), least * _AFTER_IDENTICAL, least)


_ROUND_OFF_DECIBELS = (
    25.0  # decibels below the floor of precision that layers of a network add up to
)
_NORMAL_DF = 1e6  # degrees of freedom: normal


def first_drift(of: Coordinates, least: float) -> LayerDivergence:
    """The first layer that moved by more than `least` decibels; see `Coordinates.parting`."""
    if not of.shared:
        raise DataError(
            f"the units of {of.models[0]!r} and {of.models[1]!r} are not in the same order, so "
            "drift is not defined; compare features instead, with `kernel='features'`"
        )
    if not least > 0:
        raise DataError(f"`least` must be a number of decibels above 0; found {least!r}")
    order = np.flatnonzero(~np.isnan(of.decibels[0]))
    quiet = of.floor - _ROUND_OFF_DECIBELS
    level = np.minimum(of.decibels[0, order], quiet)
    error = np.where(of.decibels[0, order] < quiet, of.decibels_stderr[0, order], 0.0)
    fall = -np.diff(level, prepend=quiet)
    stderr = np.hypot(error, np.concatenate([[0.0], error[:-1]]))
    drops = np.stack([fall, stderr, np.full_like(fall, _NORMAL_DF), np.full_like(fall, least)], 1)
    return _tested_drops(
        "features", "from the input on", (of.layers, of.counterparts), order, drops, unit="dB"
    )


def _tested_drops(
    kernel: str,
    direction: Direction,
    names: tuple[Sequence[str], Sequence[str | None]],  # of all rows, and of their counterparts
    order: np.ndarray,  # rows in the order of reading
    drops: np.ndarray,  # (rows read, 4): drop, standard error, degrees of freedom, minimum
    *,
    unit: str = "",
    most: float = np.inf,  # the largest drop possible
) -> LayerDivergence:
    """Test every drop one-sided, and return the first that is significant, with its interval."""
    drop, stderr, df, least = drops.T
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.nan_to_num((drop - least) / stderr, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    p = np.minimum(1.0, len(order) * jackknife.student_tail(t, df))
    read = [names[0][i] for i in order]
    rows = zip(read, [None, *read], np.column_stack([drops, p]).tolist(), strict=False)
    tested = tuple(LayerDrop(layer, before, *numbers) for layer, before, numbers in rows)
    significant = np.flatnonzero(p < FALSE_FINDING_RATE)
    if not len(significant):
        return LayerDivergence(False, kernel, direction, tested, unit=unit)
    first, row = tested[significant[0]], int(order[significant[0]])
    level = 1 - 2 * FALSE_FINDING_RATE / len(order)
    either = float(jackknife.student_t(level, first.df)) * first.stderr
    return LayerDivergence(
        found=True,
        kernel=kernel,
        direction=direction,
        tested=tested,
        layer=first.layer,
        counterpart=names[1][row],
        position=row,
        before=first.before,
        fall=first.fall,
        low=first.fall - either,
        high=min(first.fall + either, most),
        unit=unit,
    )
