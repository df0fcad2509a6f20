"""Which modules run in a forward pass, and when."""

from __future__ import annotations

import pytest
import torch

import networks
from resemblance._model.call_trace import modules_of, trace


def test_tracing_removes_its_hooks_also_when_the_model_fails():
    net = networks.MLP()
    with pytest.raises(RuntimeError):
        trace(net, lambda: net(torch.zeros(2, 5)))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_compiled_modules_keep_their_names():
    net = networks.seeded(networks.ResNet)
    names = list(modules_of(net))
    net.layer1[0] = torch.compile(net.layer1[0], backend="eager")
    assert list(modules_of(net)) == names
