"""Recordings taken apart and put together."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import resemblance as rs
import small
from resemblance.zoo.recording_parts import Parts, put_together, taken_apart


@pytest.mark.parametrize("outputs", [True, False])
def test_what_is_taken_apart_comes_together_bit_for_bit(outputs):
    rep = small.record(outputs=outputs, layers=["*"])
    parts = taken_apart(rep)
    classes = None if rep.outputs is None else rep.outputs.classes
    assert put_together(parts, classes) == rep
    assert len(parts.layers) == len(rep) > 1
    assert parts.size == sum(map(len, parts.layers)) + len(parts.shared)
    assert bool(parts.shared) == outputs


def test_some_layers_alone():
    rep = small.record(layers=["*"])
    parts = taken_apart(rep)
    some = put_together(Parts(parts.layers[1:2], parts.shared), rep.outputs.classes)
    assert some == dataclasses.replace(rep, layers=rep.layers[1:2])
    assert some[0].signs is not None


def test_tokens_keep_their_places():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Embedding(20, 8), torch.nn.Linear(8, 20))
    rep = rs.record(net, torch.randint(20, (12, 9)), unit="token", tokens=3, target="tempered")
    assert rep.rows is not None
    assert put_together(taken_apart(rep), rep.outputs.classes) == rep
