"""Bounds: how far the truth may lie from what was measured, to one side with a stated confidence.

Rates have Clopper and Pearson's, which are exact for independent samples. Tokens of one sequence
are not, so they count as fewer: as many as would leave a rate as uncertain. Means of divergences
and what is missing of a score from 1 cannot be negative and have long tails upwards; theirs are
Student's t on their logarithms, which held more often than t itself wherever tails were long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..similarity.error_bars import standard_error, student_t

RATE = 0.05  # at which a bound may fail to hold
_MOST = 1e12  # samples: beyond, it is said that no number would do
_STEEPEST = 700.0  # of what is raised to a power, for a float to hold it


@dataclass(frozen=True)
class Bounds:
    """A value, and what it is at least and at most."""

    value: float
    low: float
    high: float


# -- rates --------------------------------------------------------------------------------------


def rate_bounds(share: float, number: float, rate: float = RATE) -> Bounds:
    """Clopper and Pearson's one-sided bounds of a rate, seen as a share of so many samples.

    Each holds with a probability of at least 1 − rate. Of a number that is not whole, as tokens may
    count for, the beta distributions are taken as they are.

    >>> found = rate_bounds(0.0, 300)
    >>> found.low, round(found.high, 5)
    (0.0, 0.00994)
    """
    seen, rest = share * number, (1 - share) * number
    low = 0.0 if seen <= 0 else _beta_quantile(rate, seen, rest + 1)
    high = 1.0 if rest <= 0 else _beta_quantile(1 - rate, seen + 1, rest)
    return Bounds(share, low, high)


def counted(shares: Tensor, rows: int) -> float:  # (units,): of sequences, each of so many tokens
    """As how many independent samples the tokens of sequences count, for a rate.

    Their number over the design effect: the variance of the rate between sequences, over what
    independent tokens would give it. It is measured with one more sequence of which every token
    differs. Where few differ the spread between sequences says little, and this one decides: where
    none does, a sequence counts once, however many tokens it has. Never more than the tokens.

    >>> counted(torch.zeros(50), 16), counted(torch.ones(50), 16) > 50
    (50.0, False)
    """
    if rows == 1:
        return float(len(shares))
    each = torch.cat([shares.double(), torch.ones(1, dtype=torch.float64)])
    rate = float(each.mean())
    if rate == 1:
        return float(len(shares))
    effect = float(each.var(correction=0)) / (rate * (1 - rate) / rows)
    return len(shares) * rows / min(max(effect, 1.0), float(rows))


def number_for_rate(share: float, limit: float, rate: float = RATE) -> float | None:
    """How many samples decide on which side of a limit a rate lies, if the share stays.

    None if none does: the share is the limit, or too close to it.
    """
    if share == limit:
        return None

    def decided(number: float) -> bool:
        found = rate_bounds(share, number, rate)
        return found.high <= limit if share < limit else found.low > limit

    few, many = 0.0, 1.0
    while not decided(many):
        few, many = many, 2 * many
        if many > _MOST:
            return None
    while many - few > 1e-6 * many:
        middle = (few + many) / 2
        few, many = (few, middle) if decided(middle) else (middle, many)
    return many


def share_bounds(shares: Tensor, rows: int) -> Bounds:  # (units,): of each unit's rows
    """Bounds of a rate, from the share of each sample, or of each sequence of so many tokens.

    A difference that was seen never makes a rate surer than none would: the upper bound is at least
    that of as many sequences without any.
    """
    found = rate_bounds(float(shares.mean()), counted(shares, rows))
    return replace(found, high=max(found.high, rate_bounds(0.0, len(shares)).high))


def units_for_share(shares: Tensor, rows: int, limit: float) -> float | None:  # (units,)
    """How many samples, or sequences, decide on which side of a limit a rate lies."""
    share = float(shares.mean())
    number = number_for_rate(share, limit)
    if number is None:
        return None
    units = number * len(shares) / counted(shares, rows)  # each counts as much as those seen
    return max(units, number_for_rate(0.0, limit) or 0.0) if share < limit else units


# -- what cannot be negative --------------------------------------------------------------------


def t_bounds(value: float, stderr: float, quantiles: tuple[float, float]) -> Bounds:
    """Bounds of a positive value from its standard error, by Student's t on its logarithm.

    `quantiles` are how many standard errors below and above; see `quantile`. A value below its own
    standard error may as well be that error, which the upper bound takes it for.

    >>> found = t_bounds(0.1, 0.01, (1.66, 1.66))
    >>> round(found.low, 4), round(found.high, 4)
    (0.0847, 0.1181)
    """
    if math.isnan(value) or math.isnan(stderr):
        return Bounds(value, math.nan, math.nan)
    below, above = quantiles
    if value <= 0 and stderr == 0:
        return Bounds(0.0, 0.0, 0.0)
    most = max(value, stderr)
    low = value * math.exp(-below * stderr / value) if value > 0 else 0.0
    return Bounds(value, low, most * math.exp(min(above * stderr / most, _STEEPEST)))


def number_for_t(
    value: float, stderr: float, limit: float, quantiles: tuple[float, float], number: int
) -> float | None:
    """How many samples decide on which side of a limit a positive value lies, if it stays.

    Errors fall as the root of the number of samples, of which there were `number`.
    """
    below, above = quantiles
    if not stderr > 0 or value == limit:
        return None
    if value > limit:
        enough = value * math.log(value / limit) / below
    elif limit < value * math.exp(min(above, _STEEPEST)):
        enough = value * math.log(limit / value) / above
    else:
        enough = limit / math.exp(min(above, _STEEPEST))
    found = number * (stderr / enough) ** 2
    return found if found < _MOST else None


def quantile(df: float, rate: float = RATE) -> float:
    """How many standard errors to one side hold all of Student's t but a share `rate`.

    >>> round(quantile(10.0), 3)
    1.812
    """
    return float(student_t(1 - 2 * rate, np.array(df)))


def mean_of(values: Tensor) -> tuple[float, float, float]:  # (units,)
    """The mean over independent samples, its standard error and the degrees of freedom of that."""
    count = len(values)
    if count < 2:
        return float(values.mean()), math.nan, 1.0
    moved = (values.double() - values.double().mean()) / (count * (count - 1)) ** 0.5
    error, df = standard_error([moved])
    return float(values.double().mean()), float(error), float(df)


def two_digits_up(number: float) -> int:
    """Rounded up to two digits.

    >>> two_digits_up(148.4), two_digits_up(9301.0), two_digits_up(7.2)
    (150, 9400, 8)
    """
    whole = math.ceil(number)
    step = 10 ** max(0, len(str(whole)) - 2)
    return -(-whole // step) * step


# -- the beta distribution ----------------------------------------------------------------------


def _beta_quantile(share: float, a: float, b: float) -> float:
    """Below what a share of the beta distribution lies, by halving."""
    low, high = 0.0, 1.0
    while high - low > 1e-13 * high and high > 1e-300:
        middle = (low + high) / 2
        low, high = (middle, high) if beta_below(middle, a, b) < share else (low, middle)
    return (low + high) / 2


def beta_below(x: float, a: float, b: float) -> float:
    """How much of the beta distribution with parameters a, b > 0 lies below x in (0, 1).

    The incomplete beta integral, by its continued fraction where that converges quickly, below the
    mean, and from the other end above it.

    >>> round(beta_below(0.5, 2.0, 2.0), 12)
    0.5
    """
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_below(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front += a * math.log(x) + b * math.log1p(-x) - math.log(a)
    return math.exp(log_front) / _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    """1 + d₁ / (1 + d₂ / (1 + …)) from its convergents p / q, kept from growing out of range."""
    p_before, q_before, p, q = 1.0, 0.0, 1.0, 1.0
    last = math.inf
    for i in range(1, 100_000):
        m = i // 2
        if i % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        p_before, q_before, p, q = p, q, p + d * p_before, q + d * q_before
        size = abs(q) or 1.0
        p_before, q_before, p, q = p_before / size, q_before / size, p / size, q / size
        if q and abs(p / q - last) <= 1e-15 * abs(p / q):
            return p / q
        last = p / q if q else math.inf
    return last
