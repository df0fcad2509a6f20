"""All scores of a candidate from one pass, and which of them ranks."""

import math

import numpy as np
import plain_scores as plain
import pytest
import torch
from candidate_networks import network, task

from resemblance.analysis.kernel_ridge import FeatureSpectrum, leave_one_out
from resemblance.errors import DataError
from resemblance.transfer import transferability as rule
from resemblance.transfer.candidates import run_candidate
from resemblance.transfer.hscore import h_score, shrunk_h_score, trans_rate
from resemblance.transfer.leep import leep, nce
from resemblance.transfer.logme import log_me
from resemblance.transfer.query_samples import Query
from resemblance.transfer.transferability import (
    ALL_SCORES,
    CandidateScores,
    ridge_accuracy,
    score_candidate,
)


@pytest.fixture(scope="module")
def found():
    net, (x, y) = network(), task()
    shown = run_candidate(net, Query(x, y.numpy(), len(x), len(x)), batch_size=60)
    return net, x, y, score_candidate(shown, y.numpy())


def test_each_is_what_its_own_function_says(found):
    net, x, y, all_scores = found
    with torch.no_grad():
        f, p = net[1](net[0](x)), net(x).softmax(1)
    single = {*ALL_SCORES} - {*rule.COMBINED_SCORES}
    assert set(all_scores.layers["1"]) | set(all_scores.outputs) == single
    for name, function in (("h_score", h_score), ("shrunk_h_score", shrunk_h_score)):
        assert all_scores.layers["1"][name] == pytest.approx(function(f, y), rel=1e-5)
    assert all_scores.layers["1"]["log_me"] == pytest.approx(log_me(f, y), abs=1e-6)
    assert all_scores.layers["1"]["trans_rate"] == pytest.approx(trans_rate(f, y), rel=1e-5)
    assert all_scores.outputs["leep"] == pytest.approx(leep(p, y), abs=1e-6)
    assert all_scores.outputs["nce"] == pytest.approx(nce(p, y), abs=1e-6)


def test_ridge_is_leave_one_out(found):
    net, x, y, all_scores = found
    own = leave_one_out(net, x, y).accuracies
    assert all_scores.along("ridge") == pytest.approx(dict(own))
    assert all_scores.best("ridge") == max(own.values())


@pytest.mark.parametrize(("n", "d"), [(40, 6), (25, 60)])
def test_ridge_is_a_fit_to_all_others(n, d):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, n)
    f = rng.normal(size=(n, d)) + np.eye(3, d)[y]
    assert ridge_accuracy(FeatureSpectrum.of(f), y) == pytest.approx(plain.ridge(f, y))
    assert ridge_accuracy(FeatureSpectrum.of(f), np.array(["b", "a", "c"])[y]) > 0.4


@pytest.mark.parametrize("dead", [np.zeros((30, 5)), np.full((30, 5), 0.7)])
def test_features_that_do_not_vary_tell_nothing(dead):
    """Not by a rounding error of the labels themselves, either."""
    y = np.arange(30) % 3
    assert ridge_accuracy(FeatureSpectrum.of(dead), y) <= 1 / 3
    assert h_score(dead, y) == shrunk_h_score(dead, y) == 0
    assert trans_rate(dead, y) == pytest.approx(0, abs=1e-9)
    assert np.isfinite(log_me(dead, y))


def test_classes_of_one_sample_have_scores_and_no_hits():
    f = np.random.default_rng(0).normal(size=(6, 4))
    y = np.arange(6)
    assert ridge_accuracy(FeatureSpectrum.of(f), y) == 0
    assert all(np.isfinite(s(f, y)) for s in (log_me, h_score, shrunk_h_score, trans_rate))


def test_only_what_is_wanted_and_possible_is_computed():
    net, (x, y) = network(), task()
    query = Query(x, y.numpy(), len(x), len(x))
    some = score_candidate(
        run_candidate(net, query),
        query.labels,
        ["log_me", "nce"],
    )
    assert all(set(own) == {"log_me"} for own in some.layers.values())
    assert set(some.outputs) == {"nce"}
    assert math.isnan(some.best("ridge"))
    none = score_candidate(run_candidate(net, query), query.labels, ["leep"])
    assert all(own == {} for own in none.layers.values())


