"""Data sets compared through one reference network."""

import dataclasses

import numpy as np
import pytest
import torch
from candidate_networks import network, task
from torch import nn

import resemblance as rs
from resemblance.errors import MismatchError
from resemblance.transfer.recommend import data_distance, why_incomparable
from zoo_workers import tiny

NET = network()
X, _ = task()


def recorded(x, net=NET, **options):
    return rs.record(net, x, progress=False, gradients=False, **options)


def test_it_grows_with_how_far_data_are_moved():
    near, far = recorded(X + 0.2), recorded(X + 1.5)
    again = recorded(task(seed=1)[0])
    here = recorded(X)
    assert data_distance(here, here) == 0
    distances = [data_distance(here, other) for other in (again, near, far)]
    assert distances == sorted(distances)
    assert data_distance(far, here) == pytest.approx(distances[-1])


def test_it_is_the_distance_of_folded_means():
    one, two = recorded(X, layers=["1"]), recorded(X + 1, layers=["1"])
    a, b = (rep[0].features.sketch.total.numpy() / rep.samples for rep in (one, two))
    expected = ((a - b) ** 2).sum() / np.sqrt((a**2).sum() * (b**2).sum())
    assert data_distance(one, two) == pytest.approx(expected)


def test_it_is_of_means_however_many_samples_there_are():
    assert data_distance(recorded(X), recorded(torch.cat([X, X]))) == pytest.approx(0, abs=1e-9)


def test_a_reference_that_sees_nothing_finds_no_distance():
    dead = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    nn.init.constant_(dead[0].bias, -1e6)
    one, two = (recorded(x, dead, layers=["1"]) for x in (X, X + 1))
    assert data_distance(one, two) == 0


def test_recordings_that_keep_no_means_are_refused():
    here = tiny(0)
    model = dataclasses.replace(here.model, weights="0" * 16)
    here = dataclasses.replace(here, model=model)
    with pytest.raises(MismatchError, match="has no means"):
        data_distance(here, here)


def test_recordings_that_share_no_coordinates_are_refused():
    here = recorded(X)
    for other, why in (
        (recorded(X, network(3)), "of different networks"),
        (recorded(X, seed=1), "different seed"),
        (recorded(X, layers=["1"]), "different layers"),
    ):
        assert why in why_incomparable(here, other)
        with pytest.raises(MismatchError, match=why):
            data_distance(here, other)
