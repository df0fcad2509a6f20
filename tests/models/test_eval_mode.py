"""Evaluation mode: model and process are restored, and batch norms are frozen."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import networks
import resemblance as rs
import stored
from model_states import assert_unchanged, snapshot, unusual
from resemblance._models import eval_mode
from resemblance._models.eval_mode import (
    ChangedBuffers,
    RandomState,
    frozen_batch_norms,
    run_in_eval_mode,
)
from resemblance._models.hashes import hash_sampled_weights
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
        monkeypatch.setattr(eval_mode, "_COPIED", 0)


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
    before, same, weights = state(net), _buffers(net), hash_sampled_weights(net)
    rep = rs.record(net, X, gradients=gradients, block=8, batch_size=8)
    assert_back(net, before, same)
    assert rep.model.fingerprint == weights == hash_sampled_weights(net)


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
    monkeypatch.setattr(eval_mode, "_COPIED", 0)
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
    with pytest.warns(ResemblanceWarning, match="depends on the rest of its batch"):
        rs.record(net, X, layers=["fc", "head"], gradients=False, block=8, batch_size=8)
    for name, x in net.named_buffers():
        assert torch.equal(x, before[name]), name


G = torch.Generator().manual_seed(0)
IMAGES = torch.randn(5, 3, 6, 6, generator=G, dtype=torch.float64)
VECTORS = torch.randn(5, 6, generator=G, dtype=torch.float64)
IDS = torch.randint(0, 9, (5, 4), generator=G)


def test_wrapped_models_give_what_the_model_gives():
    model = networks.seeded(networks.ResNet)
    images = IMAGES.float().repeat(8, 1, 1, 1)
    expected = rs.record(model, images)
    stored.assert_same(rs.record(nn.DataParallel(model), images), expected)
    stored.assert_same(rs.record(torch.compile(model, backend="eager"), images), expected)
    inner = copy.deepcopy(model)
    inner.layer1[0] = torch.compile(inner.layer1[0], backend="eager")
    compiled = rs.record(inner, images)
    stored.assert_same(compiled, expected)
    assert compiled.model.fingerprint == expected.model.fingerprint
    in_place = copy.deepcopy(model)
    in_place.compile(backend="eager")
    stored.assert_same(rs.record(in_place, images), expected)


def test_distributed_data_parallel(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        model = networks.seeded(networks.MLP)
        wrapped = nn.parallel.DistributedDataParallel(model)
        vectors = VECTORS.float().repeat(8, 1)
        stored.assert_same(rs.record(wrapped, vectors), rs.record(model, vectors))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("gradients", [False, True])
def test_weights_that_autocast_keeps_are_neither_old_nor_left_behind(gradients):
    model, x = networks.seeded(networks.MLP), torch.randn(40, 6)
    options = {"gradients": gradients, "data_id": "x", "progress": False}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(x)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(2)
        found = rs.record(model, x, **options)
        model(x).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again = rs.record(model, x, **options)
    stored.assert_same(found, again)


STATES = {
    "mlp": (networks.MLP, VECTORS.float().repeat(8, 1)),
    "resnet": (networks.ResNet, IMAGES.float().repeat(8, 1, 1, 1)),
    "transformer": (networks.Transformer, networks.tokens(40)),
    "rnn": (networks.Recurrent, IDS.repeat(8, 1)),
}


@pytest.mark.parametrize("case", STATES)
def test_the_model_comes_back_as_it_was(case):
    kind, data = STATES[case]
    model = unusual(kind)
    before = snapshot(model)
    rs.record(model, data, pool="mean")
    assert_unchanged(before, snapshot(model))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["data", "forward", "target"])
def test_the_model_comes_back_as_it_was_after_an_exception(error, where):
    model = unusual(networks.ResNet)
    before = snapshot(model)
    seen = []

    def stop(at):
        seen.append(at)
        if at == where and seen.count(at) > 3:
            raise error("enough")

    def data():
        for _ in range(6):
            stop("data")
            yield IMAGES.float().repeat(2, 1, 1, 1)

    def call(net, batch):
        stop("forward")
        return net(batch)

    def target(outputs, batch):
        stop("target")
        return outputs.square().sum(1)

    with pytest.raises(error, match="enough"):
        rs.record(model, data(), call=call, target=target, block=10, batch_size=10)
    assert_unchanged(before, snapshot(model))


def test_an_encoder_that_would_pack_padded_batches_is_run_as_written():
    """nn.TransformerEncoder turns padded batches into nested tensors in evaluation mode."""

    class Net(nn.Module):
        def __init__(self, nested):
            super().__init__()
            self.embed = nn.Embedding(11, 8)
            layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
            self.head = nn.Linear(8, 3)

        def forward(self, input_ids, attention_mask):
            x = self.embed(input_ids)
            x = self.encoder(x, src_key_padding_mask=attention_mask == 0)
            return self.head(x[:, 0])

    nested, plain = (
        rs.record(networks.seeded(Net, flag), networks.tokens(40), pool="mean")
        for flag in (True, False)
    )
    assert nested.layer_names == ["embed", "encoder.layers.0", "encoder.layers.1", "head:in"]
    stored.assert_same(nested, plain)


def test_the_random_state_is_known_to_have_moved_and_goes_back():
    state = RandomState(None)
    assert not state.moved()
    drawn = torch.rand(3)
    assert state.moved()
    state.put_back()
    assert not state.moved()
    assert torch.equal(torch.rand(3), drawn)


def normed(kind=nn.BatchNorm2d, **options):
    """A norm whose statistics, weight and bias are no ones and zeros."""
    torch.manual_seed(0)
    norm = kind(5, **options).eval()
    with torch.no_grad():
        for value in norm.state_dict().values():
            if value.is_floating_point():
                value.uniform_(0.5, 2)
    return norm.requires_grad_(False)


def there_and_back(norm, x):
    x = x.detach().requires_grad_()
    y = norm(x)
    (gradient,) = torch.autograd.grad(y, x, torch.linspace(-1, 1, y.numel()).view_as(y).to(y.dtype))
    return y.detach(), gradient


CASES = {
    "images": (nn.BatchNorm2d, {}, (3, 5, 4, 6)),
    "vectors": (nn.BatchNorm1d, {}, (7, 5)),
    "sequences": (nn.BatchNorm1d, {}, (7, 5, 3)),
    "volumes": (nn.BatchNorm3d, {}, (2, 5, 2, 3, 4)),
    "without a weight": (nn.BatchNorm2d, {"affine": False}, (3, 5, 4, 6)),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_it_gives_what_torch_gives(case, dtype):
    kind, options, shape = CASES[case]
    norm, x = normed(kind, **options), torch.randn(shape, dtype=dtype)
    norm = norm.double() if dtype == torch.float64 else norm
    expected = there_and_back(norm, x)
    with frozen_batch_norms(norm):
        found = there_and_back(norm, x)
    assert torch.equal(found[0], expected[0])
    # the same products in another order
    torch.testing.assert_close(found[1], expected[1], rtol=4 * torch.finfo(dtype).eps, atol=0)


def test_gradients_of_images_lie_in_memory_as_they_came():
    x = torch.randn(3, 5, 4, 6).contiguous(memory_format=torch.channels_last).requires_grad_()
    norm = normed()
    with frozen_batch_norms(norm):
        y = norm(x)
    coming = torch.randn_like(y)
    (gradient,) = torch.autograd.grad(y, x, coming)
    assert coming.is_contiguous(memory_format=torch.channels_last)
    assert gradient.is_contiguous(memory_format=torch.channels_last)


def test_what_came_in_is_not_kept():
    kept = []
    x = torch.randn(3, 5, 40, 6, requires_grad=True)
    norm = normed()
    with (
        frozen_batch_norms(norm),
        torch.autograd.graph.saved_tensors_hooks(
            lambda t: kept.append(t.numel()) or t, lambda t: t
        ),
    ):
        norm(x)
    assert kept
    assert set(kept) == {5}  # numbers, one for each channel


@pytest.mark.parametrize("place", ["weight", "bias"])
def test_a_norm_that_learns_gets_its_gradients(place):
    norm, x = normed(), torch.randn(3, 5, 4, 6)
    getattr(norm, place).requires_grad_()
    (expected,) = torch.autograd.grad(norm(x).square().sum(), getattr(norm, place))
    with frozen_batch_norms(norm):
        (found,) = torch.autograd.grad(norm(x).square().sum(), getattr(norm, place))
    assert torch.equal(found, expected)
    norm.requires_grad_(False)
    weights = {name: p.detach() for name, p in norm.named_parameters()}

    def loss(weights):
        return torch.func.functional_call(norm, weights, x).square().sum()

    with frozen_batch_norms(norm):
        found = torch.func.grad(loss)(weights)[place]
    torch.testing.assert_close(found, expected)


class Own(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x) + 1


def test_others_run_as_they_are():
    others = [Own(5), nn.BatchNorm2d(5, track_running_stats=False), nn.GroupNorm(1, 5)]
    wrapped = nn.BatchNorm2d(5)
    wrapped.forward = lambda x: x  # as accelerate puts one there
    with frozen_batch_norms(nn.ModuleList([*others, wrapped, nn.BatchNorm2d(5)])):
        assert not any("forward" in vars(module) for module in others)
        assert wrapped.forward(3) == 3
    with pytest.raises(ValueError, match="expected 4D input"), frozen_batch_norms(norm := normed()):
        norm(torch.zeros(2, 5))


def test_a_model_comes_back_with_its_own_forward():
    net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(80, 3))
    with run_in_eval_mode(net):
        assert "forward" in vars(net[1])
    with run_in_eval_mode(net, frozen=False):
        assert "forward" not in vars(net[1])
    rs.record(net, torch.randn(20, 3, 6, 6))
    assert "forward" not in vars(net[1])


def test_a_norm_that_the_network_itself_puts_into_training_mode_uses_the_batch():
    norm, x = normed(nn.BatchNorm1d), torch.randn(7, 5)
    with frozen_batch_norms(norm):
        found = norm.train()(x)
    torch.testing.assert_close(found, nn.BatchNorm1d(5).train()(x) * norm.weight + norm.bias)
