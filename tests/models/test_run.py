"""The one loop: what a consumer sees, what a trial refuses, and a model put back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import networks
import resemblance as rs
from model_states import assert_unchanged, snapshot, unusual
from resemblance._data.sources import Share
from resemblance._models.layer_patterns import select_layers
from resemblance._models.losses import Objective
from resemblance._models.run import open_pass
from resemblance.analysis.kernel_ridge import leave_one_out
from resemblance.errors import DataError, TargetError

G = torch.Generator().manual_seed(0)
VECTORS = torch.randn(40, 6, generator=G)
IMAGES = torch.randn(40, 3, 6, 6, generator=G)
LABELS = torch.arange(40) % 3
LAYERS = ["act1", "act2"]


class Seen:
    """A consumer that notes all it sees, and fails at the n-th of a step if told to."""

    def __init__(self, fail=None, at=2):
        self.events, self.indices, self.samples, self.rows = [], [], [], {}
        self.fail, self.at = fail, at

    def note(self, step, *details):
        self.events.append((step, *details))
        if step == self.fail and sum(event[0] == step for event in self.events) == self.at:
            raise RuntimeError("enough")

    def begin(self, batch, samples):
        self.note("begin")
        self.indices += batch.indices.tolist()
        self.samples.append(samples.clone() if isinstance(samples, torch.Tensor) else samples)

    def consume(self, i, features, gradients):
        self.note("consume", i)
        self.rows.setdefault(i, []).append((features.clone(), gradients))

    def end(self):
        self.note("end")


def feed(model, data, consumer, objective, *, batch_size=8, layers=LAYERS, shard=(0, 1), **options):
    with open_pass(model, data, block=8, **options) as run:
        taps = select_layers(run.model, layers, run.calls)
        replace(run, share=Share(shard)).feed(taps, consumer, objective, batch_size=batch_size)


@pytest.mark.parametrize("objective", [Objective(), None], ids=["gradients", "features"])
@pytest.mark.parametrize("batch_size", [1, 3, 8, 17, 100, "auto"])
def test_a_consumer_sees_every_layer_of_each_batch_and_each_sample_once(objective, batch_size):
    seen = Seen()
    feed(networks.seeded(networks.MLP), VECTORS, seen, objective, batch_size=batch_size)
    assert sorted(seen.indices) == list(range(40))
    # gradients arrive from the last layer to the first
    order = [("consume", 1), ("consume", 0)] if objective else [("consume", 0), ("consume", 1)]
    one = [("begin",), *order, ("end",)]
    assert seen.events == one * (len(seen.events) // 4)
    for i, name in enumerate(LAYERS):
        with torch.no_grad():
            x = VECTORS[seen.indices]
            for stage, module in networks.seeded(networks.MLP).eval().stages():
                x = module(x)
                if stage == name:
                    break
        torch.testing.assert_close(torch.cat([f for f, _ in seen.rows[i]]), x)
        for f, g in seen.rows[i]:
            assert (g is None) == (objective is None)
            assert g is None or g.shape == f.shape


@pytest.mark.parametrize("batch_size", [8, "auto"])
def test_a_batch_begins_before_the_model_writes_into_its_samples(batch_size):
    class Overwriting(networks.MLP):
        def forward(self, x):
            x.zero_()
            return super().forward(x)

    feed(networks.seeded(Overwriting), VECTORS, seen := Seen(), None, batch_size=batch_size)
    torch.testing.assert_close(torch.cat(seen.samples), VECTORS[seen.indices])


def test_shards_are_fed_their_own_samples():
    parts = []
    for i in range(3):
        seen = Seen()
        feed(networks.seeded(networks.MLP), VECTORS, seen, None, shard=(i, 3))
        parts += seen.indices
    assert sorted(parts) == list(range(40))


def test_a_trial_refuses_probabilities_before_anything_is_fed():
    seen = Seen()
    ends_in_softmax = nn.Sequential(networks.seeded(networks.MLP), nn.Softmax(1))
    with pytest.raises(TargetError, match="sum to one"):
        feed(ends_in_softmax, VECTORS, seen, Objective(), layers=["0.act1"])
    assert seen.events == []
    feed(ends_in_softmax, VECTORS, seen, None, layers=["0.act1"])  # features alone do not care
    assert sorted(seen.indices) == list(range(40))


@pytest.mark.parametrize("objective", [Objective(), None], ids=["gradients", "features"])
@pytest.mark.parametrize("step", ["begin", "consume", "end"])
def test_a_model_comes_back_as_it_was_when_a_consumer_fails(step, objective):
    model = unusual(networks.ResNet)
    model.register_buffer("count", torch.zeros(1))
    model.register_forward_pre_hook(lambda module, _: module.count.add_(1) and None)
    before = snapshot(model)
    with pytest.raises(RuntimeError, match="enough"):
        feed(model, IMAGES, Seen(fail=step), objective, layers=["relu", "pool"])
    assert_unchanged(before, snapshot(model))
    feed(model, IMAGES, seen := Seen(), objective, layers=["relu", "pool"])  # it can be run again
    assert sorted(seen.indices) == list(range(40))


# -- what cannot be run, by whoever runs it --------------------------------------------------------

RUNNERS = {
    "record": rs.record,
    "features": lambda net, x: rs.record(net, x, gradients=False),
    "classifier": lambda net, x: rs.KernelClassifier(net).fit(x, LABELS),
    "leave one out": lambda net, x: leave_one_out(net, x, LABELS),
    "task2vec": rs.task2vec,
}


@pytest.mark.parametrize("runner", ["record", "task2vec"])
def test_parameters_made_in_inference_mode_are_refused(runner):
    with torch.inference_mode():
        model = networks.MLP()
    with pytest.raises(
        DataError,
        match=r"weights were created inside torch\.inference_mode.*build or load the model outside",
    ):
        RUNNERS[runner](model, VECTORS)


@pytest.mark.parametrize("runner", ["record", "task2vec"])
def test_buffers_made_in_inference_mode_are_refused(runner):
    net = networks.seeded(networks.ResNet)
    with torch.inference_mode():
        net.bn1.running_mean = torch.zeros(3)
    with pytest.raises(DataError, match=r"created inside torch\.inference_mode"):
        RUNNERS[runner](net, IMAGES)


def test_features_of_weights_made_in_inference_mode_are_recorded():
    plain = networks.seeded(networks.ResNet)
    with torch.inference_mode():
        made = networks.seeded(networks.ResNet).train()
    one, two = (rs.record(net, IMAGES, gradients=False) for net in (plain, made))
    assert one.model.fingerprint == two.model.fingerprint
    assert torch.equal(one[0].blocks("features"), two[0].blocks("features"))
    assert made.training
    assert all(weight.requires_grad for weight in made.parameters())
    for runner in ("classifier", "leave one out"):
        RUNNERS[runner](made, IMAGES)
    with pytest.raises(DataError, match="without `dtype`"):
        rs.record(made, IMAGES, gradients=False, dtype="bfloat16")


@pytest.mark.parametrize("runner", RUNNERS)
def test_something_that_is_not_a_model(runner):
    with pytest.raises(DataError, match=r"expected a torch\.nn\.Module, found function"):
        RUNNERS[runner](lambda x: x, VECTORS)
