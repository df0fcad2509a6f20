"""Equal keys for networks that compute the same from their weights, and for no others."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn

import networks
from resemblance._model.computation_key import key_of

ARCHITECTURES = {
    "mlp": networks.MLP,
    "resnet": networks.ResNet,
    "transformer": networks.Transformer,
    "lstm": functools.partial(networks.Recurrent, kind=nn.LSTM),
    "causal": networks.LittleForCausalLM,
    "reparametrised": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 3)),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_weights_do_not_count_but_for_their_shape(name):
    one, two = (networks.seeded(ARCHITECTURES[name], seed=seed) for seed in (0, 1))
    assert key_of(one) is not None
    assert key_of(one) == key_of(two)
    assert hash(key_of(one)) == hash(key_of(two))
    assert key_of(one) != key_of(two.double())


def changed(change):
    model = networks.seeded(networks.ResNet)
    change(model)
    return model


CHANGES = {
    "a number": lambda model: setattr(model.bn1, "eps", 1e-3),
    "a mode": lambda model: model.bn1.train(False),
    "a module": lambda model: setattr(model, "relu", nn.GELU()),
    "a constant tensor": lambda model: setattr(model, "shift", [torch.ones(2)]),
    "an array": lambda model: setattr(model, "scale", np.ones(2)),
    "a weight that is shared": lambda model: setattr(
        model.layer1[1].conv1, "weight", model.layer1[0].conv1.weight
    ),
    "a hook": lambda model: model.bn1.register_forward_hook(lambda *_: None),
    "its own way": lambda model: setattr(model.bn1, "forward", lambda x: x),
    "a layout": lambda model: model.to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_else_differs_counts(name):
    plain = key_of(networks.seeded(networks.ResNet))
    assert key_of(changed(CHANGES[name])) not in (None, plain)
    assert key_of(changed(CHANGES[name])) is not None


def test_functions_count_by_what_they_carry():
    def shifted(by, also=0):
        return lambda model, x: model(x + by + also)

    assert key_of(shifted(1)) == key_of(shifted(1))
    assert key_of(shifted(1)) != key_of(shifted(2))
    assert key_of(functools.partial(shifted, 1)) != key_of(functools.partial(shifted, 2))


AMOUNT = 1


def by_amount(x):
    return x + AMOUNT


def test_a_constant_that_a_function_names_counts(monkeypatch):
    before = key_of(by_amount)
    monkeypatch.setitem(globals(), "AMOUNT", 2)
    assert key_of(by_amount) != before


def test_a_class_that_was_defined_again_is_the_same_unless_its_code_is():
    def made(source):
        space = {"nn": nn, "__name__": "somewhere"}
        exec(f"class Net(nn.Module):\n    def forward(self, x):\n        return {source}", space)
        return space["Net"]()

    assert key_of(made("x + 1")) == key_of(made("x + 1"))
    assert key_of(made("x + 1")) != key_of(made("x + 2"))


def test_names_of_checkpoints_do_not_count():
    one, two = networks.LittleForCausalLM(), networks.LittleForCausalLM()
    one.config._name_or_path, two.config._name_or_path = "here", "there"
    assert key_of(one) == key_of(two)


def test_what_cannot_be_looked_into_has_no_key():
    model = networks.MLP()
    model.generator = torch.Generator()
    assert key_of(model) is None
    assert key_of([np.array([object()])]) is None
    assert key_of(torch.ones(2).to_sparse()) is None
