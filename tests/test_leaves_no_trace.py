"""A pass leaves no trace in the process: random state, switches, buffers, signals, training."""

from __future__ import annotations

import random
import re
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import networks
import resemblance as rs
from resemblance.errors import ResemblanceError

X = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(96) % 3
DATA = TensorDataset(X, Y)


class Rows(IterableDataset):
    def __iter__(self):
        return iter(X)


def loaders() -> dict[str, object]:
    weighted = WeightedRandomSampler(torch.ones(96), 64)
    return {
        "arrays": (X, Y),
        "data set": DATA,
        "loader": DataLoader(DATA, batch_size=16),
        "shuffled loader": DataLoader(DATA, batch_size=16, shuffle=True),
        "workers": DataLoader(DATA, batch_size=48, shuffle=True, num_workers=1),
        "with replacement": DataLoader(
            DATA, batch_size=16, sampler=RandomSampler(DATA, replacement=True)
        ),
        "weighted": DataLoader(DATA, batch_size=16, sampler=weighted),
        "iterable": Rows(),
        "loader of an iterable": DataLoader(Rows(), batch_size=16),
        "batches": list(X.split(16)),
    }


def random_state() -> list[bytes]:
    return [
        torch.get_rng_state().numpy().tobytes(),
        np.random.get_state()[1].tobytes(),
        repr(random.getstate()).encode(),
    ]


def mlp(seed: int = 0) -> nn.Module:
    return networks.seeded(networks.MLP, seed=seed)


@pytest.mark.parametrize("name", loaders())
def test_no_global_random_state_moves(name):
    data, before = loaders()[name], random_state()
    rs.record(mlp(), data)
    assert random_state() == before


@pytest.mark.filterwarnings("ignore:.*standard errors may be too small")  # of so few samples
@pytest.mark.filterwarnings("ignore:standard errors may be too small")
def test_nor_does_it_in_anything_else():
    net, before = mlp(), random_state()
    a, b = (rs.record(mlp(seed), X) for seed in (1, 2))
    rs.compare(a, b, kernel="product")
    rs.compare_all([a, b], kernel="product")
    rs.adaptation(a)
    rs.fisher_rao(a)
    rs.task2vec(net, X, draws=2)
    rs.KernelClassifier(net, sketch="both", buckets=16).fit(X, Y).predict(X)
    assert random_state() == before


def test_a_generator_of_the_callers_stays_where_it_is():
    generator = torch.Generator().manual_seed(3)
    sampler = RandomSampler(DATA, replacement=True, generator=generator)
    loader = DataLoader(DATA, batch_size=16, sampler=sampler, generator=generator)
    state, order = generator.get_state(), list(sampler)
    generator.set_state(state)
    rep = rs.record(mlp(), loader, block=16, buckets=0)
    assert torch.equal(generator.get_state(), state)
    expected = rs.record(mlp(), [X[i : i + 1] for i in order], block=16, buckets=0)
    assert torch.equal(rep[0].blocks("features"), expected[0].blocks("features"))


