"""A layer's exact kernels: large means, kernels kept whole, and when they are not."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import reference
import resemblance as rs
from resemblance._ops import packed_kernels
from resemblance._seeded_random import shuffled
from resemblance.recording import block_kernels, layer_sums


def centred_kernels(layer, count):
    """HKH of what is packed of each block, or of all samples, without what centring cannot see."""
    whole = layer.features.whole is not None
    packed = layer.packed_blocks("features", whole=whole)
    for triangle, diagonal in zip(packed.triangle, packed.diagonal.double(), strict=True):
        entries = packed_kernels.unpack16(triangle[None], diagonal[None])
        square = packed_kernels.squares(entries, diagonal[None])[0, :count, :count].numpy()
        yield reference.centred(reference.centred(square).T)


@pytest.mark.parametrize("samples", [200, 1200])
@pytest.mark.parametrize("ratio", [0, 1, 3, 100, 10_000])
def test_a_large_mean_does_not_drown_the_differences_of_samples(ratio, samples):
    generator = np.random.default_rng(0)
    spread = generator.normal(size=(samples, 40)).astype(np.float32)
    direction = generator.normal(size=40)
    x = spread + (ratio * np.sqrt(40) * direction / np.linalg.norm(direction)).astype(np.float32)
    rep = rs.record_arrays(x, data_id="x", block=100, buckets=0)
    layer, order = rep["features"], shuffled(samples, 0)
    count = samples if samples <= 1024 else 100
    for b, found in enumerate(centred_kernels(layer, count)):
        rows = x[order[b * count : (b + 1) * count]].astype(np.float64)
        expected = reference.kernel(reference.centred(rows))
        assert np.abs(found - expected).max() < 2e-3 * 40
    # and the kernel itself comes back, to the precision of float32
    whole = layer.features.whole is not None
    for b, block in enumerate(layer.blocks("features", whole=whole)):
        rows = x[order[b * count : (b + 1) * count]].astype(np.float64)
        exact = reference.kernel(rows)
        assert np.abs(block.numpy() - exact).max() < 3e-5 * exact.max() + 2e-3


@pytest.mark.filterwarnings("ignore:error bars of centred scores from blocks")
@pytest.mark.parametrize(("samples", "block"), [(1200, 4), (1200, 7), (2, 2), (6, 6)])
def test_a_large_mean_does_not_drown_the_differences_of_few_samples(samples, block):
    x = np.random.default_rng(0).normal(size=(samples, 16))
    plain, shifted = (
        rs.record_arrays(rows.astype(np.float32), data_id="x", buckets=0, block=block, blocks=900)
        for rows in (x, x + 1e4)
    )
    found = rs.compare(plain, shifted, kernel="features", estimator="blocks", centre=True)
    assert float(found.scores[0, 0]) > 0.999


def test_a_mean_is_taken_off_only_where_it_is_most_of_the_kernel():
    x = np.random.default_rng(0).normal(size=(600, 20))
    plain, shifted = (
        rs.record_arrays(rows, data_id="x", buckets=0, blocks=4, block=50)["features"]
        for rows in (x, x + 3)
    )
    assert plain.features.blocks.offset is None
    assert shifted.features.blocks.offset.shape == (4, 50)
    assert (shifted.features.blocks.triangle.float().mean().abs()) < 2000  # no common direction


@pytest.mark.parametrize(("dtype", "noted"), [(torch.bfloat16, True), (torch.float32, False)])
def test_half_precision_that_cannot_hold_the_differences_is_said(dtype, noted):
    class Shift(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(6, 8)
            self.head = torch.nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.layer(x))

    net = Shift()
    with torch.no_grad():
        net.layer.bias += 300.0
    net = net.to(dtype)
    data = torch.randn(60, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rs.record(net, data, layers="layer", gradients=False)
    said = [str(w.message) for w in caught if "rounding of half precision" in str(w.message)]
    assert bool(said) == noted
    assert all("layer" in text and "float32" in text for text in said)


def test_the_kernel_of_few_samples_is_kept_whole_and_exact():
    x = np.random.default_rng(0).normal(size=(300, 30))
    rep = rs.record_arrays(x, data_id="x")
    assert rep.settings.block == 19  # and it can be read as sixteen blocks
    (whole,) = rep["features"].blocks("features", whole=True)
    expected = reference.kernel(x[shuffled(300, 0)])
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert (np.abs(whole.numpy() - expected) < 2e-5 * scale).all()
    assert rs.record_arrays(x, data_id="x", block=300).block_sizes == (300,)


@pytest.mark.parametrize(
    "options", [{"blocks": 3}, {"shard": (0, 2)}, {"few": 1025}], ids=["blocks", "shard", "many"]
)
def test_kernels_are_kept_in_blocks_where_not_all_samples_are_kept_together(options):
    count = options.pop("few", 300)
    rep = rs.record_arrays(np.random.default_rng(0).normal(size=(count, 5)), data_id="x", **options)
    assert rep["features"].features.whole is None
    assert rep["features"].features.blocks is not None


def test_wide_vectors_do_not_wait_for_a_whole_kernel(monkeypatch):
    monkeypatch.setattr("resemblance.recording.block_kernels._WAITING_BYTES", 300 * 30 * 4)
    wide, narrow = (np.random.default_rng(0).normal(size=(300, d)) for d in (31, 30))
    rep = rs.record_arrays({"wide": wide, "narrow": narrow}, data_id="x")
    assert [layer.features.whole is None for layer in rep] == [True, False]
    assert rep["wide"].features.blocks.diagonal.shape == (16, 19)


def test_a_block_of_one_sample_says_nothing_about_a_mean():
    """Its mean is all of it: that must not pass for rounding."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    x = torch.randn(33, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rep = rs.record(net.bfloat16(), x.bfloat16(), block=8, blocks=64, shard=(0, 1), layers="1")
        blocked = rs.record(net, [x.bfloat16()], block=8, layers="1", gradients=False)
    assert rep.block_sizes == blocked.block_sizes == (8, 8, 8, 8, 1)


