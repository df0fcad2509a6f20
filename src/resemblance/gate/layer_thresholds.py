"""Thresholds on layers: confidence bounds of kernel scores and decibels for `check`.

Both are about the population that the samples were drawn from. Neither can see kinds of input that
were not drawn, so every pass states the rarest kind that would have been.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..errors import DataError
from ..representation.layer import Layer
from ..representation.notes import Note, make_note
from ..representation.representation import Representation
from ..similarity.agreement import prediction_behaviour, predictions_obstacle
from ..similarity.compare import compare_population, same_function
from ..similarity.comparison import KernelComparison
from ..similarity.drift import (
    CentredSketch,
    centred_sketch,
    coordinates,
    layer_pairs,
    population_error,
)
from ..similarity.jackknife import (
    are_unreliable,
    jackknife_deviations,
    min_effective_samples,
    samples_to_trust_errors,
    standard_error,
    student_t,
)
from ..similarity.kernels import Kernel
from ..similarity.same_function import BASES, SameFunction
from .bounds import ERROR_RATE, Bounds, Measurement, round_up_two_digits
from .thresholds import Threshold

_MIN_SKETCH_ROWS = 12  # effective rows of a sketch to judge an error by
_CONSTANT = 1e-9  # of a layer's squared features, what their differences must exceed
_MAX_DISAGREEMENT = 0.05  # disagreement up to which outputs agree,
_MIN_SIMILARITY = 0.9  # and the feature CKA from which layers are alike, where no units are aligned
_MAX_EXPONENT = 700.0  # the largest exponent that a float holds
_MSG_CONSTANT_IN_COPY = "it is constant in the copy and not in the base"


class LayerThresholds:
    """Scores and decibels of the layers of two recordings, with their bounds.

    Args:
        base: the recording of the base.
        copy: the recording of the copy, on the same samples.
        ignore_unmatched: judge the layers that have a counterpart, though others have none.
    """

    def __init__(
        self, base: Representation, copy: Representation, *, ignore_unmatched: bool = False
    ) -> None:
        self.base, self.copy, self.ignore_unmatched = base, copy, ignore_unmatched
        self.notes: list[Note] = []
        self._comparison = functools.cache(self._compare)

    # -- scores of kernels ----------------------------------------------------------------------

    def score(self, of: Threshold) -> Measurement:
        """The least score of all layers, or their mean: Student's t on the log of 1 − score."""
        assert of.kernel is not None
        found = self._comparison(of.kernel)
        dead, revived = self._constant(of.kernel, found)
        if dead:
            return Measurement(layer=dead[0], reason=_MSG_CONSTANT_IN_COPY, fails=True)
        scores = _Scores.of(self.base, found)
        if of.mean:
            scores = scores.averaged()
        if scores.deviations is None:
            worst = int(scores.value.argmin())
            return Measurement(
                Bounds(float(scores.value[worst]), -1.0, 1.0),
                scores.layers[worst],
                reason="its standard error cannot be estimated from so few samples; record more",
                can_decide=False,
            )
        measured = _worst_layer(of, scores.layers, *scores.bounds())
        if measured.status(of) == "failed" and (same := self._same_function) is not None:
            why = f"scores of {of.kernel} depend on the basis of units"
            return self._in_another_basis(same, why)
        obstacles = self._unmatched(found.without_counterpart()[0])
        if found.matched_by == "similarity" and not self.ignore_unmatched:
            obstacles.append(
                "layers could only be matched by similarity, which raises scores; give them the "
                "same names, or set `ignore_unmatched`"
            )
        obstacles += [
            f"{name} is constant in the base and not in the copy, so it has no score"
            for name in revived
        ]
        obstacles += scores.obstacles(of, self.base)

        def decides(n: int, generator: np.random.Generator) -> bool:
            low, _, high = scores.drawn(n / self._units, generator).bounds()
            return bool((low >= of.limit).all() or (high < of.limit).any())

        concluded = self._concluded(of, measured, obstacles).plan(of, decides, self._units)
        doubt = scores.doubt()
        if doubt and doubt not in (concluded.reason or ""):
            concluded.remarks = (doubt, *concluded.remarks)
        return concluded

    def _compare(self, kernel: Kernel) -> KernelComparison:
        """The comparison by one kernel; its remarks become notes."""
        found = compare_population(self.base, self.copy, kernel)
        said = [note for note in found.notes if note.code != "unreliable-errors"]  # by the finding
        self.notes += [note.of_kernel(kernel) for note in said]
        self._name_extra(found.without_counterpart()[1])
        if found.matched_by == "similarity":
            self.notes.append(make_note("matched-by-similarity"))
        return found

    def _constant(self, kernel: Kernel, found: KernelComparison) -> tuple[list[str], list[str]]:
        """Layers that are constant in the copy alone, and in the base alone."""
        rows, columns = found.counterparts()
        missing = np.isnan(found.scores[rows, columns])
        if not missing.any():
            return [], []
        of_base, of_copy = (
            np.isfinite(np.diagonal(compare_population(rep, rep, kernel).scores))[at]
            for rep, at in ((self.base, rows), (self.copy, columns))
        )
        if not of_base.any():
            raise DataError(
                f"every layer of {self.base.name!r} has constant {kernel} on these samples, so no "
                "score is defined; record different layers or data"
            )
        names = np.array(found.rows)[rows]
        return list(names[missing & of_base]), list(names[missing & of_copy & ~of_base])

    # -- decibels -------------------------------------------------------------------------------

    def decibels(self, of: Threshold) -> Measurement:
        """The least decibels of features of all layers: Student's t."""
        found = coordinates(self.base, self.copy)
        values = found.decibels[0]
        there = np.flatnonzero(~np.isnan(values)).tolist()
        if not there:
            raise DataError(
                f"every layer of {self.base.name!r} has zero features, so no SQNR is defined; "
                "record different layers or data"
            )
        if zero := [found.layers[i] for i in np.flatnonzero(np.isnan(values))]:
            self.notes.append(make_note("zero-layers", model=self.base.name, layers=zero))
        self._name_extra([x.name for x in self.copy if x.name not in found.counterparts])
        pairs = layer_pairs(self.base, self.copy)[1]
        stderr, df, obstacles = np.zeros(len(values)), np.full(len(values), 1e3), []
        for i in there:
            one, two = (
                centred_sketch(layer, "features", rep)
                for layer, rep in zip(pairs[i], (self.base, self.copy), strict=True)
            )
            if two.is_constant(_CONSTANT) and not one.is_constant(_CONSTANT):
                layer = found.layers[i]
                return Measurement(layer=layer, reason=_MSG_CONSTANT_IN_COPY, fails=True)
            if np.isfinite(values[i]):
                stderr[i], df[i], obstacle = self._decibel_error(pairs[i][0], one - two)
                obstacles += [obstacle] if obstacle else []
        low, high = (
            values + side * student_t(1 - 2 * rate, df) * stderr
            for side, rate in ((-1, ERROR_RATE), (1, ERROR_RATE / len(there)))
        )
        names = [found.layers[i] for i in there]
        measured = _worst_layer(of, names, low[there], values[there], high[there])
        aligned = found.shared or not np.isfinite(found.chance_high).any()
        if not aligned or measured.status(of) == "failed":
            if (same := self._same_function) is not None:
                return self._in_another_basis(same, "SQNR compares unit by unit")
            if not aligned:
                return self._not_aligned()
        obstacles += self._unmatched(found.left_out)
        measured.can_decide = False
        measured.reason = (
            "part of its error comes from the sketch, which more samples do not reduce; choose a "
            "threshold further away"
        )
        return self._concluded(of, measured, obstacles)

    def _decibel_error(self, layer: Layer, moved: CentredSketch) -> tuple[float, float, str | None]:
        """Standard error of a layer's decibels, its degrees of freedom, and why not to trust them.

        Without norms of samples, both are those of an exact number.
        """
        if layer.features.norms is None:
            why = (
                "its standard error needs sample norms, which the recording lacks; record it again"
            )
            return 0.0, 1e3, why
        samples, tokens = self.base.samples, self.base.settings.tokens
        error = population_error(
            moved, layer.features.norms, samples=samples, tokens=tokens, dim=layer.dim
        )
        why = (
            "its standard error may be too small, because a few samples dominate; record more "
            "samples"
        )
        return error.stderr, error.df, why if error.effective_rows < _MIN_SKETCH_ROWS else None

    def _not_aligned(self) -> Measurement:
        """Networks without a common basis: undecided if they work alike, else failed.

        A rotated or permuted copy works like its base, and its decibels say nothing about that.
        """
        least = float(np.nanmin(self._comparison("features").by_layer()[0], initial=1.0))
        agree = predictions_obstacle(self.base, self.copy) is not None or (
            prediction_behaviour(self.base, self.copy).disagreement <= _MAX_DISAGREEMENT
        )
        return Measurement(
            reason="the units of the two networks are not in the same order, so SQNR does not "
            f"apply; feature CKA is {least:.3f} at the least similar layer",
            can_decide=False,
            fails=not (agree and least >= _MIN_SIMILARITY),
        )

    # -- both -----------------------------------------------------------------------------------

    @functools.cached_property
    def _same_function(self) -> SameFunction | None:
        """What became of the layers, where predictions are equal but for rounding."""
        return same_function(self.base, self.copy)

    def _in_another_basis(self, same: SameFunction, why: str) -> Measurement:
        """Undecided: a threshold that does not apply to a copy in another basis."""
        kinds = " and ".join(x for x in BASES[1:] if x in same.basis)
        known = "the same function in a different basis" if same.recognised else "an equal function"
        return Measurement(
            reason=f"it does not apply to {known} ({kinds}; predictions are equal up to rounding): "
            f"{why}. Use a threshold on predictions instead, such as `max_kl`",
            can_decide=False,
        )

    @functools.cached_property
    def _units(self) -> int:
        """Samples, or sequences where samples are tokens."""
        rows = sum(self.base.block_sizes) or self.base.samples
        return rows // self.base.settings.tokens

    def _unmatched(self, names: Sequence[str]) -> list[str]:
        """Why layers of the base without a counterpart keep a threshold from passing."""
        if not names:
            return []
        if self.ignore_unmatched:
            self.notes.append(make_note("ignored-layers", model=self.base.name, layers=list(names)))
            return []
        return [
            f"layers of {self.base.name} without a counterpart in {self.copy.name} were not "
            f"judged: {', '.join(names)}; give them the same names, or set `ignore_unmatched`"
        ]

    def _name_extra(self, names: Sequence[str]) -> None:
        if names:
            self.notes.append(make_note("extra-layers", model=self.copy.name, layers=list(names)))

    def _concluded(
        self, of: Threshold, measured: Measurement, obstacles: Sequence[str]
    ) -> Measurement:
        """With what keeps it from passing, or what a pass assumes."""
        if obstacles:
            measured.withhold("; ".join(dict.fromkeys(obstacles)))
        elif measured.bounds.low >= of.limit:
            rarest = int(1 / (1 - ERROR_RATE ** (1 / self._units)))
            measured.remarks = (
                f"assumes that no kind of input rarer than 1 in {rarest:,} behaves differently",
            )
        return measured


