"""Kernels of all samples: exact scores, and errors that are the spread over other samples."""

import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest

import reference_compare as reference
import resemblance as rs
from made_up import recorded, related, sums_of
from resemblance._utils.hashing import seeded_permutation
from resemblance.similarity import block_estimator, pair_statistics
from resemblance.similarity.kernels import CompareConfig

EXACT = {
    "cka": reference.cka,
    "cka-debiased": reference.cka_debiased,
    "rsa": lambda a, b, centred: reference.rsa(a, b),
}


def kernels(name, n, seeds=(0, 1)):
    """Of one layer of each network, in the seeded order."""
    order = seeded_permutation(n, 0)
    both = (related(seed, n) for seed in seeds)
    return [reference.kernel(name, f["l0"][order], g["l0"][order]) for f, g in both]


@pytest.mark.parametrize("index", EXACT)
@pytest.mark.parametrize(
    ("name", "centre"),
    [("features", True), ("gradients", False), ("product", False), ("sum", True)],
)
def test_scores_are_those_of_all_samples(name, centre, index):
    a, b = recorded(0, 250), recorded(1, 250)
    found = rs.compare(a, b, kernel=name, index=index, centre=centre)
    expected = EXACT[index](*kernels(name, 250), centred=centre)
    assert found.estimator == "blocks"
    assert found.scores[0, 0] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("index", "centre"), [("cka", False), ("cka", True), ("cka-debiased", True), ("rsa", False)]
)
def test_left_out_scores_are_those_of_the_samples_that_are_left(index, centre):
    n = 40
    a, b = recorded(0, n), recorded(1, n)
    spans = [(0, 7), (7, 25), (25, 40)]
    asked = CompareConfig("gradients", index, centre, "blocks")
    pairing = block_estimator.LayerPairing(a.layers[:1], b.layers[:1], asked, n, spans)
    found = block_estimator.full_gram_scores(pairing)
    left = []
    for start, stop in spans:
        keep = np.delete(np.arange(n), np.arange(start, stop))
        parts = []
        pair = [k[np.ix_(keep, keep)] for k in kernels("gradients", n)]
        if index == "rsa":
            pair = [np.diag(k)[:, None] + np.diag(k) - 2 * k for k in pair]
        for x, y in ((pair[0], pair[1]), (pair[0], pair[0]), (pair[1], pair[1])):
            c = pair_statistics.sum_weights(index, len(keep), n, centre=centre)
            parts.append(float(c @ sums_of(x, y)))
        left.append(parts[0] / np.sqrt(parts[1] * parts[2]))
    expected = np.sqrt(2 / 3 * ((left - np.mean(left)) ** 2).sum())
    assert found.stderr[0, 0] == pytest.approx(expected, abs=2e-4)
    moved = np.array(left) - np.mean(left)
    replicates = found.replicates[:, 0, 0] - found.replicates[:, 0, 0].mean()
    np.testing.assert_allclose(replicates, moved, atol=2e-4)


def blocked(rep, layers):
    """A recording in which some layers kept blocks alone, as wide ones do."""
    out = []
    for i, layer in enumerate(rep):
        kinds = {
            kind: replace(layer.recorded(kind), blocks=layer.packed_blocks(kind), whole=None)
            for kind in layer.kinds
        }
        out.append(replace(layer, **kinds) if i in layers else layer)
    return replace(rep, layers=tuple(out))


@pytest.mark.parametrize("index", EXACT)
def test_layers_that_kept_blocks_alone_are_compared_by_blocks(index):
    a, b = recorded(0, 96), recorded(1, 96)
    options = {"kernel": "sum", "index": index}
    exact = rs.compare(a, b, **options)
    by_blocks = rs.compare(blocked(a, (0, 1)), blocked(b, (0, 1)), **options)
    assert np.abs(exact.scores - by_blocks.scores).min() > 1e-4
    found = rs.compare(blocked(a, (0,)), b, **options)
    np.testing.assert_allclose(found.scores[0], by_blocks.scores[0], atol=1e-9)
    np.testing.assert_allclose(found.scores[1], exact.scores[1], atol=1e-9)
    np.testing.assert_allclose(found.stderr[0], by_blocks.stderr[0], atol=1e-9)
    assert found.replicates.shape == (len(a.block_sizes), 2)
    assert np.isfinite(found.mean()[1])


