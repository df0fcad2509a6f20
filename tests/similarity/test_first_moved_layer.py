"""Where copies begin to move: real networks with one layer changed, and with none."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn

import resemblance as rs
from resemblance.errors import DataError

LAYERS = 6
X = torch.randn(700, 24, generator=torch.Generator().manual_seed(0))


def net(seed=0):
    torch.manual_seed(seed)
    parts = [nn.Sequential(nn.Linear(24, 24), nn.Tanh()) for _ in range(LAYERS)]
    return nn.Sequential(*parts, nn.Linear(24, 5))


NAMES = [str(i) for i in range(LAYERS)]


def recorded(model, **options):
    return rs.record(model, X, layers=NAMES, data_id="x", **options)


@pytest.fixture(scope="module")
def base():
    return recorded(net())


def damaged(at, share):
    model = copy.deepcopy(net())
    weight = model[at][0].weight.data
    weight += (
        share
        * weight.std()
        * torch.randn(weight.shape, generator=torch.Generator().manual_seed(at))
    )
    return recorded(model)


@pytest.mark.parametrize("share", [1e-3, 0.03, 0.5])
@pytest.mark.parametrize("at", range(LAYERS))
def test_the_layer_that_was_changed_is_found(base, at, share):
    found = rs.coordinates(base, damaged(at, share)).parting()
    assert found.found
    assert (found.layer, found.counterpart, found.position) == (str(at), str(at), at)
    assert found.low < found.fall < found.high
    assert found.before == (None if at == 0 else str(at - 1))
    assert f"Features first diverge at {at}: SQNR" in found.sentence
    assert re.search(r"by \d+\.\d dB.* \(\d+\.\d to \d+\.\d\)\.", found.sentence)


def test_a_copy_that_changed_at_once_parts_at_its_first_layer(base):
    model = net()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_((weight * 64).round() / 64)
    found = rs.coordinates(base, recorded(model)).parting()
    assert found.layer == "0"
    assert "from the level of rounding" in found.sentence


@pytest.mark.parametrize("options", [{"batch_size": 3}, {"batch_size": 500}])
def test_the_same_network_in_other_batches_parts_nowhere(base, options):
    found = rs.coordinates(base, recorded(net(), **options)).parting()
    assert not found.found
    assert "No significant drop" in found.sentence
    assert "6 dB" in found.sentence
    assert len(found.tested) == LAYERS


def test_half_precision_in_other_batches_parts_nowhere():
    one, two = (
        rs.record(net().bfloat16(), X.bfloat16(), layers=NAMES, data_id="x", batch_size=n)
        for n in (7, 128)
    )
    assert not rs.coordinates(one, two).parting().found


def test_it_is_in_the_summary_of_those_that_share_coordinates(base):
    found = rs.coordinates(base, damaged(3, 0.1))
    assert found.parting().sentence in found.summary()
    other = rs.coordinates(base, recorded(net(1)))
    assert not other.shared
    with pytest.raises(DataError, match="are not in the same order, so drift is not defined"):
        other.parting()


def test_falls_must_be_positive(base):
    with pytest.raises(DataError, match="`least` must be a number of decibels above 0; found 0"):
        rs.coordinates(base, damaged(2, 0.1)).parting(least=0)
