"""Estimates from sketches: the correction over many seeds, exact centring, and the paper's own."""

import functools

import numpy as np
import pytest
import torch

import reference_compare as reference
import resemblance as rs
from resemblance.errors import MismatchError, ResemblanceWarning
from resemblance.similarity import bucket_estimator as from_buckets
from resemblance.similarity.indices.registry import get_index
from resemblance.similarity.jackknife import student_t


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


@functools.cache
def sketched_pairs():
    """Two networks on 200 samples, by 25 sketches."""
    return [[recorded(i, n=200, seed=seed) for i in (0, 1)] for seed in range(25)]


@pytest.mark.parametrize("kernel", ["features", "gradients", "sum", "elementwise"])
@pytest.mark.parametrize("centre", [False, True])
def test_corrected_cka_is_nearly_unbiased_where_the_paper_is_not(kernel, centre):
    k1, k2 = (reference.kernel(kernel, *arrays(seed, 200)) for seed in (0, 1))
    exact = reference.cka(k1, k2, centred=centre)
    found, paper = [], []
    for a, b in sketched_pairs():
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
        found = from_buckets.bucket_kernel(rep[0], kernel, centre=False, paper=False)
        np.testing.assert_allclose(found, s @ reference.kernel(kernel, f, g) @ s.T, atol=1e-3)
    found = from_buckets.bucket_kernel(rep[0], "features", centre=True, paper=False)
    h = f - f.mean(0)
    np.testing.assert_allclose(found, s @ h @ h.T @ s.T, atol=1e-3)
    found = from_buckets.bucket_kernel(rep[0], "sum", centre=False, paper=True)
    np.testing.assert_allclose(found, s @ (f @ f.T + g @ g.T) @ s.T, atol=1e-3)


def test_paper_is_algorithm_one():
    s = rs.CountSketch(64).matrix(np.arange(60)).double().numpy()
    tables = []
    for seed in (0, 1):
        f, g = (s @ x for x in arrays(seed))
        tables.append((f @ f.T) * (g @ g.T))
    found = rs.compare(recorded(0), recorded(1), kernel="product", estimator="paper")
    assert found.scores[0, 0] == pytest.approx(reference.cka(*tables, centred=False), abs=1e-5)
    centred = rs.compare(recorded(0), recorded(1), kernel="product", estimator="paper", centre=True)
    assert centred.scores[0, 0] == pytest.approx(reference.cka(*tables, centred=True), abs=1e-5)
    assert found.centre is False
    nbs = rs.compare(recorded(0), recorded(1), kernel="product", estimator="paper", index="nbs")
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


def drawn(kind, n, rng):
    """Two networks' vectors: samples drawn anew each time, what the networks are stays."""
    fixed = np.random.default_rng(1)
    ways = fixed.normal(size=(2, 8, 12))
    noise = rng.normal(size=(2, n, 12))
    if kind == "unrelated":
        return noise
    if kind == "classes":
        return 2 * fixed.normal(size=(2, 10, 12))[:, rng.integers(10, size=n)] + noise
    x = rng.normal(size=(n, 8)) @ ways + noise
    return {"related": x, "alike": [x[0], x[0] + 0.03 * noise[1]], "identical": x[[0, 0]]}[kind]


@functools.cache
def pair(kind, seed):
    """Recordings of two networks on the 600 samples of a seed, by the sketch of that seed."""
    rng = np.random.default_rng(seed)
    vectors, others = drawn(kind, 600, rng), drawn(kind, 600, rng)
    return [
        rs.record_arrays(f, g, data_id="x", seed=seed, blocks=0, buckets=128)
        for f, g in zip(others, vectors, strict=True)
    ]


def spread(kind, index="cka", *, estimator="buckets", kernel="gradients", seeds=60):
    """Scores and errors over other samples and other sketches, by uncentred gradients."""
    scores, errors, df = [], [], []
    for seed in range(seeds):
        a, b = pair(kind, seed)
        found = rs.compare(a, b, kernel=kernel, index=index, estimator=estimator)
        scores.append(found.scores[0, 0])
        errors.append(found.stderr[0, 0])
        df.append(found.df[0, 0])
    return np.array(scores), np.array(errors), np.array(df)


@pytest.mark.parametrize("estimator", ["buckets", "paper"])
@pytest.mark.parametrize("index", ["cka", "nbs"])
@pytest.mark.parametrize("kind", ["related", "classes", "alike"])
def test_the_standard_error_is_the_spread_over_samples_and_sketches(kind, index, estimator):
    scores, errors, df = spread(kind, index, estimator=estimator)
    assert 0.7 < errors.mean() / scores.std() < 1.5
    inside = abs(scores - scores.mean()) <= student_t(0.95, df) * errors
    assert inside.mean() >= 0.88  # 0.95 less two and a half binomial errors of 60


