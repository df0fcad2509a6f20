"""One layer's running sums: unbiased over seeds, and the same however a block arrives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import networks
import resemblance as rs
from resemblance.recording.layer_sums import LayerSums, Plan
from resemblance.representation.settings import Settings

G = torch.Generator().manual_seed(0)
IMAGES = torch.randn(40, 3, 6, 6, generator=G)


def test_wide_layers_are_folded_for_buckets_alone():
    folded, exact = (
        rs.record(networks.seeded(networks.ResNet), IMAGES, layers="relu", max_dim=width)["relu"]
        for width in (64, None)
    )
    assert (folded.folded, exact.folded) == (True, False)
    assert torch.equal(folded.blocks("features"), exact.blocks("features"))
    difference = folded.buckets("features") - exact.buckets("features")
    # one inner product is off by about ‖x‖‖y‖/√64
    assert 0.0 < float(difference.norm() / exact.buckets("features").norm()) < 0.3


SMALL = np.random.default_rng(1).normal(0.5, 1.0, (48, 3))
SEEDS = 300


@pytest.fixture(scope="module")
def over_seeds():
    return [
        rs.record_arrays(
            SMALL, data_id="x", seed=seed, buckets=8, block=8, blocks=2, keep_sums=True
        )
        for seed in range(SEEDS)
    ]


def assert_unbiased(values, expected):
    """The mean over seeds within five standard errors of what it estimates."""
    values = np.stack(values)
    error = values.std(0, ddof=1) / np.sqrt(len(values))
    assert (np.abs(values.mean(0) - expected) <= 5 * error + 1e-9).all()


def test_the_sketch_is_unbiased_for_second_moments(over_seeds):
    """E F̃ᵀF̃ = FᵀF, hence E Tr K̃ = Tr K."""
    sums = [rep["features"].features.sums.buckets.double().numpy() for rep in over_seeds]
    assert_unbiased([s.T @ s for s in sums], SMALL.T @ SMALL)
    traces = [float(rep["features"].buckets("features").trace()) for rep in over_seeds]
    assert_unbiased(traces, np.trace(SMALL @ SMALL.T))


def test_the_centred_sketch_is_unbiased_for_centred_moments(over_seeds):
    x = SMALL - SMALL.mean(0)
    traces = [float(r["features"].buckets("features", centre=True).trace()) for r in over_seeds]
    assert_unbiased(traces, np.trace(x @ x.T))


def test_blocks_are_unbiased_for_the_mean_of_the_kernel(over_seeds):
    """Off-diagonal entries of random blocks average to those of all pairs, as a U-statistic."""
    kernel = SMALL @ SMALL.T
    n = len(SMALL)
    expected = (kernel.sum() - np.trace(kernel)) / (n * (n - 1))
    found = [float(rep["features"].triangles("features")[0].mean()) for rep in over_seeds]
    assert_unbiased(found, expected)


# -- parts of a block ----------------------------------------------------------------------------

G = torch.Generator().manual_seed(5)
F_ROWS, G_ROWS = torch.randn(2, 20, 6, generator=G)


def summed(spans, gradients=True, blocks=64, spoil=False):
    """The layer after batches [start, stop) of blocks of ten samples; `spoil` writes over them."""
    settings = Settings(
        seed=0,
        buckets=16,
        per_sample=1,
        block=10,
        blocks=blocks,
        max_dim=None,
        pool="flatten",
        target="tempered" if gradients else "none",
        beta=0.5 if gradients else None,
        elementwise=gradients,
    )
    sums = LayerSums("x", (6,), 6, settings)
    h, s = rs.CountSketch(16).assign(range(20))
    for start, stop in spans:
        f, g = F_ROWS[start:stop].clone(), G_ROWS[start:stop].clone()
        kept = [(0, stop - start)] if start // 10 < blocks else []
        whole = stop - start == 10
        plan = Plan((h[start:stop], s[start:stop]), kept, parted=not whole, ends=stop % 10 == 0)
        sums.add(f, g if gradients else None, plan)
        if spoil:
            f.zero_()
    sums.finish(20)
    return sums.result(torch.zeros(16), keep_sums=True)


PARTS = [[(0, 5), (5, 10), (10, 15), (15, 20)], [(0, 1), (1, 9), (9, 10), (10, 20)]]


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("spans", PARTS, ids=str)
def test_parts_of_a_block_wait_and_give_the_kernels_of_the_whole(spans, gradients):
    whole, parted = (summed(x, gradients) for x in ([(0, 10), (10, 20)], spans))
    for kind in whole.kinds:
        one, two = parted.recorded(kind), whole.recorded(kind)
        assert one.blocks == two.blocks  # bit for bit: they are formed from the same rows
        assert one.trace == pytest.approx(two.trace, rel=1e-6)
        torch.testing.assert_close(one.sums.buckets, two.sums.buckets)
        # float32 sums of a batch, added up in float64
        torch.testing.assert_close(one.sums.total, two.sums.total, rtol=1e-5, atol=1e-5)
    if gradients:
        assert parted.products.norms == pytest.approx(whole.products.norms, rel=1e-6)
        assert parted.products.inner == pytest.approx(whole.products.inner, rel=1e-5)


def test_features_that_wait_are_not_views_of_memory_that_a_forward_pass_writes_over():
    spoilt, plain = (summed(PARTS[0], gradients=False, spoil=spoil) for spoil in (True, False))
    assert spoilt.features == plain.features


def test_parts_of_blocks_that_are_not_kept_leave_no_kernel():
    layer = summed(PARTS[0], blocks=1)
    assert layer.blocks("features").shape == (1, 10, 10)
    assert layer.features.trace == pytest.approx(float(F_ROWS.square().sum()), rel=1e-6)