@pytest.mark.parametrize("index", ["nbs", "spectral"])
@pytest.mark.parametrize("centre", [False, True])
def test_nbs_and_spectra_are_those_of_all_samples(index, centre):
    a, b = recorded(0, 120), recorded(1, 120)
    found = rs.compare(a, b, kernel="gradients", index=index, centre=centre, estimator="blocks")
    pair = kernels("gradients", 120)
    pair = [reference.centre(k) for k in pair] if centre else pair
    assert found.scores[0, 0] == pytest.approx(getattr(reference, index)(*pair), abs=1e-3)
    assert not any("NBS" in note for note in found.notes)


@functools.cache
def redrawn():
    """Two networks on 80 samples, drawn anew 40 times."""
    fixed = np.random.default_rng(0)
    maps = fixed.normal(size=(2, 6, 8))
    pairs = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        cause = rng.normal(size=(80, 6))
        arrays = [cause @ m + rng.normal(size=(80, 8)) for m in maps]
        pairs.append([rs.record_arrays(x, data_id="x", buckets=0) for x in arrays])
    return pairs


@pytest.mark.parametrize("index", ["cka", "cka-debiased", "nbs", "spectral", "rsa"])
def test_the_standard_error_is_the_spread_over_other_samples(index):
    found = [rs.compare(*pair, kernel="features", index=index) for pair in redrawn()]
    scores = np.array([c.scores[0, 0] for c in found])
    errors = np.array([c.stderr[0, 0] for c in found])
    assert 0.7 < errors.mean() / scores.std() < 1.5
    ends = np.array([[x[0, 0] for x in c.interval()] for c in found])
    inside = (ends[:, 0] <= scores.mean()) & (scores.mean() <= ends[:, 1])
    assert inside.mean() >= 0.87  # 0.95 less two and a half binomial errors of 40


def test_chance_is_the_mean_over_permutations_and_rarely_exceeded():
    n = 60
    rng = np.random.default_rng(0)
    above = []
    for seed in range(60):
        x, y = rng.normal(size=(2, n, 5))
        a, b = (rs.record_arrays(z, data_id="x", buckets=0) for z in (x, y))
        found = rs.compare(a, b, kernel="features")
        above.append(found.scores[0, 0] > found.chance_high[0, 0])
        if seed == 0:
            k1, k2 = x @ x.T, y @ y.T
            drawn = [k2[np.ix_(p, p)] for p in (rng.permutation(n) for _ in range(400))]
            scores = [reference.cka(k1, k, centred=True) for k in drawn]
            error = np.std(scores) / 20
            assert found.chance[0, 0] == pytest.approx(np.mean(scores), abs=4 * error)
            assert found.chance_high[0, 0] == pytest.approx(
                np.quantile(scores, 0.95), abs=0.4 * np.std(scores)
            )
    assert np.mean(above) <= 0.13  # 0.05 plus three binomial errors


def test_few_samples_are_left_out_one_by_one_and_too_few_not_at_all():
    assert block_estimator.sample_groups(5) == [(i, i + 1) for i in range(5)]
    spans = block_estimator.sample_groups(1024)
    assert len(spans) == 32
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(spans))
    rng = np.random.default_rng(0)
    for n in (2, 3, 4, 5):
        a, b = (rs.record_arrays(rng.normal(size=(n, 4)), data_id="x", buckets=0) for _ in "ab")
        found = rs.compare(a, b, kernel="features")
        assert np.isfinite(found.scores).all()
        assert np.isfinite(found.stderr).all() == (n == 5)  # centring needs four


@pytest.mark.parametrize("size", [1.0, 100.0, 1000.0])
def test_a_large_mean_is_no_obstacle(size):
    n = 200
    (f1, _), (f2, _) = related(0, n), related(1, n)
    exact = reference.cka(*(f["l0"] @ f["l0"].T for f in (f1, f2)), centred=True)
    a, b = (rs.record_arrays(f["l0"] + size, data_id="x", buckets=0) for f in (f1, f2))
    assert rs.compare(a, b, kernel="features").scores[0, 0] == pytest.approx(exact, abs=1e-3)
    assert rs.compare(a, a, kernel="features").scores[0, 0] == pytest.approx(1, abs=1e-9)
