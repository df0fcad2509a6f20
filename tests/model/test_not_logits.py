"""What is no logits is refused, with what speaks against it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import networks
import resemblance as rs
from resemblance.errors import TargetError

G = torch.Generator().manual_seed(0)
X, IMAGES = torch.randn(20, 6, generator=G), torch.randn(20, 3, 6, 6, generator=G)


class Unit(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 5)

    def forward(self, x):
        return nn.functional.normalize(self.body(x), dim=-1)


class Configured(networks.MLP):
    config = SimpleNamespace(problem_type="regression")


CASES = {
    "regression by labels": (networks.MLP(), (X, torch.randn(20, 5)), "real numbers, as for"),
    "regression by configuration": (Configured(), X, "says that it is for regression"),
    "autoencoder": (
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1)),
        IMAGES,
        "the shape of the input",
    ),
    "embedding": (Unit(), X, "vectors have length one"),
    "sigmoid": (nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3), nn.Sigmoid()), X, "in Sigmoid"),
    "relu": (nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3), nn.ReLU()), X, "ends in ReLU"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_no_logits_is_refused_with_the_reason(case):
    net, data, words = CASES[case]
    with pytest.raises(TargetError, match=f"seems to be none: .*{words}.*gradients=False"):
        rs.record(net, data)


@pytest.mark.parametrize("case", CASES)
def test_it_is_recorded_where_the_caller_says_what_it_is(case):
    net, data, _ = CASES[case]
    assert rs.record(net, data, gradients=False).samples == 20
    assert rs.record(net, data, logits=lambda z: z).samples == 20

    def squares(outputs, batch):
        return outputs.flatten(1).square().sum(1)

    assert rs.record(net, data, target=squares).samples == 20


def test_logits_are_not_refused():
    y = torch.arange(20) % 5
    for data in (X, (X, y), (X, y.float())):  # one real number a sample may be a class
        assert rs.record(networks.seeded(networks.MLP), data).samples == 20
    assert rs.record(networks.seeded(networks.ResNet), IMAGES).samples == 20


def test_segmentation_networks_have_their_logits_under_out():
    class Segments(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 5, 1)

        def forward(self, x):
            return {"aux": x.mean(), "out": self.head(self.body(x).relu())}

    assert rs.record(Segments(), IMAGES).settings.target == "tempered"
