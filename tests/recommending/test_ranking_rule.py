"""Which score ranks, and where it is read."""

import math

import pytest

from resemblance.errors import DataError
from resemblance.recommending import ranking_rule as rule
from resemblance.recommending.layer_scores import SCORES, Scored

MADE = Scored(
    {
        "a": {"ridge": 0.6, "log_me": 0.1, "log_ratio": -1.0},
        "b": {"ridge": 0.8, "log_me": 0.3, "log_ratio": -2.0},
        "c": {"ridge": 0.8, "log_me": 0.2, "log_ratio": -3.0},
    },
    {"leep": -0.5},
)


def test_auto_follows_the_labels_and_others_are_themselves():
    assert rule.chosen("auto", labelled=True) == rule.WITH_LABELS
    assert rule.chosen("auto", labelled=False) == rule.NO_LABELS
    assert all(rule.chosen(name, labelled=True) == name for name in SCORES)
    assert set(rule.IN_WORDS) == set(SCORES)
    with pytest.raises(DataError, match="nearest: log_me"):
        rule.chosen("logme", labelled=True)
    with pytest.raises(DataError, match="leep needs labels"):
        rule.chosen("leep", labelled=False)


def test_the_score_that_ranks_is_computed_and_what_finds_a_layer():
    assert {"trans_rate", "ridge"} <= set(rule.needed("trans_rate", labelled=True))
    assert rule.needed("log_ratio", labelled=False) == ("mean_embedding", "log_ratio")


def test_a_score_is_read_where_it_ranks_best():
    assert rule.value_of(MADE, "ridge") == 0.8
    assert rule.value_of(MADE, "log_me") == 0.3
    assert rule.value_of(MADE, "leep") == -0.5
    assert rule.value_of(MADE, "log_ratio") == -2.0
    assert math.isnan(rule.value_of(MADE, "nce"))
    assert math.isnan(rule.value_of(MADE, "h_score"))
    assert math.isnan(rule.value_of(Scored({"a": {}}, {}), "ridge"))


def test_ridge_and_log_me_together_find_the_layer_to_start_from():
    assert rule.starting_layer(MADE) == "b"
    apart = {"a": (0.5, 1.0), "b": (0.7, 0.9), "c": (0.8, 0.0)}  # neither's own choice
    scores = {name: {"ridge": r, "log_me": e} for name, (r, e) in apart.items()}
    assert rule.starting_layer(Scored(scores, {})) == "b"
    doubled = {name: {"ridge": r, "log_me": 9 * e} for name, (r, e) in apart.items()}
    assert rule.starting_layer(Scored(doubled, {})) == "b"  # whatever their units


def test_of_equal_layers_the_later_is_the_one_to_start_from():
    alike = {name: {"ridge": 0.5, "log_me": 0.1} for name in "abc"}
    assert rule.starting_layer(Scored(alike, {})) == "c"
    assert rule.starting_layer(Scored({"a": {"log_ratio": 1.0}, "b": {}}, {})) == "b"
