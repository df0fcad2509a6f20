"""The permutation null: levels and p-values of any index, of the best pair, and of whole tables."""

import re

import numpy as np
import pytest
import torch

import reference_compare as reference
import resemblance as rs
from made_up import comparison, recorded, related
from resemblance._utils.hashing import seeded_permutation
from resemblance.errors import DataError, MismatchError
from resemblance.similarity.permutations import permuted_level, permuted_p_value, q_values

INDICES = ("cka", "rsa", "distance-correlation", "nbs", "mutual-knn", "svcca", "rsa-spearman")


def unrelated(seed, n=40, layers=3):
    rng = np.random.default_rng(seed)
    return [
        rs.record_arrays(
            {f"l{i}": rng.normal(size=(n, 4)) for i in range(layers)}, data_id="x", buckets=0
        )
        for _ in "ab"
    ]


@pytest.mark.parametrize("index", INDICES)
def test_levels_and_p_values_are_those_of_the_plain_formula_on_permuted_kernels(index):
    n, count = 40, 19
    found = rs.compare(
        recorded(0, n), recorded(1, n), kernel="gradients", index=index, permutations=count
    )
    order, kernels = seeded_permutation(n, 0), []
    for seed in (0, 1):
        _, g = related(seed, n)
        squares = [reference.kernel("gradients", x[order], x[order]) for x in g.values()]
        kernels.append([reference.centre(k) if found.centre else k for k in squares])
    form = getattr(reference, index.replace("-", "_"))
    if index == "cka":
        form = lambda a, b: reference.cka(a, b, centred=False)  # noqa: E731
    generator, tables = torch.Generator().manual_seed(0), []
    for _ in range(count):
        order = torch.randperm(n, generator=generator).numpy()
        tables.append([[form(x, y[np.ix_(order, order)]) for y in kernels[1]] for x in kernels[0]])
    tables = np.array(tables)
    # kernels are stored in 16 bits, and one changed neighbour of n · 10 is 0.0025
    tolerance = 3e-3 if index == "mutual-knn" else 2e-4
    np.testing.assert_allclose(found.chance, tables.mean(0), atol=tolerance)
    np.testing.assert_allclose(found.permuted_best, tables.max((1, 2)), atol=2 * tolerance)
    high = np.sort(np.concatenate([found.scores[None], tables]), axis=0)[18]  # of 20: 95 %
    np.testing.assert_allclose(found.chance_high, high, atol=2 * tolerance)
    assert (found.p_value == 0.05).all()  # related networks: above all 19


def test_p_values_are_uniform_or_larger_without_a_relation_also_of_the_best_pair():
    single, best, moments = [], [], []
    for seed in range(20):
        found = rs.compare(*unrelated(seed), kernel="features", permutations=19)
        single.append(found.p_value[0, 0])
        best.append(found.best().p_value)
        assert found.best().score == found.scores.max()
        moments.append(rs.compare(*unrelated(seed), kernel="features").p_value[0, 0])
    for p in (single, best, moments):
        # a uniform p-value is below 0.25 in 5 ± 1.9 of 20 cases, and 0.5 in 10 ± 2.2
        assert (np.array(p) <= 0.25).sum() <= 11
        assert 3 <= (np.array(p) <= 0.5).sum() <= 17
    assert np.corrcoef(single, moments)[0, 1] > 0.9


def test_the_best_pair_is_shown_in_few_digits():
    best = rs.compare(*unrelated(0), kernel="features", permutations=39).best()
    shown = repr(best)
    assert shown.startswith(f"BestPair(row={best.row!r}, column={best.column!r}, score=0.")
    assert shown.endswith(f", p_value={best.p_value:.3g})")
    assert len(max(re.findall(r"\d+", shown), key=len)) <= 4
    assert "score=1−" in repr(best._replace(score=1 - 1e-7))  # below 1 is not shown as 1


def test_taking_the_best_pair_is_corrected_for():
    """The largest of nine scores lies above the level of a single one in many unrelated pairs."""
    raw, corrected = [], []
    for seed in range(30):
        found = rs.compare(*unrelated(seed, n=30), kernel="features", permutations=39)
        at = np.unravel_index(found.scores.argmax(), found.scores.shape)
        raw.append(found.p_value[at])
        corrected.append(found.best().p_value)
        assert found.best().chance_high >= found.chance_high.max() - 1e-12
    assert (np.array(raw) <= 0.05).mean() > 0.15
    assert (np.array(corrected) <= 0.05).mean() <= 0.17  # 0.05 plus three binomial errors of 30


def test_without_permutations_sums_have_p_values_that_agree_with_their_level():
    found = rs.compare(*unrelated(0, layers=4), kernel="features")
    assert ((found.p_value < 0.05) == (found.scores > found.chance_high)).all()
    assert found.permuted_best is None
    assert np.isnan(found.best().p_value)
    assert np.isnan(found.best().chance_high)
    other = rs.compare(*unrelated(0), kernel="features", index="mutual-knn")
    assert other.p_value is other.chance is other.calibrated is other.q_value is None


