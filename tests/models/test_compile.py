"""A compiled pass records what the pass as written records, or is run as written and says so."""

from __future__ import annotations

import copy
import random
import re

import numpy as np
import pytest
import torch
from torch import nn

import networks
import resemblance as rs
from optional_libraries import needs, usable_torchvision
from resemblance._models import compile
from resemblance.errors import DataError, ResemblanceWarning

pytestmark = pytest.mark.filterwarnings("ignore:.*standard errors may be too small")
G = torch.Generator().manual_seed(0)
IMAGES = torch.randn(72, 3, 6, 6, generator=G)
VECTORS = torch.randn(72, 6, generator=G)
IN_BATCHES = {"batch_size": 16, "block": 8, "buckets": 16}  # the last batch is of eight


def both(model, data, **options):
    """A model recorded as written and compiled, which must have come about."""
    written = rs.record(model, data, **IN_BATCHES | options)
    before = list(compile._programs.values())
    found = rs.record(model, data, **IN_BATCHES | options, compile=True)
    assert list(compile._programs.values())[-1:] != before[-1:]
    return written, found


def assert_alike(written, found, tolerance, kinds=("features", "gradients")):
    assert [layer.name for layer in written] == [layer.name for layer in found]
    for one, two in zip(written, found, strict=True):
        for kind in kinds:
            expected, blocks = one.blocks(kind).numpy(), two.blocks(kind).numpy()
            scale = np.abs(expected).max()
            np.testing.assert_allclose(blocks / scale, expected / scale, atol=tolerance)


def draws():
    """What the process would draw next."""
    state = random.getstate(), tuple(np.random.get_state()[1])
    return *state, tuple(torch.get_rng_state().tolist())


def scores(one, other):
    return rs.compare(one, other, kernel="product").scores


@pytest.fixture(scope="module")
def resnets():
    """Two of one architecture, recorded as written and then compiled."""
    nets = [networks.seeded(networks.ResNet, seed=seed) for seed in (0, 1)]
    states = [copy.deepcopy(net.state_dict()) for net in nets]
    written = [rs.record(net, IMAGES, **IN_BATCHES) for net in nets]
    before = draws()
    there = len(compile._programs)
    found = [rs.record(net, IMAGES, **IN_BATCHES, compile=True) for net in nets]
    made = len(compile._programs) - there
    return nets, states, written, found, made, draws() == before


def test_scores_of_a_network_with_in_place_layers_are_those_of_the_pass_as_written(resnets):
    _, _, written, found, *_ = resnets
    for one, two in zip(written, found, strict=True):
        assert_alike(one, two, 1e-5)
    np.testing.assert_allclose(scores(*found), scores(*written), atol=1e-4)
    for one, two in zip(written, found, strict=True):
        assert torch.equal(one.outputs.every.argmax(1), two.outputs.every.argmax(1))


def test_a_second_network_of_the_architecture_takes_the_same_graph(resnets, capsys):
    nets, *_, made, _ = resnets
    assert made == 1
    rs.record(nets[1], IMAGES, **IN_BATCHES, compile=True, progress=True)
    assert "recording ResNet, compiled before" in capsys.readouterr().err


