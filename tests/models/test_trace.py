"""Which modules run in a forward pass, and when."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

import networks
from resemblance._models.trace import locate_tensor, modules_by_name, trace


def test_tracing_removes_its_hooks_also_when_the_model_fails():
    net = networks.MLP()
    with pytest.raises(RuntimeError):
        trace(net, lambda: net(torch.zeros(2, 5)))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_compiled_modules_keep_their_names():
    net = networks.seeded(networks.ResNet)
    names = list(modules_by_name(net))
    net.layer1[0] = torch.compile(net.layer1[0], backend="eager")
    assert list(modules_by_name(net)) == names


def traced(net, inputs):
    return {call.name: call for call in trace(net, lambda: net(inputs), count=len(inputs))[0]}


def test_a_call_notes_whose_output_it_was_given():
    calls = traced(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)), torch.randn(2, 3))
    assert calls["0"].given_by == frozenset()
    assert calls["1"].given_by == {calls["0"].ended}
    assert calls["2"].given_by == {calls["1"].ended}


def test_a_view_was_given_and_what_was_written_into_was_not():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(2, 4), nn.Linear(4, 4)

        def forward(self, x):
            y = self.b(self.a(x)[:, :2])
            y += 1
            return self.c(y)

    calls = traced(Net(), torch.randn(2, 4))
    assert calls["b"].given_by == {calls["a"].ended}
    assert calls["c"].given_by == frozenset()


def test_a_module_hands_on_what_one_inside_it_gave():
    calls = traced(networks.ResNet(), torch.randn(2, 3, 5, 5))
    assert calls["layer1.0"].hands_on == {calls["layer1.0.relu#2"].ended}
    outer = traced(nn.Sequential(nn.Sequential(nn.Linear(3, 3))), torch.randn(2, 3))
    assert outer["0"].hands_on == {outer["0.0"].ended}


def test_no_activation_is_kept_to_note_whose_output_was_given():
    alive = []

    class Watch(nn.Module):
        def forward(self, x):
            y = x + 1
            alive.append(weakref.ref(y))
            seen.append(sum(ref() is not None for ref in alive))
            return y

    seen = []
    net = nn.Sequential(*(Watch() for _ in range(5)))
    trace(net, lambda: net(torch.zeros(2, 3)), count=2)
    assert max(seen) <= 2


def test_rearranging_does_not_change_the_total_and_arithmetic_does():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.turn = nn.Linear(4, 4), nn.Flatten()

        def forward(self, x):
            return self.turn(self.a(x).unflatten(1, (2, 2)).transpose(1, 2))

    calls = traced(Net(), torch.randn(2, 4))
    assert calls["turn"].total == pytest.approx(calls["a"].total)
    assert calls["turn"].given_by == {calls["a"].ended}


def test_what_is_the_same_for_all_samples_does_not_vary():
    class Positions(nn.Module):
        def forward(self, x):
            return torch.arange(3.0).expand(len(x), 3)

    calls = traced(nn.Sequential(nn.Linear(3, 3), Positions()), torch.randn(2, 3))
    assert calls["0"].varies
    assert not calls["1"].varies


def test_the_place_of_the_samples():
    rotary, rows, time_major = torch.zeros(1, 2, 4), torch.zeros(6, 4), torch.zeros(7, 2, 4)
    assert not locate_tensor(rotary, 2).samples
    assert not locate_tensor(rows, 2).samples
    assert locate_tensor(time_major, 2).axis == 1
    assert locate_tensor((rows, time_major), 2).position == 1
    assert locate_tensor(torch.zeros(2, dtype=torch.long), 2) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_tensors_of_few_bits_are_noted(dtype):
    class Narrow(nn.Module):
        def forward(self, x):
            return x.to(dtype)

    call = traced(nn.Sequential(Narrow()), torch.ones(2, 3))["0"]
    assert call.total == 6.0
    assert not call.varies
