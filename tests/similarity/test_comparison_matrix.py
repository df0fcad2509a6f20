"""ComparisonMatrix: text, arrays and clusters; average linkage against SciPy's results."""

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from resemblance.errors import FormatError
from resemblance.similarity import comparison_matrix
from resemblance.similarity.agreement_matrix import BehaviourMatrix
from resemblance.similarity.comparison_matrix import ComparisonMatrix


def matrix(scores, **changes):
    scores = np.array(scores, float)
    values = {
        "models": tuple("abcdefgh"[: len(scores)]),
        "scores": scores,
        "stderr": np.zeros(scores.shape),
        "layers": (("l",),) * len(scores),
        "kernel": "features",
        "index": "cka",
        "centre": True,
        "samples": 10,
        "averaged": np.ones(scores.shape, int),
        "n_eff": np.full((len(scores), 1), 10.0),
        "matched_by": "name",
    }
    return ComparisonMatrix(**{**values, **changes})


def test_like_stands_beside_like():
    scores = np.full((4, 4), 0.1)
    for i, j in ((0, 2), (1, 3)):
        scores[i, j] = scores[j, i] = 0.9
    np.fill_diagonal(scores, 1)
    found = matrix(scores)
    assert found.order() == [0, 2, 1, 3]
    assert found.clusters()[0, 2] == pytest.approx(0.1)
    figure = found.plot()
    labels = [t.get_text() for t in figure.axes[1].get_yticklabels()]
    assert labels == ["a", "c", "b", "d"]


def test_a_network_of_undefined_scores_is_merged_last_as_wholly_unlike():
    blank = np.nan
    found = matrix([[1, blank, 0.4], [blank, blank, blank], [0.4, blank, 1]])
    np.testing.assert_allclose(found.clusters()[:, 2], [0.6, 1])
    assert found.clusters()[0, :2].tolist() == [0, 2]
    assert sorted(found.order()) == [0, 1, 2]


def test_the_heading_names_one_layer_or_counts_them():
    assert matrix(np.eye(2)).heading == "cka of centred features at l, 10 samples"
    deep = matrix(np.eye(2), layers=(("x", "y"), ("u", "v")), centre=False, samples=1234)
    assert deep.heading == "cka of features at 2 layers matched by name, 1,234 samples"


def test_to_dict_is_plain():
    content = matrix([[1, np.nan], [np.nan, 1]]).to_dict()
    assert content == {
        "models": ["a", "b"],
        "scores": [[1, None], [None, 1]],
        "stderr": [[0, 0], [0, 0]],
        "layers": [["l"], ["l"]],
        "kernel": "features",
        "index": "cka",
        "centre": True,
        "samples": 10,
        "averaged": [[1, 1], [1, 1]],
        "n_eff": [[10], [10]],
        "matched_by": "name",
        "tokens": None,
        "behaviour": None,
    }
    assert json.loads(json.dumps(content, allow_nan=False)) == content


def family(**changes):
    """Two pairs of like networks, one of them of another number of classes."""
    scores = np.full((4, 4), 0.1)
    scores[0, 1] = scores[1, 0] = 0.9
    scores[2, 3] = scores[3, 2] = 0.8
    scores[0, 3] = scores[3, 0] = 0.05
    np.fill_diagonal(scores, 1)
    blank = np.full((4, 4), np.nan)
    wrong, js = blank.copy(), blank.copy()
    wrong[np.ix_((0, 1, 2), (0, 1, 2))] = [[0, 0.1, 1], [0.1, 0, 0.3], [1, 0.3, 0]]
    js[0, 1] = js[1, 0] = 0.02
    told = BehaviourMatrix(
        models=tuple("abcd"),
        classes=(10, 10, 10, 7),
        samples=1000,
        sequences=None,
        disagreement=wrong,
        disagreement_stderr=wrong / 50,
        js=js,
        js_stderr=js / 10,
        lower_bounds=False,
    )
    return matrix(scores, stderr=np.full((4, 4), 0.01), **{"behaviour": told, **changes})


