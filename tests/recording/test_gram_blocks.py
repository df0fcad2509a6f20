"""A layer's exact Gram matrices, the rows they grow from, and the buffer of their vectors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import networks
import reference
import resemblance as rs
import stored
from resemblance._ops import packing
from resemblance._ops.devices import free_gpu_memory
from resemblance._utils.hashing import seeded_permutation
from resemblance.recording import gram_blocks, layer_accumulator
from resemblance.recording.gram_blocks import GrowingRows, VectorBuffer


def centred_kernels(layer, count):
    """HKH of what is packed of each block, or of all samples, without what centring cannot see."""
    whole = layer.features.whole is not None
    packed = layer.packed_blocks("features", whole=whole)
    for triangle, diagonal in zip(packed.triangle, packed.diagonal.double(), strict=True):
        entries = packing.unpack16(triangle[None], diagonal[None])
        square = packing.symmetric_matrices(entries, diagonal[None])[0, :count, :count].numpy()
        yield reference.centred(reference.centred(square).T)


@pytest.mark.parametrize("samples", [200, 1200])
@pytest.mark.parametrize("ratio", [0, 1, 3, 100, 10_000])
def test_a_large_mean_does_not_drown_the_differences_of_samples(ratio, samples):
    generator = np.random.default_rng(0)
    spread = generator.normal(size=(samples, 40)).astype(np.float32)
    direction = generator.normal(size=40)
    x = spread + (ratio * np.sqrt(40) * direction / np.linalg.norm(direction)).astype(np.float32)
    rep = rs.record_arrays(x, data_id="x", block=100, buckets=0)
    layer, order = rep["features"], seeded_permutation(samples, 0)
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


@pytest.mark.filterwarnings("ignore:standard errors of centred scores from blocks")
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
    expected = reference.kernel(x[seeded_permutation(300, 0)])
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
    monkeypatch.setattr("resemblance.recording.gram_blocks.MAX_BUFFERED_BYTES", 300 * 30 * 4)
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
        warnings.filterwarnings("ignore", "only 33 samples")
        rep = rs.record(net.bfloat16(), x.bfloat16(), block=8, blocks=64, shard=(0, 1), layers="1")
        blocked = rs.record(net, [x.bfloat16()], block=8, layers="1", gradients=False)
    assert rep.block_sizes == blocked.block_sizes == (8, 8, 8, 8, 1)


@pytest.mark.parametrize(("count", "block"), [(600, "auto"), (3000, 128), (3000, 400)])
def test_on_a_cpu_few_bytes_of_kernels_wait_to_be_packed(count, block, monkeypatch):
    held, add = [], gram_blocks.GramBlocks.add

    def noting(self, *words):
        try:
            return add(self, *words)
        finally:
            waiting = [part.kernel.nbytes for parts in self._loose.values() for part in parts]
            held.append(sum(waiting))

    monkeypatch.setattr(gram_blocks.GramBlocks, "add", noting)
    x = np.random.default_rng(0).normal(size=(count, 5))
    rs.record_arrays({"a": x, "b": x + 5}, data_id="x", block=block)
    assert max(held) < gram_blocks._PACKED_AT_ONCE["cpu"]


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
    monkeypatch.setitem(gram_blocks._PACKED_AT_ONCE, "cpu", at_once)
    monkeypatch.setitem(layer_accumulator._BUCKET_BYTES_AT_ONCE, "cpu", at_once)
    packed = gram_blocks.pack_blocks
    monkeypatch.setattr(gram_blocks, "pack_blocks", lambda layers: None)  # not before the end
    monkeypatch.setattr(layer_accumulator, "pack_blocks", packed)
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
    monkeypatch.setattr(gram_blocks, "_JUDGED_ASYNC", {"cpu"})
    late = rs.record_arrays(x, g - ratio, **how)["features"]
    for kind in ("features", "gradients"):
        one, two = at_once.recorded(kind).blocks, late.recorded(kind).blocks
        assert (one.offset is None) == (two.offset is None)
        assert (one.triangle.int() - two.triangle).abs().max() <= 1
        torch.testing.assert_close(one.diagonal, two.diagonal, rtol=1e-5, atol=1e-3)
        if one.offset is not None:
            torch.testing.assert_close(one.offset, two.offset, rtol=1e-5, atol=1e-3)


def test_rows_come_out_as_they_came():
    rows = GrowingRows()
    parts = [torch.randn(n, 3) for n in (1, 0, 4, 9, 2)]
    for part in parts:
        rows.append(part)
    assert len(rows) == 16
    assert torch.equal(rows.whole(), torch.cat(parts))


CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_what_is_on_the_host_stays_there():
    x = torch.randn(3)
    room = VectorBuffer(0)
    assert room.taken_in(x) is x
    assert room.back(x, x.device) is x


def test_beyond_the_room_of_a_device_vectors_wait_on_the_host():
    """The meta device stands in for one with memory of its own: only sizes matter here."""
    room = VectorBuffer(100)
    first = torch.zeros(20, device="meta")
    assert room.taken_in(first) is first  # 80 bytes
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        room.taken_in(torch.zeros(6, device="meta"))  # would go to the host
    room.back(first, first.device)
    assert room.taken_in(torch.zeros(25, device="meta")).device.type == "meta"


def test_where_nothing_is_known_of_a_device_there_is_room_for_two_gib():
    room, x = VectorBuffer(), torch.zeros(2**28, device="meta")  # 1 GiB
    assert room.taken_in(x) is x
    assert room.taken_in(x) is x
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        room.taken_in(torch.zeros(1, device="meta"))


@CUDA
def test_on_a_gpu_a_quarter_of_what_is_free_may_wait():
    device = torch.device("cuda")
    room, some = VectorBuffer(), torch.empty(2**20, dtype=torch.uint8, device=device)
    quarter = max(2**31, free_gpu_memory(device) // 4)
    kept = 0
    while room.taken_in(some).is_cuda:  # which takes no memory, as it is one tensor
        kept += some.nbytes
    assert abs(kept - quarter) < 2**26


@CUDA
@pytest.mark.parametrize("room", [0, 3000, 2**31])
def test_where_vectors_wait_does_not_show(room, monkeypatch):
    monkeypatch.setattr(gram_blocks.VectorBuffer.__init__, "__defaults__", (room,))
    net, x = networks.seeded(networks.MLP).cuda(), torch.randn(300, 6)
    expected = rs.record(networks.seeded(networks.MLP).cuda(), x, block=64, batch_size=64)
    stored.assert_same(rs.record(net, x, block=64, batch_size=7), expected, tolerance=1e-4)