def test_calibrated_scores_are_zero_at_chance_and_one_at_identity():
    a, b = recorded(0, 60), recorded(1, 60)
    for index in ("cka", "mutual-knn", "procrustes"):
        same = rs.compare(a, a, kernel="features", index=index, permutations=39)
        np.testing.assert_allclose(same.calibrated.diagonal(), 1, atol=1e-6)
        found = rs.compare(a, b, kernel="features", index=index, permutations=39)
        expected = (found.scores - found.chance_high) / (1 - found.chance_high)
        np.testing.assert_allclose(found.calibrated, expected.clip(0, 1))
    none = rs.compare(*unrelated(1), kernel="features", permutations=39)
    assert (none.calibrated[none.p_value > 0.05] == 0).all()
    assert (
        comparison([[0.5]], index="of another process", chance_high=np.ones((1, 1))).calibrated
        is None
    )


def test_the_level_counts_the_score_itself_and_equal_scores_count_against_it():
    permuted = np.arange(19.0)[:, None]
    assert permuted_level(np.array([100.0]), permuted) == 18
    assert permuted_level(np.array([np.nan]), permuted) != permuted_level(np.array([0.0]), permuted)
    assert permuted_p_value(np.array([18.0]), permuted) == 2 / 20
    assert permuted_p_value(np.array([18.5]), permuted) == 1 / 20
    assert np.isnan(permuted_p_value(np.array([np.nan]), permuted)).all()


def test_q_values_are_those_of_scipy():
    from scipy.stats import false_discovery_control

    p = np.random.default_rng(0).uniform(size=(4, 5)) ** 2
    expected = false_discovery_control(p.ravel()).reshape(p.shape)
    np.testing.assert_allclose(q_values(p), expected)
    p[1, 2] = np.nan
    assert np.isnan(q_values(p)[1, 2])
    known = np.isfinite(p)
    np.testing.assert_allclose(q_values(p)[known], false_discovery_control(p[known]))


def test_the_summary_the_table_and_the_file_hold_them(tmp_path):
    found = rs.compare(
        recorded(0, 60), recorded(1, 60), kernel="product", index="cknna", permutations=19
    )
    sentence = next(x for x in found.summary().split("\n") if x.startswith("The best of 4 pairs"))
    assert "(p = 0.05, corrected for taking the best)" in sentence
    frame = found.to_frame()
    assert frame.p_value.tolist() == found.p_value.ravel().tolist()
    assert frame.q_value.tolist() == found.q_value.ravel().tolist()
    assert frame.calibrated.tolist() == found.calibrated.ravel().tolist()
    assert rs.Comparison.load(found.save(tmp_path / "c.json")) == found
    both = rs.compare(recorded(0, 60), recorded(1, 60), permutations=19)
    assert all(part.permuted_best.shape == (19,) for part in both.parts)


def test_a_constant_layer_has_no_p_value():
    f, g = related(0, 60)
    f["l0"] = np.ones_like(f["l0"])
    a = rs.record_arrays(f, g, data_id="x")
    for index in ("cka", "svcca"):
        with pytest.warns(rs.errors.ResemblanceWarning, match="is constant"):
            found = rs.compare(a, a, kernel="features", index=index, permutations=19)
        assert np.isnan(found.p_value[0]).all()
        assert np.isfinite(found.p_value[1, 1])
        assert np.isfinite(found.best().p_value)


def test_nothing_is_best_where_no_layer_has_a_score():
    best = comparison([[np.nan, np.nan]]).best()
    assert best.row == best.column == ""
    assert np.isnan(best.score)


def test_registered_indices_have_a_permutation_null():
    rs.register_index(
        "overlap", lambda x, y: (x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum())
    )
    options = {"kernel": "gradients", "permutations": 19}
    mine, cka = (
        rs.compare(recorded(0, 40), recorded(1, 40), index=index, **options)
        for index in ("overlap", "cka")
    )
    np.testing.assert_allclose(mine.chance_high, cka.chance_high, atol=1e-6)
    assert (mine.p_value == cka.p_value).all()


@pytest.mark.parametrize("wrong", [0, 18, 2.5, "200", True])
def test_too_few_permutations_are_refused(wrong):
    a = recorded(0, 40)
    with pytest.raises(DataError, match="`permutations` must be a whole number, 19 or more; found"):
        rs.compare(a, a, permutations=wrong)


def test_what_cannot_be_permuted_is_refused_with_a_remedy():
    a, b = recorded(0, 60), recorded(1, 60)
    with pytest.raises(
        DataError, match="spectral does not pair samples, so permuting them changes noth"
    ):
        rs.compare(a, b, kernel="features", index="spectral", permutations=19)
    with pytest.raises(MismatchError, match=r"found 60 samples and the estimator 'buckets'\. Rec"):
        rs.compare(a, b, kernel="features", estimator="buckets", permutations=19)
    large = [recorded(seed, 1100, block=64) for seed in (0, 1)]
    for index, most in (("cka", "1,024"), ("nbs", "512")):
        with pytest.raises(MismatchError, match=f"for up to {most} samples .* found 1,100 samples"):
            rs.compare(*large, kernel="features", index=index, permutations=19)
