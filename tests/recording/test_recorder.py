"""One pass as it was asked for: what it is known by, and where its warnings point."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from torch import nn

import resemblance as rs
from resemblance.errors import ResemblanceError, ResemblanceWarning
from resemblance.recording.checkpoints import CheckpointFiles

X = torch.randn(1100, 6, generator=torch.Generator().manual_seed(0))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def test_facts_of_model_and_data_are_those_of_the_pass():
    rep = rs.record(net(), X, name="a", data_id="x")
    assert (rep.model.name, rep.model.parameters) == ("a", 83)
    assert (rep.data.id, rep.data.total, rep.data.order, rep.data.shards) == (
        "x", 1100, "seeded", ((0, 1),)
    )  # fmt: skip
    assert (rep.made.dtype, rep.made.autocast, rep.made.device) == ("float32", None, "cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert rs.record(net(), X).made.autocast == "bfloat16"


def test_what_a_pass_is_known_by_tells_it_from_others(tmp_path, monkeypatch):
    """Everything that changes what is recorded is in the key of its checkpoint."""
    keys = []
    monkeypatch.setattr(
        CheckpointFiles, "__init__", lambda self, path, of, process: keys.append(of)
    )
    monkeypatch.setattr(CheckpointFiles, "take_over", lambda self: 1 / 0)
    wider = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    passes = [
        (net(), X, {}),
        (net(), X, {}),
        (net(), X, {"seed": 1}),
        (net(), X, {"beta": 0.25}),
        (net(), X, {"gradients": False}),
        (net(), X, {"outputs": False}),
        (net(), X, {"layers": "0"}),
        (net(), X, {"shard": (0, 2)}),
        (net(), X, {"data_id": "x"}),
        (net().double(), X.double(), {}),
        (wider, X, {}),
        (net(), X + 1, {}),
        (net(), X[:1090], {}),
        (net(), list(X.split(100)), {}),
    ]
    for model, data, options in passes:
        with pytest.raises(ZeroDivisionError):
            rs.record(model, data, checkpoint=tmp_path / "c", **options)
    assert keys[0] == keys[1]
    texts = {repr(sorted(one.items(), key=lambda item: item[0])) for one in keys}
    assert len(texts) == len(passes) - 1


class Tagger(nn.Module):
    """Predicts something at every position."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 5), nn.Linear(5, 4)

    def forward(self, ids):
        return self.out(self.embed(ids))


def test_a_warning_points_to_the_line_that_recorded():
    ids = torch.randint(0, 9, (24, 6))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rs.record(Tagger(), ids)
    found = [w for w in caught if issubclass(w.category, ResemblanceWarning)]
    assert "predicts at every position" in str(found[0].message)
    assert found[0].filename == __file__


def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def steps(model, **options):
    """An optimizer step with gradients from before the pass."""
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    return torch.optim.SGD(model.parameters(), **options).step


def writes(model):
    def write():  # as averages of weights are often updated, which bumps no version counter
        model[0].weight.data.mul_(1.01)

    return write


@pytest.mark.parametrize("change", [lambda model: steps(model, lr=0.1), writes])
@pytest.mark.parametrize("options", [{}, {"gradients": False}, {"dtype": "float64"}], ids=str)
def test_weights_that_another_thread_changes_during_the_pass_are_an_error(change, options):
    model = net()
    work = change(model)

    def batches():
        yield X[:500]
        in_a_thread(work)
        yield X[500:]

    with pytest.raises(ResemblanceError, match=r"weights of 'Sequential' changed.*deepcopy"):
        rs.record(model, batches(), **options)
    rs.record(model, X, **options)  # the change is over


def test_what_a_network_writes_into_its_buffers_is_no_change_of_its_weights():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.norm = net(), nn.BatchNorm1d(3)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls += 1
            z = self.net(x)
            self.norm.train()(z)  # which updates its running statistics
            return z

    rs.record(Counting(), X, layers=["net.1"])
