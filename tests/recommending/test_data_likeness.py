"""Data sets compared through one reference network."""

import numpy as np
import pytest
from candidate_networks import network, task

import resemblance as rs
from resemblance.errors import MismatchError
from resemblance.recommending.data_likeness import data_distance, why_not

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


def test_recordings_that_share_no_coordinates_are_refused():
    here = recorded(X)
    for other, why in (
        (recorded(X, network(3)), "not of one network"),
        (recorded(X, seed=1), "one seed"),
        (recorded(X, layers=["1"]), "the same layers"),
    ):
        assert why in why_not(here, other)
        with pytest.raises(MismatchError, match=why):
            data_distance(here, other)
