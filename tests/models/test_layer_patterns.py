"""Which layers are recorded and in what order, and which of them have channels last."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import networks
import resemblance as rs
from resemblance._models.layer_patterns import ChannelAxis, select_layers
from resemblance._models.trace import trace
from resemblance.errors import LayerError, ResemblanceWarning

IMAGES = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))


def taps(model, inputs, layers="auto"):
    run = (lambda: model(**inputs)) if isinstance(inputs, dict) else (lambda: model(inputs))
    return [tap.name for tap in select_layers(model, layers, trace(model.eval(), run, count=2)[0])]


# -- auto ---------------------------------------------------------------------------------------


def test_auto_can_stand_in_a_list_with_names():
    net = networks.seeded(networks.MLP)
    assert taps(net, torch.zeros(2, 6), ["head", "auto"]) == ["act1", "act2", "head"]


class Folded(nn.Module):
    """Runs its blocks on the rows of all samples together, so they have no axis of samples."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(12, 3)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(4, 2, 8, batch_first=True) for _ in range(2)
        )

    def forward(self, x):  # (n, 3, 4)
        y = self.first(x).flatten(0, 1)[:, None]
        for block in self.blocks:
            y = block(y)
        return self.head(y.reshape(len(x), -1))


@pytest.mark.filterwarnings("ignore:.*standard errors may be too small")
def test_auto_leaves_out_what_cannot_be_recorded_and_says_so():
    inputs = torch.randn(20, 3, 4, generator=torch.Generator().manual_seed(0))
    with pytest.warns(
        ResemblanceWarning, match=r"without a sample dimension: blocks\.0, blocks\.1"
    ):
        rep = rs.record(networks.seeded(Folded), inputs, buckets=0)
    assert rep.layer_names == ["first"]


# -- names and patterns -------------------------------------------------------------------------


def test_layers_come_in_order_of_execution_not_of_definition_or_request():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.z, self.a = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.z(self.a(x))

    assert taps(Backwards(), torch.zeros(2, 3), ["z", "a", "z:in"]) == ["a", "z:in", "z"]


def test_globs_match_many_layers():
    net = networks.seeded(networks.ResNet)
    assert taps(net, IMAGES, "layer1.?.conv*") == [
        "layer1.0.conv1",
        "layer1.0.conv2",
        "layer1.1.conv1",
        "layer1.1.conv2",
    ]


def test_a_module_called_twice_has_two_names():
    net = networks.seeded(networks.ResNet, blocks=1)
    assert taps(net, IMAGES, ["layer1.0.relu"]) == ["layer1.0.relu", "layer1.0.relu#2"]
    assert taps(net, IMAGES, ["layer1.0.relu#2"]) == ["layer1.0.relu#2"]
    assert taps(net, IMAGES, "layer1.0.relu#*") == ["layer1.0.relu#2"]
    assert taps(net, IMAGES, ["layer1.0.relu#1"]) == ["layer1.0.relu"]
    assert taps(net, IMAGES, ["layer1.?.relu#1", "fc#1:in"]) == ["layer1.0.relu", "fc:in"]


def test_auto_names_one_call_of_a_module_that_runs_twice():
    class Twice(networks.MLP):
        def forward(self, x):
            return super().forward(x) + super().forward(x)

    assert taps(Twice(), torch.zeros(2, 6), ["auto", "fc1#2"])[:2] == ["act1", "act2"]


def test_a_star_stops_at_a_dot_and_two_do_not():
    net = networks.seeded(networks.ResNet, blocks=1)
    assert taps(net, IMAGES, "layer1.*.conv1") == ["layer1.0.conv1"]
    assert taps(net, IMAGES, "**.conv?") == ["layer1.0.conv1", "layer1.0.conv2"]
    assert taps(net, IMAGES, ["layer1.**", "!layer1.*.**"]) == ["layer1.0"]
    assert taps(net, IMAGES, "[!l]*") == ["conv1", "bn1", "relu", "pool", "fc"]


