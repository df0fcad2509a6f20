"""All scores of a candidate from one pass of it."""

import math

import numpy as np
import pytest
import torch
from candidate_networks import network, task

from resemblance.analysis.leave_one_out import leave_one_out
from resemblance.recommending.candidate_pass import Look, seen
from resemblance.recommending.class_separation import h_score, shrunk_h_score, trans_rate
from resemblance.recommending.layer_scores import SCORES, Scored, scored
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
    plain = leave_one_out(net, x, y).accuracies
    assert all_scores.along("ridge") == pytest.approx(dict(plain))
    assert all_scores.best("ridge") == max(plain.values())
    assert all_scores.last("ridge") == plain["3"]


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
    assert math.isnan(none.last("ridge"))


def test_what_is_not_a_number_is_left_out_along_layers():
    made = Scored({"a": {"log_ratio": np.nan}, "b": {"log_ratio": 2.0}}, {})
    assert made.along("log_ratio") == {"b": 2.0}
    assert made.best("log_ratio") == 2.0
