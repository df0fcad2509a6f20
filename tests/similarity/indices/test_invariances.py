"""What each index says of itself: formula, invariances, symmetry, bounds, standard errors."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_compare as reference
import resemblance as rs
from made_up import recorded, related
from resemblance._utils.hashing import seeded_permutation
from resemblance.errors import MismatchError
from resemblance.similarity.indices.registry import get_index

WHOLE = ("cca", "cknna", "jaccard", "linear-regression", "mutual-knn", "procrustes", "svcca")
BLOCKS = ("distance-correlation", "rsa-kendall", "rsa-spearman")
NEW = (*WHOLE, *BLOCKS)
EVERY = (*NEW, "cka", "cka-debiased", "nbs", "rsa", "spectral")
INVARIANCES = ("rotation", "scale", "permutation", "shift", "linear", "sample-scale")
KERNELS = ("features", "gradients", "product", "elementwise")


def plain(index, kernel, n, centre, seeds=(0, 1), layers=("l0", "l0"), rows=slice(None)):
    """The plain formula on the kernels of `made_up.related`, in the seeded order."""
    order, pair = seeded_permutation(n, 0)[rows], []
    for seed, layer in zip(seeds, layers, strict=True):
        f, g = related(seed, n)
        k = reference.kernel(kernel, f[layer][order], g[layer][order])
        pair.append(reference.centre(k) if centre else k)
    return getattr(reference, index.replace("-", "_"))(*pair)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("index", NEW)
def test_scores_are_the_plain_formula(index, kernel):
    n = 40 if index == "rsa-kendall" else 90  # whose plain formula is slow
    found = rs.compare(recorded(0, n), recorded(1, n), kernel=kernel, index=index)
    expected = plain(index, kernel, n, found.centre, layers=("l0", "l1"))
    # kernels are stored in 16 bits; a changed neighbour moves the mean over samples by 0.1 / n
    tolerance = 0.3 / n if index in ("mutual-knn", "jaccard", "cknna") else 1e-4
    assert found.scores[0, 1] == pytest.approx(expected, abs=tolerance)
    assert found.estimator == "blocks"


@pytest.mark.parametrize("index", NEW)
def test_default_centring_is_that_of_the_authors(index):
    a, b = recorded(0, 40), recorded(1, 40)
    expected = {"mutual-knn": False, "jaccard": False, "cknna": False}
    always = {"cca": True, "svcca": True, "linear-regression": True, "procrustes": True}
    for kernel in ("features", "product"):
        found = rs.compare(a, b, kernel=kernel, index=index)
        assert found.centre == {**expected, **always}.get(index, kernel == "features")
    found = rs.compare(a, b, kernel="features", index=index, centre=not found.centre)
    assert found.centre != rs.compare(a, b, kernel="product", index=index).centre


def changed(x, how, rng):
    """Features (n, d) after what an index may be invariant to."""
    n, d = x.shape
    if how == "rotation":
        return x @ np.linalg.qr(rng.normal(size=(d, d)))[0]
    if how == "linear":
        turns = (np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(2))
        return x @ next(turns) @ np.diag(np.geomspace(0.08, 1, d)) @ next(turns)
    if how == "permutation":
        return x[:, rng.permutation(d)]
    if how == "scale":
        return x * 37.5
    if how == "shift":
        return x + 2 * rng.normal(size=d)
    return x * rng.uniform(0.5, 2, size=(n, 1))


def score(index, x, y):
    a, b = (rs.record_arrays(z, data_id="x", buckets=0) for z in (x, y))
    return rs.compare(a, b, kernel="features", index=index).scores[0, 0]


def pair_of_features(seed, n=60, d=5):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) + 0.5
    return rng, x, x @ rng.normal(size=(d, d)) + rng.normal(size=(n, d))


@pytest.mark.parametrize("index", EVERY)
@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_declared_invariances_hold(index, seed):
    rng, x, y = pair_of_features(seed)
    before = score(index, x, y)
    # 16-bit kernels, of which CCA takes small directions as large; at most two of 600 neighbours
    # change, where two are equally near
    tolerance = {"mutual-knn": 4e-3, "jaccard": 4e-3, "cknna": 4e-3, "cca": 2e-3}.get(index, 2e-4)
    for how in get_index(index).invariances:
        for one, two in ((changed(x, how, rng), y), (x, changed(y, how, rng))):
            assert score(index, one, two) == pytest.approx(before, abs=tolerance), how
    order = rng.permutation(len(x))
    assert score(index, x[order], y[order]) == pytest.approx(before, abs=tolerance)


@pytest.mark.parametrize("index", EVERY)
def test_no_other_invariance_holds(index):
    for how in set(INVARIANCES) - set(get_index(index).invariances):
        moved = 0
        for seed in range(3):
            rng, x, y = pair_of_features(seed)
            moved = max(moved, abs(score(index, changed(x, how, rng), y) - score(index, x, y)))
        assert moved > 5e-3, how


@pytest.mark.parametrize("index", EVERY)
@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_network_is_exactly_like_itself_and_symmetry_is_declared(index, seed):
    _, x, y = pair_of_features(seed)
    assert score(index, x, x) == pytest.approx(1, abs=1e-6)
    low, high = get_index(index).bounds
    assert low <= score(index, x, y) <= high
    other_way = abs(score(index, x, y) - score(index, y, x))
    assert (other_way < 1e-9) == get_index(index).symmetric


def test_regression_explains_rows_by_columns_and_a_note_says_so():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(80, 6))
    x = y[:, :2]  # which six features explain, but not the other way
    a, b = (rs.record_arrays(z, data_id="x", buckets=0) for z in (x, y))
    forth = rs.compare(a, b, kernel="features", index="linear-regression")
    back = rs.compare(b, a, kernel="features", index="linear-regression")
    assert forth.scores[0, 0] == pytest.approx(1, abs=1e-5)
    assert back.scores[0, 0] < 0.6
    assert any(note.code == "not-symmetric" for note in forth.notes)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_procrustes_is_a_metric(seed):
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(3, 40, 4))
    mixed[1] += rng.uniform(0, 3) * mixed[0]
    mixed[2] += rng.uniform(0, 3) * mixed[1]
    distance = {
        (i, j): 1 - score("procrustes", mixed[i], mixed[j])
        for i, j in itertools.permutations(range(3), 2)
    }
    for i, j, k in itertools.permutations(range(3)):
        assert distance[i, k] <= distance[i, j] + distance[j, k] + 1e-6


def test_directions_are_those_above_the_rounding_of_stored_kernels():
    """A layer with as many directions as there are contains any other; small ones are not seen."""
    rng = np.random.default_rng(0)
    x, wide = rng.normal(size=(50, 5)), rng.normal(size=(50, 60))
    assert score("cca", x, wide) == pytest.approx(1, abs=1e-6)
    assert score("linear-regression", x, wide) == pytest.approx(1, abs=1e-6)
    tiny = np.concatenate([x, 1e-4 * rng.normal(size=(50, 3))], 1)
    assert score("cca", x, tiny) == pytest.approx(1, abs=1e-4)  # of five, not of eight
    seen = np.concatenate([x, 0.05 * rng.normal(size=(50, 3))], 1)
    order = seeded_permutation(50, 0)
    kernels = [reference.centre(z @ z.T) for z in (x[order], seen[order])]
    assert score("cca", seen, wide[:, :7]) == pytest.approx(
        reference.cca(kernels[1], reference.centre(wide[order, :7] @ wide[order, :7].T)), abs=1e-3
    )


def test_samples_without_a_direction_are_nobodys_first_neighbour():
    _, x, y = pair_of_features(0)
    x[:3] = 0
    found = score("mutual-knn", x, y)
    assert np.isfinite(found)
    assert score("mutual-knn", x, x) == pytest.approx(1)


# -- beyond the full Gram matrix -------------------------------------------------------------------


@pytest.mark.parametrize("index", WHOLE)
def test_what_blocks_do_not_estimate_is_refused_with_a_remedy(index):
    a, b = recorded(0, 1100, block=64), recorded(1, 1100, block=64)
    with pytest.raises(MismatchError, match=r"full Gram .* Record both on at most 1,024$"):
        rs.compare(a, b, kernel="features", index=index)


@pytest.mark.parametrize("index", ["mutual-knn", "jaccard", "cknna"])
def test_neighbours_take_enough_samples_to_have_some(index):
    with pytest.raises(MismatchError, match=r"needs at least 20 samples, found 19; record more"):
        rs.compare(recorded(0, 19), recorded(1, 19), kernel="features", index=index)


@pytest.mark.parametrize("index", ["rsa-kendall", "rsa-spearman"])
def test_ranks_beyond_the_full_gram_matrix_are_the_mean_over_blocks(index):
    n, size = 1100, 32 if index == "rsa-kendall" else 128  # whose plain formula is slow
    a, b = (recorded(seed, n, block=size) for seed in (0, 1))
    found = rs.compare(a, b, kernel="features", index=index)
    starts = range(0, n - size + 1, size)
    each = [plain(index, "features", n, True, rows=slice(s, s + size)) for s in starts]
    assert found.scores[0, 0] == pytest.approx(np.mean(each), abs=1e-4)
    assert found.stderr[0, 0] == pytest.approx(np.std(each, ddof=1) / len(each) ** 0.5, rel=0.02)
    if index == "rsa-spearman":  # the blocks estimate what all samples have
        whole = plain(index, "features", n, True)
        assert abs(found.scores[0, 0] - whole) < 3 * found.stderr[0, 0]
    assert any(note.code == "mean-of-blocks" for note in found.notes)


def test_distance_correlation_from_blocks_is_that_of_all_samples():
    """Without bias: the mean over many drawn blockings is the value of all samples."""
    n = 1100
    f, g = zip(*(related(seed, n) for seed in (0, 1)), strict=True)
    expected = reference.distance_correlation(*(x["l0"] @ x["l0"].T for x in f))
    scores, errors = [], []
    for seed in range(6):
        reps = [
            rs.record_arrays(x, y, data_id="x", block=64, buckets=0, blocks=8, seed=seed)
            for x, y in zip(f, g, strict=True)
        ]
        found = rs.compare(*reps, kernel="features", index="distance-correlation")
        scores.append(found.scores[0, 0])
        errors.append(found.stderr[0, 0])
        assert found.chance_high[0, 0] < found.scores[0, 0]
    assert np.mean(scores) == pytest.approx(expected, abs=3 * np.mean(errors) / 6**0.5)
    assert 0.3 < np.std(scores, ddof=1) / np.mean(errors) < 2


# -- standard errors -------------------------------------------------------------------------------


@pytest.mark.parametrize("index", ["cca", "rsa-spearman", "linear-regression", "procrustes"])
def test_errors_are_those_of_the_formula_without_each_group(index):
    n = 40
    found = rs.compare(recorded(0, n), recorded(1, n), kernel="features", index=index)
    ends = [n * i // 32 for i in range(33)]
    left = [
        plain(index, "features", n, True, rows=np.delete(np.arange(n), np.arange(start, stop)))
        for start, stop in itertools.pairwise(ends)
    ]
    expected = np.sqrt(31 / 32 * np.square(left - np.mean(left)).sum())
    # NBS, and so Procrustes, leaves samples out to first order
    assert found.stderr[0, 0] == pytest.approx(expected, rel=0.1 if index == "procrustes" else 0.01)


def test_kendall_has_no_error_and_says_why():
    found = rs.compare(recorded(0, 40), recorded(1, 40), kernel="features", index="rsa-kendall")
    assert np.isnan(found.stderr).all()
    assert any("jackknife would take 32 times as long" in note for note in found.notes)
