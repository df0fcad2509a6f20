"""One layer's share of a Representation."""

from __future__ import annotations

import pytest
import torch

import networks
import resemblance as rs
from resemblance.errors import MismatchError

G = torch.Generator().manual_seed(0)
VECTORS = torch.randn(40, 6, generator=G)


def mlp(seed=0):
    return networks.seeded(networks.MLP, seed=seed)


def test_without_buckets_or_blocks():
    no_buckets = rs.record(mlp(), VECTORS, buckets=0)
    no_blocks = rs.record(mlp(), VECTORS, blocks=0)
    assert no_blocks.block_sizes == ()
    with pytest.raises(
        MismatchError,
        match=r"'act1' has no buckets of features; record again with buckets above 0",
    ):
        no_buckets["act1"].buckets("features")
    with pytest.raises(
        MismatchError,
        match=r"'act1' has no blocks of features; record again with blocks above 0",
    ):
        no_blocks["act1"].blocks("features")


def test_blocks_are_symmetric_and_cut_from_the_whole_kernel():
    layer = rs.record(mlp(), VECTORS, elementwise=True, block=9)["act1"]
    assert layer.kinds == ("features", "gradients", "elementwise")
    for kind in layer.kinds:
        (whole,), blocks = layer.blocks(kind, whole=True), layer.blocks(kind)
        assert whole.dtype == torch.float64
        assert whole.shape == (len(VECTORS), len(VECTORS))
        assert torch.equal(whole, whole.mT)
        assert blocks.shape == (5, 9, 9)  # 40 samples: four blocks of nine, one of four
        for b, block in enumerate(blocks):
            part = whole[9 * b : 9 * b + 9, 9 * b : 9 * b + 9]
            assert torch.allclose(block[: len(part), : len(part)], part, rtol=1e-12, atol=0)
            assert not block[len(part) :].any()
            assert not block[:, len(part) :].any()


def test_centred_buckets_are_the_buckets_of_centred_samples():
    x = VECTORS + 3
    layer, centred = (
        rs.record_arrays(rows, data_id="x", buckets=16, max_dim=None)[0]
        for rows in (x, x - x.mean(0))
    )
    scale = float(layer.buckets("features").diagonal().max())
    found, expected = layer.buckets("features", centre=True), centred.buckets("features")
    assert float((found - expected).abs().max()) < 1e-5 * scale


def test_sums_can_be_left_out_and_nothing_else_goes():
    kept, plain = (rs.record(mlp(), VECTORS, keep_sums=flag)["act1"] for flag in (True, False))
    assert kept.features.sums is not None
    assert kept != plain
    assert kept.without_sums() == plain == plain.without_sums()


@pytest.mark.parametrize("kind", ["gradients", "elementwise"])
def test_kinds_that_were_not_recorded_say_how_to(kind):
    layer = rs.record(mlp(), VECTORS, gradients=False)["act1"]
    assert layer.kinds == ("features",)
    assert layer.products is None
    for read in (layer.recorded, layer.blocks, layer.buckets):
        with pytest.raises(MismatchError, match=f"'act1' has no {kind}; record again with"):
            read(kind)


class ChannelsLast(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = torch.nn.Conv2d(1, 6, 3), torch.nn.LayerNorm(6)
        self.head = torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.norm(self.stem(x).permute(0, 2, 3, 1)).mean((1, 2)))


def test_a_shape_in_the_network_has_its_channels_where_they_are(tmp_path):
    x = torch.randn(40, 1, 6, 7, generator=torch.Generator().manual_seed(0))
    rep = rs.record(ChannelsLast(), x, layers=["stem", "norm", "head"])
    for found in (rep, rs.load(rep.save(tmp_path / "a.rsm"))):
        assert [layer.shape for layer in found] == [(6, 4, 5), (6, 4, 5), (3,)]
        assert [layer.shape_in_network for layer in found] == [(6, 4, 5), (4, 5, 6), (3,)]
