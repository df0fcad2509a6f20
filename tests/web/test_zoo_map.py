"""The plane that networks are laid out on."""

from __future__ import annotations

import numpy as np
import pytest

from resemblance.web import zoo_map
from resemblance.web.zoo_map import laid_out


def classical_scaling(rows: np.ndarray) -> np.ndarray:
    """Torgerson's own way: from squared distances, centred twice."""
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    squared = 2 - 2 * rows @ rows.T
    n = len(rows)
    centring = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-centring @ squared @ centring / 2)
    return vectors[:, -2:][:, ::-1] * np.sqrt(values[-2:][::-1])


def between(points: np.ndarray) -> np.ndarray:
    return np.linalg.norm(points[:, None] - points[None], axis=2)


def test_it_is_classical_scaling_of_the_distances_of_signatures():
    rows = np.random.default_rng(0).normal(size=(12, 40))
    found = laid_out(rows)
    # float32 throughout: some digits of 1e-7 are left
    np.testing.assert_allclose(between(found.points), between(classical_scaling(rows)), atol=1e-5)
    assert 0 < found.share < 1


def test_networks_in_a_plane_keep_their_distances():
    angles = np.array([0.0, 0.3, 1.0, 2.0])
    rows = np.column_stack([np.cos(angles), np.sin(angles), np.zeros((4, 5))])
    found = laid_out(rows.astype(np.float16))
    np.testing.assert_allclose(between(found.points), between(rows), atol=2e-3)  # float16
    assert found.share == pytest.approx(1, abs=1e-6)


def test_it_is_the_same_every_time_and_under_another_sign_of_an_axis():
    rows = np.random.default_rng(1).normal(size=(9, 30))
    first, second = laid_out(rows), laid_out(rows.copy())
    np.testing.assert_array_equal(first.points, second.points)
    longest = np.abs(first.points).argmax(0)
    assert (first.points[longest, [0, 1]] > 0).all()


@pytest.mark.parametrize("rows", [np.ones((1, 8)), np.ones((5, 8)), np.zeros((3, 8)), np.eye(2, 8)])
def test_few_or_equal_networks_have_finite_places(rows):
    found = laid_out(rows)
    assert found.points.shape == (len(rows), 2)
    assert np.isfinite(found.points).all()
    assert found.share == pytest.approx(1)


def test_of_many_the_plane_is_laid_through_some(monkeypatch):
    rng = np.random.default_rng(2)
    plane, noise = rng.normal(size=(300, 2)) @ rng.normal(size=(2, 50)), rng.normal(size=(300, 50))
    rows = plane + 0.01 * noise
    every = laid_out(rows)
    monkeypatch.setattr(zoo_map, "LANDMARKS", 60)
    some = laid_out(rows)
    # directions of 60 rows lie in the plane of all up to the noise, a hundredth of the signal
    assert np.abs(between(some.points) - between(every.points)).max() < 0.05
