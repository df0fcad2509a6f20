"""Models that are refused before they are compiled, and what tracing leaves behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import networks
import resemblance as rs
from resemblance._models.compile import why_not_compilable
from resemblance.errors import ResemblanceWarning

VECTORS = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
IN_BATCHES = {"batch_size": 16, "block": 8, "buckets": 16}


def test_weights_on_several_devices_are_an_objection():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    assert why_not_compilable(model) == "its weights are on several devices"
    assert why_not_compilable(model[0]) is None


class Aside(nn.Module):
    """Uses its weight, and keeps what it computed last."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.held = [self.body.weight]
        self.last = None

    def forward(self, x):
        self.last = nn.functional.linear(x, self.held[0])
        return self.head(self.last.relu())


def test_a_weight_that_is_reached_around_the_parameters_is_not_taken_for_a_constant():
    model = networks.seeded(Aside)
    with pytest.warns(ResemblanceWarning, match="accesses its weight 'body.weight' outside"):
        rs.record(model, VECTORS, **IN_BATCHES, layers="head", compile=True)
    assert type(model.last) is torch.Tensor  # and no tensor without data
    assert model.last.sum().isfinite()
