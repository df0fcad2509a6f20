"""LogME against the authors' fixed point, and where that has none."""

import numpy as np
import plain_scores as plain
import pytest

from resemblance.analysis.kernel_ridge import FeatureSpectrum
from resemblance.transfer.logme import log_me


def task(n, d, seed=0, noise=1.0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    return rng.normal(size=(n, d)) * noise + np.eye(3, d)[y], y


@pytest.mark.parametrize(("n", "d"), [(60, 5), (60, 40)])
def test_it_is_the_evidence_at_the_fixed_point(n, d):
    f, y = task(n, d)
    assert log_me(f, y) == pytest.approx(plain.log_me(f, y), abs=1e-8)


def test_no_precisions_give_more_evidence():
    """Also with more features than samples, where they fit labels without error."""
    n = 30
    f, y = task(n, 50, noise=0.3)
    found = log_me(f, y) * n
    t = [mask.astype(float) for mask in plain.classes_of(y)]
    for alpha in 10.0 ** np.arange(-3, 5):
        for beta in 10.0 ** np.arange(-2, 7):
            tried = np.mean([plain.log_evidence(f, each, alpha, beta) for each in t])
            assert tried <= found + 1e-9


def test_it_is_finite_where_features_fit_labels_exactly():
    f = np.eye(4)[np.arange(40) % 4] + 0.0
    value = log_me(f, np.arange(40) % 4)
    assert np.isfinite(value)
    assert value > log_me(f, np.arange(40) // 10)


def test_a_spectrum_serves_as_well_as_its_features():
    f, y = task(50, 80)
    assert log_me(FeatureSpectrum.of(f), y) == pytest.approx(log_me(f, y), abs=1e-12)
    turned = f @ np.linalg.qr(np.random.default_rng(1).normal(size=(80, 80)))[0]
    assert log_me(turned, y) == pytest.approx(log_me(f, y), abs=1e-9)
