"""One layer's running sums: unbiased over seeds, and the same however a block arrives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import networks
import resemblance as rs
from resemblance._ops import count_sketch
from resemblance._utils.hashing import seeded_permutation
from resemblance.errors import DataError
from resemblance.recording.layer_accumulator import (
    BatchPlan,
    LayerAccumulator,
    Moments,
    estimate_layer_bytes,
    finish_layers,
    send_to_host,
)
from resemblance.representation.representation import Settings

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
    sums = [rep["features"].features.sums.table.double().numpy() for rep in over_seeds]
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
    i, j = np.tril_indices(8, -1)
    found = [float(rep["features"].blocks("features")[:, i, j].mean()) for rep in over_seeds]
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
    sums, moments = LayerAccumulator("x", (6,), 6, settings), Moments()
    h, s = rs.CountSketch(16).assign(range(20))
    for start, stop in spans:
        f, g = F_ROWS[start:stop].clone(), G_ROWS[start:stop].clone()
        kept = [(0, stop - start)] if start // 10 < blocks else []
        whole = stop - start == 10
        plan = BatchPlan(
            (h[start:stop], s[start:stop]), kept, parted=not whole, ends=stop % 10 == 0
        )
        norms, inner = sums.add(f, g if gradients else None, plan)
        keys = sorted((kind, 0) for kind in norms)
        rows = torch.stack([norms[kind] for kind, _ in keys])
        moments.add(keys, rows, None if inner is None else inner[None])
        if spoil:
            f.zero_()
    finish_layers([sums], 20)
    send_to_host([sums])()
    return sums.result(
        sizes=(10, 10),
        moments=moments.send(np.arange(20))()[0],
        signs=torch.zeros(16),
        sketch_signs=torch.zeros(128),
        keep_sums=True,
    )


PARTS = [[(0, 5), (5, 10), (10, 15), (15, 20)], [(0, 1), (1, 9), (9, 10), (10, 20)]]


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("spans", PARTS, ids=str)
def test_parts_of_a_block_wait_and_give_the_kernels_of_the_whole(spans, gradients):
    whole, parted = (summed(x, gradients) for x in ([(0, 10), (10, 20)], spans))
    for kind in whole.kinds:
        one, two = parted.recorded(kind), whole.recorded(kind)
        assert one.blocks == two.blocks  # bit for bit: they are formed from the same rows
        assert one.trace == pytest.approx(two.trace, rel=1e-6)
        torch.testing.assert_close(one.sums.table, two.sums.table)
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


# -- the sketch in coordinates ---------------------------------------------------------------------

WIDE = torch.nn.Sequential(torch.nn.Conv2d(3, 40, 3, padding=1), torch.nn.Tanh())
PICTURES = torch.randn(70, 3, 16, 16, generator=torch.Generator().manual_seed(0))  # 10,240 features


def sketched(net=WIDE, data=PICTURES, **options):
    given = {"gradients": False, "layers": ["1"], "block": 8, **options}
    return rs.record(net, data, **given)["1"]


@pytest.mark.parametrize(
    "options",
    [
        {"buckets": 0},
        {"buckets": 128},
        {"buckets": 200},
        {"buckets": 256, "per_sample": 2},
        {"max_dim": 64},
        {"max_dim": None},
        {"batch_size": 3},
        {"deterministic": True},
        {"channels_last": True},
        {"channels_last": True, "buckets": 0},
        {"channels_last": True, "max_dim": 64},
    ],
    ids=str,
)
@pytest.mark.parametrize("side", [4, 16], ids=["narrow", "wide"])
def test_the_sketch_depends_on_samples_and_logical_features_alone(options, side):
    data = PICTURES[:, :, :side, :side]
    expected = sketched(data=data).features.sketch
    options = dict(options)
    if options.pop("channels_last", False):
        data = data.contiguous(memory_format=torch.channels_last)
    layer = sketched(data=data, **options)
    assert layer.shape == (40, side, side)
    torch.testing.assert_close(layer.features.sketch.table, expected.table, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer.features.sketch.total, expected.total, rtol=1e-4, atol=1e-3)


def test_the_sketch_of_three_shards_is_that_of_one_pass():
    options = {"layers": ["1"], "gradients": False, "block": 8}
    whole = rs.record(WIDE, PICTURES, **options)["1"]
    merged = rs.merge(rs.record(WIDE, PICTURES, shard=(i, 3), **options) for i in range(3))["1"]
    close = {"rtol": 1e-4, "atol": 1e-4}
    one, two = merged.features.sketch, whole.features.sketch
    torch.testing.assert_close(one.table, two.table, **close)
    torch.testing.assert_close(one.total, two.total, **close)
    assert torch.equal(merged.sketch_signs, whole.sketch_signs)


def test_the_sketch_is_that_of_the_samples_and_centres_exactly():
    x = np.random.default_rng(0).normal(2.0, 1.0, (500, 900))
    layer = rs.record_arrays(x, data_id="x")["features"]
    s = count_sketch.row_sketch(0).matrix(np.arange(500)).double()
    for rows, centre in ((x, False), (x - x.mean(0), True)):
        expected = count_sketch.project_columns(s @ torch.from_numpy(rows), 900, 0)
        found = layer.features.sketch.table.double()
        if centre:
            found = (
                found - torch.outer(layer.sketch_signs.double(), layer.features.sketch.total) / 500
            )
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("batch_size", [16, 128])
def test_autocast_does_not_reach_the_kernel_of_all_samples(batch_size):
    net, x = networks.seeded(networks.MLP), torch.randn(64, 6)
    with torch.autocast("cpu", torch.bfloat16):
        found = rs.record(net, x, layers=["act2"], batch_size=batch_size)
        features = net.act2(net.fc2(net.act1(net.fc1(x)))).detach().double()
    order = seeded_permutation(64, 0)
    expected = (features @ features.T)[order][:, order]
    kernel = found[0].blocks("features", whole=True)[0]
    # of correlations in 16 bits; in bfloat16 it would be off by 4e-3
    assert float((kernel - expected).abs().max() / expected.abs().max()) < 1e-4


@pytest.mark.parametrize(
    ("samples", "options"),
    [(200, {}), (200, {"gradients": False}), (1100, {"block": 32}), (1100, {"buckets": 48})],
    ids=str,
)
def test_the_memory_of_a_layer_is_known_beforehand(samples, options):
    """Nothing else is kept of a layer but norms: 4 bytes of each sample and kind."""
    x = torch.randn(samples, 40, generator=G)
    rep = rs.record(
        networks.seeded(networks.MLP, width=60, inputs=40), x, keep_sums=True, **options
    )
    few, kinds = samples <= 1024, 1 + rep.settings.gradients
    tables = [
        x
        for kind in rep[0].kinds
        for x in vars(rep[0].recorded(kind)).values()
        if x is not None and not isinstance(x, float | torch.Tensor)
    ]
    parts = [part.kernel if hasattr(part, "kernel") else part for part in tables]
    kept = sum(
        x.nbytes for part in parts for x in vars(part).values() if isinstance(x, torch.Tensor)
    )
    found = estimate_layer_bytes(rep.settings, rep[0].dim, samples, few=few)
    assert 0.9 * kept < found < 1.3 * kept + few * 4 * kinds * samples * rep[0].dim


def test_more_layers_than_memory_holds_are_refused_before_the_first_batch():
    """At 2¹⁷ buckets a kernel takes 26 GB; a hundred of them fit nowhere."""
    net = nn.Sequential(*[nn.Linear(6, 6) for _ in range(50)], nn.Linear(6, 3))
    runs = []
    net.register_forward_hook(lambda *_: runs.append(1))
    with pytest.raises(DataError, match=r"recording 51 layers takes about .* GB .*fewer"):
        rs.record(net, torch.randn(40, 6), layers="*", buckets=2**17)
    assert len(runs) == 1  # the trial
