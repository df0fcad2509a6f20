"""Estimates from sketches: the correction over many seeds, exact centring, and the paper's own."""

import numpy as np
import pytest

import reference_compare as reference
import resemblance as rs
from resemblance.errors import MismatchError, ResemblanceWarning
from resemblance.similarity import bucket_estimates as from_buckets


def arrays(seed, n=60, d=5):
    cause = np.random.default_rng(7).normal(size=(n, 3))
    rng = np.random.default_rng(seed)
    f = cause @ rng.normal(size=(3, d)) + rng.normal(size=(n, d))
    return f, cause @ rng.normal(size=(3, d)) + rng.normal(size=(n, d))


def recorded(net, **options):
    n = options.pop("n", 60)
    f, g = arrays(net, n)
    options = {"data_id": f"data of {n}", "elementwise": True, "buckets": 64, **options}
    return rs.record_arrays(f, g, blocks=0, **options)


@pytest.mark.parametrize("per_sample", [1, 2])
def test_the_inner_product_of_sketches_has_the_stated_mean(per_sample):
    n, m = 30, 16
    (f1, _), (f2, _) = arrays(0, n), arrays(1, n)
    k1, k2 = f1 @ f1.T, f2 @ f2.T
    found = []
    for seed in range(4000):
        s = rs.CountSketch(m, seed=seed, per_sample=per_sample).matrix(np.arange(n)).double()
        s = s.numpy()
        found.append(((s @ k1 @ s.T) * (s @ k2 @ s.T)).sum())
    diagonal = (np.diag(k1) * np.diag(k2)).sum()
    expected = (1 + 1 / m) * (k1 * k2).sum() + (np.trace(k1) * np.trace(k2) - 2 * diagonal) / m
    error = np.std(found) / len(found) ** 0.5
    assert abs(np.mean(found) - expected) < 4 * error
    assert abs((k1 * k2).sum() - expected) > 8 * error  # and the correction is not idle


@pytest.mark.parametrize("kernel", ["features", "gradients", "sum", "elementwise"])
@pytest.mark.parametrize("centre", [False, True])
def test_corrected_cka_is_nearly_unbiased_where_the_paper_is_not(kernel, centre):
    k1, k2 = (reference.kernel(kernel, *arrays(seed, 200)) for seed in (0, 1))
    exact = reference.cka(k1, k2, centred=centre)
    found, paper = [], []
    for seed in range(25):
        a, b = (recorded(i, n=200, seed=seed) for i in (0, 1))
        options = {"kernel": kernel, "centre": centre}
        found.append(rs.compare(a, b, estimator="buckets", **options).scores[0, 0])
        paper.append(rs.compare(a, b, estimator="paper", **options).scores[0, 0])
    assert abs(np.mean(found) - exact) < 0.03
    assert abs(np.mean(found) - exact) < abs(np.mean(paper) - exact)


def test_bucket_kernels_are_sketches_of_the_exact_ones():
    f, g = arrays(0)
    rep = recorded(0)
    s = rs.CountSketch(64).matrix(np.arange(60)).double().numpy()
    for kernel in ("features", "gradients", "elementwise"):
        found = from_buckets.kernel_matrix(rep[0], kernel, centre=False, paper=False)
        np.testing.assert_allclose(found, s @ reference.kernel(kernel, f, g) @ s.T, atol=1e-3)
    found = from_buckets.kernel_matrix(rep[0], "features", centre=True, paper=False)
    h = f - f.mean(0)
    np.testing.assert_allclose(found, s @ h @ h.T @ s.T, atol=1e-3)
    found = from_buckets.kernel_matrix(rep[0], "sum", centre=False, paper=True)
    np.testing.assert_allclose(found, s @ (f @ f.T + g @ g.T) @ s.T, atol=1e-3)


