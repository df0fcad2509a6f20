"""Strips of kernels are the rows that storage holds, at a unit each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import resemblance as rs
from resemblance.similarity.kernel_strips import SHARED, Strips, effects
from resemblance.similarity.stored_kernels import kernel_blocks, read


@pytest.fixture(scope="module")
def rep():
    rng = np.random.default_rng(0)
    features = {"far": rng.normal(size=(50, 4)) + 30, "near": rng.normal(size=(50, 4))}
    gradients = {name: rng.normal(size=(50, 4)) for name in features}
    kept = {"block": 20, "blocks": 2, "elementwise": False}  # not the kernel of all samples
    return rs.record_arrays(features, gradients, data_id="x", **kept)


@pytest.mark.parametrize("kernel", [name for name in SHARED if name != "elementwise"])
def test_rows_are_those_of_the_kernel(rep, kernel):
    strips = Strips(rep.layers, kernel, 1, 20, loose=False, whole=False)
    lower = torch.cat(
        [
            torch.nn.functional.pad(strips.rows(a, b), (0, 20 - b)).clone()
            for a, b in ((0, 7), (7, 20))
        ],
        1,
    )
    for at, layer in enumerate(rep):
        triangle, diagonal = list(kernel_blocks(layer, kernel, rep.block_sizes))[1]
        i, j = torch.tril_indices(20, 20, -1)
        unit = diagonal.mean()
        torch.testing.assert_close(lower[at, i, j], triangle / unit, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(strips.diagonal[at], diagonal / unit, rtol=1e-12, atol=1e-12)
        assert not lower[at].triu().any()


def test_loose_strips_leave_out_what_centring_does(rep):
    loose = Strips(rep.layers, "features", 0, 20, loose=True, whole=False, unit=torch.ones(2, 1))
    triangle, _ = read(rep.layers, "features", slice(0, 1), 20, "cpu", loose=True)
    i, j = torch.tril_indices(20, 20, -1)
    torch.testing.assert_close(loose.rows(0, 20)[:, i, j], triangle)


def test_levelled_rows_sum_to_zero(rep):
    strips = Strips(rep.layers, "features", 0, 20, loose=True, whole=False).levelled()
    lower = strips.rows(0, 20)
    sums = lower.sum(1) + lower.sum(2)
    assert float(sums.abs().max()) < 1e-12
    assert float(effects(sums).abs().max()) < 1e-12
    assert not effects(torch.ones(1, 2)).any()  # two samples have one pair, and nothing to level