@pytest.mark.parametrize(("count", "block"), [(600, "auto"), (3000, 128), (3000, 400)])
def test_on_a_cpu_few_bytes_of_kernels_wait_to_be_packed(count, block, monkeypatch):
    held, add = [], block_kernels.BlockKernels.add

    def noting(self, *words):
        try:
            return add(self, *words)
        finally:
            held.append(self._loose_bytes)

    monkeypatch.setattr(block_kernels.BlockKernels, "add", noting)
    x = np.random.default_rng(0).normal(size=(count, 5))
    rs.record_arrays({"a": x, "b": x + 5}, data_id="x", block=block)
    assert max(held) < block_kernels._PACKED_AT_ONCE["cpu"]


@pytest.mark.parametrize("at_once", [0, 30_000, 10**9])
def test_layers_are_packed_together_as_they_are_alone(at_once, monkeypatch):
    """As a GPU has it; shapes, shorter blocks and large means may differ between layers."""
    generator = np.random.default_rng(0)
    arrays = {
        "one": generator.normal(size=(1300, 7)),
        "mean": generator.normal(size=(1300, 7)) + 2,
        "large mean": generator.normal(size=(1300, 9)) + 1000,
        "wide": generator.normal(size=(1300, 90)),
    }
    alone = rs.record_arrays(arrays, arrays, data_id="x", block=50, buckets=32)
    monkeypatch.setitem(block_kernels._PACKED_AT_ONCE, "cpu", at_once)
    monkeypatch.setitem(layer_sums._FORMED_AT_ONCE, "cpu", at_once)
    packed = block_kernels.pack
    monkeypatch.setattr(block_kernels, "pack", lambda layers: None)  # not before the end
    monkeypatch.setattr(block_kernels.BlockKernels, "_together", lambda self, kind, kernel: kernel)
    monkeypatch.setattr(layer_sums, "pack", packed)
    together = rs.record_arrays(arrays, arrays, data_id="x", block=50, buckets=32)
    for one, two in zip(alone, together, strict=True):
        for kind in one.kinds:
            assert one.recorded(kind).blocks == two.recorded(kind).blocks
        buckets = [x.recorded("features").buckets for x in (one, two)]
        torch.testing.assert_close(buckets[0].diagonal, buckets[1].diagonal)
        assert (buckets[0].triangle.int() - buckets[1].triangle.int())[:, 2].abs().max() <= 1


@pytest.mark.parametrize("ratio", [0, 1, 3, 100])
@pytest.mark.parametrize(
    "options", [{"batch_size": 100}, {"batch_size": 400}, {"batch_size": 2000}], ids=str
)
def test_a_mean_that_is_judged_late_is_taken_off_alike(ratio, options, monkeypatch):
    """As on a GPU, which is not waited for after the first batch."""
    generator = np.random.default_rng(0)
    x, g = generator.normal(size=(2, 1130, 40)).astype(np.float32) + np.float32(ratio)
    how = {"data_id": "x", "block": 100, "buckets": 0, **options}
    at_once = rs.record_arrays(x, g - ratio, **how)["features"]
    monkeypatch.setattr(block_kernels, "_JUDGED_LATE", {"cpu"})
    late = rs.record_arrays(x, g - ratio, **how)["features"]
    for kind in ("features", "gradients"):
        one, two = at_once.recorded(kind).blocks, late.recorded(kind).blocks
        assert (one.offset is None) == (two.offset is None)
        assert (one.triangle.int() - two.triangle).abs().max() <= 1
        torch.testing.assert_close(one.diagonal, two.diagonal, rtol=1e-5, atol=1e-3)
        if one.offset is not None:
            torch.testing.assert_close(one.offset, two.offset, rtol=1e-5, atol=1e-3)