def test_paper_is_algorithm_one():
    s = rs.CountSketch(64).matrix(np.arange(60)).double().numpy()
    tables = []
    for seed in (0, 1):
        f, g = (s @ x for x in arrays(seed))
        tables.append((f @ f.T) * (g @ g.T))
    found = rs.compare(recorded(0), recorded(1), estimator="paper")
    assert found.scores[0, 0] == pytest.approx(reference.cka(*tables, centred=False), abs=1e-5)
    centred = rs.compare(recorded(0), recorded(1), estimator="paper", centre=True)
    assert centred.scores[0, 0] == pytest.approx(reference.cka(*tables, centred=True), abs=1e-5)
    assert found.centre is False
    nbs = rs.compare(recorded(0), recorded(1), estimator="paper", index="nbs")
    assert nbs.scores[0, 0] == pytest.approx(reference.nbs(*tables), abs=1e-4)


@pytest.mark.parametrize("index", ["nbs", "spectral"])
def test_nbs_and_spectrum_are_those_of_the_sketch(index):
    s = rs.CountSketch(64).matrix(np.arange(60)).double().numpy()
    k1, k2 = (s @ f @ f.T @ s.T for f, _ in (arrays(0), arrays(1)))
    found = rs.compare(
        recorded(0), recorded(1), kernel="features", index=index, centre=False, estimator="buckets"
    )
    assert found.scores[0, 0] == pytest.approx(getattr(reference, index)(k1, k2), abs=1e-4)


@pytest.mark.parametrize("estimator", ["buckets", "paper"])
@pytest.mark.parametrize("index", ["cka", "nbs", "spectral"])
@pytest.mark.parametrize(
    "kernel", ["features", "gradients", "product", "sum", "elementwise", "transport"]
)
def test_a_network_is_exactly_like_itself(kernel, index, estimator):
    a = recorded(0)
    found = rs.compare(a, a, kernel=kernel, index=index, estimator=estimator)
    assert found.scores[0, 0] == pytest.approx(1, abs=1e-6)
    assert found.stderr[0, 0] < 1e-5


@pytest.mark.parametrize("kernel", ["product", "transport"])
def test_product_and_transport_cannot_be_centred_from_buckets(kernel):
    with pytest.raises(MismatchError, match=f"the {kernel} kernel cannot be centred from buckets"):
        rs.compare(recorded(0), recorded(1), kernel=kernel, centre=True, estimator="buckets")


@pytest.mark.parametrize("index", ["cka", "nbs", "spectral"])
def test_a_constant_layer_is_named_though_round_off_is_left(index):
    x = {"flat": np.full((80, 5), 0.1), "alive": arrays(0, 80)[0]}
    a = rs.record_arrays(x, data_id="x", buckets=64, name="net")
    with pytest.warns(ResemblanceWarning, match="layer 'flat' of 'net' is constant"):
        found = rs.compare(a, a, kernel="features", index=index, centre=True, estimator="buckets")
    assert np.isnan(found.scores[0]).all()
    assert found.scores[1, 1] == pytest.approx(1, abs=1e-6)


def test_few_buckets_never_divide_by_a_negative_norm():
    # 400 directions in 16 buckets: the correction takes off nearly all there is
    rng = np.random.default_rng(0)
    a, b = (
        rs.record_arrays(rng.normal(size=(300, 400)), data_id="x", buckets=16, blocks=0)
        for _ in range(2)
    )
    found = rs.compare(a, b, kernel="features", estimator="buckets")
    assert 0 <= found.scores[0, 0] <= 1


def test_too_few_buckets_give_no_standard_error():
    a, b = recorded(0, buckets=8), recorded(1, buckets=8)
    found = rs.compare(a, b, kernel="features", estimator="buckets")
    assert np.isnan(found.stderr).all()
    assert np.isfinite(found.scores).all()


def test_the_standard_error_is_of_the_size_of_the_spread_over_sketches():
    scores, errors = [], []
    for seed in range(25):
        a, b = (recorded(i, n=400, seed=seed, buckets=128) for i in (0, 1))
        found = rs.compare(a, b, kernel="features", estimator="buckets")
        scores.append(found.scores[0, 0])
        errors.append(found.stderr[0, 0])
    assert 0.4 < np.mean(errors) / np.std(scores) < 2.5
