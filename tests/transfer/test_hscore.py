"""H-score, its shrunk form and TransRate against their plain formulas."""

import numpy as np
import plain_scores as plain
import pytest
from sklearn.covariance import LedoitWolf

from resemblance.analysis.kernel_ridge import FeatureSpectrum
from resemblance.transfer.hscore import h_score, shrinkage, shrunk_h_score, trans_rate


def task(n, d, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, n)
    scales = 10.0 ** np.linspace(0, -3, d)  # some directions hardly vary
    return (rng.normal(size=(n, d)) + 0.7 * np.eye(4, d)[y] + 3) * scales, y


@pytest.mark.parametrize(("n", "d"), [(80, 6), (40, 90)])
@pytest.mark.parametrize("least", [1e-3, 1e-9])
def test_the_h_score_is_a_trace(n, d, least):
    f, y = task(n, d)
    assert h_score(f, y, least=least) == pytest.approx(plain.h_score(f, y, least), rel=1e-6)


def test_the_h_score_of_more_features_than_samples_says_nothing():
    f = np.random.default_rng(0).normal(size=(30, 100))
    for y in (np.arange(30) % 3, np.arange(30) // 10):
        assert h_score(f, y, least=1e-9) == pytest.approx(2)
        assert shrunk_h_score(f, y) < 1.9


@pytest.mark.parametrize(("n", "d"), [(80, 6), (40, 90)])
def test_the_shrinkage_is_that_of_ledoit_and_wolf(n, d):
    f, y = task(n, d)
    share = LedoitWolf().fit(f).shrinkage_
    assert shrinkage(FeatureSpectrum.of(f).centred()) == pytest.approx(share, rel=1e-6)
    assert shrunk_h_score(f, y) == pytest.approx(plain.shrunk_h_score(f, y, share), rel=1e-6)


def test_a_single_feature_is_not_shrunk():
    f, y = task(50, 1)
    assert shrinkage(FeatureSpectrum.of(f).centred()) == LedoitWolf().fit(f).shrinkage_ == 0
    assert shrunk_h_score(f, y) == pytest.approx(h_score(f, y))


def test_equal_variances_are_shrunk_whole():
    f = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    assert shrinkage(FeatureSpectrum.of(f)) == 1


@pytest.mark.parametrize(("n", "d"), [(80, 6), (40, 90)])
@pytest.mark.parametrize("scaled", [True, False])
def test_the_trans_rate_is_a_difference_of_coding_rates(n, d, scaled):
    f, y = task(n, d)
    for eps in (1e-4, 1e-1):
        expected = plain.trans_rate(f, y, eps, scaled)
        assert trans_rate(f, y, precision=eps, scaled=scaled) == pytest.approx(expected, rel=1e-8)
    assert trans_rate(10 * f, y) == pytest.approx(trans_rate(f, y), rel=1e-8)
