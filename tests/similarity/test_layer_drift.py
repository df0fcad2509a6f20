"""Drift from sketches: unbiased, with standard errors of the right size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from resemblance._ops.count_sketch import project_columns, row_sketch
from resemblance.representation.layer import Sketch
from resemblance.similarity.drift import CentredSketch, layer_drift, population_error


def sketch(x: torch.Tensor, seed: int) -> CentredSketch:
    """What a recording of the vectors x (N, D) would hold, made by plain products."""
    s = row_sketch(seed).matrix(np.arange(len(x))).double()
    both = project_columns(torch.cat([s @ x, x.sum(0)[None]]), x.shape[1], seed)
    return CentredSketch.of(Sketch(both[:-1], both[-1]), s.sum(1), len(x))


def low_rank(rank: int, dim: int, seed: int, samples: int = 300) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, rank, generator=g) @ torch.randn(rank, dim, generator=g)
    return x.double()


def test_centring_a_sketch_is_sketching_what_was_centred():
    x = low_rank(5, 700, 0) + 3
    centred = sketch(x - x.mean(0), 4).table
    torch.testing.assert_close(sketch(x, 4).table, centred, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(("rank", "dim"), [(1, 100), (1, 1000), (10, 100), (200, 1000)])
def test_errors_over_sketches_are_as_stated(rank, dim):
    """In 150 sketches: no bias, the stated variance that of the errors, two errors cover."""
    a = low_rank(20, dim, 1) + 0.5
    b = a - 0.3 * low_rank(rank, dim, 2) / rank**0.5 - 0.1
    d = a - b
    total = float(d.square().sum())
    share = len(d) * float(d.mean(0).square().sum()) / total
    centred = [x - x.mean(0) for x in (a, b)]
    true = {
        "decibels": -10 * np.log10(total / float(a.square().sum())),
        "mean_share": share,
        "cosine": float((centred[0] * centred[1]).sum() / centred[0].norm() / centred[1].norm()),
    }
    found = [
        layer_drift(sketch(a, s), sketch(b, s), trace=float(a.square().sum()), dim=dim, centre=True)
        for s in range(150)
    ]
    for name, value in true.items():
        error = np.array([getattr(x, name).value for x in found]) - value
        stated = np.array([getattr(x, name).stderr for x in found])
        rmse = np.mean(error**2) ** 0.5
        assert abs(error.mean()) < 0.35 * rmse  # 4 standard errors of 150 draws
        assert 0.8 < np.mean(stated**2) ** 0.5 / rmse < 1.35, name
        assert np.mean(abs(error) <= 2 * stated) > 0.9, name


def test_the_cosine_of_gradients_counts_their_means():
    a, b = low_rank(30, 90, 1) + 2, low_rank(30, 90, 2) + 2
    one, two = sketch(a, 0), sketch(b, 0)
    true = float((a * b).sum() / (a.norm() * b.norm()))
    plain, centred = (
        layer_drift(one, two, trace=1.0, dim=90, centre=centre).cosine for centre in (False, True)
    )
    assert plain.value == pytest.approx(true, abs=4 * plain.stderr)
    assert abs(centred.value) < 0.1 < plain.value


def test_samples_that_stand_alone_have_hardly_an_error():
    """One sample in all carries the change, but for its mean: by itself, rows hold it exactly."""
    a = low_rank(20, 50, 1)
    b = a.clone()
    b[7] += 5
    found = layer_drift(
        sketch(a, 0), sketch(b, 0), trace=float(a.square().sum()), dim=50, centre=True
    )
    exact = -10 * np.log10(float((a - b).square().sum() / a.square().sum()))
    assert found.decibels.value == pytest.approx(exact, abs=0.05)
    assert found.decibels.stderr < 0.05


def test_nothing_and_no_change():
    zero, x = torch.zeros(40, 6).double(), low_rank(3, 6, 0, samples=40)
    empty = layer_drift(sketch(zero, 0), sketch(x, 0), trace=0.0, dim=6, centre=True)
    assert np.isnan([empty.decibels.value, empty.cosine.value]).all()
    same = layer_drift(sketch(x, 0), sketch(x, 0), trace=1.0, dim=6, centre=True)
    assert same.decibels.value == np.inf
    assert same.cosine.value == pytest.approx(1)
    nothing = layer_drift(sketch(zero, 0), sketch(zero, 0), trace=0.0, dim=6, centre=True)
    assert np.isnan(nothing.decibels.value)


def changed(n, dim, tokens, generator):
    """Vectors and their change, of which a tenth is large, alike within a sequence."""
    ways = torch.randn(2, 12, dim, generator=torch.Generator().manual_seed(5))
    base, cause, rare = (
        draw(n // tokens, 12, generator=generator).repeat_interleave(tokens, 0)
        for draw in (torch.randn, torch.randn, torch.rand)
    )
    x = base @ ways[0] + 0.5
    return x.double(), ((0.1 + (rare[:, :1] < 0.1)) * (cause @ ways[1] + 0.3)).double()


@pytest.mark.parametrize(("dim", "tokens"), [(100, 1), (600, 1), (100, 8)])
def test_errors_about_the_population_cover_its_decibels(dim, tokens):
    """In 200 draws of 400 samples or sequences; errors about those drawn alone are too small."""
    n = 400 * tokens
    x, d = changed(80_000, dim, 1, torch.Generator().manual_seed(1))
    truth = float(-10 * torch.log10(d.square().sum() / x.square().sum()))
    errors, stated, alone = [], [], []
    for seed in range(200):
        x, d = changed(n, dim, tokens, torch.Generator().manual_seed(10 + seed))
        a, b = sketch(x, seed), sketch(x - d, seed)
        norms = x.square().sum(1)
        found = layer_drift(a, b, trace=float(norms.sum()), dim=dim, centre=True).decibels
        of = population_error(a - b, norms, samples=n, tokens=tokens, dim=dim)
        errors.append(found.value - truth)
        stated.append(of.stderr)
        alone.append(found.stderr)
        assert of.effective_rows > 12
    rmse = np.mean(np.square(errors)) ** 0.5
    assert np.mean(alone) < 0.7 * rmse
    assert np.mean(stated) > 0.95 * rmse
    assert np.mean(np.array(errors) > 1.66 * np.array(stated)) < 0.10  # 5 % and 3 standard errors


def test_a_change_of_one_sample_lies_in_one_row():
    x = low_rank(5, 40, 0)
    y = x.clone()
    y[7] += 10
    norms = x.square().sum(1)
    moved = sketch(x, 0) - sketch(y, 0)
    assert population_error(moved, norms, samples=300, tokens=1, dim=40).effective_rows < 1.5
