"""Two models that run side by side: every divergence is exact, whatever the number of classes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import networks
import reference
import resemblance as rs
from resemblance.errors import DataError, MismatchError, TargetError

G = torch.Generator().manual_seed(0)
X = torch.randn(150, 6, generator=G)
Y = torch.randint(0, 5, (150,), generator=G)


def head(classes):
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, classes))


def pair(classes, **kwargs):
    return [networks.seeded(head, classes, seed=seed, **kwargs) for seed in (0, 1)]


def log_p(net, x=X):
    with torch.no_grad():
        return copy.deepcopy(net).double()(x.double()).log_softmax(-1)


@pytest.mark.parametrize("batch_size", [7, "auto"])
def test_divergences_of_many_classes_are_exact(batch_size):
    one, two = pair(3000)
    found = rs.behaviour(one, two, data=X, batch_size=batch_size)
    expected = reference.divergences(log_p(one), log_p(two)).mean(1)
    assert (found.kl, found.kl_reverse, found.js) == pytest.approx(tuple(expected), rel=1e-5)
    assert (found.lower_bounds, found.js_upper, found.classes) == (False, None, 3000)
    assert (found.samples, found.sequences, found.models) == (150, None, ("Sequential",) * 2)


def test_numbers_are_those_of_recordings():
    one, two = pair(5)
    live = rs.behaviour(one, two, data=(X, Y)).to_dict()
    files = rs.behaviour(*(rs.record(net, (X, Y)) for net in (one, two))).to_dict()
    assert live.keys() == files.keys()
    assert live["models"] == files["models"]
    numbers = {name: x for name, x in live.items() if isinstance(x, float)}
    assert len(numbers) == 12
    for name, value in numbers.items():
        assert value == pytest.approx(files[name], rel=1e-4), name
    assert 0 < live["shared_errors"] < 1
    bare = rs.behaviour(nn.Linear(6, 5), nn.Linear(6, 5), data=X)  # with no layer to record
    assert 0 < bare.kl < 10
    many = rs.behaviour(one, two, data=(X, Y), logits="sigmoid")
    recorded = [rs.record(net, (X, Y), logits="sigmoid", gradients=False) for net in (one, two)]
    assert many.label_disagreement == pytest.approx(rs.behaviour(*recorded).label_disagreement)


def test_tokens_are_those_that_recordings_have():
    nets = [networks.seeded(networks.LittleForCausalLM, seed=seed) for seed in (0, 1)]
    data = networks.texts(56)
    live = rs.behaviour(*nets, data=data, tokens=3, block=8, batch_size=5)
    files = rs.behaviour(*(rs.record(net, data, tokens=3, block=8) for net in nets))
    assert (live.samples, live.sequences) == (168, 56)
    for name in ("kl", "js", "disagreement", "shared_errors", "kl_stderr"):
        assert getattr(live, name) == pytest.approx(getattr(files, name), rel=1e-4), name


def test_models_come_back_as_they_were_and_streams_are_read_once():
    one, two = pair(1100)
    before = [copy.deepcopy(net.state_dict()) for net in (one, two)]
    two.train()
    found = rs.behaviour(one, two, data=iter(X.split(30)))
    assert found.samples == 150
    assert two.training
    for net, state in zip((one, two), before, strict=True):
        assert all(torch.equal(x, state[name]) for name, x in net.state_dict().items())
        assert all(weight.requires_grad for weight in net.parameters())


def test_what_cannot_be_compared_says_so():
    one, two = pair(5)
    rep = rs.record(one, X)
    with pytest.raises(DataError, match="`data` is required to compare two models"):
        rs.behaviour(one, two)
    with pytest.raises(DataError, match="`data` is required to compare two models"):
        rs.behaviour(rep, rep, tokens=3)
    with pytest.raises(DataError, match="no option is named 'buckets'"):
        rs.behaviour(one, two, data=X, buckets=3)
    with pytest.raises(DataError, match="found the same one twice"):
        rs.behaviour(one, one, data=X)
    with pytest.raises(DataError, match="expected two models, found one Representation"):
        rs.behaviour(one, rep, data=X)
    with pytest.raises(MismatchError, match="5 and 7 classes"):
        rs.behaviour(one, head(7), data=X)
    images = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 1))
    with pytest.raises(TargetError, match="does not have one prediction per sample"):
        rs.behaviour(images, copy.deepcopy(images), data=torch.randn(20, 3, 6, 6))
