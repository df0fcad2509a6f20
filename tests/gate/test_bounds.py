"""Bounds against exact binomial sums and simulations, and how many samples decide."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from resemblance._utils.hashing import seeded_permutation
from resemblance.gate.bounds import (
    effective_count,
    mean_bounds,
    mean_decides,
    rate_bounds,
    round_up_two_digits,
    samples_to_decide,
    share_bounds,
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
    tiny = 1e-20  # 1 - rate is 1
    assert rate_bounds(0.0, 300, tiny).high == pytest.approx(1 - tiny ** (1 / 300), rel=1e-9)


def test_tokens_of_sequences_without_a_difference_count_once_a_sequence():
    assert effective_count(np.zeros(50), TOKENS) == pytest.approx(50)
    assert effective_count(np.ones(50), TOKENS) == 50
    assert effective_count(np.zeros(50), 1) == 50


def test_shares_can_be_given_with_how_often_they_occur():
    shares = np.array([0.0, 0.0, 0.25, 0.0, 0.5, 0.25])
    counts = (np.array([0.0, 0.25, 0.5]), np.array([3.0, 2.0, 1.0]))
    assert share_bounds(*counts, rows=4) == share_bounds(shares, rows=4)


@pytest.mark.parametrize("seen", [1, 2, 5, 20])
def test_differences_never_make_a_rate_look_surer(seen):
    """A token each of some sequences: far surer if tokens counted one by one."""
    some = np.zeros(50)
    some[:seen] = 1 / TOKENS
    none = share_bounds(np.zeros(50), rows=TOKENS)
    assert none.high == pytest.approx(1 - 0.05 ** (1 / 50))
    assert share_bounds(some, rows=TOKENS).high >= none.high
    assert rate_bounds(float(some.mean()), 50 * TOKENS).high < none.high


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
        found = share_bounds(shares, rows=TOKENS)
        missed += [found.low > truth, found.high < truth]
    # 5 % of 400, and three standard deviations of what draws make of it
    assert (missed / 400 < 0.083).all()


def wealth(values, m, above):
    """What is bet against a mean of m when it was largest, of 300 samples, bet by bet.

    A bet of √(2 log(20) / 300) = 0.14 is the least that can win, so there are bets down to 1/8
    against a mean that is too large, and down to 1/64 against one that is too small.
    """
    bets = [(2 / 3, 1.0), (2 / 9, 1 / 2), (2 / 27, 1 / 4), (1 / 27, 1 / 8)]
    if not above:
        bets = [(1 / 6, 2.0**-k) for k in range(1, 7)]
    most, products = 1.0, [1.0] * len(bets)
    for x in values:
        gain = (m - x) / (1 - m) if above else (x - m) / m
        products = [p * (1 + c * gain) for p, (_, c) in zip(products, bets, strict=True)]
        most = max(most, sum(stake * p for p, (stake, _) in zip(products, bets, strict=True)))
    return most


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_bounds_of_means_are_where_the_wealth_reaches_twenty(sigma):
    values = np.minimum(0.2 * np.exp(sigma * np.random.default_rng(0).normal(size=300)), 2.0)
    found = mean_bounds(values, 2.0)
    visited = [float(values[i]) / 2 for i in seeded_permutation(300, seed=0)]
    high, low = found.high / 2, found.low / 2
    assert found.value == pytest.approx(values.mean())
    assert wealth(visited, high * 1.0001, True) > 20 > wealth(visited, high * 0.9999, True)
    assert wealth(visited, low * 0.9999, False) > 20 > wealth(visited, low * 1.0001, False)


@pytest.mark.parametrize("n", [60, 1_000, 10_000])
def test_zeros_alone_show_a_mean_below_a_little_more_than_three_over_n(n):
    """No method can do better than the rate at which no difference in n samples is seen in 5 %."""
    assert 1 - 0.05 ** (1 / n) < mean_bounds(np.zeros(n), 1.0).high < 3.4 / n
    assert mean_bounds(np.zeros(n), 1.0).low == 0


def test_means_at_the_ends_of_their_range():
    ones = mean_bounds(np.ones(50), 1.0)
    assert (ones.value, ones.high) == (1, 1)
    assert 0.5 < ones.low < 1
    few = mean_bounds(np.array([0.3]), 1.0)
    assert few.low < 0.3 < few.high
    beyond = mean_bounds(np.array([np.inf, 0.0]), 1.0)  # clipped
    assert beyond.value == 0.5


HEAVY = {  # values in [0, 1] and their means; of lognormal ones, of a million draws
    "two in a hundred are 1": lambda g, n: (g.random(n) < 0.02).astype(float),
    "0.2 % carry 90 %": lambda g, n: np.where(g.random(n) < 0.002, 0.9, 0.0002),
    "lognormal": lambda g, n: np.minimum(1e-3 * np.exp(3 * g.normal(size=n)), 1),
}


@pytest.mark.parametrize("n", [60, 300])
@pytest.mark.parametrize("kind", HEAVY)
def test_bounds_of_means_hold_whatever_the_tail(kind, n):
    """Student's t, on logarithms or not, misses rare values in up to half of the draws."""
    generator, missed = np.random.default_rng(0), np.zeros(2)
    truth = HEAVY[kind](np.random.default_rng(1), 1_000_000).mean()
    for _ in range(200):
        found = mean_bounds(HEAVY[kind](generator, n), 1.0)
        missed += [found.low > truth, found.high < truth]
    # 5 % of 200, and three standard deviations
    assert (missed / 200 < 0.096).all()


