"""Adaptation scores of a pass's vectors are those of a recording."""

import math

import pytest
import torch
from torch import nn

import resemblance as rs
from resemblance.recommending.candidate_pass import Look, seen
from resemblance.recommending.query_samples import Query
from resemblance.recommending.unlabelled_scores import adaptation_scores


def test_they_are_the_columns_of_adaptation():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 4)), torch.randn(150, 5)
    table = rs.adaptation(rs.record(net, x, layers=["1"], progress=False))
    shown = seen(net, Query(x, None, 150, 150), Look(layers=["1"], gradients=True))
    found = adaptation_scores(shown.layers["1"])
    for name in ("mean_embedding", "log_ratio"):  # kernels are stored in 16 bits
        assert -found[name] == pytest.approx(table[name][0], rel=2e-3)


def test_gradients_that_are_zero_have_no_ratio():
    found = adaptation_scores({"features": torch.ones(3, 2), "gradients": torch.zeros(3, 2)})
    assert found["mean_embedding"] == 0
    assert math.isnan(found["log_ratio"])
