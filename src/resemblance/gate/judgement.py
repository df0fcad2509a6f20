"""`check`: thresholds in, a verdict out, with no more certainty than the samples give.

This module decides what passes, fails or is undecided. `thresholds` says what is asked for,
`bounds` how far the truth may lie from what was measured, `verdict` is the result.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from ..errors import DataError, MismatchError, ResemblanceWarning
from ..representation.as_given import Given, recording
from ..representation.representation import Representation
from ..similarity.combinations import Kernel
from ..similarity.comparison import Comparison
from ..similarity.error_bars import left_out, standard_error
from ..similarity.shared_coordinates import coordinates
from ..similarity.two_networks import compare, same_samples
from .bounds import (
    RATE,
    Bounds,
    mean_of,
    number_for_t,
    quantile,
    share_bounds,
    t_bounds,
    two_digits_up,
    units_for_share,
)
from .sampled_units import ByUnit, by_unit
from .thresholds import Minima, Threshold, gathered
from .verdict import Finding, Status, Verdict

_SKETCHED = 127.0  # degrees of freedom of errors from sketches with 128 rows
_BLOCK = 128  # samples in a block, unless data are small
_FROM_BELOW = (
    "beyond 1,024 classes it is known from below alone, which can fail a copy but not pass one; "
    "use max-disagreement or min gradients"
)
_NOT_SHARED = "the two share no coordinates that could be seen, so the one is no copy of the other"
_OF_SKETCH = (
    "its error is that of the sketch, which more samples do not make smaller; ask for a little "
    "more or less"
)
_NO_ERROR = "its error cannot be judged from so few samples; record more"
_ON_LIMIT = "it lies so close to the limit that no number of samples would decide"


def check(
    base: Given,
    copy: Given,
    *,
    max_disagreement: float | None = None,
    max_kl: float | None = None,
    max_js: float | None = None,
    min: Minima | None = None,
    min_db: float | None = None,
    thresholds: str | os.PathLike[str] | None = None,
) -> Verdict:
    """Whether a copy is still close enough to its base: passed, failed, or undecided.

    Args:
        base, copy: from `record`, on the same samples with the same settings, or paths of files
            that hold them. Beyond 1,024 classes, record the copy with `outputs_of=base`.
        max_disagreement: the largest share of samples that may be predicted to be of another class.
        max_kl, max_js: the largest KL(base‖copy) and Jensen-Shannon divergence of predictions, in
            nats, mean over samples.
        min: the least CKA by kernel at the worst layer, or with `mean:` over all layers on average:
            `{"gradients": 0.8, "mean:features": 0.95}`, or words such as `"gradients=0.8"`.
        min_db: the least decibels of features at the worst layer, as `coordinates` has them.
        thresholds: a TOML file with more of the same; arguments go before it.

    A threshold passes where a one-sided 95 % bound lies on its right side, and fails where the
    bound to the other side lies on its wrong side; else it is undecided, and `samples_needed` says
    how many samples would probably decide. So a copy that is worse than a threshold passes it with
    a probability of 5 % at the most, whatever the number of layers and of other thresholds, as
    every bound must hold. One that keeps to a threshold fails it with 5 % at the most, for which
    layers are corrected by their number; with several thresholds these add up.

    Bounds are Clopper and Pearson's for disagreement (tokens count as many as their spread between
    sequences allows), and Student's t on the logarithm of divergences and of 1 − score. Bounds of
    decibels are about the samples recorded, all others about samples like them. Layers that are
    constant in the base are left out, with a note; one that is so in the copy alone fails.

    >>> import torch, resemblance as rs
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> rep = rs.record(net, torch.randn(200, 4))
    >>> rs.check(rep, rep, max_disagreement=0.02, min={"gradients": 0.8}).status
    'passed'
    >>> rs.check(rep, rep, max_disagreement=0.001).samples_needed
    3000
    """
    asked = gathered(
        max_disagreement=max_disagreement,
        max_kl=max_kl,
        max_js=max_js,
        min_db=min_db,
        min=min,
        thresholds=thresholds,
    )
    gate = _Gate(recording(base), recording(copy))
    if not same_samples(gate.base, gate.copy):
        raise MismatchError(
            f"expected two recordings of the same samples, found {gate.base.samples:,} in "
            f"{gate.base.name!r} and {gate.copy.samples:,} others in {gate.copy.name!r}; record "
            "both on one set of samples"
        )
    return gate.verdict(asked)


@dataclass
class _Measured:
    """What was measured for a threshold: its bounds, and what else there is to say of it."""

    bounds: Bounds
    layer: str | None = None
    needed: float | None = None  # samples, or sequences
    reason: str | None = None
    can_pass: bool = True
    can_decide: bool = True  # with more samples
    fails: bool = False  # whatever the bounds


@dataclass
class _Gate:
    """Two recordings, and what was found of them so far."""

    base: Representation
    copy: Representation
    notes: list[str] = field(default_factory=list)
    comparisons: dict[Kernel, Comparison] = field(default_factory=dict)
    units: ByUnit | None = None

    def verdict(self, asked: tuple[Threshold, ...]) -> Verdict:
        findings = tuple(self._finding(threshold) for threshold in asked)
        rows = sum(self.base.block_sizes) or self.base.samples
        tokens = self.base.settings.tokens_of_each
        return Verdict(
            base=self.base.name,
            copy=self.copy.name,
            samples=rows,
            sequences=None if tokens is None else rows // tokens,
            findings=findings,
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def _finding(self, of: Threshold) -> Finding:
        ways: dict[str, Callable[[Threshold], _Measured]] = {
            "disagreement": self._disagreement,
            "kl": self._divergence,
            "js": self._divergence,
            "decibels": self._decibels,
            "score": self._mean_score if of.mean else self._worst_score,
        }
        found = ways[of.quantity](of)
        status = _status(of, found)
        needed, reason = None, found.reason
        if status == "undecided" and found.can_decide:
            if found.needed is None:
                reason = reason or _ON_LIMIT
            else:
                needed = two_digits_up(found.needed)
                reason = self._blocks_for(needed)
        elif status != "undecided" and not found.fails:
            reason = None
        low, high = _known(found.bounds.low), _known(found.bounds.high)
        value = _known(found.bounds.value)
        return Finding(of, status, value, low, high, found.layer, needed, reason)

    def _blocks_for(self, needed: int) -> str | None:
        """How to record so many samples, where files would not keep them by default."""
        settings = self.base.settings
        block = max(settings.block, _BLOCK)
        if not settings.blocks or needed <= settings.windows * block:
            return None
        return f"recorded with blocks={-(-needed // block) * settings.tokens}"

    # -- what networks predict ------------------------------------------------------------------

    def _predictions(self) -> ByUnit:
        if self.units is None:
            self.units = by_unit(self.base, self.copy)
        return self.units

    def _disagreement(self, of: Threshold) -> _Measured:
        units = self._predictions()
        shares, rows = units.disagreement, units.rows
        needed = units_for_share(shares, rows, of.limit)
        return _Measured(share_bounds(shares, rows), needed=needed)

    def _divergence(self, of: Threshold) -> _Measured:
        units = self._predictions()
        values = units.kl if of.quantity == "kl" else units.js
        value, error, df = mean_of(values)
        both = (quantile(df),) * 2
        found = _Measured(t_bounds(value, error, both))
        found.needed = number_for_t(value, error, of.limit, both, len(values))
        if not units.exact:
            found.can_pass = False
            if value <= of.limit:
                found.reason, found.can_decide = _FROM_BELOW, False
        return found

    # -- scores of kernels ----------------------------------------------------------------------

    def _comparison(self, kernel: Kernel) -> Comparison:
        if kernel in self.comparisons:
            return self.comparisons[kernel]
        found = self.comparisons[kernel] = _quietly(self.base, self.copy, kernel)
        self.notes += [f"{kernel}: {note}" for note in found.notes]
        for rep, names in zip((self.base, self.copy), found.without_counterpart(), strict=True):
            if names:
                self.notes.append(
                    f"layers of {rep.name} without a counterpart are left out: {', '.join(names)}"
                )
        if found.matched_by == "similarity":
            self.notes.append("layers were matched by similarity, which flatters scores")
        return found

    def _constant(self, kernel: Kernel) -> list[str]:
        """Layers that are constant in the copy and not in the base."""
        found = self._comparison(kernel)
        rows = found.counterparts()[0]
        missing = [i for i in rows if np.isnan(found.by_layer()[0][i])]
        if not missing:
            return []
        own = _quietly(self.base, self.base, kernel).by_layer()[0]
        if np.isnan(own[rows]).all():
            raise DataError(
                f"no layer of {self.base.name!r} has {kernel} that differ between these samples, "
                "so there is no score to judge; record other layers, or other data"
            )
        return [found.rows[i] for i in missing if np.isfinite(own[i])]

    def _score(self, of: Threshold, judged: Callable[[Comparison], _Measured]) -> _Measured:
        """Of layers that have one, unless a layer of the copy went constant."""
        assert of.kernel is not None
        if constant := self._constant(of.kernel):
            reason = "it is constant in the copy and not in the base"
            nothing = Bounds(math.nan, math.nan, math.nan)
            return _Measured(nothing, layer=constant[0], reason=reason, fails=True)
        return judged(self._comparison(of.kernel))

    def _worst_score(self, of: Threshold) -> _Measured:
        def judged(found: Comparison) -> _Measured:
            score, error, _ = found.by_layer()
            there = np.flatnonzero(np.isfinite(score))
            df = np.full(score.shape, 1e3) if found.df is None else found.of_counterparts(found.df)
            layers = []
            for i in there:
                quantiles = (quantile(df[i], RATE / len(there)), quantile(df[i]))
                each = _of_score(of, found, score[i], error[i], quantiles)
                layers.append(replace(each, layer=found.rows[i]))
            return _worst(of, layers)

        return self._score(of, judged)

    def _mean_score(self, of: Threshold) -> _Measured:
        def judged(found: Comparison) -> _Measured:
            value, error = found.mean()
            df = 1.0
            if found.replicates is not None and len(found.replicates) > 1:
                there = np.isfinite(found.by_layer()[0])
                means = torch.from_numpy(found.replicates[:, there].mean(1))
                df = float(standard_error([left_out(means)])[1])
            return _of_score(of, found, value, error, (quantile(df),) * 2)

        return self._score(of, judged)

    # -- coordinates ----------------------------------------------------------------------------

    def _decibels(self, of: Threshold) -> _Measured:
        found = coordinates(self.base, self.copy)
        values, errors = found.decibels[0], found.decibels_stderr[0]
        there = np.flatnonzero(~np.isnan(values))
        if not len(there):
            raise DataError(
                f"no layer of {self.base.name!r} has features that are not zero, so no change of "
                "them has decibels; record other layers, or other data"
            )
        gone = [found.layers[i] for i in np.flatnonzero(np.isnan(values))]
        for names, why in ((found.left_out, "without a counterpart of their shape"),
                           (gone, "that are zero")):  # fmt: skip
            if names:
                self.notes.append(
                    f"layers of {self.base.name} {why} have no decibels: {', '.join(names)}"
                )
        one, all_layers = quantile(_SKETCHED), quantile(_SKETCHED, RATE / len(there))
        layers = []
        for i in there:
            x, e = float(values[i]), 0.0 if np.isinf(values[i]) else float(errors[i])
            bounds = Bounds(x, x - one * e, x + all_layers * e)
            layers.append(_Measured(bounds, layer=found.layers[i]))
        worst = _worst(of, layers)
        worst.reason, worst.can_decide = _OF_SKETCH, False
        if not found.shared and np.isfinite(found.chance_high).any():
            worst.reason, worst.fails = _NOT_SHARED, True
        return worst


def _known(x: float) -> float | None:
    return None if math.isnan(x) else float(x)


def _status(of: Threshold, found: _Measured) -> Status:
    low, high = found.bounds.low, found.bounds.high
    passes = high <= of.limit if of.allows_at_most else low >= of.limit
    fails = low > of.limit if of.allows_at_most else high < of.limit
    if fails or found.fails:
        return "failed"
    return "passed" if passes and found.can_pass else "undecided"


def _worst(of: Threshold, layers: list[_Measured]) -> _Measured:
    """The layer that decides, with bounds of the least value of all of them.

    All must lie above a limit to pass, one below it to fail. So the layer that keeps a copy from
    passing longest is shown, but where a layer is seen to lie below, that one.
    """
    low = min(layers, key=lambda x: x.bounds.low)
    high = min(layers, key=lambda x: x.bounds.high)
    below = [x for x in layers if x.bounds.value < of.limit]
    needed = [x.needed for x in below or layers if x.bounds.low < of.limit]
    known = [x for x in needed if x is not None]
    number = None
    if known and (below or len(known) == len(needed)):
        number = min(known) if below else max(known)
    shown = high if high.bounds.high < of.limit else low
    bounds = Bounds(shown.bounds.value, low.bounds.low, high.bounds.high)
    return replace(shown, bounds=bounds, needed=number)


def _of_score(
    of: Threshold, found: Comparison, score: float, error: float, quantiles: tuple[float, float]
) -> _Measured:
    """Bounds of a score, from those of what is missing of it from 1."""
    if math.isnan(error):
        bounds = Bounds(score, 0.0, 1.0)
        return _Measured(bounds, reason=_NO_ERROR, can_decide=False)
    missing = max(0.0, 1.0 - score)
    x = t_bounds(missing, error, quantiles)
    bounds = Bounds(score, max(0.0, 1 - x.high), 1 - x.low)
    units = found.samples[0] // (found.tokens or 1)
    return _Measured(bounds, needed=number_for_t(missing, error, 1 - of.limit, quantiles, units))


def _quietly(a: Representation, b: Representation, kernel: Kernel) -> Comparison:
    """A comparison; what it would warn of stands in its notes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResemblanceWarning)
        return compare(a, b, kernel=kernel)
