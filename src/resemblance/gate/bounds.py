"""One-sided confidence bounds of rates and bounded means, and how many samples would decide.

Rates have Clopper and Pearson's bounds. Tokens of one sequence are not independent, so they count
as fewer samples, by the design effect between sequences. Means of bounded values have betting
bounds (Waudby-Smith and Ramdas 2023), which assume nothing about the distribution but its range,
however heavy its tail within that range. All are valid at any sample size.

`samples_to_decide` repeats a check on samples drawn from the recorded ones, for growing numbers of
samples, until at least 80 % of the repetitions decide.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from .._utils.hashing import seeded_permutation
from .thresholds import Threshold
from .verdict import Status

_DECISION_PROBABILITY = 0.8


def samples_to_decide(
    decides: Callable[[int, np.random.Generator], bool],
    now: int,
    *,
    draws: int = 100,
    most: int = 10**9,
) -> int | None:
    """The smallest round number of samples that decides with a probability of 80 %.

    The number is doubled until enough draws decide, then refined by bisection over numbers of two
    digits. Draws are seeded, so one check always names the same number. At most about 40 numbers
    are tried, and a hopeless one is abandoned after a fifth of its draws.

    Args:
        decides: draws that many samples with replacement from the recorded ones, using the
            generator, and returns whether the check of these is decided (passes or fails).
        now: the number of samples recorded, which did not decide.
        draws: draws per number of samples tried; 100 have a standard error of 4 % at 80 %.
        most: the largest number to try.

    Returns:
        A number of at most two digits and zeros, or None if even `most` samples do not decide.

    Example:
        >>> samples_to_decide(lambda n, generator: n >= 299, now=100)
        300
    """
    allowed = draws - int(np.ceil(_DECISION_PROBABILITY * draws))

    def enough(n: int) -> bool:
        generator, decided, undecided = np.random.default_rng((0, n)), 0, 0
        while undecided <= allowed and decided < draws - allowed:  # else the rest changes nothing
            if decides(n, generator):
                decided += 1
            else:
                undecided += 1
        return undecided <= allowed

    low = high = max(1, now)
    while not enough(high := round_up_two_digits(2 * low)):
        if high >= most:
            return None
        low = high
    candidates = sorted({round_up_two_digits(n) for n in np.linspace(low + 1, high, 101)})
    return candidates[bisect.bisect_left(candidates[:-1], True, key=enough)]  # the last is enough


def round_up_two_digits(number: float) -> int:
    """Rounded up to two significant digits.

    >>> round_up_two_digits(148.4), round_up_two_digits(9301.0), round_up_two_digits(7.2)
    (150, 9400, 8)
    """
    whole = int(np.ceil(number))
    step = 10 ** max(0, len(str(whole)) - 2)
    return -(-whole // step) * step


ERROR_RATE = 0.05  # the probability with which a one-sided bound may fail to hold
_LARGEST_BET_SHARE = 2 / 3  # of the stake, on the bet that decides where all values are zero
_CHECKPOINTS = 32  # at which the wealth of simulated samples is compared with 1 / RATE
_DISTINCT_VALUES = 48  # distinct values to simulate samples from
_MAX_EXPONENT = 700.0  # the largest exponent that a float holds


@dataclass(frozen=True)
class Bounds:
    """A value, and its lower and upper bound."""

    value: float
    low: float
    high: float


@dataclass
class Measurement:
    """What was measured for a threshold: its bounds, and what else there is to say of it.

    Without bounds it is undecided, or failed if it `fails`.
    """

    bounds: Bounds = Bounds(math.nan, math.nan, math.nan)
    layer: str | None = None
    needed: int | None = None  # samples, or sequences
    reason: str | None = None
    can_pass: bool = True
    can_decide: bool = True  # with more samples
    fails: bool = False  # whatever the bounds
    remarks: tuple[str, ...] = ()  # shown with the finding, whatever its status

    def withhold(self, reason: str) -> None:
        """Leave undecided what would pass, for a reason that more samples need not remove."""
        self.reason, self.can_pass, self.can_decide = reason, False, False

    def plan(
        self, threshold: Threshold, decides: Callable[[int, np.random.Generator], bool], now: int
    ) -> Measurement:
        """The same, with the number of samples that would decide, where `now` samples do not."""
        if self.can_decide and self.status(threshold) == "undecided":
            self.needed = samples_to_decide(decides, now)
        return self

    def status(self, threshold: Threshold) -> Status:
        """Whether the bounds lie on one side of what the threshold allows, and on which."""
        low, high, limit = self.bounds.low, self.bounds.high, threshold.allowed
        at_most = threshold.allows_at_most
        if self.fails or (low > limit if at_most else high < limit):
            return "failed"
        passes = high <= limit if at_most else low >= limit
        return "passed" if passes and self.can_pass else "undecided"


# -- rates --------------------------------------------------------------------------------------


def rate_bounds(share: float, number: float, rate: float = ERROR_RATE) -> Bounds:
    """Clopper and Pearson's one-sided bounds of a rate.

    Args:
        share: the share of samples observed.
        number: the number of samples. It may be fractional, as tokens can count for; the beta
            quantiles are then taken as they are.
        rate: the probability with which each bound may fail to hold.

    Returns:
        The share and its bounds.

    Example:
        >>> found = rate_bounds(0.0, 300)
        >>> found.low, round(found.high, 5)
        (0.0, 0.00994)
    """
    from scipy.special import betainccinv, betaincinv

    seen, rest = share * number, (1 - share) * number
    low = 0.0 if seen <= 0 else float(betaincinv(seen, rest + 1, rate))
    high = 1.0 if rest <= 0 else float(betainccinv(seen + 1, rest, rate))
    return Bounds(share, low, high)


def effective_count(shares: np.ndarray, rows: int, counts: np.ndarray | None = None) -> float:
    """How many independent samples the tokens of sequences are worth, for a rate.

    The number of tokens over the design effect, which is the variance of the rate between sequences
    over what independent tokens would give it. It is measured with one more sequence of which every
    token differs. Where few differ the spread between sequences says little, and this one decides:
    where none does, a sequence counts once, however many tokens it has.

    Args:
        shares: (units,) the share of tokens that differ, of each sequence.
        rows: tokens per sequence; 1 for independent samples.
        counts: (units,) how often each share occurs. Default: once.

    Returns:
        At least the number of sequences and at most that of tokens.

    Example:
        >>> effective_count(np.zeros(50), 16), effective_count(np.ones(50), 16) > 50
        (50.0, False)
    """
    counts = np.ones(len(shares)) if counts is None else counts
    units = float(counts.sum())
    if rows == 1:
        return units
    mean = float(shares @ counts + 1) / (units + 1)
    if mean == 1:
        return units
    variance = float((shares - mean) ** 2 @ counts + (1 - mean) ** 2) / (units + 1)
    effect = variance / (mean * (1 - mean) / rows)
    return units * rows / min(max(effect, 1.0), float(rows))


def share_bounds(
    shares: np.ndarray, counts: np.ndarray | None = None, *, rows: int, rate: float = ERROR_RATE
) -> Bounds:
    """Bounds of a rate, from the share of each sample, or of each sequence of so many tokens.

    Observed differences never make a rate more certain than none would: the upper bound is at least
    that of as many sequences without any.

    Args:
        shares: (units,) the share of each unit's rows: 0 or 1 for a sample.
        counts: (units,) how often each share occurs. Default: once.
        rows: rows per unit: 1, or the tokens of a sequence.
        rate: the probability with which each bound may fail to hold.

    Returns:
        The mean share and its bounds.
    """
    counts = np.ones(len(shares)) if counts is None else counts
    units = float(counts.sum())
    found = rate_bounds(float(shares @ counts) / units, effective_count(shares, rows, counts), rate)
    return replace(found, high=max(found.high, rate_bounds(0.0, units, rate).high))


# -- means of bounded values --------------------------------------------------------------------


def mean_bounds(values: np.ndarray, largest: float, least: float = 0.0) -> Bounds:
    """Betting bounds of the mean of independent values in [least, largest], each with 95 %.

    With x the values scaled to [0, 1]: if their mean were m or more, the wealth
    Π (1 + c (m − x) / (1 − m)) would be a supermartingale for any c in (0, 1], so it ever reaches
    20 with a probability of at most 5 % (Ville's inequality). The upper bound is the largest m for
    which it never does. Two thirds of the initial wealth are bet with c = 1, two thirds of the rest
    with c = 1/2, and so on down to what so many samples can gain from. So 3.3 · largest / m zeros
    show a mean below m, where no method can do with fewer than 3.0 · largest / m. The lower bound
    bets the other way, with equal parts of the wealth. Samples are visited in a seeded random
    order, so that the order of the data set does not matter.

    Args:
        values: (n,) in [least, largest]; others are clipped.
        largest: the largest value possible.
        least: the least value possible.

    Returns:
        The mean and its bounds, neither of which lies on the wrong side of the mean.

    Reference:
        Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting",
        Journal of the Royal Statistical Society B 86, 2024.

    Example:
        >>> found = mean_bounds(np.zeros(1000), largest=1.0)
        >>> found.low, round(found.high, 4)
        (0.0, 0.0033)
    """
    from scipy.optimize import brentq

    span = largest - least
    x = np.clip((np.asarray(values, np.float64) - least) / span, 0, 1)
    x = x[seeded_permutation(len(values), seed=0)]
    mean, tiny = float(x.mean()), 1e-12

    def excess(m: float, above: bool) -> float:
        fractions, stakes = _halving_bets(len(x), above)
        growth = _log_growth(x, m, fractions, above)
        return _log_wealth(growth.cumsum(1), stakes) + math.log(ERROR_RATE)

    def bound(inner: float, outer: float, above: bool) -> float:
        if excess(inner, above) >= 0:
            return mean
        if excess(outer, above) < 0:
            return round(outer)  # 0 or 1
        return float(brentq(excess, inner, outer, args=(above,), xtol=1e-15, rtol=1e-10))

    low = bound(min(mean, 1 - tiny), tiny, above=False) if mean > tiny else 0.0
    high = bound(max(mean, tiny), 1 - tiny, above=True) if mean < 1 - tiny else 1.0
    return Bounds(*(least + each * span for each in (mean, low, high)))


def mean_decides(
    values: np.ndarray, largest: float, limit: float, least: float = 0.0
) -> Callable[[int, np.random.Generator], bool]:
    """Whether `mean_bounds` decides on which side of a limit the mean lies, for simulated samples.

    Args:
        values: (n,) recorded values, from which samples are drawn with replacement. They are merged
            into 48 distinct ones of each sign, so that any number of samples is simulated in the
            same time.
        largest: the largest value possible.
        limit: the threshold for the mean.
        least: the least value possible.

    Returns:
        A function of the number of samples and a generator, as `samples_to_decide` takes it.
    """
    clipped = np.clip(np.asarray(values, np.float64), least, largest)
    size = np.log2(np.maximum(np.abs(clipped), limit / 2**10))
    edges = np.linspace(size.min(), size.max() + 1e-9, _DISTINCT_VALUES)
    which = np.where(clipped != 0, np.digitize(size, edges), 0)
    which = np.where(clipped < 0, _DISTINCT_VALUES + which, which)
    counts = np.bincount(which).astype(float)
    there = np.flatnonzero(counts)
    support = np.bincount(which, clipped)[there] / counts[there]
    support, m = (support - least) / (largest - least), (limit - least) / (largest - least)
    shares = counts[there] / counts.sum()

    def decides(n: int, generator: np.random.Generator) -> bool:
        parts = min(n, _CHECKPOINTS)
        sizes = np.full(parts, n // parts) + (np.arange(parts) < n % parts)
        drawn = generator.multinomial(sizes, shares).astype(float)  # (parts, values)
        above = float(drawn.sum(0) @ support) / n <= m
        fractions, stakes = _halving_bets(n, above)
        growth = np.maximum(_log_growth(support, m, fractions, above), -1e9)  # times 0 is 0
        return _log_wealth((growth @ drawn.T).cumsum(1), stakes) >= -math.log(ERROR_RATE)

    return decides


def _halving_bets(n: int, above: bool) -> tuple[np.ndarray, np.ndarray]:
    """Bets that halve, down to the least with which n samples can multiply the wealth by 20.

    A bet of λ gains most with λ² = 2 log(20) / (n σ²), of which σ² is at most m (1 − m).

    Returns:
        Fractions c (bets,) of the largest bet that cannot lose more than there is, and stakes
        (bets,), shares of the initial wealth.
    """
    halvings = -math.log2((-2 * math.log(ERROR_RATE) / n) ** 0.5)
    if not above:
        number = max(1, math.ceil(2 * halvings))
        return 0.5 ** np.arange(1, number + 1), np.full(number, 1 / number)
    powers = np.arange(max(1, math.ceil(halvings)) + 1)
    stakes = _LARGEST_BET_SHARE * (1 - _LARGEST_BET_SHARE) ** powers
    stakes[-1] += 1 - stakes.sum()
    return 0.5**powers, stakes


def _log_growth(
    x: np.ndarray, m: float, fractions: np.ndarray, above: bool
) -> np.ndarray:  # (bets, n)
    """The logarithm by which each value multiplies what is bet against a mean of m."""
    gain = (m - x) / (1 - m) if above else (x - m) / m
    with np.errstate(divide="ignore"):  # the largest bet may lose everything
        return np.log1p(np.maximum(np.multiply.outer(fractions, gain), -1.0))


def _log_wealth(sums: np.ndarray, stakes: np.ndarray) -> float:  # (bets, times), (bets,)
    """The logarithm of the largest wealth ever reached, from the growth of each bet until then."""
    return math.log(max(1.0, float((stakes @ np.exp(np.minimum(sums, _MAX_EXPONENT))).max())))
