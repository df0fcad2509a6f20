"""ComparisonMatrix: words, plain content and clusters of scores made up."""

import json

import numpy as np
import pytest

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
    }
    assert json.loads(json.dumps(content, allow_nan=False)) == content
