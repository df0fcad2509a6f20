"""Equal keys for networks that compute the same from their weights, and for no others."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn

import networks
from resemblance._models.hashes import computation_key, function_identity

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
    assert computation_key(one) is not None
    assert computation_key(one) == computation_key(two)
    assert hash(computation_key(one)) == hash(computation_key(two))
    assert computation_key(one) != computation_key(two.double())


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
    plain = computation_key(networks.seeded(networks.ResNet))
    assert computation_key(changed(CHANGES[name])) not in (None, plain)
    assert computation_key(changed(CHANGES[name])) is not None


def test_functions_count_by_what_they_carry():
    def shifted(by, also=0):
        return lambda model, x: model(x + by + also)

    assert computation_key(shifted(1)) == computation_key(shifted(1))
    assert computation_key(shifted(1)) != computation_key(shifted(2))
    assert computation_key(functools.partial(shifted, 1)) != computation_key(
        functools.partial(shifted, 2)
    )


AMOUNT = 1


def by_amount(x):
    return x + AMOUNT


def test_a_constant_that_a_function_names_counts(monkeypatch):
    before = computation_key(by_amount)
    monkeypatch.setitem(globals(), "AMOUNT", 2)
    assert computation_key(by_amount) != before


def test_a_class_that_was_defined_again_is_the_same_unless_its_code_is():
    def made(source):
        space = {"nn": nn, "__name__": "somewhere"}
        exec(f"class Net(nn.Module):\n    def forward(self, x):\n        return {source}", space)
        return space["Net"]()

    assert computation_key(made("x + 1")) == computation_key(made("x + 1"))
    assert computation_key(made("x + 1")) != computation_key(made("x + 2"))


def test_names_of_checkpoints_do_not_count():
    one, two = networks.LittleForCausalLM(), networks.LittleForCausalLM()
    one.config._name_or_path, two.config._name_or_path = "here", "there"
    assert computation_key(one) == computation_key(two)


def test_what_cannot_be_looked_into_has_no_key():
    model = networks.MLP()
    model.generator = torch.Generator()
    assert computation_key(model) is None
    assert computation_key([np.array([object()])]) is None
    assert computation_key(torch.ones(2).to_sparse()) is None


# -- functions, the same in every process --------------------------------------------------------

SCALE, SHIFT = 2.0, torch.ones(3)


def helper(x):
    return x * SCALE


def calls_helper(x):
    return helper(x) + SHIFT


def threshold(t):
    return lambda x: x > t


class Callable:
    def __init__(self, by):
        self.by = by

    def __call__(self, x):
        return x + self.by


class Sized:
    __slots__ = ("by",)

    def __call__(self, x):
        return x


def test_functions_of_one_name_have_identities_of_their_own():
    def loss(x):
        return x.sum(1)

    first = loss

    def loss(x):
        return x.mean(1)

    teachers = [networks.seeded(networks.MLP, seed=seed) for seed in (0, 1)]
    different = [
        first,
        loss,
        lambda x: x,
        lambda x: -x,
        lambda x, scale=2: x * scale,
        lambda x, scale=3: x * scale,
        threshold(1),
        threshold(2),
        threshold(torch.tensor([1.0])),
        threshold(torch.tensor([2.0])),
        functools.partial(loss, 1),
        functools.partial(loss, 2),
        Callable(1),
        Callable(2),
        *[lambda x, net=net: net(x) for net in teachers],
        torch.flatten,
        max,
    ]
    found = [function_identity(function) for function in different]
    assert len(set(found)) == len(found)
    assert function_identity(threshold(1)) == function_identity(threshold(1))
    assert function_identity(Callable(2)) == function_identity(Callable(2))


def test_what_a_function_calls_and_reads_of_its_module_counts(monkeypatch):
    before = function_identity(calls_helper)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    other_constant = function_identity(calls_helper)
    monkeypatch.setitem(globals(), "SHIFT", torch.zeros(3))
    other_tensor = function_identity(calls_helper)
    assert len({before, other_constant, other_tensor}) == 3


WEIGHTS = [0.1, 0.9]
PROBE = networks.seeded(networks.MLP)


def reads_container(x):
    return x * WEIGHTS[0]


def reads_network(x):
    return PROBE(x)


@pytest.mark.parametrize(
    ("function", "name", "other"),
    [
        (reads_container, "WEIGHTS", [0.2, 0.8]),
        (reads_network, "PROBE", networks.seeded(networks.MLP, seed=1)),
    ],
)
def test_containers_and_networks_of_a_module_count_where_they_are_read(
    function, name, other, monkeypatch
):
    before, attribute = function_identity(function), function_identity(lambda x: x.WEIGHTS)
    monkeypatch.setitem(globals(), name, other)
    assert function_identity(function) != before
    assert function_identity(lambda x: x.WEIGHTS) == attribute  # which is no global


def test_functions_over_what_cannot_be_looked_into_differ_by_the_rest():
    lock = threading.Lock()
    one, two = (lambda x: (lock, x + 1)), (lambda x: (lock, x + 2))
    assert function_identity(one) != function_identity(two)
    assert function_identity(np.maximum) != function_identity(np.minimum)


def test_a_callable_that_cannot_be_looked_into_is_known_by_name():
    assert function_identity(Sized()) == function_identity(Sized())
    assert function_identity(Sized()) != function_identity(torch.flatten)


def test_an_identity_is_the_same_in_every_process_and_file(tmp_path):
    """Neither hash seeds, nor addresses, nor the place in a file count."""
    code = "from resemblance._models.hashes import function_identity as f\n"
    code += "T = (1, 'a')\nWORDS = {'a', 'b', 'c', 'd'}\n"
    define = "def pool(x, words=frozenset({'p', 'q', 'r', 's'})):\n"
    define += "    return [x for w in words if w in {'u', 'v', 'w'}], [T for t in x]\n"
    found = set()
    for seed, before in ((0, ""), (1, "\n\n\nunused = 3\n")):
        script = tmp_path / f"script{seed}.py"
        script.write_text(code + before + define + "print(f(pool))\n")
        env = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(sys.path)}
        found.add(subprocess.run([sys.executable, script], env=env, capture_output=True).stdout)
    assert len(found) == 1
    assert len(found.pop().strip()) == 16
