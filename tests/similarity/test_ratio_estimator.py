"""The ratio estimator: exact where norms explain all, honest where they explain a part."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

import reference_compare as reference
import resemblance as rs
from resemblance.errors import DataError, MismatchError, ResemblanceWarning
from resemblance.similarity import ratio_estimator
from resemblance.similarity.compare import compare_population

N = 1500
# some of these kernels are carried by few samples, which is not what these tests are about
pytestmark = pytest.mark.filterwarnings("ignore:.*standard errors may be too small")
SOME = {"data_id": "x", "buckets": 0, "block": 64, "blocks": 8}  # a third of the samples


def networks(seed, n=N, tail=1.0, width=6):
    """Features and gradients of two networks with a common cause; gradients of unequal size."""
    ways = np.random.default_rng(1).normal(size=(4, 5, width))
    rng = np.random.default_rng(seed)
    causes = rng.normal(size=(2, n, 5))
    size = np.exp(tail / 2 * rng.normal(size=(n, 1)))
    vectors = [causes[i % 2] @ ways[i] + 0.5 * rng.normal(size=(n, width)) for i in range(4)]
    return [(vectors[0], vectors[1] * size), (vectors[2], vectors[3] * size)]


def exact(kernel, nets):
    """Plain CKA of all samples, from vectors whose inner products are the kernel."""
    one, two = (vectors(kernel, *net) for net in nets)
    own = [((x.T @ x) ** 2).sum() for x in (one, two)]
    return ((one.T @ two) ** 2).sum() / np.sqrt(own[0] * own[1])


def vectors(kernel, f, g):
    if kernel == "product":
        return (f[:, :, None] * g[:, None, :]).reshape(len(f), -1)
    if kernel == "sum":
        return np.hstack([x / np.linalg.norm(x) for x in (f, g)])
    return f if kernel == "features" else g


@pytest.mark.parametrize("kernel", ["features", "gradients", "product", "sum"])
def test_what_these_tests_call_exact_is_the_plain_formula(kernel):
    nets = networks(0, n=60)
    plain = reference.cka(*(reference.kernel(kernel, *net) for net in nets), centred=False)
    assert exact(kernel, nets) == pytest.approx(plain)


@pytest.mark.parametrize("kernel", ["features", "gradients", "product", "sum"])
def test_one_block_of_all_samples_is_exact(kernel):
    nets = networks(0, n=150)
    a, b = (rs.record_arrays(f, g, data_id="x", buckets=0, block=150) for f, g in nets)
    assert a.block_sizes == (150,)
    found = rs.compare(a, b, kernel=kernel, centre=False, estimator="ratio")
    assert found.scores[0, 0] == pytest.approx(exact(kernel, nets), abs=2e-4)


def test_where_samples_differ_in_norm_alone_any_blocks_are_exact():
    rng = np.random.default_rng(0)
    scales = np.exp(rng.normal(size=(2, N, 1)))
    direction = rng.normal(size=(1, 4))
    a, b = (
        rs.record_arrays(s * direction, data_id="x", buckets=0, block=16, blocks=2) for s in scales
    )
    s, t = scales[..., 0]
    whole = (s @ t) ** 2 / ((s @ s) * (t @ t))
    found = rs.compare(a, b, kernel="features", centre=False)
    assert found.estimator == "ratio"
    assert found.scores[0, 0] == pytest.approx(whole, abs=1e-4)
    by_blocks = rs.compare(a, b, kernel="features", centre=False, estimator="blocks")
    assert abs(by_blocks.scores[0, 0] - whole) > 0.01


@functools.cache
def draws(seed):
    """Two networks and their recordings."""
    nets = networks(seed)
    return nets, [rs.record_arrays(f, g, **SOME) for f, g in nets]


@pytest.mark.parametrize("kernel", ["gradients", "product", "sum"])
def test_errors_are_those_of_the_score_of_all_samples(kernel):
    error, stderr, inside = [], [], []
    for seed in range(40):
        nets, (a, b) = draws(seed)
        found = rs.compare(a, b, kernel=kernel)
        truth = exact(kernel, nets)
        low, high = found.interval()
        error.append(found.scores[0, 0] - truth)
        stderr.append(found.stderr[0, 0])
        inside.append(low[0, 0] <= truth <= high[0, 0])
    rmse = np.sqrt(np.mean(np.square(error)))
    assert found.estimator == "ratio"
    assert abs(np.mean(error)) < 3 * rmse / 40**0.5 + 0.1 * rmse
    assert 0.6 < np.mean(stderr) / rmse < 1.7
    assert np.mean(inside) >= 0.87  # 0.95 less two and a half binomial errors of 40


def test_norms_of_a_part_make_the_error_wider():
    a, b = (rs.record_arrays(f, g, **SOME) for f, g in networks(0))
    known = [rs.compare(a, b, kernel="gradients")]
    for kept in (N // 2, 600):
        reps = []
        for rep in (a, b):
            found = rep[0].recorded("gradients")
            norms = found.norms.clone()
            norms[kept:] = torch.nan
            layer = replace(rep[0], gradients=replace(found, norms=norms))
            reps.append(replace(rep, layers=(layer,)))
        known.append(rs.compare(*reps, kernel="gradients"))
    errors = [c.stderr[0, 0] for c in known]
    assert errors[0] < errors[1] < errors[2]
    assert known[2].scores[0, 0] == pytest.approx(known[0].scores[0, 0], abs=4 * errors[2])


def test_without_norms_it_is_refused_and_not_chosen():
    reps = [rs.record_arrays(f, g, **SOME) for f, g in networks(0)]
    bare = []
    for rep in reps:
        kinds = {k: replace(rep[0].recorded(k), norms=None) for k in rep[0].kinds}
        bare.append(replace(rep, layers=(replace(rep[0], **kinds),)))
    assert rs.compare(*reps, kernel="product").estimator == "ratio"
    assert (
        rs.compare(*bare, kernel="product").estimator
        == rs.compare(reps[0], bare[1], kernel="product").estimator
        == "blocks"
    )
    with pytest.raises(MismatchError, match="needs the norm of every sample"):
        rs.compare(*bare, kernel="product", estimator="ratio")
    with pytest.raises(DataError, match="plain CKA only, not rsa"):
        rs.compare(*reps, kernel="product", index="rsa", estimator="ratio")
    with pytest.raises(
        DataError, match="sample norms belong to uncentred kernels; use `centre=False"
    ):
        rs.compare(*reps, kernel="features", estimator="ratio")


def test_few_samples_that_carry_all_send_auto_to_buckets():
    errors = []
    for seed in range(5):
        nets = networks(seed, tail=4.0)
        a, b = (rs.record_arrays(f, g, **{**SOME, "buckets": 256}) for f, g in nets)
        assert ratio_estimator.few_samples_dominate(a, "gradients")
        found = rs.compare(a, b, kernel="gradients")
        assert found.estimator == "buckets"
        assert any("outside the blocks" in note for note in found.notes)
        with pytest.warns(ResemblanceWarning, match="standard errors may be too small"):
            other = rs.compare(a, b, kernel="gradients", estimator="ratio")
        errors.append([abs(c.scores[0, 0] - exact("gradients", nets)) for c in (found, other)])
    from_buckets, from_blocks = np.mean(errors, 0)
    assert from_buckets < 0.5 * from_blocks
    with pytest.warns(ResemblanceWarning, match="standard errors may be too small"):
        assert rs.compare(a, b, kernel="product").estimator == "ratio"  # buckets hold no product


def test_sums_over_all_samples_are_those_of_the_known_ones_scaled():
    one = torch.ones(1, 10).double()
    pairs, diagonals = ratio_estimator._extrapolated_sums(
        ratio_estimator._norm_moments(one, one), one.shape[1], 40
    )
    assert [float(x) for x in pairs] == pytest.approx([40 * 39] * 3)
    assert [float(x) for x in diagonals] == pytest.approx([40] * 3)


def test_where_norms_explain_all_the_error_is_that_of_unknown_norms_alone():
    rng = np.random.default_rng(0)
    reps = [rs.record_arrays(np.exp(rng.normal(size=(N, 1)) / 3), **SOME) for _ in range(2)]
    asked = {"kernel": "features", "centre": False, "estimator": "ratio"}
    known = rs.compare(*reps, **asked).stderr[0, 0]
    assert known < 1e-6
    cut = [
        replace(x, layers=(replace(x[0], features=replace(x[0].features, norms=some)),))
        for x, some in ((rep, rep[0].features.norms[: N // 2]) for rep in reps)
    ]
    assert rs.compare(*cut, **asked).stderr[0, 0] > 1e-4


@functools.cache
def population():
    """Two networks on 100,000 samples, with centred features."""
    return [(f - f.mean(0), g) for f, g in networks(0, n=100_000)]


@functools.cache
def samples_of_the_population(n):
    """Recordings of n samples of it, in 30 draws."""
    generator = np.random.default_rng(0)
    rows = (generator.integers(0, 100_000, n) for _ in range(30))
    return [[rs.record_arrays(f[at], g[at], **SOME) for f, g in population()] for at in rows]


@pytest.mark.parametrize("n", [300, N])  # the kernel of all samples, and blocks with norms
@pytest.mark.parametrize("kernel", ["features", "gradients", "product"])
def test_scores_of_the_population_do_not_depend_on_the_number_of_samples(kernel, n):
    """Over 30 draws, as often above the population's score as below, within their errors."""
    truth = exact(kernel, population())
    errors = []
    for reps in samples_of_the_population(n):
        found = compare_population(*reps, kernel)
        errors.append((found.scores[0, 0] - truth) / found.stderr[0, 0])
    assert (
        abs(np.mean(errors)) < 0.65
    )  # 3.5 standard errors of 30 draws; plain CKA of the product: 1.9, 1.0
    assert 0.6 < np.std(errors) < 1.6  # of the size that they state, by 4 standard errors