@pytest.mark.parametrize("kind", HEAVY)
def test_bounds_of_means_hold_for_values_that_noise_makes_negative(kind):
    generator, missed = np.random.default_rng(0), np.zeros(2)
    truth = HEAVY[kind](np.random.default_rng(1), 1_000_000).mean()
    for _ in range(200):
        values = HEAVY[kind](generator, 100) + 0.02 * generator.normal(size=100)
        found = mean_bounds(values, 1.1, -1.1)
        missed += [found.low > truth, found.high < truth]
        assert found.value == pytest.approx(values.mean())
    assert (missed / 200 < 0.096).all()


def test_a_range_is_that_of_values_shifted_and_scaled():
    values = np.random.default_rng(0).random(80)
    one, two = mean_bounds(values, 1.0), mean_bounds(3 * values - 2, 1.0, -2.0)
    for name in ("value", "low", "high"):
        assert 3 * getattr(one, name) - 2 == pytest.approx(getattr(two, name))
    for n in (5, 400):  # as many samples decide
        draws = [
            mean_decides(x, 1.0, limit, least)(n, np.random.default_rng(0))
            for x, limit, least in ((values, 0.6, 0.0), (2 * values - 1, 0.2, -1.0))
        ]
        assert draws[0] == draws[1] == (n == 400)


def test_a_thousand_samples_show_a_divergence_at_half_of_the_threshold():
    """A JS of 0.01 nats, lognormal with σ = 2, is shown to lie below 0.02 in nine draws of ten."""
    generator = np.random.default_rng(0)
    scale = 0.01 / math.exp(2)
    found = [
        mean_bounds(np.minimum(scale * np.exp(2 * generator.normal(size=1000)), math.log(2)),
                    math.log(2)).high <= 0.02 for _ in range(40)
    ]  # fmt: skip
    assert np.mean(found) >= 0.9


@pytest.mark.parametrize(("limit", "n"), [(0.02, 500), (0.01, 800)])
def test_simulated_samples_decide_as_often_as_real_ones(limit, n):
    generator = np.random.default_rng(0)
    values = np.minimum(0.01 * generator.exponential(size=500) ** 2, 1)  # with a mean of 0.02
    values *= 0.013 / values.mean()
    decides = mean_decides(values, 1.0, limit)
    simulated = np.mean([decides(n, generator) for _ in range(100)])
    bounds = [mean_bounds(generator.choice(values, n), 1.0) for _ in range(100)]
    real = np.mean([x.high <= limit or x.low > limit for x in bounds])
    assert 0.1 < real < 0.95
    # three standard deviations of the difference between two shares of 100
    assert simulated == pytest.approx(real, abs=0.21)


@pytest.mark.parametrize("needed", [101, 299, 1234, 99_999_000])
def test_the_smallest_round_number_that_decides_is_found(needed):
    assert samples_to_decide(lambda n, _: n >= needed, 100) == round_up_two_digits(needed)


def test_no_number_of_samples_decides_what_never_decides():
    assert samples_to_decide(lambda n, _: False, 100) is None
    assert samples_to_decide(lambda n, _: n >= 2_000, 100, most=1_000) is None


def test_a_number_that_decides_half_of_the_time_is_not_enough():
    """The mean of n numbers of standard deviation 1 lies 1.645 / √n below 0.1 with n = 618 at 80 %.

    At 50 % it is 271.
    """

    def decides(n, generator):
        return generator.normal(0, 1 / n**0.5) + 1.645 / n**0.5 < 0.1

    found = samples_to_decide(decides, 100, draws=2_000)
    assert 560 <= found <= 680
    share = np.mean([decides(found, np.random.default_rng(i)) for i in range(2_000)])
    assert share == pytest.approx(0.8, abs=0.05)


def test_the_answer_is_the_same_each_time():
    def decides(n, generator):
        return generator.random() < n / 1000

    assert samples_to_decide(decides, 50) == samples_to_decide(decides, 50)


def test_hopeless_numbers_cost_a_fifth_of_the_draws():
    calls = []
    samples_to_decide(lambda n, _: bool(calls.append(n)), 1, draws=100, most=10**6)
    assert all(calls.count(n) == 21 for n in set(calls))


def test_numbers_are_rounded_up_to_two_digits():
    assert [round_up_two_digits(x) for x in (1, 99, 100, 100.1, 148.3, 9900, 9901)] == [
        1, 99, 100, 110, 150, 9900, 10000,
    ]  # fmt: skip
