"""The fold: inner products kept on average, with the spread it states."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from resemblance._ops.fold import Fold

RNG = np.random.default_rng(0)
FOLD_SIGNS = [-1, -1, -1, -1, -1, -1, -1, -1, 1, -1, 1, 1, -1, 1, -1, -1]


@pytest.mark.parametrize(("dim", "width"), [(100, 16), (64, 16), (17, 16), (1000, 7)])
def test_fold_adds_each_feature_once_with_a_sign(dim, width):
    fold = Fold(dim, width, seed=3)
    basis = fold(torch.eye(dim))  # (dim, width): where each feature goes
    assert torch.equal(basis.abs().sum(1), torch.ones(dim))
    assert set(basis.unique().tolist()) <= {-1.0, 0.0, 1.0}
    x = torch.from_numpy(RNG.normal(size=(4, dim))).float()
    assert torch.allclose(fold(x), x @ basis, atol=1e-5)


def test_the_fold_never_changes():
    """Files recorded with one version must compare with those of the next."""
    signs, shifts = Fold(100, 16, seed=0).packed
    assert signs[:16].tolist() == FOLD_SIGNS
    assert shifts.tolist() == [[0, s] for s in [8, 8, 8, 8, 0, 0, 8]]
    signs, shifts = Fold(32 * 300, 32 * 64, seed=0, channels=32).packed
    assert signs[:16].tolist() == FOLD_SIGNS
    assert shifts.tolist() == [[16, 32], [16, 40], [24, 40], [16, 48], [8, 0]]


IMAGES = {"few": (6, 40, 64), "short": (8, 49, 104), "one": (5, 7, 35), "unfolded": (4, 9, 99)}


@pytest.mark.parametrize("case", IMAGES)
def test_the_slot_of_a_feature_does_not_depend_on_memory(case):
    channels, length, width = IMAGES[case]
    dim = channels * length
    plain = Fold(dim, width, seed=1, channels=channels)
    last = Fold(dim, width, seed=1, channels=channels, channels_last=True)
    x = torch.randn(5, channels, length, generator=torch.Generator().manual_seed(0))
    found = last(x.mT.flatten(1))
    assert torch.equal(last.in_order(found), plain(x.flatten(1)))
    assert torch.equal(plain.in_order(found), found)
    assert plain.width == last.width <= min(width, dim)
    basis = plain(torch.eye(dim))
    assert torch.equal(basis.abs().sum(1), torch.ones(dim))
    # each slot holds as many features as any other, give or take one
    assert float(basis.abs().sum(0).max() - basis.abs().sum(0).min()) <= 1


def test_channels_of_images_fold_with_the_stated_spread():
    """Also where one channel carries most of the image."""
    channels, length, width, seeds = 16, 200, 256, 600
    x, y = torch.from_numpy(RNG.normal(size=(2, channels, length))).float()
    for scale in (1.0, 10.0):
        a, b = x.clone(), y.clone()
        a[3], b[3] = scale * a[3], scale * b[3]
        pair = torch.stack([a.flatten(), b.flatten()])
        found = []
        for seed in range(seeds):
            one, two = Fold(channels * length, width, seed, channels=channels)(pair)
            found.append(float(one @ two))
        spread = float(pair[0].norm() * pair[1].norm()) / np.sqrt(width)
        assert abs(np.mean(found) - float(pair[0] @ pair[1])) < 5 * np.std(found) / np.sqrt(seeds)
        assert np.std(found) < 3 * spread


def test_fold_keeps_inner_products_on_average_with_the_stated_spread():
    """E⟨fold x, fold y⟩ = ⟨x, y⟩, standard deviation about ‖x‖‖y‖/√width."""
    dim, width, seeds = 600, 32, 1500
    x, y = torch.from_numpy(RNG.normal(size=(2, dim))).float()
    y = y + x
    found = []
    for seed in range(seeds):
        a, b = Fold(dim, width, seed)(torch.stack([x, y]))
        found.append(float(a @ b))
    found = np.array(found)
    spread = float(x.norm() * y.norm()) / np.sqrt(width)
    assert abs(found.mean() - float(x @ y)) < 5 * found.std() / np.sqrt(seeds)
    # E(x·y)² adds to the variance of correlated vectors, at most a factor of √2 in spread
    assert 0.8 * spread < found.std() < 1.5 * spread


def test_fold_keeps_recurring_features_apart():
    """One channel at every token, width tokens apart: without shifts all would share a slot."""
    dim, width = 64 * 512, 512  # shifts are multiples of eight: 64 slots are within reach
    x = torch.zeros(1, dim)
    x[0, ::width] = 1.0
    norms = [float(Fold(dim, width, seed)(x).square().sum()) for seed in range(400)]
    # mean ‖x‖² = 64; with one shared slot the standard deviation would be √2 · 64 = 90
    assert abs(np.mean(norms) - 64) < 5 * np.std(norms) / 20
    assert np.std(norms) < 20
