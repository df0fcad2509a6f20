"""Comparison: counterparts of layers, words, frames and files, of scores made up and computed."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_compare as reference
import resemblance as rs
from made_up import comparison, recorded
from resemblance.errors import FormatError
from resemblance.similarity.comparison import Comparison, mean_over_layers


@pytest.fixture(scope="module")
def computed():
    both = (recorded(seed, 160, name=f"net{seed}") for seed in (0, 1))
    return rs.compare(*both, kernel="sum")


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.integers(1, 5), columns=st.integers(1, 5))
def test_match_is_nearest_and_the_best_monotone_alignment(seed, rows, columns):
    scores = np.random.default_rng(seed).uniform(-0.2, 1, size=(rows, columns))
    match = comparison(scores).match()
    assert match.nearest == tuple(f"c{j}" for j in scores.argmax(1))
    np.testing.assert_array_equal(match.nearest_scores, scores.max(1))
    path = [int(name[1:]) for name in match.aligned]
    assert path == sorted(path)
    assert sum(match.aligned_scores) == pytest.approx(reference.best_monotone(scores))


def test_match_never_chooses_an_undefined_score():
    match = comparison([[np.nan, -0.4], [np.nan, np.nan]]).match()
    assert match.nearest[0] == "c1"
    assert match.nearest_scores[0] == -0.4
    assert np.isnan(match.nearest_scores[1])


def test_by_layer_takes_the_diagonal_or_the_alignment():
    scores = [[0.1, 0.9, 0.2], [0.3, 0.2, 0.8]]
    assert comparison(scores).matched_by == "similarity"
    value, error, chance = comparison(scores).by_layer()
    np.testing.assert_array_equal(value, [0.9, 0.8])
    np.testing.assert_array_equal(error, [0.01, 0.01])
    assert chance is None
    square = comparison(
        np.eye(2), columns=("r0", "r1"), chance=np.zeros((2, 2)), chance_high=np.full((2, 2), 0.1)
    )
    assert square.same_layers
    value, _, chance = square.by_layer()
    np.testing.assert_array_equal(value, [1, 1])
    np.testing.assert_array_equal(chance, [[0, 0], [0.1, 0.1]])


def test_layers_without_a_counterpart_are_named_and_left_out():
    scores = [[0.9, 0.1], [0.5, 0.6], [0.2, 0.8]]
    columns = ("r0", "r2")
    chance = {"chance": np.full((3, 2), 0.1), "chance_high": np.full((3, 2), 0.2)}
    found = comparison(scores, columns=columns, **chance)
    assert (found.matched_by, found.matched) == ("name", (0, None, 1))
    value, error, levels = found.by_layer()
    np.testing.assert_array_equal(value, [0.9, np.nan, 0.8])
    np.testing.assert_array_equal(error, [0.01, np.nan, 0.01])
    np.testing.assert_array_equal(levels[1], [0.2, np.nan, 0.2])
    assert found.mean()[0] == pytest.approx(0.85)
    assert found.without_counterpart() == (("r1",), ())
    lines = found.summary().splitlines()
    assert lines[1].startswith("Mean over layers matched by name 0.850; highest at r0 (0.900")
    assert "2 of 2 layers are above" in lines[2]
    assert lines[3] == "Layers of one without a counterpart: r1."
    frame = found.to_frame()
    assert frame[frame.counterpart].score.tolist() == [0.9, 0.8]


def test_of_many_layers_without_a_counterpart_some_are_named():
    rows = tuple(f"r{i}" for i in range(20))
    found = comparison(np.eye(20)[:, :3], rows=rows, columns=rows[:3])
    assert (
        "of one without a counterpart: r3, r4, r5, r6, r7, r8, r9, r10 and 9 more."
        in found.summary()
    )


def test_summary_names_extremes_chance_and_samples():
    text = comparison(
        [[0.9, 0.1], [0.2, 0.05]],
        columns=("r0", "r1"),
        chance=np.full((2, 2), 0.02),
        chance_high=np.full((2, 2), 0.06),
    ).summary()
    assert "one and two: cka of centred features, from blocks, 100 samples." in text
    assert "highest at r0 (0.900 ± 0.010), lowest at r1 (0.050 ± 0.010)" in text
    assert "would score 0.020 on average; 1 of 2 layers are above" in text


def test_summary_leaves_out_an_unknown_error():
    assert "(0.500)" in comparison([[0.5]], stderr=np.array([[np.nan]])).summary()


def test_frame_has_a_row_for_each_pair(computed):
    frame = computed.to_frame()
    first = ["row", "column", "score", "stderr", "low", "high", "df", "chance", "chance_high"]
    first += ["p_value", "q_value", "calibrated"]
    last = ["n_eff_row", "n_eff_column", "effective_blocks", "counterpart", "matched_by"]
    assert list(frame.columns) == [*first, *last]
    at = frame[(frame.row == "l0") & (frame.column == "l1")]
    assert at.score.item() == computed.scores[0, 1]
    assert at.n_eff_row.item() == computed.n_eff[0][0]
    assert at.n_eff_column.item() == computed.n_eff[1][1]
    assert (at.low.item(), at.high.item()) == tuple(x[0, 1] for x in computed.interval())
    assert comparison([[0.5]]).to_frame().chance.isna().all()
    assert frame[frame.counterpart].row.tolist() == frame[frame.counterpart].column.tolist()
    assert (frame.counterpart.sum(), set(frame.matched_by)) == (2, {"name"})


def test_save_and_load_give_the_same_comparison(tmp_path, computed):
    partly = comparison([[0.5], [0.25]], rows=("c0", "c1"))
    for found in (partly, computed, comparison([[np.nan, 0.25]], notes=(rs.Note("é"),))):
        path = found.save(tmp_path / "c.json")
        assert Comparison.load(path) == found
    assert json.loads(path.read_text())["scores"] == [[None, 0.25]]  # strict JSON has no NaN


def test_a_file_of_an_older_version_is_read(tmp_path, computed):
    path = computed.save(tmp_path / "c.json")
    content = json.loads(path.read_text())
    for name in ("df", "replicates", "n_eff", "effective_blocks", "matched_by", "matched"):
        del content[name]
    path.write_text(json.dumps(content))
    again = Comparison.load(path)
    np.testing.assert_array_equal(again.scores, computed.scores)
    assert again.df is again.replicates is again.n_eff is again.effective_blocks is None
    assert (again.matched_by, again.matched) == ("name", (0, 1))
    low, high = again.interval()
    np.testing.assert_allclose(high - low, 2 * 1.9623 * again.stderr, rtol=1e-4)  # nearly normal
    value, error = again.mean()
    assert value == pytest.approx(computed.mean()[0])
    assert np.isnan(error)
    assert again.to_frame().n_eff_row.isna().all()


# -- intervals and means ---------------------------------------------------------------------------


def test_an_interval_is_students_and_stays_in_range():
    found = comparison([[0.5, 0.01]], stderr=np.array([[0.1, 0.1]]), df=np.array([[4.0, 30.0]]))
    low, high = found.interval()
    np.testing.assert_allclose(high, [[0.5 + 0.27764, 0.01 + 0.20423]], atol=1e-4)
    np.testing.assert_allclose(low, [[0.5 - 0.27764, 0.0]], atol=1e-4)
    low, high = found.interval(0.5)
    np.testing.assert_allclose(high - found.scores, [[0.0740697, 0.0682756]], atol=1e-5)
    below = comparison([[0.01]], index="rsa", stderr=np.array([[0.1]]))
    assert below.interval()[0][0, 0] < 0
    with pytest.raises(rs.errors.DataError, match="between 0 and 1; found 95"):
        found.interval(95)


def test_the_mean_over_layers_leaves_out_what_has_no_score():
    scores = np.array([0.5, np.nan, 0.9])
    left_out = np.array([[0.45, 0.0, 0.88], [0.5, np.nan, 0.9], [0.55, 0.0, 0.92]])
    value, error = mean_over_layers(scores, left_out)
    assert value == pytest.approx(0.7)
    means = np.array([0.665, 0.7, 0.735])
    assert error == pytest.approx(np.sqrt(2 / 3 * ((means - 0.7) ** 2).sum()))
    value, error = mean_over_layers(np.array([np.nan, np.nan]), left_out[:, :2])
    assert np.isnan(value)
    assert np.isnan(error)
    assert np.isnan(mean_over_layers(scores, left_out[:1])[1])


def test_the_mean_of_a_table_of_pairs_is_that_of_each():
    rng = np.random.default_rng(0)
    scores, left_out = rng.uniform(size=(3, 2, 2)), rng.uniform(size=(5, 3, 2, 2))
    value, error = mean_over_layers(scores, left_out)
    for i, j in np.ndindex(2, 2):
        one = mean_over_layers(scores[:, i, j], left_out[:, :, i, j])
        assert (value[i, j], error[i, j]) == pytest.approx(tuple(map(float, one)))


def test_the_mean_knows_that_layers_see_the_same_samples(computed):
    value, error = computed.mean()
    scores, errors, _ = computed.by_layer()
    assert value == pytest.approx(scores.mean())
    # layers share a cause: their errors do not cancel as those of strangers would
    assert np.sqrt((errors**2).sum()) / len(errors) < error <= errors.mean()
    for i, expected in enumerate(errors):
        alone = mean_over_layers(scores[i : i + 1], computed.replicates[:, i : i + 1])[1]
        assert alone == pytest.approx(expected)


def test_summary_says_how_many_layers_have_no_score():
    text = comparison([[0.5, 0.1], [np.nan, np.nan]], columns=("r0", "r1")).summary()
    assert "Mean over layers matched by name 0.500 (1 layers without a score excluded)" in text


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-40],
        lambda text: "[]",
        lambda text: "{}",
        lambda text: text.replace('"comparison": 1', '"comparison": 2'),
        lambda text: text.replace('"scores"', '"score"'),
        lambda text: text.replace("0.5", '"much"'),
        lambda text: text.replace('"r0"', '"r0", "r1"'),
        lambda text: text.replace('"rows": [', '"rows": 3, "x": ['),
        lambda text: text.replace("0.5", "1" + "0" * 400),
        lambda text: text.replace("0.5", "[" * 5000 + "]" * 5000),
        lambda text: text.replace('"r0"', "5"),
        lambda text: text.replace('"r0"', ""),
        lambda text: text.replace('"comparison": 1', '"comparison": true'),
        lambda text: re.sub(r'"models": .[^]]*.', '"models": ["a"]', text),
        lambda text: re.sub(r'"kernel": "[a-z]*"', '"kernel": "nuts"', text),
        lambda text: re.sub(r'"paired": [a-z]*', '"paired": 1', text),
        lambda text: text.replace('"matched_by": "s', '"matched_by": "d'),
        lambda text: re.sub(r'"matched": .[^]]*.', '"matched": [1]', text),
        lambda text: re.sub(r'"matched": .[^]]*.', '"matched": [0, 0]', text),
        lambda text: re.sub(r'"matched": .[^]]*.', '"matched": [-1]', text),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, damage):
    path = comparison([[0.5]]).save(tmp_path / "c.json")
    path.write_text(damage(path.read_text()))
    with pytest.raises(FormatError, match="is not a comparison written by"):
        Comparison.load(path)


def test_what_scores_rest_on_is_said_where_it_is_known():
    scores = [[0.5, 0.2], [0.1, 0.7]]
    assert comparison(scores).carried_by() is None
    sides = (np.array([40.0, 90.4]), np.array([60.0, 1200.0]))
    found = comparison(scores, columns=("r0", "r1"), n_eff=sides, samples=(2000, 2000))
    assert found.carried_by() == "Effective sample size 40 to 90 of 2,000 samples (n_eff)"
    blocks = np.array([[12.2, 1.0], [1.0, 12.1]])
    found = replace(found, effective_blocks=blocks)
    expected = "Effective sample size 40 to 90 of 2,000 samples (n_eff), scores on 12 blocks"
    assert found.carried_by() == expected
    assert f"{found.carried_by()}." in found.summary().splitlines()
    unknown = (np.full(2, np.nan),) * 2
    assert replace(found, n_eff=unknown).carried_by() is None
