"""Thresholds on outputs: confidence bounds of disagreement, kappa, KL and JS for `check`.

The independent units are samples, or sequences where the rows are tokens. A copy passes only if a
permutation test also shows its predictions to be related to its base's: two unrelated networks that
nearly always predict the same class would agree as well.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from .._utils.hashing import seeded_permutation
from ..errors import DataError
from ..representation.notes import Note, make_note
from ..representation.outputs import Outputs
from ..representation.representation import Representation
from ..similarity.agreement import (
    Divergences,
    comparable_outputs,
    row_divergences,
    unit_rows,
)
from ..similarity.pair_statistics import normal_tail
from .bounds import (
    ERROR_RATE,
    Bounds,
    Measurement,
    mean_bounds,
    mean_decides,
    round_up_two_digits,
    share_bounds,
)
from .thresholds import Threshold, format_near_one

_PERMUTATIONS = 199  # so that the least p-value is 0.005
_MAX_P_VALUE = 0.04  # the p-value up to which predictions are related: below 5 %, as it is exact
_MAX_UNITS = 20_000  # permuted to test agreement
_MAX_PAIRED = 1_000  # units whose divergences are computed anew for each permutation,
_MAX_NUMBERS = 100_000  # and probabilities among them
_MIN_PAIRED = 20
_DISAGREEMENT_SHARE = 0.8  # of the 5 % by which a bound of kappa may fail; the rest for chance
_ROUND_OFF = 1e-9  # of divergences that are equal but for the order of sums
_SIGMAS = 3.0  # standard errors, beyond which the estimate for a row is not taken to be off
_MAX_LOG_PROBABILITY = 50.0  # nats: beyond, log probabilities count as equal
_ROWS_AT_ONCE = 1024  # rows
_MSG_ESTIMATED = "KL is an unbiased estimate from sketches of the probabilities"
_MSG_LOWER_BOUND = (
    "a recording is from a version that could not estimate divergences beyond 1,024 classes: only "
    "a lower bound is known, which can fail a copy but not pass it. Record both again, or use "
    "max-disagreement or min gradients"
)
_MSG_ONE_CLASS = (
    "{!r} predicts the same class for every sample, which says nothing about the second network; "
    "record samples of more classes"
)


@dataclass(eq=False)
class OutputThresholds:
    """Disagreement, kappa and divergences of two recordings, with their bounds.

    Attributes:
        base: the recording of the base.
        copy: the recording of the copy, on the same samples.
        notes: about the samples, once a threshold was judged.
    """

    base: Representation
    copy: Representation
    notes: list[Note] = field(default_factory=list)

    # -- what is judged -------------------------------------------------------------------------

    def disagreement(self, threshold: Threshold) -> Measurement:
        """The share of rows that are predicted differently: Clopper and Pearson's bounds."""
        found = self._share(threshold, self._disagreement)
        if self._chance > 0:
            kappa = 1 - self._disagreement.mean() / self._chance
            found.remarks = (f"Cohen's kappa {format_near_one(float(kappa))}",)
        if found.status(threshold) == "passed" and (why := self._unrelated_agree()):
            found.withhold(why)
        return found

    def divergence(self, threshold: Threshold) -> Measurement:
        """The mean of divergences: betting bounds. With a percentile, the share above a limit."""
        most, known = self._largest(threshold), self._divergences.known
        if known == "estimated":
            found = self._estimated_divergence(threshold, most)
        else:
            found = self._known_divergence(threshold, most)
        if known == "bounded":
            found.can_pass = False
            if found.bounds.value <= threshold.allowed:
                found.can_decide = False
                found.reason = _MSG_LOWER_BOUND
        elif found.status(threshold) == "passed" and (
            why := self._unrelated_diverge(threshold.quantity, most)
        ):
            found.withhold(why)
        return found

    def _known_divergence(self, threshold: Threshold, most: float) -> Measurement:
        """Divergences of rows that are exact, or lower bounds."""
        divergences = self._divergences
        values = divergences.kl if threshold.quantity == "kl" else divergences.js
        if threshold.percentile is not None:
            found = self._share(threshold, (values > threshold.limit).double().mean(1).numpy())
            at = float(np.quantile(values.numpy(), threshold.percentile / 100))
            found.remarks = (f"p{threshold.percentile:g} of these samples is {at:.3g} nats",)
            return found
        means = values.clamp_max(most).mean(1).numpy()
        decides = mean_decides(means, most, threshold.limit)
        found = Measurement(mean_bounds(means, most)).plan(threshold, decides, len(means))
        if threshold.quantity == "kl":
            above = share_bounds((values > most).double().mean(1).numpy(), rows=self._tokens)
            found.remarks = (_capped(most, above, "samples"),)
        return self._said_out_of_reach(found, threshold, most)

    def _said_out_of_reach(
        self, found: Measurement, threshold: Threshold, most: float
    ) -> Measurement:
        """The same, which says so where no mean could pass with so few samples."""
        n = len(self._rows)
        least = mean_bounds(np.zeros(n), most).high
        if found.status(threshold) != "undecided" or least <= threshold.limit:
            return found
        remark = f"{n:,} {self._unit} can show no mean below {least:.2g} nats"
        if found.needed is None:
            remark += f", {round_up_two_digits(n * least / threshold.limit):,} could"
        if threshold.quantity == "kl" and (cap := threshold.limit * most / least) > threshold.limit:
            remark += f"; with `kl_cap={math.floor(100 * cap) / 100:g}` they can"
        elif found.needed is not None:
            return found
        found.remarks = (remark, *found.remarks)
        return found

    def _estimated_divergence(self, threshold: Threshold, most: float) -> Measurement:
        """Divergences from sketches: KL without bias, JS between two bounds."""
        kl, reverse, js, noise, _ = self._divergences
        low, high, low_noise, high_noise = kl, kl, noise[0], noise[0]
        if threshold.quantity == "js":
            low, low_noise = js, torch.zeros_like(js)
            high, high_noise = (kl + reverse) / 4, noise.sum(0) / 4
        if threshold.percentile is not None:
            limits = (low - _SIGMAS * low_noise, low, high + _SIGMAS * high_noise)
            return self._estimated_share(threshold, limits, float(high_noise.median()))
        # means of units, as the noise of a row may exceed its divergence
        means = [x.mean(1) for x in (low, high)]
        x_low, x_high = (x.clamp(-most, most).numpy() for x in means)
        least = 0.0 if threshold.quantity == "js" else -most  # of what bounds it from below
        lower, upper = mean_bounds(x_low, most, least), mean_bounds(x_high, most, -most)
        shift_low = _clipping_bias(-means[0], low_noise.mean(1), most)
        shift_high = _clipping_bias(means[1], high_noise.mean(1), most)
        value = lower.value if threshold.quantity == "js" else upper.value
        bounds = max(0.0, lower.low - shift_low), upper.high + shift_high
        found = Measurement(Bounds(max(0.0, value), *bounds))
        sides = {True: (x_low, least), False: (x_high, -most)}
        x, start = sides[lower.value > threshold.limit]
        found.plan(threshold, mean_decides(x, most, threshold.limit, start), len(x))
        if threshold.quantity == "kl":
            above = share_bounds((means[1] > most).double().numpy(), rows=1)
            found.remarks = (_capped(most, above, self._unit), _MSG_ESTIMATED)
        else:
            at_most = min(most, max(value, upper.value))
            found.remarks = (f"JS lies between {value:.3g} and {at_most:.3g} nats here",)
        return self._said_out_of_reach(found, threshold, most)

    def _estimated_share(
        self, threshold: Threshold, limits: tuple[Tensor, Tensor, Tensor], noise: float
    ) -> Measurement:
        """A percentile, from what the divergence of each row is at least, about, and at most."""
        shares = [(x > threshold.limit).double().mean(1).numpy() for x in limits]
        lower, about, upper = (share_bounds(x, rows=self._tokens) for x in shares)
        found = Measurement(Bounds(about.value, lower.low, upper.high))
        if lower.value <= threshold.allowed < upper.value:  # more samples have the same noise
            found.withhold(
                f"the divergence of a sample is estimated to ± {noise:.2g} nats, so "
                f"{100 * lower.value:.2g} to {100 * upper.value:.2g} % of samples lie above the "
                "limit; judge the mean, or a higher limit"
            )
        sides = [_bounds_of_draws(x, rows=self._tokens) for x in shares[::2]]

        def decides(n: int, generator: np.random.Generator) -> bool:
            low, high = (draw(n, generator) for draw in sides)
            return high.high <= threshold.allowed or low.low > threshold.allowed

        return found.plan(threshold, decides, len(self._rows))

    def kappa(self, threshold: Threshold) -> Measurement:
        """Cohen's kappa: 1 − d / d₀, of the disagreement d and what chance would make it.

        Its bounds combine one of d, which may fail to hold with 4 %, with one of d₀, with 1 %: the
        share of disjoint pairs of different samples that are predicted differently.
        """
        if self._chance == 0:
            return Measurement(reason=_MSG_ONE_CLASS.format(self.base.name), can_decide=False)
        rates = ERROR_RATE * _DISAGREEMENT_SHARE, ERROR_RATE * (1 - _DISAGREEMENT_SHARE)
        shares = tuple(zip((self._disagreement, self._different_pairs), rates, strict=True))
        draw_d, draw_d0 = (_bounds_of_draws(x, rows=self._tokens, rate=rate) for x, rate in shares)

        def bounds(d: Bounds, d0: Bounds) -> tuple[float, float]:
            low = 1 - d.high / d0.low if d0.low > 0 else -1.0
            return max(-1.0, low), 1 - d.low / d0.high

        def decides(n: int, generator: np.random.Generator) -> bool:
            low, high = bounds(draw_d(n, generator), draw_d0(max(1, n // 2), generator))
            return low >= threshold.limit or high < threshold.limit

        value = 1 - float(self._disagreement.mean()) / self._chance
        each = bounds(*(share_bounds(x, rows=self._tokens, rate=rate) for x, rate in shares))
        return Measurement(Bounds(value, *each)).plan(threshold, decides, len(self._rows))

    # -- how it is judged -----------------------------------------------------------------------

    def _share(self, threshold: Threshold, shares: np.ndarray) -> Measurement:  # (units,)
        """A share of rows that must not lie above a limit."""
        draw = _bounds_of_draws(shares, rows=self._tokens)

        def decides(n: int, generator: np.random.Generator) -> bool:
            found = draw(n, generator)
            return found.high <= threshold.allowed or found.low > threshold.allowed

        found = Measurement(share_bounds(shares, rows=self._tokens))
        return found.plan(threshold, decides, len(shares))

    def _largest(self, threshold: Threshold) -> float:
        """The largest value that a divergence is judged by; a limit must lie below it."""
        if threshold.quantity == "kl":
            return threshold.cap
        most = self._outputs[0].largest_js
        if threshold.limit >= most:
            raise DataError(
                f"{threshold.name} must be below {most:.4g} nats, the largest value that is "
                f"possible; found {threshold.limit:g}"
            )
        return most

    # -- chance ---------------------------------------------------------------------------------

    def _unrelated_agree(self) -> str | None:
        """Why the agreement may be chance, or None: a permutation test over units."""
        p, q = (x[:_MAX_UNITS] for x in self._predicted)
        for name, x in ((self.base.name, p), (self.copy.name, q)):
            if bool((x == x[0, 0]).all()):
                return _MSG_ONE_CLASS.format(name)
        agree = _over_pairings(lambda order: int((p == q[order]).sum()), len(q))
        p_value = np.mean(agree >= agree[0])
        if p_value <= _MAX_P_VALUE:
            return None
        by_chance = 1 - np.mean(agree[1:]) / p.numel()
        return (
            f"agreement is not significantly above chance (p = {p_value:.2g}): unrelated networks "
            f"with these class frequencies would disagree on {100 * by_chance:.2g} % of samples"
        )

    def _unrelated_diverge(self, quantity: str, most: float) -> str | None:
        """Why so small a divergence may be chance, or None: a permutation test over units."""
        one, two = self._outputs
        paired = max(_MIN_PAIRED, _MAX_NUMBERS // (self._tokens * one.classes))
        rows = self._rows[: min(_MAX_PAIRED, paired)]
        known = _select_rows(one, rows)

        def divergence(order: np.ndarray) -> float:
            found = row_divergences(known, _select_rows(two, rows[order]), estimate=False)
            return float((found.kl if quantity == "kl" else found.js).clamp_max(most).mean())

        means = _over_pairings(divergence, len(rows))
        p_value = np.mean(means <= means[0] * (1 + _ROUND_OFF) + _ROUND_OFF)
        if p_value <= _MAX_P_VALUE:
            return None
        return (
            f"the predictions are not significantly related (p = {p_value:.2g}): between randomly "
            f"paired samples it is {np.mean(means[1:]):.2g} nats"
        )

    # -- what networks predict ------------------------------------------------------------------

    @functools.cached_property
    def _outputs(self) -> tuple[Outputs, Outputs]:
        return comparable_outputs(
            self.base, self.copy, "; thresholds on layers need no predictions"
        )

    @functools.cached_property
    def _rows(self) -> Tensor:  # (units, tokens)
        """The rows of the outputs that belong to each unit."""
        rows = unit_rows(self.base)
        if 2 * (distinct := _distinct_units(self._outputs[0], rows)) < len(rows):
            unit = "samples" if rows.shape[1] == 1 else "sequences"
            self.notes.append(
                make_note("repeated-samples", distinct=distinct, samples=len(rows), unit=unit)
            )
        return rows

    @property
    def _tokens(self) -> int:
        return self._rows.shape[1]

    @functools.cached_property
    def _predicted(self) -> tuple[Tensor, Tensor]:  # (units, tokens) each
        one, two = self._outputs
        return one.prediction[self._rows], two.prediction[self._rows]

    @functools.cached_property
    def _disagreement(self) -> np.ndarray:  # (units,)
        one, two = self._predicted
        return (one != two).double().mean(1).numpy()

    @functools.cached_property
    def _chance(self) -> float:
        """How often unrelated networks with the same class frequencies would disagree."""
        one, two = (x.flatten() for x in self._predicted)
        every, which = torch.unique(torch.cat([one, two]), return_inverse=True)
        p, q = (torch.bincount(x, minlength=len(every)) for x in which.split(len(one)))
        return 1 - float((p.double() * q.double()).sum()) / len(one) ** 2

    @functools.cached_property
    def _different_pairs(self) -> np.ndarray:  # (units // 2,)
        """The share of rows predicted differently, of disjoint pairs of different units."""
        one, two = self._predicted
        order = torch.from_numpy(seeded_permutation(len(one), seed=0))
        half = max(1, len(order) // 2)
        p, q = one[order[:half]], two[order[-half:]]
        differ = [(p != x[:, None]).double().mean(1) for x in q.T]
        return torch.stack(differ).mean(0).numpy()

    @functools.cached_property
    def _divergences(self) -> Divergences:  # of (units, tokens)
        found = row_divergences(*self._outputs)
        kl, reverse, js, noise = (x[..., self._rows] for x in found[:-1])
        return Divergences(kl, reverse, js, noise, found.known)

    @property
    def _unit(self) -> str:
        return "samples" if self._tokens == 1 else "sequences"


def _capped(most: float, above: Bounds, unit: str) -> str:
    return (
        f"KL is capped at {most:g} nat{'' if most == 1 else 's'}, exceeded by "
        f"{100 * above.value:.2g} % of {unit}, at most {100 * above.high:.2g} %"
    )


def _clipping_bias(means: Tensor, noise: Tensor, most: float) -> float:  # (units,) each
    """By how much clipping at `most` lowers the mean of values with normal errors, at most.

    A value v with an error of σ loses σ (φ(z) − z Φ(−z)) on average, z = (most − v) / σ. That is
    convex in v, so its mean over values that have errors is too large, if anything.
    """
    z = (most - means) / noise.clamp_min(_ROUND_OFF)
    density = (-z.square() / 2).exp() / (2 * torch.pi) ** 0.5
    return float((noise * (density - z * normal_tail(z)).clamp_min(0)).mean())


def _over_pairings(statistic: Callable[[np.ndarray], float], units: int) -> np.ndarray:
    """A statistic of two networks, of the same units of both, then of units in random orders."""
    generator = np.random.default_rng(0)
    orders = [np.arange(units), *(generator.permutation(units) for _ in range(_PERMUTATIONS))]
    return np.array([statistic(order) for order in orders])


def _distinct_units(outputs: Outputs, rows: Tensor) -> int:  # (units, tokens)
    """The number of units whose outputs differ, by a random projection to four digits."""
    found = next(x for x in outputs.tensors().values() if x.is_floating_point())
    generator, most = np.random.default_rng(0), _MAX_LOG_PROBABILITY
    weights = torch.from_numpy(generator.normal(size=found.shape[1]))
    each = [x.double().clamp(-most, most) @ weights for x in found.split(_ROWS_AT_ONCE)]
    of_units = torch.cat(each)[rows] @ torch.from_numpy(generator.normal(size=rows.shape[1]))
    return len(torch.unique((of_units * 1e4).round()))


def _select_rows(outputs: Outputs, rows: Tensor) -> Outputs:
    """The outputs of some rows."""
    at = rows.flatten()
    return Outputs(outputs.classes, **{name: x[at] for name, x in outputs.tensors().items()})


def _bounds_of_draws(
    shares: np.ndarray, *, rows: int, rate: float = ERROR_RATE
) -> Callable[[int, np.random.Generator], Bounds]:
    """A function that draws any number of these shares, with replacement, and returns their bounds.

    Bounds are computed once for draws in which each share occurs equally often.
    """
    support, times = np.unique(shares, return_counts=True)

    @functools.cache
    def bounds(*counts: float) -> Bounds:
        return share_bounds(support, np.array(counts), rows=rows, rate=rate)

    return lambda n, generator: bounds(*map(float, generator.multinomial(n, times / times.sum())))