class WithEverything(nn.Module):
    """Dropout draws from the global generator, a batch norm has running statistics."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)
        )

    def forward(self, x):
        return self.body(x)


def trained(*, recording: bool) -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    net = WithEverything()
    optimiser = torch.optim.AdamW(net.parameters(), 1e-2)
    loader = DataLoader(DATA, batch_size=24, shuffle=True)
    for epoch in range(3):
        for step, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(net(x), y)
            optimiser.zero_grad()
            loss.backward()
            if recording and step == 1:  # between backward and step, with gradients waiting
                rs.record(net, loader, name=f"epoch {epoch}")
                rs.task2vec(net, X[:8])
                rs.KernelClassifier(net).fit(loader)
            optimiser.step()
    assert net.training
    return {**net.state_dict(), "drawn": torch.rand(3)}


def test_a_training_run_with_recordings_in_it_is_bit_identical():
    plain, recorded = trained(recording=False), trained(recording=True)
    assert all(torch.equal(plain[key], recorded[key]) for key in plain)


# -- threads ---------------------------------------------------------------------------------------


def switches() -> tuple[bool, str]:
    from torch._dynamo import eval_frame

    return torch.backends.mha.get_fastpath_enabled(), eval_frame._stance.stance


def in_threads(*jobs) -> list[BaseException | None]:
    """Run jobs at once; the error of each, or None."""
    errors: list[BaseException | None] = [None] * len(jobs)
    start = threading.Barrier(len(jobs))

    def run(i):
        try:
            start.wait()
            jobs[i]()
        except BaseException as error:
            errors[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_threads_on_different_models_give_what_one_after_the_other_gives():
    kinds = (networks.MLP, networks.Transformer, networks.MLP)
    inputs = [X, networks.tokens(96), X]
    nets = [networks.seeded(kind, seed=i) for i, kind in enumerate(kinds)]
    before = switches()
    alone = [
        rs.record(net, x, batch_size=8, pool="mean") for net, x in zip(nets, inputs, strict=True)
    ]
    for _ in range(20):  # 11 of 20 runs of version 0.1.0 left the switches off
        found: dict[int, rs.Representation] = {}

        def job(i, found=found):
            return lambda: found.__setitem__(
                i, rs.record(nets[i], inputs[i], batch_size=8, pool="mean")
            )

        assert in_threads(*(job(i) for i in range(3))) == [None] * 3
        assert switches() == before
        for i, rep in found.items():
            assert rep.layers == alone[i].layers


def test_the_switches_are_off_while_any_pass_runs_and_back_after_an_error():
    before, seen = switches(), []

    def call(model, batch):
        seen.append(switches())
        if len(seen) > 2:
            raise RuntimeError("broken")
        return model(batch)

    with pytest.raises(RuntimeError, match="broken"):
        rs.record(mlp(), X, call=call)
    assert set(seen) == {(False, "force_eager")}
    assert switches() == before


def test_the_switches_stay_off_for_a_pass_that_outlasts_another():
    before, seen = switches(), []
    inside, go_on = threading.Event(), threading.Event()

    def slowly(model, batch):
        inside.set()
        assert go_on.wait(30)
        seen.append(switches())
        return model(batch)

    def shorter():
        assert inside.wait(30)
        rs.record(mlp(1), X)
        go_on.set()

    assert in_threads(lambda: rs.record(mlp(), X, call=slowly), shorter) == [None, None]
    assert set(seen) == {(False, "force_eager")}
    assert switches() == before


def test_two_threads_on_one_model_get_a_clear_error_and_the_model_comes_back():
    net = mlp().train()
    inside, go_on = threading.Event(), threading.Event()

    def slowly(model, batch):
        inside.set()
        assert go_on.wait(30)
        return model(batch)

    def second():
        assert inside.wait(30)
        try:
            rs.record(nn.Sequential(net.fc1), X, gradients=False)  # a part of it is enough
        finally:
            go_on.set()

    first_error, second_error = in_threads(lambda: rs.record(net, X, call=slowly), second)
    assert first_error is None
    assert isinstance(second_error, ResemblanceError)
    assert "already being recorded" in str(second_error)
    assert "copy.deepcopy" in str(second_error)
    assert net.training
    assert all(p.requires_grad for p in net.parameters())
    rs.record(net, X)  # and it can be recorded again


# -- buffers and signals ---------------------------------------------------------------------------


class Counting(networks.MLP):
    """A counter, a cache that is replaced, and one that appears with the first call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))
        self.register_buffer("cache", torch.zeros(2))

    def forward(self, x):
        self.calls[1] += 1  # through a view
        self.cache = x.detach()[:2].clone()
        if "late" not in self._buffers:
            self.register_buffer("late", x.detach()[:1].clone())
        return super().forward(x)


def test_buffers_that_a_forward_changes_come_back():
    net = networks.seeded(Counting)
    calls, cache = net.calls, net.cache
    first, second = rs.record(net, X), rs.record(net, X)
    assert net.calls is calls
    assert net.cache is cache
    assert net.calls.tolist() == [0, 0, 0]
    assert net.cache.tolist() == [0, 0]
    assert "late" not in dict(net.named_buffers())
    assert first.model.fingerprint == second.model.fingerprint


def test_no_signal_handler_is_installed():
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    rs.record(mlp(), X)
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before
    source = Path(rs.__file__).parent.rglob("*.py")
    assert not [path for path in source if re.search(r"^\s*(import|from) signal", path.read_text())]