class _Scores(NamedTuple):
    """The scores to judge, of each layer or their mean, and what their bounds rest on."""

    layers: list[str | None]
    value: np.ndarray  # (layers,)
    deviations: np.ndarray | None  # (k, layers), of a jackknife over samples; None: too few
    chance_high: np.ndarray  # (layers,)
    n_eff: np.ndarray  # (layers,) samples that effectively carry a score
    least: float  # the n_eff that is needed
    doubtful: np.ndarray  # (layers,) whether the standard error cannot be trusted

    @classmethod
    def of(cls, base: Representation, found: KernelComparison) -> _Scores:
        score, error, chance = found.by_layer()
        there = np.flatnonzero(np.isfinite(score))
        assert chance is not None
        assert found.n_eff is not None
        n_eff = found.of_counterparts(np.minimum.outer(*found.n_eff))
        doubtful = found.of_counterparts(are_unreliable(base, found).astype(float))
        deviations = None
        if found.replicates is not None and np.isfinite(error[there]).all():
            left_out = torch.from_numpy(found.replicates[:, there])
            deviations = jackknife_deviations(left_out).numpy()
        return cls(
            [found.rows[i] for i in there],
            score[there],
            deviations,
            chance[1][there],
            n_eff[there],
            min_effective_samples(base, sum(base.block_sizes) // base.settings.tokens),
            doubtful[there] > 0,
        )

    def averaged(self) -> _Scores:
        """The mean over layers, whose error cannot be trusted where that of one of them cannot."""
        return _Scores(
            [None],
            self.value.mean(keepdims=True),
            None if self.deviations is None else self.deviations.mean(1, keepdims=True),
            self.chance_high.mean(keepdims=True),
            self.n_eff.min(keepdims=True),
            self.least,
            self.doubtful[[int(self.doubtful.argmax())]],
        )

    def bounds(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The lower bound, the score and the upper bound of each layer.

        Student's t on the logarithm of what is missing from 1, with the variance of one more group
        of samples that moves a score as much as the farthest does. Upper bounds are corrected for
        the number of layers, as one that lies below a limit is enough to fail.

        Where a few samples dominate, the next one may dominate too, and a jackknife cannot know it.
        The lower bound then has the t of one degree of freedom, and allows for unseen samples that
        carry 3 / n_eff of the kernel and have nothing in common: so much would have been seen with
        95 %. A score loses up to twice their share. So a score far above a limit can pass.
        """
        assert self.deviations is not None
        error, df = (x.numpy() for x in standard_error([torch.from_numpy(self.deviations)]))
        # one more group like the farthest: where a few groups carry the error, more are to be drawn
        error = np.hypot(error, np.abs(self.deviations).max(0))
        missing = np.maximum(1 - self.value, 0.0)
        most = np.maximum(np.maximum(missing, error), 1e-300)
        above = student_t(1 - 2 * ERROR_RATE, df) * error / most
        t = student_t(1 - 2 * ERROR_RATE / len(self.layers), df)
        below = t * error / np.maximum(missing, 1e-300)
        low = 1 - most * np.exp(np.minimum(above, _MAX_EXPONENT))
        wide = student_t(1 - 2 * ERROR_RATE, np.ones_like(df)) * error / most
        unseen = -2 * math.log(ERROR_RATE) / np.maximum(self.n_eff, 1.0)
        lowest = 1 - most * np.exp(np.minimum(wide, _MAX_EXPONENT)) - unseen
        low = np.where(self.dominated, np.minimum(low, lowest), low)
        return np.maximum(low, -1.0), self.value, 1 - missing * np.exp(-below)

    def doubt(self) -> str | None:
        """Why the jackknife cannot be trusted; rounding does not hide that samples are too few."""
        if (self.doubtful & ~self.dominated).any():
            return "its standard error may be too small, because a few blocks dominate"
        if not self.dominated.any():
            return None
        few = math.floor(10 * float(self.n_eff[self.dominated].min())) / 10
        least = math.ceil(10 * self.least) / 10
        return (
            f"a few samples dominate (effective sample size {few:g}, at least "
            f"{least:g} needed to trust the standard error), so its lower bound is wider"
        )

    @property
    def dominated(self) -> np.ndarray:  # (layers,)
        """Whether so few samples dominate that the jackknife alone cannot be trusted."""
        dominated: np.ndarray = self.doubtful & (self.n_eff < self.least)
        return dominated

    def drawn(self, scale: float, generator: np.random.Generator) -> _Scores:
        """The scores of `scale` times as many samples, drawn from the groups of these."""
        assert self.deviations is not None
        k = len(self.deviations)
        some = self.deviations[generator.integers(0, k, k)] / scale**0.5
        value = np.minimum(self.value + some.sum(0), 1.0)
        return self._replace(value=value, deviations=some - some.mean(0))

    def obstacles(self, of: Threshold, base: Representation) -> list[str]:
        """Why scores that lie above a threshold do not pass it."""
        low, _, _ = self.bounds()
        if (self.doubtful & ~self.dominated).any():
            return [f"{self.doubt()}; record more samples"]
        if self.dominated.any() and (low < of.limit).any():
            few = float(self.n_eff[self.dominated].min())
            enough = round_up_two_digits(samples_to_trust_errors(base, few))
            unit = "samples" if base.settings.tokens_of_each is None else "sequences"
            return [f"{self.doubt()}; record about {enough:,} {unit}"]
        chance = self.chance_high
        # where chance alone meets a threshold, it is asked of what lies beyond chance
        required = np.where(chance < of.limit, chance, chance + of.limit * (1 - chance))
        worst = int((low - required).argmin())
        if (low < of.limit).any() or low[worst] > required[worst]:
            return []
        return [
            f"unrelated networks reach {chance[worst]:.4f} on these samples (the chance level), so "
            f"its lower bound {low[worst]:.4f} would have to exceed {required[worst]:.4f}"
        ]


def _worst_layer(
    of: Threshold,
    layers: Sequence[str | None],
    low: np.ndarray,  # (layers,)
    value: np.ndarray,
    high: np.ndarray,
) -> Measurement:
    """Bounds of the least value of all layers, and the layer that decides.

    All must lie above a limit to pass, one below it to fail. So the layer that keeps a copy from
    passing longest is shown, but where a layer is seen to lie below, that one.
    """
    shown = int(high.argmin() if high.min() < of.limit else low.argmin())
    bounds = Bounds(float(value[shown]), float(low.min()), float(high.min()))
    return Measurement(bounds, layer=layers[shown])
