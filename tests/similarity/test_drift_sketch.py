"""What units in any order would give: against permutations in float64, and by false alarms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from resemblance._ops.count_sketch import project_columns, row_sketch
from resemblance._ops.fold import Fold
from resemblance.representation.layer import Layer, Recorded, Sketch
from resemblance.representation.representation import Settings
from resemblance.similarity.drift import (
    CentredSketch,
    Measurement,
    layer_drift,
    permuted_cosine,
    unit_count,
)

SETTINGS = Settings(0, 0, 1, 8, 0, None, "flatten", "none", None, elementwise=False)


def layer(*shape: int, dim: int | None = None) -> Layer:
    return Layer("x", shape, dim or int(np.prod(shape)), False, Recorded(0.0))


def sketch(x: torch.Tensor, seed: int) -> CentredSketch:  # (N, units, positions)
    s = row_sketch(seed).matrix(np.arange(len(x))).double()
    channels = x.shape[1] if x.shape[2] > 1 else 1
    flat = x.flatten(1).double()
    both = torch.cat([s @ flat, flat.sum(0)[None]])
    if flat.shape[1] > 8192:
        both = Fold(flat.shape[1], 8192, seed, channels=channels)(both.float()).double()
    both = project_columns(both, flat.shape[1], seed)
    return CentredSketch.of(Sketch(both[:-1], both[-1]), s.sum(1), len(x))


def responses(count: int, positions: int, seed: int, samples: int = 200) -> torch.Tensor:
    """Units that have much in common, at every position something else."""
    g = torch.Generator().manual_seed(seed)
    causes = torch.Generator().manual_seed(99)  # the same for all networks
    z = torch.randn(samples, 12, positions, generator=causes)
    weights = torch.randn(count, 12, generator=g) + 0.3
    noise = 0.3 * torch.randn(samples, count, positions, generator=g)
    return torch.relu(torch.einsum("nkp,uk->nup", z, weights) + noise)


def asked(a, b, where, *, seed=0, rate=1e-3):
    one, two = sketch(a, seed), sketch(b, seed)
    found = layer_drift(one, two, trace=1.0, dim=where.dim, centre=True).cosine
    return found, permuted_cosine(one, two, found, where, replace(SETTINGS, seed=seed), rate)


@pytest.mark.parametrize(
    ("shape", "pool", "dim", "expected"),
    [
        ((16, 8, 8), "flatten", None, 16),
        ((7, 32), "flatten", None, 32),
        ((50,), "flatten", None, 50),
        ((16, 8, 8), "mean", 16, 16),
        ((16, 8, 8), "function f", 5, 5),
    ],
)
def test_units_are_channels_of_images_and_the_width_of_all_else(shape, pool, dim, expected):
    assert unit_count(layer(*shape, dim=dim), pool) == expected


@pytest.mark.parametrize(("count", "positions"), [(40, 1), (600, 1), (16, 64), (32, 9), (24, 400)])
def test_chance_is_that_of_permutations(count, positions):
    """Against plain permutations of units in float64: the mean, and at least the level."""
    a, b = responses(count, positions, 1), responses(count, positions, 2)
    one, two = ((x - x.mean(0)).double() for x in (a, b))
    u = torch.einsum("nup,nvp->uv", one, two) / (one.norm() * two.norm())
    rng = np.random.default_rng(0)
    plain = np.array([u[range(count), rng.permutation(count)].sum() for _ in range(3000)])
    where = layer(count, positions, 1) if positions > 1 else layer(count)
    found = [asked(a, b, where, seed=seed, rate=0.01)[1] for seed in range(5)]
    assert np.mean([x.mean for x in found]) == pytest.approx(plain.mean(), abs=0.05)
    level = np.quantile(plain, 0.99)
    assert all(level - 0.05 < x.high < level + 0.25 for x in found)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(40, 1), (16, 36)])
def test_networks_trained_apart_raise_alarms_at_most_at_the_rate(shape):
    """At one in twenty, 200 pairs give 10 and hardly ever 20 (3 binomial deviations)."""
    where = layer(*shape, 1) if shape[1] > 1 else layer(shape[0])
    alarms = 0
    for i in range(200):
        a, b = responses(*shape, 2 * i, 100), responses(*shape, 2 * i + 1, 100)
        found, level = asked(a, b, where, seed=i, rate=0.05)
        alarms += found.value > level.high
    assert alarms <= 20


@pytest.mark.parametrize("positions", [1, 64])
def test_a_copy_is_seen(positions):
    a = responses(64, positions, 1)
    g = torch.Generator().manual_seed(5)
    b = a + a.std() * torch.randn(a.shape, generator=g)  # as much noise as signal
    found, level = asked(a, b, layer(64, positions, 1) if positions > 1 else layer(64))
    assert found.value > level.high


def test_vectors_that_were_folded_are_seen_as_well():
    a = responses(32, 400, 1, 100)
    _, level = asked(a, responses(32, 400, 2, 100), layer(32, 20, 20))
    found, copied = asked(a, 1.1 * a, layer(32, 20, 20))
    assert found.value == pytest.approx(1)
    assert copied.high < 0.95
    assert level.high < 0.95


def test_the_noise_of_wide_layers_is_taken_off():
    """Of 200,704 features in 256 columns; with their noise the level would be above 1."""
    g = torch.Generator().manual_seed(0)
    z = torch.randn(128, 30, generator=g).double()
    one, two = (
        CentredSketch(z @ torch.randn(30, 256, generator=g).double(), torch.zeros(256).double())
        for _ in range(2)
    )
    where = layer(64, 56, 56)
    found = layer_drift(one, two, trace=1.0, dim=where.dim, centre=True).cosine
    assert permuted_cosine(one, two, found, where, SETTINGS, 1e-3).high < 0.35


def test_a_unit_that_outweighs_all_others_widens_the_level():
    """Where one unit of forty carries nearly all, two networks agree in it by one chance in 40."""
    a, b = responses(40, 1, 1), responses(40, 1, 2)
    a[:, 3], b[:, 8] = 30 * a[:, 3], 30 * b[:, 8]
    assert asked(a, b, layer(40))[1].high > 0.5 * abs(np.corrcoef(a[:, 3, 0], b[:, 8, 0])[0, 1])


def test_few_units_cannot_tell():
    a = responses(6, 1, 1)  # 720 orders
    assert np.isnan(asked(a, a, layer(6))[1].high)
    assert np.isfinite(asked(a, a, layer(6), rate=0.01)[1].high)


def test_a_constant_layer_has_no_chance():
    zero = sketch(torch.zeros(30, 9, 1), 0)
    nothing = Measurement(float("nan"), float("nan"))
    found = permuted_cosine(zero, zero, nothing, layer(9), SETTINGS, 1e-3)
    assert np.isnan([found.mean, found.high]).all()
