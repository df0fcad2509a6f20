"""Copies among many networks: which they are, and how far their layers moved."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import resemblance as rs
from resemblance.similarity.moved_copies import moved_copies


@pytest.fixture(scope="module")
def reps():
    def net(seed):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(10, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 5)
        )

    origin, other = net(0), net(1)
    moved = copy.deepcopy(origin)
    with torch.no_grad():
        moved[2].weight += 0.02 * torch.randn(40, 40, generator=torch.Generator().manual_seed(2))
    x = torch.randn(300, 10, generator=torch.Generator().manual_seed(3))
    nets = {"origin": origin, "moved": moved, "apart": other, "same": origin}
    return [
        rs.record(n, x, name=name, data_id="x", layers=["0", "1", "2", "3"])
        for name, n in nets.items()
    ]


def test_copies_are_found_and_moved_as_coordinates_says(reps):
    found = dict(moved_copies(reps))
    assert found.keys() == {(0, 1), (0, 3), (1, 3)}
    truth = rs.coordinates(reps[0], reps[1])
    assert truth.shared
    assert not rs.coordinates(reps[0], reps[2]).shared
    one = found[0, 1]
    assert tuple(reps[0].layer_names[i] for i in one.rows) == truth.layers
    assert one.kinds == truth.kinds
    np.testing.assert_allclose(one.decibels, truth.decibels, atol=1e-6)
    np.testing.assert_allclose(one.cosine, truth.cosine, atol=1e-9)
    assert np.isinf(found[0, 3].decibels).all()  # nothing changed


def test_what_holds_no_sketches_or_other_samples_is_left_out(reps):
    x = torch.randn(300, 10, generator=torch.Generator().manual_seed(4))
    other = rs.record(nn.Sequential(nn.Linear(10, 40), nn.Tanh(), nn.Linear(40, 5)), x, data_id="y")
    assert dict(moved_copies([reps[0], other, reps[1]])).keys() == {(0, 2)}
    assert not dict(moved_copies([other]))
