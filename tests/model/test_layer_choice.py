"""Which layers are recorded, and in what order."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import networks
import resemblance as rs
from resemblance._model.call_trace import trace
from resemblance._model.layer_choice import select
from resemblance.errors import LayerError

IMAGES = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))


def taps(model, inputs, layers="auto"):
    run = (lambda: model(**inputs)) if isinstance(inputs, dict) else (lambda: model(inputs))
    return [tap.name for tap in select(model, layers, trace(model.eval(), run)[0])]


# -- auto ---------------------------------------------------------------------------------------


def test_auto_on_a_resnet_is_stem_blocks_and_the_vector_before_the_head():
    net = networks.seeded(networks.ResNet, blocks=3)
    assert taps(net, IMAGES) == ["relu", "layer1.0", "layer1.1", "layer1.2", "fc:in"]


def test_auto_on_a_transformer_is_embedding_layers_and_the_vector_before_the_head():
    net = networks.seeded(networks.Transformer)
    assert taps(net, networks.tokens(2)) == ["embed", "layers.0", "layers.1", "head:in"]


def test_auto_on_a_chain_is_each_weighted_layers_activation():
    net = networks.seeded(networks.MLP)
    assert taps(net, torch.zeros(2, 6)) == ["act1", "act2"]


def test_auto_on_a_recurrent_network_takes_what_the_head_is_given():
    net = networks.seeded(networks.Recurrent, last_state=True)
    assert taps(net, torch.zeros(2, 4, dtype=torch.long)) == ["embed", "head:in"]


def test_auto_with_functional_activations_takes_the_weighted_layers():
    net = networks.seeded(networks.Functional)
    assert taps(net, torch.zeros(2, 1, 5, 5)) == ["conv", "fc1"]


def test_auto_on_a_single_layer_takes_it():
    assert taps(nn.Sequential(nn.Linear(3, 2)), torch.zeros(2, 3)) == ["0"]


def test_auto_on_blocks_without_a_stem_or_a_head():
    net = nn.Sequential(*(networks.Block(3) for _ in range(2)))
    assert taps(net, IMAGES) == ["0", "1"]


def test_auto_takes_the_outermost_of_nested_repeated_modules():
    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.ModuleList(networks.Block(3) for _ in range(2))

        def forward(self, x):
            for block in self.inner:
                x = block(x)
            return x

    net = nn.Sequential(Stage(), Stage())
    assert taps(net, IMAGES) == ["0", "1"]


def test_auto_without_weights_asks_for_names():
    with pytest.raises(LayerError, match="found none that run; name the layers"):
        taps(nn.Sequential(nn.ReLU()), torch.zeros(2, 3))


def test_auto_can_stand_in_a_list_with_names():
    net = networks.seeded(networks.MLP)
    assert taps(net, torch.zeros(2, 6), ["head", "auto"]) == ["act1", "act2", "head"]


# -- names and globs ----------------------------------------------------------------------------


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
    with pytest.raises(LayerError, match="no layers were asked for"):
        taps(networks.MLP(), torch.zeros(2, 6), [])
