"""The arithmetic of sketched changes: unbiased, with errors of the size that they state."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from resemblance._ops.coordinate_sketch import columns, rows
from resemblance.representation.layer import Sketch
from resemblance.similarity.sketched_change import Centred, change


def sketch(x: torch.Tensor, seed: int) -> Centred:
    """What a recording of the vectors x (N, D) would hold, made by plain products."""
    s = rows(seed).matrix(np.arange(len(x))).double()
    both = columns(torch.cat([s @ x, x.sum(0)[None]]), x.shape[1], seed)
    return Centred.of(Sketch(both[:-1], both[-1]), s.sum(1), len(x))


def low_rank(rank: int, dim: int, seed: int, samples: int = 300) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, rank, generator=g) @ torch.randn(rank, dim, generator=g)
    return x.double()


def test_centring_a_sketch_is_sketching_what_was_centred():
    x = low_rank(5, 700, 0) + 3
    centred = sketch(x - x.mean(0), 4).table
    torch.testing.assert_close(sketch(x, 4).table, centred, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("dim", [100, 1000])
@pytest.mark.parametrize("rank", [1, 10, 200])
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
        change(sketch(a, s), sketch(b, s), trace=float(a.square().sum()), dim=dim, centre=True)
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
        change(one, two, trace=1.0, dim=90, centre=centre).cosine for centre in (False, True)
    )
    assert plain.value == pytest.approx(true, abs=4 * plain.stderr)
    assert abs(centred.value) < 0.1 < plain.value


def test_samples_that_stand_alone_have_hardly_an_error():
    """One sample in all carries the change, but for its mean: by itself, rows hold it exactly."""
    a = low_rank(20, 50, 1)
    b = a.clone()
    b[7] += 5
    found = change(sketch(a, 0), sketch(b, 0), trace=float(a.square().sum()), dim=50, centre=True)
    exact = -10 * np.log10(float((a - b).square().sum() / a.square().sum()))
    assert found.decibels.value == pytest.approx(exact, abs=0.05)
    assert found.decibels.stderr < 0.05


def test_nothing_and_no_change():
    zero, x = torch.zeros(40, 6).double(), low_rank(3, 6, 0, samples=40)
    empty = change(sketch(zero, 0), sketch(x, 0), trace=0.0, dim=6, centre=True)
    assert np.isnan([empty.decibels.value, empty.cosine.value]).all()
    same = change(sketch(x, 0), sketch(x, 0), trace=1.0, dim=6, centre=True)
    assert same.decibels.value == np.inf
    assert same.cosine.value == pytest.approx(1)
    nothing = change(sketch(zero, 0), sketch(zero, 0), trace=0.0, dim=6, centre=True)
    assert np.isnan(nothing.decibels.value)
