"""All scores of a candidate from one pass of it."""

import math

import numpy as np
import plain_scores as plain
import pytest
import torch
from candidate_networks import network, task

from resemblance.analysis.leave_one_out import leave_one_out
from resemblance.recommending.candidate_pass import Look, seen
from resemblance.recommending.class_separation import h_score, shrunk_h_score, trans_rate
from resemblance.recommending.feature_spectrum import FeatureSpectrum
from resemblance.recommending.layer_scores import SCORES, Scored, ridge_accuracy, scored
from resemblance.recommending.maximum_evidence import log_me
from resemblance.recommending.own_predictions import leep, nce
from resemblance.recommending.query_samples import Query


@pytest.fixture(scope="module")
def found():
    net, (x, y) = network(), task()
    shown = seen(net, Query(x, y.numpy(), len(x), len(x)), Look(gradients=True, batch_size=60))
    return net, x, y, scored(shown, y.numpy())


def test_each_is_what_its_own_function_says(found):
    net, x, y, all_scores = found
    with torch.no_grad():
        f, p = net[1](net[0](x)), net(x).softmax(1)
    assert set(all_scores.layers["1"]) | set(all_scores.outputs) == set(SCORES)
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
    some = scored(seen(net, query, Look()), query.labels, ["log_me", "log_ratio", "nce"])
    assert all(set(own) == {"log_me"} for own in some.layers.values())
    assert set(some.outputs) == {"nce"}
    none = scored(seen(net, query, Look(gradients=True)), None)
    assert all(set(own) == {"mean_embedding", "log_ratio"} for own in none.layers.values())
    assert none.outputs == {}
    assert math.isnan(none.best("ridge"))


def test_what_is_not_a_number_is_left_out_along_layers():
    made = Scored({"a": {"log_ratio": np.nan}, "b": {"log_ratio": 2.0}}, {})
    assert made.along("log_ratio") == {"b": 2.0}
    assert made.best("log_ratio") == 2.0
