"""What a probe should reach: Wilson's interval, and what widens it."""

import math

import numpy as np
import pytest

from resemblance.transfer.recommendation import ExpectedAccuracy, expected_probe, wilson_interval


def test_wilsons_interval_holds_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    for truth, count in ((0.5, 50), (0.9, 100), (0.97, 400)):
        hits = rng.binomial(count, truth, 4000) / count
        ends = [wilson_interval(share, count) for share in hits]
        held = np.mean([low <= truth <= high for low, high in ends])
        assert abs(held - 0.95) < 0.025  # counts are whole, so no interval has 0.95 itself


def test_its_ends_solve_the_score_equation():
    low, high = wilson_interval(0.3, 80, level=0.9)
    for end in (low, high):
        assert abs(0.3 - end) / math.sqrt(end * (1 - end) / 80) == pytest.approx(1.6449, rel=1e-4)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_an_expected_accuracy_is_inside_its_interval(share):
    plain = expected_probe(share, 100, shift=0.0, spread=0.0)
    wide = expected_probe(share, 100, shift=0.0, spread=0.3)
    assert 0 <= wide.low < plain.low <= plain.value <= plain.high < wide.high <= 1
    if share == 0.3:
        assert (plain.low, plain.high) == pytest.approx(wilson_interval(0.3, 100))
        assert plain.value == pytest.approx(0.3)


def test_of_endless_samples_the_spread_is_what_remains():
    found = expected_probe(0.5, 10**12, shift=0.1, spread=0.3)
    for end, side in ((found.low, -1), (found.high, 1)):
        assert math.log(end / (1 - end)) == pytest.approx(0.1 + side * 1.96 * 0.3, rel=1e-3)


def test_a_shift_moves_all_of_it():
    low, high = (expected_probe(0.6, 200, shift=shift, spread=0.1) for shift in (-0.2, 0.2))
    assert (low.value, low.low, low.high) < (high.value, high.low, high.high)
    assert str(ExpectedAccuracy(0.5, 0.4, 0.62)) == "50% (40% to 62%)"


def test_what_is_no_share_is_refused():
    for share, count in ((1.2, 10), (-0.2, 10), (0.5, -1)):
        with pytest.raises(ValueError, match="must"):
            wilson_interval(share, count)
