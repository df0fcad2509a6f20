"""The plane that networks are laid out on."""

from __future__ import annotations

import numpy as np
import pytest

from resemblance.web import queries
from resemblance.web.queries import project_to_plane


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
    points, share = project_to_plane(rows)
    # float32 throughout: some digits of 1e-7 are left
    np.testing.assert_allclose(between(points), between(classical_scaling(rows)), atol=1e-5)
    assert 0 < share < 1


def test_networks_in_a_plane_keep_their_distances():
    angles = np.array([0.0, 0.3, 1.0, 2.0])
    rows = np.column_stack([np.cos(angles), np.sin(angles), np.zeros((4, 5))])
    points, share = project_to_plane(rows.astype(np.float16))
    np.testing.assert_allclose(between(points), between(rows), atol=2e-3)  # float16
    assert share == pytest.approx(1, abs=1e-6)


def test_it_is_the_same_every_time_and_under_another_sign_of_an_axis():
    rows = np.random.default_rng(1).normal(size=(9, 30))
    (first, _), (second, _) = project_to_plane(rows), project_to_plane(rows.copy())
    np.testing.assert_array_equal(first, second)
    longest = np.abs(first).argmax(0)
    assert (first[longest, [0, 1]] > 0).all()


@pytest.mark.parametrize("rows", [np.ones((1, 8)), np.ones((5, 8)), np.zeros((3, 8)), np.eye(2, 8)])
def test_few_or_equal_networks_have_finite_places(rows):
    points, share = project_to_plane(rows)
    assert points.shape == (len(rows), 2)
    assert np.isfinite(points).all()
    assert share == pytest.approx(1)


def test_of_many_the_plane_is_laid_through_some(monkeypatch):
    rng = np.random.default_rng(2)
    plane, noise = rng.normal(size=(300, 2)) @ rng.normal(size=(2, 50)), rng.normal(size=(300, 50))
    rows = plane + 0.01 * noise
    every, _ = project_to_plane(rows)
    monkeypatch.setattr(queries, "LANDMARKS", 60)
    some, _ = project_to_plane(rows)
    # directions of 60 rows lie in the plane of all up to the noise, a hundredth of the signal
    assert np.abs(between(some) - between(every)).max() < 0.05