@pytest.mark.parametrize("layers", ["layer1.*", "*", "layer1*", ["fc", "!layer*"], "layer1.*:in"])
def test_a_pattern_that_meant_other_layers_is_refused_and_told_how_to_write_it(layers):
    with pytest.raises(LayerError, match=r"no longer crosses dots.*\*\*"):
        taps(networks.seeded(networks.ResNet), IMAGES, layers)


def test_what_the_refusal_says_to_write_works():
    net = networks.seeded(networks.ResNet, blocks=1)
    with pytest.raises(LayerError) as refused:
        taps(net, IMAGES, "layer1.*")
    assert "'layer1.**' for the old meaning, and ['layer1.**', '!layer1.*.**'] for the new" in str(
        refused.value
    )
    assert taps(net, IMAGES, ["layer1.**", "!layer1.*.**"]) == ["layer1.0"]
    assert len(taps(net, IMAGES, "layer1.**")) == 7


# -- exclusion ----------------------------------------------------------------------------------


def test_an_exclusion_takes_out_of_what_is_asked_for_wherever_it_stands():
    net = networks.seeded(networks.ResNet)
    assert taps(net, IMAGES, ["!relu", "auto"]) == ["layer1.0", "layer1.1", "fc:in"]
    assert taps(net, IMAGES, ["auto", "!layer1.1", "!fc:in"]) == ["relu", "layer1.0"]


def test_exclusions_alone_take_out_of_auto():
    net = networks.seeded(networks.ResNet)
    assert taps(net, IMAGES, "!fc:in") == ["relu", "layer1.0", "layer1.1"]


def test_an_exclusion_of_an_output_leaves_the_input():
    net = networks.seeded(networks.ResNet)
    assert taps(net, IMAGES, ["fc", "fc:in", "!fc"]) == ["fc:in"]


def test_a_misspelt_exclusion_is_an_error():
    with pytest.raises(LayerError, match=r"no layer is named 'layer1.O'.*nearest: .*layer1\.0"):
        taps(networks.seeded(networks.ResNet), IMAGES, ["auto", "!layer1.O"])


def test_excluding_everything_is_an_error():
    with pytest.raises(LayerError, match="excludes every layer"):
        taps(networks.seeded(networks.ResNet), IMAGES, ["fc", "!fc"])


def test_the_input_of_a_module_comes_before_its_parts():
    net = networks.seeded(networks.ResNet, blocks=1)
    assert taps(net, IMAGES, ["layer1.0", "layer1.0:in", "layer1.0.conv1"]) == [
        "layer1.0:in",
        "layer1.0.conv1",
        "layer1.0",
    ]


def test_misspelt_name_lists_the_nearest():
    with pytest.raises(LayerError, match=r"no layer is named 'layer1.O'.*nearest: .*layer1\.0"):
        taps(networks.seeded(networks.ResNet), IMAGES, "layer1.O")


def test_a_layer_that_never_runs_is_said_to():
    class Idle(networks.MLP):
        def __init__(self):
            super().__init__()
            self.spare = nn.Linear(2, 2)

    with pytest.raises(LayerError, match="'spare' exists but never runs in the forward pass"):
        rs.record(Idle(), torch.zeros(40, 6), layers=["fc1", "spare"])


def test_no_layers_is_an_error():
    with pytest.raises(LayerError, match="no layers were given"):
        taps(networks.MLP(), torch.zeros(2, 6), [])


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


@pytest.mark.filterwarnings("ignore:.*standard errors may be too small")
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


@pytest.mark.filterwarnings("ignore:.*standard errors may be too small")
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
    taps = {
        tap.name: tap.channels_last for tap in select_layers(net, ["blocks.?", "head:in"], calls)
    }
    assert taps == {"blocks.0": True, "blocks.1": True, "head:in": False}
