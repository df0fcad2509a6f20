"""The two-sided sketch: linear on both sides, the same from buckets, unbiased."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import resemblance as rs
from resemblance._ops import count_sketch
from resemblance._ops.count_sketch import (
    COLUMNS,
    ROWS,
    WIDTH,
    column_assignment,
    project_columns,
    row_sketch,
    rows_from_buckets,
)
from resemblance._ops.fold import Fold


@pytest.mark.parametrize("buckets", [128, 256, 512, 1024])
def test_buckets_lie_in_the_rows_of_the_sketch(buckets):
    x = torch.randn(300, 5, generator=torch.Generator().manual_seed(0)).double()
    index = np.arange(300) * 7
    fine = rs.CountSketch(buckets, seed=4).matrix(index).double() @ x
    coarse = row_sketch(4).matrix(index).double() @ x
    torch.testing.assert_close(rows_from_buckets(fine), coarse)


@pytest.mark.parametrize("dim", [10, COLUMNS, COLUMNS + 1, 3000, WIDTH])
def test_narrow_vectors_are_added_into_columns_with_signs(dim):
    """P has one entry of ±1 a feature; up to 256 features it is the identity."""
    p = project_columns(torch.eye(dim), dim, seed=3)
    assert p.shape == (dim, COLUMNS)
    assert torch.equal(p.abs().sum(1), torch.ones(dim).double())
    if dim <= COLUMNS:
        assert torch.equal(p[:, :dim], torch.eye(dim).double())
    else:
        assert abs(float(p.sum())) < 5 * dim**0.5
        assert float(p.abs().sum(0).max()) < 1 + 6 * max(1, dim / COLUMNS)


def test_wide_vectors_are_folded_first():
    dim = WIDTH + 100
    fold = Fold(dim, WIDTH, 3)
    x = torch.randn(4, dim, generator=torch.Generator().manual_seed(0))
    folded = project_columns(fold(x), dim, seed=3)
    one_by_one = sum(
        project_columns(fold(torch.where(torch.arange(dim) == j, x, 0.0)), dim, seed=3)
        for j in (0, 5, WIDTH + 5, dim - 1)
    )
    rest = x.clone()
    rest[:, [0, 5, WIDTH + 5, dim - 1]] = 0
    torch.testing.assert_close(folded, one_by_one + project_columns(fold(rest), dim, seed=3))


@pytest.mark.parametrize(
    ("dim", "channels"),
    [(100, 1), (256, 4), (1000, 10), (WIDTH + 100, 1), (3 * 4000, 3), (48384, 64)],
)
def test_places_are_where_features_go(dim, channels):
    x = torch.randn(2, dim, generator=torch.Generator().manual_seed(0))
    fold = Fold(dim, WIDTH, 3, channels=channels)
    at, sign = column_assignment(dim, 3, channels)
    plain = torch.zeros(2, COLUMNS).double().index_add_(1, at, x.double() * sign)
    made = project_columns(fold(x) if dim > WIDTH else x, dim, seed=3)
    torch.testing.assert_close(plain, made, atol=1e-4, rtol=1e-5)  # the fold adds in float32


def test_the_change_between_two_matrices_is_unbiased_over_seeds():
    """E‖S (A − B) P‖² = ‖A − B‖², and its spread is that of about 128 × 256 numbers."""
    g = torch.Generator().manual_seed(0)
    a = torch.randn(400, 900, generator=g).double()
    change = 0.1 * torch.randn(400, 900, generator=g).double()
    ratios = []
    for seed in range(60):
        s = row_sketch(seed).matrix(np.arange(400)).double()
        y = project_columns(s @ (a + change), 900, seed) - project_columns(s @ a, 900, seed)
        ratios.append(float(y.square().sum() / change.square().sum()))
    assert y.shape == (ROWS, COLUMNS)
    assert np.mean(ratios) == pytest.approx(1.0, abs=5 * np.std(ratios) / 60**0.5)
    assert np.std(ratios) < 0.05


def test_what_layers_share_on_a_gpu_ends_with_the_pass():
    """The dense P, which a GPU multiplies by, is that of `columns`; a pass lets go of it."""
    dense = count_sketch._dense_projection(1000, True, True, 3, torch.device("cpu"))
    assert torch.equal(dense, project_columns(torch.eye(1000), 1000, seed=3))
    assert count_sketch._dense_projection.cache_info().currsize
    rs.record_arrays(np.eye(20), data_id="x")
    assert not count_sketch._dense_projection.cache_info().currsize
