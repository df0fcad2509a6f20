"""Comparison: counterparts of layers, words, frames and files, of scores made up and computed."""

import json
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_compare as reference
import resemblance as rs
from made_up import comparison, recorded
from resemblance.errors import FormatError, MissingExtra
from resemblance.similarity.comparison import Comparison


@pytest.fixture(scope="module")
def computed():
    return rs.compare(*(recorded(seed, 160, name=f"net{seed}") for seed in (0, 1)))


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


def test_summary_names_extremes_chance_and_samples():
    text = comparison(
        [[0.9, 0.1], [0.2, 0.05]],
        columns=("r0", "r1"),
        chance=np.full((2, 2), 0.02),
        chance_high=np.full((2, 2), 0.06),
    ).summary()
    assert "one and two: cka of centred features, from blocks, 100 samples." in text
    assert "most alike at r0 (0.900 ± 0.010), least at r1 (0.050 ± 0.010)" in text
    assert "would score 0.020 on average; 1 of 2 layers lie above" in text


def test_summary_leaves_out_an_unknown_error():
    assert "(0.500)" in comparison([[0.5]], stderr=np.array([[np.nan]])).summary()


def test_frame_has_a_row_for_each_pair(computed):
    frame = computed.to_frame()
    assert list(frame.columns) == ["row", "column", "score", "stderr", "chance", "chance_high"]
    at = frame[(frame.row == "l0") & (frame.column == "l1")]
    assert at.score.item() == computed.scores[0, 1]
    assert comparison([[0.5]]).to_frame().chance.isna().all()


def test_a_missing_pandas_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"pip install 'resemblance\[frames\]'"):
        comparison([[0.5]]).to_frame()


def test_save_and_load_give_the_same_comparison(tmp_path, computed):
    for found in (computed, comparison([[np.nan, 0.25]], notes=("é",))):
        path = found.save(tmp_path / "c.json")
        again = Comparison.load(path)
        for name, value in vars(found).items():
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(getattr(again, name), value)
            else:
                assert getattr(again, name) == value
    assert json.loads(path.read_text())["scores"] == [[None, 0.25]]  # strict JSON has no NaN


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
    ],
)
def test_a_damaged_file_is_refused(tmp_path, damage):
    path = comparison([[0.5]]).save(tmp_path / "c.json")
    path.write_text(damage(path.read_text()))
    with pytest.raises(FormatError, match="is not a comparison written by"):
        Comparison.load(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(FormatError, match="not a comparison"):
        Comparison.load(tmp_path / "none.json")
