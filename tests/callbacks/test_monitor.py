"""A monitor of a hand-written loop: its values, when it records, restarts, and no trace of it."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import resemblance as rs
from resemblance.callbacks import Monitor, monitor
from resemblance.errors import DataError, LayerError, ResemblanceWarning

pytestmark = pytest.mark.filterwarnings("ignore:some error bars cannot be trusted")
X = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > X[:, 1]).long()
PROBE = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))


class Network(nn.Module):
    """Dropout draws from the global generator, a batch norm has running statistics."""

    def __init__(self):
        super().__init__()
        self.fc1, self.norm, self.act = nn.Linear(6, 48), nn.BatchNorm1d(48), nn.ReLU()
        self.drop, self.fc2 = nn.Dropout(0.2), nn.Linear(48, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.fc2(self.drop(self.act(self.norm(self.fc1(x))))).tanh())


class Training:
    """A loop that can be left at a step and taken up again, as from its checkpoint."""

    def __init__(self):
        torch.manual_seed(3)
        self.net, self.steps = Network(), 0
        self.optimiser = torch.optim.AdamW(self.net.parameters(), 1e-2)

    def until(self, step, watch=None):
        while self.steps < step:
            if watch is not None:
                watch(self.net, self.steps)
            rows = torch.randint(96, (24,))
            self.optimiser.zero_grad()
            nn.functional.cross_entropy(self.net(X[rows]), Y[rows]).backward()
            self.optimiser.step()
            self.steps += 1
        return self


def watched(folder, until=30, training=None, **options):
    """The monitor, and the values of each recording by its step."""
    values, training = {}, training or Training()
    watch = Monitor(PROBE, folder, **options)

    def step(net, at):
        if found := watch.step(net, at):
            values[at] = found

    training.until(until, step)
    return watch, values, training


def state_of(training):
    """All that a training run is continued from, and the gradients of its last step."""
    optimiser = training.optimiser.state_dict()["state"]
    moments = [x for row in optimiser.values() for x in row.values()]
    gradients = [weight.grad for weight in training.net.parameters()]
    drawn = [torch.get_rng_state(), torch.tensor(np.random.get_state()[1].astype(np.int64))]
    return [*training.net.state_dict().values(), *moments, *gradients, *drawn], random.getstate()


def test_training_is_the_same_bit_for_bit(tmp_path):
    plain, drawn = state_of(Training().until(20))
    watch, _, training = watched(tmp_path, 20, every=5)
    assert training.net.training
    assert not training.net._forward_hooks
    watch.finish(training.net, 20)
    monitored, also_drawn = state_of(training)
    assert len(watch.steps) == 5
    assert all(torch.equal(x, y) for x, y in zip(plain, monitored, strict=True))
    assert drawn == also_drawn


def test_values_are_those_of_the_recordings_layer_by_layer(tmp_path):
    base = rs.record(Network(), PROBE)  # its buckets are no obstacle
    watch, values, _ = watched(tmp_path, every=10, base=base)
    assert watch.steps == (0, 10, 20)
    reps = [rs.load(tmp_path / f"step-{step:09d}.rsm") for step in watch.steps]
    assert [rep.name for rep in reps] == ["step 0", "step 10", "step 20"]
    for name, other in (("start", reps[0]), ("last", reps[1]), ("base", base)):
        compared = rs.compare(other, reps[2])
        for kernel in ("features", "gradients"):
            for i, layer in enumerate(["act", "fc2"]):
                expected = getattr(compared, kernel).scores[i, i]
                value = values[20][f"{kernel}_vs_{name}/{layer}"]
                assert value == pytest.approx(expected, abs=1e-6)
        assert values[20][f"disagreement/vs_{name}"] == compared.behaviour.disagreement
    drift = rs.coordinates(reps[0], reps[2])
    assert drift.shared_layers[0]
    assert values[20]["decibels_vs_start/act"] == drift.decibels[0, 0]
    assert not rs.coordinates(base, reps[2]).shared
    assert not any(key.startswith("decibels_vs_base") for key in values[20])
    assert values[0]["features_vs_start/act"] == pytest.approx(1)
    assert "decibels_vs_start/act" not in values[0]  # infinite
    assert all(type(value) is float for found in values.values() for value in found.values())


def test_the_end_is_recorded_and_the_run_saved(tmp_path):
    watch, _, training = watched(tmp_path / "new" / "run", 25, every=10, layers=["act"])
    run = watch.finish(training.net, 25)
    assert run.steps == (0, 10, 20, 25)
    assert run == rs.Trajectory.load(watch.folder / "trajectory.json")
    assert run == rs.trajectory(sorted(watch.folder.glob("*.rsm")), steps=run.steps)
    assert watch.finish(training.net, 25) == run  # which records nothing again


def test_a_run_of_no_step_has_no_trajectory(tmp_path):
    assert Monitor(PROBE, tmp_path).finish(Network(), 0) is None
    assert len(list(tmp_path.iterdir())) == 1


class Clock:
    """A clock that training and recordings move, each by what they are said to take."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(monitor, "time", SimpleNamespace(perf_counter=lambda: self.now))


