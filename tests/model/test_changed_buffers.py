"""Buffers that a forward pass changes come back; those that it does not cost nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import networks
import resemblance as rs
from resemblance._model import changed_buffers
from resemblance._model.changed_buffers import ChangedBuffers
from resemblance._model.weight_hash import of_weights
from resemblance.errors import ResemblanceWarning

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))


class Keeping(networks.MLP):
    """A network with buffers, one of which it changes in its forward pass, in some way."""

    def __init__(self, change):
        super().__init__()
        self.change = change
        self.register_buffer("count", torch.zeros(1, dtype=torch.long))
        self.register_buffer("table", torch.arange(12.0).reshape(3, 4))
        self.register_buffer("tied", self.table[1])
        self.register_buffer("last", torch.zeros(6))
        self.register_buffer("absent", None)
        self.register_buffer("idle", torch.ones(1000))

    def forward(self, x):
        CHANGES[self.change](self, x)
        return super().forward(x)


def forget(net, x):
    del net.last


CHANGES = {
    "nothing": lambda net, x: None,
    "counter": lambda net, x: net.count.add_(1),
    "augmented": lambda net, x: net.count.__iadd__(1),
    "view": lambda net, x: net.table[0, 1:].mul_(0),
    "item": lambda net, x: net.table.__setitem__((2, 3), -1.0),
    "tied": lambda net, x: net.tied.add_(1),
    "detached": lambda net, x: net.table.detach().t().zero_(),
    "out": lambda net, x: torch.mean(x, 0, out=net.last),
    "list": lambda net, x: torch._foreach_add_([net.table, net.last], 1.0),
    "scatter": lambda net, x: net.table.index_add_(0, torch.tensor([0]), torch.ones(1, 4)),
    "assigned": lambda net, x: setattr(net, "last", x.mean(0)),
    "assigned where none was": lambda net, x: setattr(net, "absent", x.mean(0)),
    "registered": lambda net, x: net.register_buffer("cache", x.clone()),
    "deleted": forget,
    "inside": lambda net, x: net.fc1.register_buffer("cache", x.clone()),
}


def state(net):
    return {name: None if x is None else x.clone() for name, x in _buffers(net).items()}


def _buffers(net):
    return {
        f"{path}.{name}": buffer
        for path, module in net.named_modules()
        for name, buffer in module._buffers.items()
    }


def same_contents(one, two):
    return one.keys() == two.keys() and all(
        (x is None and two[name] is None)
        or (x is not None and two[name] is not None and torch.equal(x, two[name]))
        for name, x in one.items()
    )


def assert_back(net, before, same):
    after = _buffers(net)
    assert list(after) == list(before)
    for name, value in before.items():
        assert after[name] is same[name], name
        assert value is None or torch.equal(after[name], value), name


@pytest.fixture(params=["copied", "watched"])
def way(request, monkeypatch):
    """Small buffers are copied beforehand, and large ones watched."""
    if request.param == "watched":
        monkeypatch.setattr(changed_buffers, "_COPIED", 0)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_forward_pass_changes_is_put_back(change):
    net = networks.seeded(Keeping, change)
    before, same = state(net), _buffers(net)
    changed = ChangedBuffers(net)
    with changed, torch.no_grad():
        net(X)
    altered = not same_contents(state(net), before)
    assert altered == (change != "nothing")
    if change != "deleted":
        with torch.no_grad():
            net(X)  # what is changed again, out of sight, comes back as well
    changed.put_back()
    assert_back(net, before, same)
    assert net.tied.data_ptr() == net.table[1].data_ptr()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("change", [name for name in CHANGES if name != "deleted"])
def test_record_puts_buffers_back(change, gradients):
    net = networks.seeded(Keeping, change)
    before, same, weights = state(net), _buffers(net), of_weights(net)
    rep = rs.record(net, X, gradients=gradients, block=8, batch_size=8)
    assert_back(net, before, same)
    assert rep.model.fingerprint == weights == of_weights(net)


class Copies(TorchDispatchMode):
    """The sizes of all that is cloned."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.clone.default:
            self.sizes.append(args[0].numel())
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("change", "expected"),
    # of table and tied, which share memory, both are kept
    [("nothing", []), ("counter", [1]), ("view", [4, 12]), ("out", [6])],
)
def test_of_large_buffers_only_what_is_written_is_copied_and_once(change, expected, monkeypatch):
    monkeypatch.setattr(changed_buffers, "_COPIED", 0)
    net = networks.seeded(Keeping, change)
    versions = {name: x._version for name, x in net.named_buffers()}
    with torch.no_grad(), Copies() as copies:
        changed = ChangedBuffers(net)
        with changed:
            net(X)
            net(X)
        changed.put_back()
    assert sorted(copies.sizes) == expected
    assert net.idle._version == versions["idle"]


@pytest.mark.parametrize("change", ["nothing", "counter"])
def test_only_what_is_changed_is_written_back(change):
    """A graph that someone holds may be in need of a buffer as it is."""
    net = networks.seeded(Keeping, change)
    versions = {name: x._version for name, x in net.named_buffers()}
    changed = ChangedBuffers(net)
    with changed, torch.no_grad():
        net(X)
    changed.put_back()
    moved = {name for name, x in net.named_buffers() if x._version != versions[name]}
    assert moved == ({"count"} if change == "counter" else set())


@pytest.mark.usefixtures("way")
def test_running_statistics_come_back_in_training_mode():
    net = nn.BatchNorm1d(6).train()
    before = {name: x.clone() for name, x in net.named_buffers()}
    changed = ChangedBuffers(net)
    with changed:
        net(X)
    assert not torch.equal(net.running_mean, before["running_mean"])
    changed.put_back()
    for name, x in net.named_buffers():
        assert torch.equal(x, before[name]), name


class AdaptedNorm(nn.Module):
    """Normalises by the batch and keeps statistics in evaluation mode, as test-time adaptation."""

    def __init__(self):
        super().__init__()
        self.fc, self.norm, self.head = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, x):
        norm = self.norm
        y = F.batch_norm(self.fc(x), norm.running_mean, norm.running_var, training=True)
        return self.head(y)


@pytest.mark.usefixtures("way")
def test_record_puts_back_statistics_that_are_kept_in_evaluation_mode():
    net = networks.seeded(AdaptedNorm)
    before = {name: x.clone() for name, x in net.named_buffers()}
    with pytest.warns(ResemblanceWarning, match="depends on the others in its batch"):
        rs.record(net, X, layers=["fc", "head"], gradients=False, block=8, batch_size=8)
    for name, x in net.named_buffers():
        assert torch.equal(x, before[name]), name
