"""Bounds: against exact binomial sums, and against draws whose truth is known."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from resemblance.gate.bounds import (
    beta_below,
    counted,
    mean_of,
    number_for_rate,
    number_for_t,
    quantile,
    rate_bounds,
    share_bounds,
    t_bounds,
    two_digits_up,
    units_for_share,
)

TOKENS = 16


def at_most(seen, number, rate):
    """P(X ≤ seen) of a binomial, exactly."""
    p = Fraction(rate)
    return sum(math.comb(number, k) * p**k * (1 - p) ** (number - k) for k in range(seen + 1))


@pytest.mark.parametrize(("seen", "number"), [(0, 1), (0, 300), (1, 50), (3, 40), (39, 40), (7, 9)])
def test_bounds_of_rates_solve_the_binomial_sums_that_define_them(seen, number):
    found = rate_bounds(seen / number, number)
    assert float(at_most(seen, number, found.high)) == pytest.approx(0.05, rel=1e-9)
    if seen:
        above = 1 - at_most(seen - 1, number, found.low)
        assert float(above) == pytest.approx(0.05, rel=1e-9)
    else:
        assert found.low == 0


def test_of_samples_that_all_differ_a_rate_may_be_one():
    found = rate_bounds(1.0, 10)
    assert found.high == 1
    assert found.low == pytest.approx(0.05**0.1, rel=1e-9)


def test_no_differences_in_300_samples_are_not_proof_of_none():
    assert rate_bounds(0.0, 300).high == pytest.approx(1 - 0.05 ** (1 / 300), rel=1e-9)


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.3, 7.5), (1e4, 2.5e5), (2e5, 3.0)])
def test_the_beta_distribution_is_scipys(a, b):
    beta = pytest.importorskip("scipy.stats").beta(a, b)
    for share in (1e-6, 0.05, 0.5, 0.95, 1 - 1e-6):
        # five digits are lost to logarithms of factorials of a hundred thousand
        assert beta_below(float(beta.ppf(share)), a, b) == pytest.approx(share, abs=1e-8)


def test_tokens_of_sequences_without_a_difference_count_once_a_sequence():
    assert counted(torch.zeros(50), TOKENS) == pytest.approx(50)
    assert counted(torch.ones(50), TOKENS) == 50
    assert counted(torch.zeros(50), 1) == 50


@pytest.mark.parametrize("seen", [1, 2, 5, 20])
def test_differences_never_make_a_rate_look_surer(seen):
    """A token each of some sequences: far surer if tokens counted one by one."""
    some = torch.zeros(50)
    some[:seen] = 1 / TOKENS
    none = share_bounds(torch.zeros(50), TOKENS)
    assert none.high == pytest.approx(1 - 0.05 ** (1 / 50))
    assert share_bounds(some, TOKENS).high >= none.high
    assert rate_bounds(float(some.mean()), 50 * TOKENS).high < none.high
    assert units_for_share(some, TOKENS, 0.04) >= units_for_share(torch.zeros(50), TOKENS, 0.04)


DRAWS = {  # of sequences of 16 tokens: shares that differ, with the rate behind them
    "tokens alone": (lambda g, k: g.binomial(TOKENS, 0.02, k) / TOKENS, 0.02),
    "all or none": (lambda g, k: (g.random(k) < 0.02).astype(float), 0.02),
    "by sequence": (lambda g, k: g.binomial(TOKENS, g.beta(0.02, 0.98, k)) / TOKENS, 0.02),
    "some whole": (
        lambda g, k: np.where(g.random(k) < 0.005, 1.0, g.binomial(TOKENS, 0.005, k) / TOKENS),
        0.005 + 0.995 * 0.005,
    ),
}


@pytest.mark.parametrize("sequences", [100, 1000])
@pytest.mark.parametrize("kind", DRAWS)
def test_bounds_hold_for_tokens_of_sequences(kind, sequences):
    draw, truth = DRAWS[kind]
    generator, missed = np.random.default_rng(0), np.zeros(2)
    for _ in range(400):
        shares = draw(generator, sequences)
        found = share_bounds(torch.from_numpy(shares), TOKENS)
        missed += [found.low > truth, found.high < truth]
    # 5 % of 400, and three standard deviations of what draws make of it
    assert (missed / 400 < 0.083).all()


def test_bounds_of_divergences_hold_where_tails_are_long():
    """Of 300 samples of which three in a hundred carry nearly all."""
    generator, missed, plainly = np.random.default_rng(0), np.zeros(2), 0
    truth = 0.03 * 5 + 0.97 * 0.01
    for _ in range(400):
        x = generator.exponential(size=300) * np.where(generator.random(300) < 0.03, 5, 0.01)
        value, error, df = mean_of(torch.from_numpy(x))
        found = t_bounds(value, error, (quantile(df),) * 2)
        missed += [found.low > truth, found.high < truth]
        plainly += value + 1.65 * error < truth
    assert (missed / 400 < 0.083).all()
    assert plainly / 400 > 0.1  # which is why it is not t of the values themselves


def test_the_error_of_a_mean_is_that_of_its_samples():
    x = torch.randn(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    value, error, df = mean_of(x)
    assert (value, error) == pytest.approx((float(x.mean()), float(x.std()) / 500**0.5))
    assert 100 < df < 499
    assert math.isnan(mean_of(x[:1])[1])


def test_what_is_exactly_zero_or_has_no_error():
    assert t_bounds(0.0, 0.0, (2.0, 2.0)).high == 0
    assert t_bounds(0.0, 0.1, (2.0, 3.0)).high == pytest.approx(0.1 * math.exp(3))
    assert t_bounds(0.1, 0.1, (2.0, 3.0)).high == pytest.approx(0.1 * math.exp(3))
    assert math.isnan(t_bounds(0.5, math.nan, (2.0, 2.0)).low)
    assert t_bounds(1e-9, 1.0, (1e3, 1e4)).high > 1  # and does not overflow
    assert number_for_t(1e-9, 1.0, 0.5, (1e3, 1e4), 100) is None


@pytest.mark.parametrize(("share", "limit"), [(0.0, 0.02), (0.01, 0.02), (0.03, 0.02), (0.5, 0.4)])
def test_so_many_samples_decide_and_one_in_ten_fewer_do_not(share, limit):
    number = number_for_rate(share, limit)

    def decided(number):
        found = rate_bounds(share, number)
        return found.high <= limit or found.low > limit

    assert decided(number)
    assert not decided(0.9 * number)
    assert not share or number_for_rate(limit, limit) is None


def test_no_number_of_samples_decides_what_lies_on_the_limit():
    assert number_for_rate(0.02 - 1e-12, 0.02) is None
    assert number_for_t(0.1, 0.01, 0.1, (2.0, 2.0), 100) is None
    assert number_for_t(0.1, 0.01, 0.1 + 1e-12, (2.0, 2.0), 100) is None


@pytest.mark.parametrize("value", [0.0, 1e-3, 0.07, 0.14])
def test_as_many_samples_as_are_said_to_decide_do(value):
    number = number_for_t(value, 0.05, 0.1, (2.0, 3.0), 100)
    found = t_bounds(value, 0.05 * (100 / number) ** 0.5, (2.0, 3.0))
    assert (found.high if value < 0.1 else found.low) == pytest.approx(0.1)


def test_numbers_are_rounded_up_to_two_digits():
    assert [two_digits_up(x) for x in (1, 99, 100, 100.1, 148.3, 9900, 9901)] == [
        1, 99, 100, 110, 150, 9900, 10000,
    ]  # fmt: skip


def test_quantiles_are_students():
    assert quantile(10.0) == pytest.approx(1.8125, abs=1e-4)
    assert quantile(5.0, 0.05 / 12) == pytest.approx(4.2193, abs=1e-3)  # SciPy's