def test_recordings_keep_to_their_share_of_the_time(tmp_path, monkeypatch):
    clock, net, share = Clock(monkeypatch), Network(), 0.02

    def recording(model, batch):
        clock.now += 25 * share if clock.now < 30 else 5 * share  # the first takes longer
        return model(batch)

    watch = Monitor(PROBE, tmp_path, layers="act", call=recording, batch_size=64, gradients=False)
    spent = 0.0
    for step in range(900):  # seconds of training
        before = clock.now
        values = watch.step(net, step)
        if last := clock.now - before:
            spent += last
            assert step == 0 or values["monitor/share_of_time"] == pytest.approx(spent / step)
            assert step == 0 or spent + last <= share * step  # one at the end, too
        clock.now += 1.0
    steps = watch.steps[1:]
    assert len(steps) > 5
    assert all(later >= 1.1 * step for step, later in itertools.pairwise(steps))


def test_a_run_that_is_continued_finds_its_recordings(tmp_path):
    first, _, training = watched(tmp_path / "a", 31, every=10)
    assert first.steps == (0, 10, 20, 30)
    whole = first.finish(training.until(41, first.step).net, 41)
    cut, _, _ = watched(tmp_path / "b", 31, every=10)
    training = Training().until(25)  # as from a checkpoint at step 25
    again, values, training = watched(tmp_path / "b", 41, training, every=10)
    assert cut.steps == (0, 10, 20, 30)
    assert set(values) == {30, 40}
    assert again.finish(training.net, 41).features.scores == pytest.approx(whole.features.scores)
    assert [path.stem for path in (tmp_path / "b").glob("*.superseded")] == ["step-000000030"]


def test_after_a_restart_the_time_is_measured_anew(tmp_path):
    watched(tmp_path, 2)
    _, values, _ = watched(tmp_path, 8, Training().until(5))
    assert list(values) == [5]
    assert values[5]["features_vs_start/act"] < 1


def test_a_folder_of_another_run_is_refused(tmp_path):
    watched(tmp_path, 25, every=10)
    with pytest.raises(DataError, match=r"a different run \(steps 0 to 20\), and this run is"):
        watched(tmp_path, 5)
    assert len(list(tmp_path.glob("step-*.rsm"))) == 3


def test_a_recording_that_fails_does_not_end_the_training(tmp_path):
    watch, _, training = watched(tmp_path, 5, every=10)
    with torch.no_grad():
        training.net.fc2.weight.fill_(torch.nan)
    with pytest.warns(
        ResemblanceWarning, match="recording at step 10 failed, and training continues"
    ):
        values = watch.step(training.net, 10)
    assert list(values) == ["monitor/share_of_time"]
    assert watch.step(training.net, 11) == {}  # nor is it tried at every step from then on
    assert watch.steps == (0,)


def test_one_that_cannot_begin_says_so_at_once(tmp_path):
    with pytest.raises(LayerError, match="nope"):
        Monitor(PROBE, tmp_path, layers="nope").step(Network(), 0)


def test_what_a_recording_warns_of_is_said_once(tmp_path):
    watch, net = Monitor(PROBE[:20], tmp_path, every=1), Network()
    with pytest.warns(ResemblanceWarning, match="only 20 samples"):
        watch.step(net, 0)
    watch.step(net, 1)  # warnings are errors here


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"share": 0}, "`share` must lie between 0 and 1; found 0"),
        ({"share": "2 %"}, "`share` must lie"),
        ({"every": 0}, "`every` must be a whole number, 1 or more"),
    ],
)
def test_options_out_of_their_range_are_refused(tmp_path, options, said):
    with pytest.raises(DataError, match=said):
        Monitor(PROBE, tmp_path, **options)


def test_sharded_weights_are_refused(tmp_path):
    class Part(nn.Parameter):
        """As one of a DTensor, which only a group of processes can make."""

        def full_tensor(self):
            return self

    net = Network()
    net.fc1.weight = Part(net.fc1.weight.data)
    with pytest.raises(DataError, match="splits the weights over several processes"):
        Monitor(PROBE, tmp_path).step(net, 0)