def test_a_summary_says_what_is_alike_and_what_is_predicted():
    assert family().summary().splitlines() == [
        "4 networks: cka of centred features at l, 10 samples.",
        "Least similar: a and d (0.050 ± 0.010). Most similar: a and b (0.900 ± 0.010).",
        "Groups by average linkage (within groups at least 0.80, between groups at most "
        "0.09): a, b; c, d.",
        "Of 1,000 samples, predictions differ least between a and b (10 % ± 0.2 %) and most "
        "between a and c (100 % ± 2 %).",
        "Predictions are compared between networks with the same number of classes: 10 "
        "classes (a, b, c); 7 classes (d).",
    ]
    two = matrix([[1, 0.5], [0.5, 1]], stderr=np.full((2, 2), np.nan)).summary()
    assert two.endswith("\nAlike: a and b (0.500).")
    blank = matrix([[1, np.nan], [np.nan, 1]])
    assert blank.summary().endswith("\nNo pair of networks has a defined score.")
    assert blank.behaviour_missing == ()


def test_names_from_files_are_spelt_out():
    assert "\x1b" not in family(models=("a\x1b[31m", "b", "c", "d")).summary()


def test_a_frame_has_a_row_for_each_pair():
    pytest.importorskip("pandas")
    frame = family().to_frame()
    assert list(zip(frame.a, frame.b, strict=True)) == [
        ("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d")
    ]  # fmt: skip
    assert frame.score.tolist() == [0.9, 0.1, 0.05, 0.1, 0.1, 0.8]
    assert frame.disagreement.tolist()[:2] == [0.1, 1.0]
    assert frame.js_stderr[0] == pytest.approx(0.002)
    assert frame.behaviour_missing[2] == "they have 10 and 7 classes"
    assert frame.behaviour_missing[0] is None or frame.behaviour_missing[:2].isna().all()
    alone = matrix([[1, 0.5], [0.5, 1]]).to_frame()
    assert alone.disagreement.isna().all()


def test_save_and_load_give_the_same_matrix(tmp_path):
    for found in (family(), family(behaviour=None, tokens=4), matrix([[1, np.nan], [np.nan, 1]])):
        found = ComparisonMatrix(**{**vars(found), "averaged": found.averaged.astype(np.int32)})
        path = found.save(tmp_path / "m.json")
        assert ComparisonMatrix.load(path) == found
    assert json.loads(path.read_text())["matrix"] == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-9],
        lambda text: "[1]",
        lambda text: text.replace('"matrix": 1', '"matrix": 2'),
        lambda text: text.replace('"matrix": 1', '"comparison": 1'),
        lambda text: text.replace('"index": "cka"', '"index": "nka"'),
        lambda text: text.replace('"models"', '"names"'),
        lambda text: re.sub(r'"scores": \[[^]]*\],', '"scores": [', text),
        lambda text: text.replace('"layers": [', '"layers": [["l"],', 1),
        lambda text: re.sub(r'"a",', '"x",', text, count=1),  # behaviour is of others
        lambda text: text.replace("10.0", "10.0, 10.0"),  # n_eff of a layer that is not there
        lambda text: text.replace('"lower_bounds": false', '"lower_bounds": 0'),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, damage):
    path = family().save(tmp_path / "m.json")
    damaged = damage(path.read_text())
    assert damaged != path.read_text()
    path.write_text(damaged)
    with pytest.raises(FormatError, match=r"is not a matrix written by ComparisonMatrix\.save"):
        ComparisonMatrix.load(path)


def random_distances(seed, n):
    x = np.random.default_rng(seed).normal(size=(n, 3))
    return np.linalg.norm(x[:, None] - x, axis=-1)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 30))
def test_average_linkage_is_scipys(seed, n):
    distance = random_distances(seed, n)
    expected = hierarchy.linkage(squareform(distance, checks=False), "average")
    found = comparison_matrix.average_linkage(distance)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert comparison_matrix.leaf_order(found) == hierarchy.leaves_list(expected).tolist()


def test_equal_distances_still_make_a_tree():
    links = comparison_matrix.average_linkage(1 - np.eye(6))
    assert links.shape == (5, 4)
    assert links[-1, 3] == 6
    assert sorted(comparison_matrix.leaf_order(links)) == list(range(6))


def test_one_item_is_a_tree_without_merges():
    links = comparison_matrix.average_linkage(np.zeros((1, 1)))
    assert links.shape == (0, 4)
    assert comparison_matrix.leaf_order(links) == [0]


def test_a_dendrogram_is_cut_at_its_widest_gap():
    distance = np.full((5, 5), 0.9)
    for group in ((0, 3), (1, 4)):
        distance[np.ix_(group, group)] = 0.2
    np.fill_diagonal(distance, 0)
    groups, gap = comparison_matrix.cut_tree(comparison_matrix.average_linkage(distance))
    assert groups == [[0, 3], [1, 4], [2]]
    assert gap == pytest.approx((0.2, 0.9))
