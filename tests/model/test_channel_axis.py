"""Whether channels come last, by the layers that work on them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import resemblance as rs
from resemblance._model.call_trace import trace
from resemblance._model.channel_axis import ChannelAxis
from resemblance._model.layer_choice import select


def found(net, inputs, name, *, is_input=False):
    calls, _ = trace(net.eval(), lambda: net(inputs), count=len(inputs))
    call = next(c for c in calls if c.name == name)
    return ChannelAxis(calls).is_last(call, is_input=is_input)


class Residual(nn.Module):
    """Keeps (n, height, width, channels), and adds, so that no layer gives its output."""

    def __init__(self, channels):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(channels), nn.Linear(channels, channels)

    def forward(self, x):
        return x + self.mix(self.norm(x))


class Last(nn.Module):
    def __init__(self, channels=6, blocks=2):
        super().__init__()
        self.blocks = nn.ModuleList(Residual(channels) for _ in range(blocks))
        self.head = nn.Linear(channels, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


@pytest.mark.parametrize("side", [4, 6])
def test_a_norm_or_a_linear_layer_along_the_last_axis_says_last(side):
    """Also where the image is as wide as it has channels."""
    x = torch.randn(2, side, side, 6)
    assert found(Last(), x, "blocks.0")
    assert found(Last(), x, "blocks.0.mix")
    assert found(Last(), x, "blocks.1", is_input=True)


def test_a_block_that_no_layer_sees_is_like_others_of_its_class():
    assert found(Last(), torch.randn(2, 4, 4, 6), "blocks.1")


@pytest.mark.parametrize("side", [4, 6])
def test_convolutions_and_batch_norms_say_first(side):
    net = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(6), nn.Flatten())
    for name in ("0", "1", "2"):
        assert not found(net, torch.randn(2, 3, side, side), name)


def test_a_view_with_its_channels_moved_is_seen_through():
    class Moved(nn.Module):
        def __init__(self):
            super().__init__()
            self.act, self.conv = nn.ReLU(), nn.Conv2d(6, 2, 1)

        def forward(self, x):
            return self.conv(self.act(x).permute(0, 3, 1, 2))

    assert found(Moved(), torch.randn(2, 4, 4, 6), "act")


def test_tokens_and_vectors_are_no_images():
    assert not found(nn.Sequential(nn.Linear(5, 5)), torch.randn(2, 7, 5), "0")
    assert not found(nn.Sequential(nn.Linear(5, 5)), torch.randn(2, 5), "0")


def test_where_nothing_tells_channels_are_first():
    assert not found(nn.Sequential(nn.ReLU()), torch.randn(2, 3, 4, 5), "0")


@pytest.mark.filterwarnings("ignore:.*error bars cannot be trusted")
@pytest.mark.parametrize("pool", ["mean", "first", "last"])
def test_pooling_is_over_pixels_of_channels_last_networks(pool):
    torch.manual_seed(0)
    net, x = Last().eval(), torch.randn(16, 4, 5, 6)
    rep = rs.record(net, x, layers=["blocks.0", "blocks.1"], pool=pool, block=4, buckets=0)
    assert [(layer.dim, layer.shape) for layer in rep] == [(6, (6, 4, 5))] * 2
    with torch.no_grad():
        out = net.blocks[0](x)
    pooled = {"mean": out.mean((1, 2)), "first": out[:, 0, 0], "last": out[:, -1, -1]}[pool]
    assert rep["blocks.0"].features.trace == pytest.approx(float(pooled.square().sum()), rel=1e-5)


@pytest.mark.filterwarnings("ignore:.*error bars cannot be trusted")
def test_flattened_channels_last_outputs_keep_their_kernels():
    torch.manual_seed(0)
    net, x = Last().eval(), torch.randn(16, 4, 5, 6)
    rep = rs.record(net, x, layers="blocks.0", block=4, buckets=0)
    with torch.no_grad():
        out = net.blocks[0](x).flatten(1)
    assert rep["blocks.0"].dim == 120
    assert rep["blocks.0"].features.trace == pytest.approx(float(out.square().sum()), rel=1e-5)


def test_a_tap_says_so():
    net, x = Last().eval(), torch.randn(2, 4, 4, 6)
    calls, _ = trace(net, lambda: net(x), count=2)
    taps = {tap.name: tap.channels_last for tap in select(net, ["blocks.?", "head:in"], calls)}
    assert taps == {"blocks.0": True, "blocks.1": True, "head:in": False}