def test_what_is_not_a_number_is_left_out_along_layers():
    made = CandidateScores({"a": {"log_me": np.nan}, "b": {"log_me": 2.0}}, {})
    assert made.along("log_me") == {"b": 2.0}
    assert made.best("log_me") == 2.0


MADE = CandidateScores(
    {
        "a": {"ridge": 0.6, "log_me": 0.1, "trans_rate": 1.0},
        "b": {"ridge": 0.8, "log_me": 0.3, "trans_rate": 3.0},
        "c": {"ridge": 0.8, "log_me": 0.2, "trans_rate": 2.0},
    },
    {"leep": -0.5},
)


def test_auto_is_the_default_and_others_are_themselves():
    assert rule.choose_score("auto") == rule.DEFAULT_SCORE
    assert all(rule.choose_score(name) == name for name in ALL_SCORES)
    assert set(rule.SCORE_DESCRIPTIONS) == set(ALL_SCORES)
    with pytest.raises(DataError, match="nearest: log_me"):
        rule.choose_score("logme")


def test_the_score_that_ranks_is_computed_and_what_finds_a_layer():
    assert {"trans_rate", "ridge"} <= set(rule.scores_to_compute("trans_rate"))
    assert set(rule.scores_to_compute("ridge+log_me")) == {"ridge", "log_me", "leep", "nce"}


def value(scored, score):
    (found,) = rule.ranking_values([scored], score)
    return found


def test_a_score_is_read_where_it_ranks_best():
    assert value(MADE, "ridge") == 0.8
    assert value(MADE, "log_me") == 0.3
    assert value(MADE, "leep") == -0.5
    assert value(MADE, "trans_rate") == 2.0
    assert math.isnan(value(MADE, "nce"))
    assert math.isnan(value(MADE, "h_score"))
    assert math.isnan(value(CandidateScores({"a": {}}, {}), "ridge"))


def test_combined_scores_are_added_in_standard_deviations_over_candidates():
    rng = np.random.default_rng(0)
    pairs = rng.normal(size=(7, 2)) * [1, 50]  # whatever their units
    made = [CandidateScores({"a": {"ridge": r, "log_me": e}}, {}) for r, e in pairs]
    expected = ((pairs - pairs.mean(0)) / pairs.std(0)).sum(1)
    np.testing.assert_allclose(rule.ranking_values(made, "ridge+log_me"), expected, atol=1e-8)
    without = [*made, CandidateScores({"a": {"ridge": 1.0}}, {})]
    assert math.isnan(rule.ranking_values(without, "ridge+log_me")[-1])
    alike = rule.ranking_values([made[0]] * 3, "ridge+log_me")
    assert alike == [0, 0, 0]
    torn = [CandidateScores({"a": {"ridge": r, "log_me": -r}}, {}) for r in (0.1, 0.7)]
    assert rule.ranking_values(torn, "ridge+log_me") == [0, 0]


def test_ridge_and_log_me_together_find_the_layer_to_start_from():
    assert rule.starting_layer(MADE) == "b"
    apart = {"a": (0.5, 1.0), "b": (0.7, 0.9), "c": (0.8, 0.0)}  # neither's own choice
    scores = {name: {"ridge": r, "log_me": e} for name, (r, e) in apart.items()}
    assert rule.starting_layer(CandidateScores(scores, {})) == "b"
    doubled = {name: {"ridge": r, "log_me": 9 * e} for name, (r, e) in apart.items()}
    assert rule.starting_layer(CandidateScores(doubled, {})) == "b"  # whatever their units


def test_of_equal_layers_the_later_is_the_one_to_start_from():
    alike = {name: {"ridge": 0.5, "log_me": 0.1} for name in "abc"}
    assert rule.starting_layer(CandidateScores(alike, {})) == "c"
    assert rule.starting_layer(CandidateScores({"a": {"trans_rate": 1.0}, "b": {}}, {})) == "b"
