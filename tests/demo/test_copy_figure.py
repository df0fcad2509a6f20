"""The figure of the copies: a row for each, in the order of gradients, with what it predicts."""

from __future__ import annotations

import pytest
import torch

import resemblance as rs
from resemblance.demo.copy_figure import Beside, drawn

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def figure():
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    base = rs.record(net, x)
    net[2].weight.data[0] += 1
    moved = rs.record(net, x)
    others = [
        Beside("far", (0.9, 0.01), (0.1, 0.02), None),
        Beside("same", (1.0, 0.0), (1.0, 0.0), rs.behaviour(base, base)),
        Beside("moved", (0.95, 0.01), (0.6, 0.05), rs.behaviour(base, moved)),
    ]
    return drawn("base", others), rs.behaviour(base, moved)


def test_networks_stand_in_the_order_of_their_gradients_the_nearest_on_top(figure):
    scores = figure[0].axes[0]
    names = [label.get_text() for label in scores.get_yticklabels()]
    assert names == ["far", "moved", "same"]  # the axis points upwards
    features, gradients = ([bar.get_width() for bar in bars] for bars in scores.containers[1::2])
    assert features == [0.9, 0.95, 1.0]
    assert gradients == [0.1, 0.6, 1.0]
    assert scores.get_xlabel() == "alike to base, mean over layers"


def test_what_each_predicts_stands_beside_it(figure):
    drawn, moved = figure
    assert moved.disagreement > 0
    told = {round(text.get_position()[1]): text.get_text() for text in drawn.axes[1].texts}
    assert told == {0: "has other classes", 1: f"{100 * moved.disagreement:.1f} %", 2: "none"}
    (point,) = [line for line in drawn.axes[1].lines if list(line.get_ydata()) == [1]]
    assert point.get_xdata()[0] == moved.disagreement