@pytest.mark.parametrize("index", ["cka", "nbs"])
def test_the_standard_error_of_unrelated_networks_is_at_most_twice_the_spread(index):
    scores, errors, _ = spread("unrelated", index)
    assert 0.9 < errors.mean() / scores.std() < 2


def test_the_standard_error_of_the_product_of_buckets_is_its_spread():
    scores, errors, _ = spread("classes", kernel="product")
    assert 0.7 < errors.mean() / scores.std() < 1.5


def test_the_standard_error_of_spectra_is_of_the_size_of_their_spread():
    scores, errors, _ = spread("related", "spectral", seeds=40)
    assert 0.7 < errors.mean() / scores.std() < 2


@pytest.mark.parametrize("index", ["cka", "nbs", "spectral"])
def test_near_one_the_standard_error_goes_to_zero(index):
    scores, errors, _ = spread("identical", index, seeds=3)
    assert scores.min() > 1 - 1e-9
    assert errors.max() < 1e-6
    scores, errors, _ = spread("alike", index, seeds=3)
    assert errors.max() < 3 * (1 - scores.min()) < 1e-2  # with the distance from one


def test_groups_of_buckets_are_left_out_as_if_they_had_not_been_recorded():
    one, two = (torch.from_numpy(f @ f.T)[None] for f, _ in (arrays(0, 60), arrays(1, 60)))
    groups = [slice(0, 20), slice(20, 47), slice(47, 60)]
    for index, exact in (("cka", reference.cka), ("spectral", None)):
        left_out = get_index(index).from_buckets(one, two, groups, None)[1]
        for found, gone in zip(left_out, groups, strict=True):
            keep = np.delete(np.arange(60), gone)
            k1, k2 = (k[0][keep][:, keep].numpy() for k in (one, two))
            expected = exact(k1, k2, centred=False) if exact else reference.spectral(k1, k2)
            assert float(found) == pytest.approx(expected, abs=1e-9)


def test_nbs_leaves_out_buckets_to_first_order():
    # of full rank, or round-off under a root would show in the difference
    one, two = (torch.from_numpy(f @ f.T + np.eye(60))[None] for f, _ in (arrays(0), arrays(1)))
    weights = torch.ones(60, dtype=torch.float64)
    weights[:5] -= 1e-4  # a little of five buckets
    k1, k2 = ((k * weights.sqrt() * weights.sqrt()[:, None])[0].numpy() for k in (one, two))
    whole, left_out = get_index("nbs").from_buckets(one, two, [slice(0, 5), slice(5, 60)], None)
    change = (reference.nbs(k1, k2) - float(whole)) / 1e-4
    # the derivative of a ratio, from what the first group takes of its three parts
    t1, t2 = (float(k[0].trace()) for k in (one, two))
    part1, part2 = (float(k[0].diagonal()[:5].sum()) for k in (one, two))
    kept = float(left_out[0]) * ((1 - part1 / t1) * (1 - part2 / t2)) ** 0.5
    expected = (kept - float(whole)) + float(whole) * (part1 / t1 + part2 / t2) / 2
    assert change == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize(("index", "most"), [("nbs", 0.5), ("spectral", 0.3)])
def test_indices_that_are_no_sums_over_pairs_lie_above_those_of_all_samples_and_say_so(index, most):
    # one network has many directions alike, the other few that matter
    rng = np.random.default_rng(0)
    flat, steep = rng.normal(size=(2, 1100, 256))
    steep *= np.arange(1, 257) ** -0.5
    exact = getattr(reference, index)(flat @ flat.T, steep @ steep.T)
    reps = [rs.record_arrays(x, data_id="x", buckets=256) for x in (flat, steep)]
    options = {"kernel": "features", "index": index, "centre": False}
    bias = {}
    for estimator in ("blocks", "buckets"):
        found = rs.compare(*reps, estimator=estimator, **options)
        bias[estimator] = found.scores[0, 0] - exact
        assert any("compare such scores only with each other" in note for note in found.notes)
    assert 0.05 < bias["buckets"] < bias["blocks"] < most


def test_of_many_samples_the_standard_error_is_that_of_the_sketch():
    """Of the same 1,500 samples, over sketches: about their own score, not about others'."""
    vectors, others = (drawn("related", 1500, np.random.default_rng(seed)) for seed in (0, 1))
    exact = reference.cka(*(x @ x.T for x in vectors), centred=False)
    found = []
    for seed in range(30):
        a, b = (
            rs.record_arrays(f, g, data_id="x", seed=seed, blocks=0, buckets=128)
            for f, g in zip(others, vectors, strict=True)
        )
        found.append(rs.compare(a, b, kernel="gradients", estimator="buckets"))
    error = np.array([c.scores[0, 0] for c in found]) - exact
    stderr = np.array([c.stderr[0, 0] for c in found])
    assert 0.7 < stderr.mean() / np.sqrt((error**2).mean()) < 2
    assert found[0].mean()[1] == pytest.approx(stderr[0])  # of one layer
