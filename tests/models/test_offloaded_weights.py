"""Weights kept elsewhere between calls: read for hashes, fetched for the backward, put back."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import networks
import resemblance as rs
import stored
from model_states import assert_unchanged, snapshot
from resemblance._models.hashes import hash_all_weights, hash_sampled_weights
from resemblance._models.wrappers import (
    find_unloaded_weight,
    input_device,
    offloaded_weight_readers,
    refetch_offloaded_weights,
)
from resemblance.errors import DataError

accelerate = pytest.importorskip("accelerate")

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(40, 3, 6, 6, generator=torch.Generator().manual_seed(0))
CPU = torch.device("cpu")
OPTIONS = {"data_id": "x", "progress": False}
pytestmark = pytest.mark.filterwarnings("ignore:.*standard errors may be too small")


def to_cpu(model, tmp_path):
    return accelerate.cpu_offload(model, execution_device=CPU)


def with_buffers(model, tmp_path):
    return accelerate.cpu_offload(model, execution_device=CPU, offload_buffers=True)


def to_disk(model, tmp_path):
    return accelerate.disk_offload(model, tmp_path / "weights", execution_device=CPU)


def to_both(model, tmp_path):
    places = dict.fromkeys(dict(model.named_children()), "cpu")
    weighted = [name for name, part in model.named_children() if list(part.parameters())]
    places[weighted[-2]] = "disk"
    return accelerate.dispatch_model(
        model, places, main_device="cpu", offload_dir=tmp_path / "weights", force_hooks=True
    )


OFFLOADED = [to_cpu, with_buffers, to_disk, to_both]


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("offload", OFFLOADED)
@pytest.mark.parametrize(
    "case", [(networks.MLP, X), (networks.ResNet, IMAGES)], ids=["mlp", "conv"]
)
def test_offloaded_models_are_recorded_like_others(case, offload, gradients, tmp_path):
    kind, data = case
    plain = networks.seeded(kind)
    expected = rs.record(plain, data, gradients=gradients, **OPTIONS)
    model = offload(networks.seeded(kind), tmp_path)
    first = [parameter.is_meta for parameter in model.parameters()]
    assert any(first)
    found = rs.record(model, data, gradients=gradients, **OPTIONS)
    # batch norms whose weights come and go take torch's own way back: a rounding of float32 apart
    normed = kind is networks.ResNet and gradients
    stored.assert_same(found, expected, tolerance=1e-6 if normed else 0.0)
    assert found.model == expected.model
    assert [parameter.is_meta for parameter in model.parameters()] == first


def states(model):
    """What `model_states.snapshot` sees, and the values of weights that are elsewhere."""
    return {
        **snapshot(model),
        "values": [v.device for v in model.state_dict().values()],
        "kept": [read().clone() for read in offloaded_weight_readers(model).values()],
        "attributes": [sorted(module.__dict__) for module in model.modules()],
    }


@pytest.mark.parametrize("offload", OFFLOADED)
@pytest.mark.parametrize("fails", [False, True])
def test_the_model_comes_back_as_it_was(fails, offload, tmp_path):
    model = networks.seeded(networks.ResNet).train()
    for i, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(i % 3 != 0)
    offload(model, tmp_path)
    model(IMAGES[:2])  # accelerate makes new parameters with every call
    before = states(model)

    def target(outputs, batch):
        if fails:
            raise RuntimeError("enough")
        return outputs.square().sum(1)

    if fails:
        with pytest.raises(RuntimeError, match="enough"):
            rs.record(model, IMAGES, target=target, **OPTIONS)
    else:
        rs.record(model, IMAGES, target=target, **OPTIONS)
    assert_unchanged(before, states(model))


class Noting(Mapping):
    """A map that notes which memory it gave."""

    def __init__(self, inner, given):
        self.inner, self.given = inner, given

    def __getitem__(self, name):
        value = self.inner[name]
        self.given.append(StorageWeakRef(value.untyped_storage()))
        return value

    def __iter__(self):
        return iter(self.inner)

    def __len__(self):
        return len(self.inner)


def test_a_graph_holds_no_offloaded_weight_and_reads_it_again(tmp_path):
    model = to_disk(networks.seeded(networks.MLP), tmp_path)
    given, between = [], []
    for layer in (model.fc1, model.fc2, model.head):
        layer._hf_hook.weights_map = Noting(layer._hf_hook.weights_map, given)

    def target(outputs, batch):  # after the forward pass, before the backward
        between.append((len(given), [each.expired() for each in given]))
        return outputs.square().sum(1)

    rs.record(model, X, target=target, **OPTIONS)  # a trial of few samples, and a batch of all
    for count, gone in between:
        assert count >= 6
        assert all(gone)
    (before, _), (after, _) = between
    assert after - before == 6 + 2  # six weights in a forward pass, two matrices in a backward


def test_what_is_written_over_is_noticed_where_weights_are_fetched(tmp_path):
    model = to_disk(networks.seeded(networks.MLP), tmp_path)
    x = X.clone().requires_grad_()
    with refetch_offloaded_weights(model):
        hidden = x.exp()
        loss = model(hidden).sum()
        hidden.detach().mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_layers_that_use_weights_of_others_bring_them_too():
    """accelerate's `preload_module_classes`: a hook that brings what is deeper in the module."""

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, x):
            return nn.functional.linear(x, self.inner.weight, self.inner.bias)

    def build():
        return networks.seeded(lambda: nn.Sequential(Pair(), nn.ReLU(), Pair(), nn.Linear(6, 4)))

    model = accelerate.cpu_offload(build(), execution_device=CPU, preload_module_classes=["Pair"])
    found = rs.record(model, X, layers=["0", "2"], **OPTIONS)
    expected = rs.record(build(), X, layers=["0", "2"], **OPTIONS)
    stored.assert_same(found, expected)
    assert found.model == expected.model


def test_hashes_are_those_of_the_weights_wherever_they_are(tmp_path):
    model = networks.seeded(networks.ResNet)
    quick, whole = hash_sampled_weights(model), hash_all_weights(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.fc.weight[0, 0] += 1
    model, other = to_disk(model, tmp_path / "a"), to_disk(other, tmp_path / "b")
    assert (hash_sampled_weights(model), hash_all_weights(model)) == (quick, whole)
    assert hash_sampled_weights(other) != quick
    assert hash_all_weights(other) != whole


def test_where_inputs_go():
    model = networks.seeded(networks.MLP)
    assert input_device(model) == CPU
    assert input_device(nn.ReLU()) is None
    with torch.device("meta"):
        model.fc1 = nn.Linear(6, 7)
    assert input_device(model) == CPU  # the first real weight
    hooked = accelerate.cpu_offload(networks.seeded(networks.MLP), execution_device="meta")
    assert input_device(hooked) == torch.device("meta")


def test_weights_that_nothing_brings_are_refused():
    model = networks.seeded(networks.MLP)
    assert find_unloaded_weight(model) is None
    with torch.device("meta"):
        model.fc2 = nn.Linear(7, 8)
    assert find_unloaded_weight(model) == "fc2.weight"
    with pytest.raises(DataError, match=r"'fc2\.weight'.* on the meta device, not yet loaded"):
        rs.record(model, X, **OPTIONS)
    model = networks.seeded(networks.MLP)
    accelerate.cpu_offload(model, execution_device=CPU)
    assert find_unloaded_weight(model) is None
    assert set(offloaded_weight_readers(model)) == set(model.state_dict())