def test_the_model_comes_back_as_it_was(resnets):
    nets, states, *_, draws_alike = resnets
    for net, state in zip(nets, states, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
        assert net.training
        for module in net.modules():
            assert not module._forward_hooks
            assert all(type(p) is nn.Parameter and p.requires_grad for p in module.parameters())
            assert all(not vars(p) for p in module.parameters())
    assert draws_alike
    doubled = torch.compile(lambda x: 2 * x, backend="eager")  # which is allowed again
    assert doubled(torch.ones(1)) == 2


@pytest.mark.slow
def test_a_transformer_in_double_precision_with_labels():
    model = networks.seeded(networks.Transformer, classes=3).double()
    data = networks.tokens(40) | {"labels": torch.arange(40) % 3}
    options = {"target": "labels", "pool": "mean"}
    assert_alike(*both(model, data, **options), 1e-4)  # as finely as correlations are kept
    wrong = data | {"labels": torch.arange(40)}
    with pytest.raises(DataError, match="is out of range: the model has 3 classes"):
        rs.record(model, wrong, **IN_BATCHES | options, compile=True)


@pytest.mark.slow
@needs("transformers")
def test_tokens_of_a_language_model():
    usable_torchvision()
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 23, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    model = networks.seeded(GPT2LMHeadModel, GPT2Config(**sizes, **tokens))
    ids = torch.randint(4, 23, (40, 12), generator=G)  # of one length, as packed text is
    data = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    written, found = both(model, data, tokens=2)
    assert_alike(written, found, 1e-4)  # as finely as correlations are kept
    assert torch.equal(written.rows.position, found.rows.position)


def test_features_alone_in_bfloat16():
    model = networks.seeded(networks.MLP)
    with torch.autocast("cpu", torch.bfloat16):
        written, found = both(model, VECTORS, gradients=False)
        assert found.made.autocast == "bfloat16"
    assert_alike(written, found, 2e-2, kinds=("features",))
    plain = rs.record(model, VECTORS, **IN_BATCHES, gradients=False)
    assert (plain[0].blocks("features") != found[0].blocks("features")).any()


class Chaotic(networks.MLP):
    """Makes much of little: the last bits of half precision are all that is left in the end."""

    def forward(self, x):
        return self.fc2((300 * self.fc1(x)).sin())


@pytest.mark.slow
def test_where_rounding_decides_compiled_code_need_only_be_as_near_to_float32():
    model = networks.seeded(Chaotic)
    with torch.autocast("cpu", torch.bfloat16):
        written, found = both(model, VECTORS, layers=["fc1", "fc2"])
        program = list(compile._programs.values())[-1]
    assert not isinstance(program, str)
    one, two = (rep["fc2"].blocks("features")[4:8] for rep in (written, found))
    assert (one - two).norm() > 0.2 * one.norm()  # as far apart as that


class Choosing(networks.MLP):
    """Does what its inputs say."""

    def forward(self, x):
        return super().forward(x if x.sum() > 0 else x + 0)


class Drawing(networks.MLP):
    """Gives something else whenever it runs."""

    def forward(self, x):
        return super().forward(x + torch.randn_like(x))


def test_a_network_that_looks_at_its_inputs_is_run_as_written():
    model = networks.seeded(Choosing)
    with pytest.warns(ResemblanceWarning, match="runs in eager mode: .*data-dependent") as said:
        found = rs.record(model, VECTORS, **IN_BATCHES, compile=True)
    assert len(said) == 1
    written = rs.record(model, VECTORS, **IN_BATCHES)
    assert torch.equal(written[0].blocks("gradients"), found[0].blocks("gradients"))


def test_what_could_not_be_compiled_is_not_tried_again(monkeypatch):
    model = networks.seeded(Choosing, width=3)
    tried = []
    monkeypatch.setattr(
        compile, "compile_batch", lambda *args, **kwargs: tried.append(args) or 1 / 0
    )
    for _ in range(2):
        with pytest.warns(ResemblanceWarning, match="runs in eager mode: ZeroDivisionError"):
            rs.record(model, VECTORS, **IN_BATCHES, compile=True)
    assert len(tried) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*random")
def test_compiled_code_that_gives_other_numbers_is_not_used():
    with pytest.warns(ResemblanceWarning, match="compiled code differs at"):
        rs.record(networks.seeded(Drawing), VECTORS, **IN_BATCHES, compile=True)


def test_samples_of_many_shapes_are_run_as_written():
    model = nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    data = [torch.randn(4, 3, length, generator=G) for length in range(5, 13)]
    with pytest.warns(ResemblanceWarning, match=re.escape("8 of 8 batches ran in eager mode")):
        rs.record(model, data, block=4, batch_size=4, layers="1", compile=True)


def test_what_is_to_agree_bit_for_bit_is_not_compiled():
    with pytest.raises(DataError, match="omit `deterministic` or `compile`"):
        rs.record(networks.MLP(), VECTORS, deterministic=True, compile=True)


def test_checkpointed_layers_are_run_as_written():
    class Marked(networks.ResNet):
        def __init__(self):
            super().__init__()
            self.grad_checkpointing = True

    with pytest.warns(ResemblanceWarning, match="gradient checkpointing is enabled"):
        rs.record(networks.seeded(Marked), IMAGES, **IN_BATCHES, compile=True)
