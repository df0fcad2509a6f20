"""Adapted, reparametrised, pruned and quantised models: recorded, or one line says why not."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import networks
import resemblance as rs
import stored
from model_states import assert_unchanged, snapshot
from models.families import usable_torchvision
from optional_libraries import needs
from resemblance._models.hashes import hash_all_weights, hash_sampled_weights
from resemblance._models.trace import modules_by_name
from resemblance._models.wrappers import (
    count_weight_matrices,
    has_weight_matrices,
    is_wrapped_layer,
    layer_of_parameter,
    names_inside_wrapped_layers,
)
from resemblance.errors import LayerError

OPTIONS = {"data_id": "x", "progress": False}
X = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*standard errors may be too small"),
    pytest.mark.filterwarnings("ignore:.*quantiz"),  # deprecations and notes of torch
]


def mlp(seed=0):
    return networks.seeded(networks.MLP, width=64, inputs=64, classes=8, seed=seed)


# -- reparametrised and pruned ---------------------------------------------------------------------


def weight_normed(model):
    parametrizations.weight_norm(model.fc1)
    parametrizations.weight_norm(model.fc2)


def spectral_normed(model):
    parametrizations.spectral_norm(model.fc2)


def pruned(model):
    prune.l1_unstructured(model.fc1, "weight", 0.5)
    prune.ln_structured(model.fc2, "weight", 0.25, n=2, dim=0)


@pytest.mark.parametrize("alter", [weight_normed, spectral_normed, pruned])
def test_reparametrised_and_pruned_models_are_recorded_as_what_they_compute(alter):
    model = mlp()
    alter(model)
    model.eval()
    plain = mlp()
    with torch.no_grad():
        for name in ("fc1", "fc2"):
            getattr(plain, name).weight.copy_(getattr(model, name).weight)
    before = snapshot(model)
    found = rs.record(model, X, elementwise=True, **OPTIONS)
    assert_unchanged(before, snapshot(model))
    expected = rs.record(plain, X, elementwise=True, **OPTIONS)
    assert found.layer_names == expected.layer_names == ["act1", "act2"]
    stored.assert_same(found, expected)
    assert found.model.weights != expected.model.weights


# -- adapted ---------------------------------------------------------------------------------------


def adapted(model, targets, *, zero=False):
    peft = pytest.importorskip("peft")
    made = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=targets))
    if not zero:
        generator = torch.Generator().manual_seed(1)
        for name, parameter in made.named_parameters():
            if "lora_B" in name:
                parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    return made


def bare_names(representation):
    return [layer.bare_name for layer in representation]


@needs("peft")
def test_an_adapter_that_does_nothing_changes_nothing():
    usable_torchvision()
    expected = rs.record(mlp(), X, **OPTIONS)
    found = rs.record(adapted(mlp(), ["fc1", "fc2"], zero=True), X, **OPTIONS)
    assert bare_names(found) == expected.layer_names
    for one, two in zip(found, expected, strict=True):
        assert stored.tensors(one).keys() == stored.tensors(two).keys()
        for key, tensor in stored.tensors(one).items():
            assert torch.equal(tensor, stored.tensors(two)[key])


@needs("peft")
def test_an_adapted_model_is_recorded_as_the_one_that_it_is_merged_into():
    usable_torchvision()
    model = adapted(mlp(), ["fc1", "head"])
    before = snapshot(model)
    found = rs.record(model, X, **OPTIONS)
    assert_unchanged(before, snapshot(model))
    merged = rs.record(copy.deepcopy(model).merge_and_unload(), X, **OPTIONS)
    assert bare_names(found) == bare_names(merged) == ["act1", "act2"]
    for kernel in ("features", "gradients"):
        # the sum of two products, or one product with a sum: round-off
        scores = rs.compare(found, merged, kernel=kernel).scores.diagonal()
        assert scores == pytest.approx([1, 1], abs=1e-5)
    scores = rs.compare(found, rs.record(mlp(), X, **OPTIONS), kernel="features").scores
    assert scores[0, 0] < 0.999  # which the adapter did change


@needs("peft")
@needs("transformers")
def test_adapted_language_models_have_the_layers_of_the_model():
    usable_torchvision()
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
            vocab_size=31,
        )
    )  # fmt: skip
    ids = {"input_ids": torch.randint(0, 31, (40, 12))}
    expected = rs.record(model, ids, pool="mean", **OPTIONS)
    wrapped = adapted(model, ["query", "dense"])
    found = rs.record(wrapped, ids, pool="mean", **OPTIONS)
    assert bare_names(found) == expected.layer_names
    inner = "base_model.model.bert.encoder.layer.0.output.dense.lora_A.default"
    named = rs.record(wrapped, ids, layers=[inner], pool="mean", **OPTIONS)
    assert named.layer_names == [inner]  # what is inside can be asked for


# -- quantised -------------------------------------------------------------------------------------


def int8(model):
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


def test_features_of_int8_models():
    model = int8(mlp())
    found = rs.record(model, X, gradients=False, **OPTIONS)
    assert found.layer_names == ["act1", "act2"]
    expected = rs.record(mlp(), X, gradients=False, **OPTIONS)
    scores = rs.compare(found, expected, kernel="features").scores.diagonal()
    assert ((scores > 0.98) & (scores < 1)).all()


def test_gradients_of_int8_models_are_refused_by_the_layer_that_has_none():
    model = int8(mlp())
    before = [dict(module._forward_hooks) for module in model.modules()]
    with pytest.raises(LayerError) as error:
        rs.record(model, X, **OPTIONS)
    assert str(error.value) == (
        "layer 'fc2' (Linear) is quantised and has no backward pass, so gradients cannot reach "
        "the layers before it; record with `gradients=False`"
    )
    assert [dict(module._forward_hooks) for module in model.modules()] == before


def test_int8_layers_before_the_first_tap_are_no_hindrance():
    model = mlp()
    model.fc1 = int8(nn.Sequential(model.fc1))[0]
    assert rs.record(model, X, **OPTIONS).layer_names == ["act1", "act2"]
    assert rs.record(model, X, layers=["fc1"], **OPTIONS)["fc1"].gradients is not None


def test_int8_weights_are_hashed():
    one, same, other = (int8(mlp(seed)) for seed in (0, 0, 1))
    for hashed in (hash_sampled_weights, hash_all_weights):
        assert hashed(one) == hashed(same) != hashed(other)


@needs("torchao")
@pytest.mark.filterwarnings("ignore")
def test_weights_alone_in_int8_have_gradients_and_activations_in_int8_have_none():
    from torchao import quantization

    model = mlp()
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    found, expected = rs.record(model, X, **OPTIONS), rs.record(mlp(), X, **OPTIONS)
    assert found.layer_names == expected.layer_names
    for kernel in ("features", "gradients"):
        scores = rs.compare(found, expected, kernel=kernel).scores.diagonal()
        assert (scores > 0.98).all()
    other = mlp(1)
    quantization.quantize_(other, quantization.Int8WeightOnlyConfig())
    for hashed in (hash_sampled_weights, hash_all_weights):
        assert hashed(model) == hashed(copy.deepcopy(model)) != hashed(other)
    model = mlp()
    quantization.quantize_(model, quantization.Int8DynamicActivationInt8WeightConfig())
    with pytest.raises(LayerError, match=r"'fc2' .* has no backward pass"):
        rs.record(model, X, **OPTIONS)
    assert rs.record(model, X, gradients=False, **OPTIONS).layer_names == ["act1", "act2"]


# -- one layer still -------------------------------------------------------------------------------


class Adapter(nn.Module):
    """The shape of every adapter: a layer, and a small one beside it."""

    def __init__(self, base):
        super().__init__()
        self.base_layer, self.down, self.up = base, nn.Linear(6, 2), nn.Linear(2, 6)


def test_an_altered_layer_is_one_layer_with_one_matrix():
    plain, adapter = nn.Linear(6, 6), Adapter(nn.Linear(6, 6))
    normed = parametrizations.weight_norm(nn.Linear(6, 6))
    packed = int8(nn.Sequential(nn.Linear(6, 6)))[0]
    both = Adapter(int8(nn.Sequential(nn.Linear(6, 6)))[0])
    for layer in (plain, adapter, normed, packed, both):
        assert count_weight_matrices({"layer": layer}) == {"layer": 1}
        assert has_weight_matrices(layer)
        assert is_wrapped_layer(layer) == (layer is not plain)
    listed = nn.ModuleList([plain, adapter, normed, packed, both, plain])
    assert count_weight_matrices({"listed": listed}) == {"listed": 5}
    assert not is_wrapped_layer(nn.ReLU())
    assert not has_weight_matrices(nn.LayerNorm(3))
    assert not is_wrapped_layer(
        Adapter(nn.Sequential(plain, nn.Linear(6, 6)))
    )  # around a whole block


def test_what_is_inside_an_altered_layer():
    model = nn.Sequential(nn.Linear(6, 6), Adapter(nn.Linear(6, 6)))
    assert names_inside_wrapped_layers(modules_by_name(model)) == {"1.base_layer", "1.down", "1.up"}
    assert names_inside_wrapped_layers(modules_by_name(mlp())) == set()


def test_the_layer_of_a_parameter():
    model = nn.Sequential(nn.Linear(6, 6), Adapter(nn.Linear(6, 6)))
    modules = modules_by_name(model)
    found = {name: layer_of_parameter(modules, name) for name, _ in model.named_parameters()}
    assert set(found.values()) == {"0", "1"}
    assert found["1.base_layer.weight"] == found["1.up.bias"] == "1"
    assert layer_of_parameter({}, "scale") == ""


# -- gradients by weights --------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of weight norm, by torch
def test_task2vec_of_an_altered_model_has_the_filters_of_all_its_layers():
    plain, normed, adapter = mlp(), mlp(), mlp()
    parametrizations.weight_norm(normed.fc1)
    assert set(rs.task2vec(plain, X).fisher) == {"fc1.weight", "fc2.weight"}
    found = set(rs.task2vec(normed, X).fisher)
    assert found == {f"fc1.parametrizations.weight.original{i}" for i in (0, 1)} | {"fc2.weight"}
    pytest.importorskip("peft")
    usable_torchvision()
    adapter = adapted(adapter, ["fc2"])
    names = {f"fc2.{part}.weight" for part in ("base_layer", "lora_A.default", "lora_B.default")}
    names = {f"base_model.model.{name}" for name in names | {"fc1.weight"}}
    assert set(rs.task2vec(adapter, X).fisher) == names


def test_task2vec_needs_weights_in_one_place():
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.cpu_offload(mlp(), execution_device=torch.device("cpu"))
    with pytest.raises(LayerError, match=r"found 'fc1\.weight' offloaded or spread"):
        rs.task2vec(model, X)
