"""One layer's share of a Representation."""

from __future__ import annotations

import numpy as np
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
        match=r"'act1' holds no buckets of features: .* record again with buckets above 0",
    ):
        no_buckets["act1"].buckets("features")
    with pytest.raises(
        MismatchError,
        match=r"'act1' holds no blocks of features: .* record again with blocks above 0",
    ):
        no_blocks["act1"].blocks("features")


def test_blocks_are_their_triangles_and_diagonals():
    layer = rs.record(mlp(), VECTORS, elementwise=True, block=8)["act1"]
    assert layer.kinds == ("features", "gradients", "elementwise")
    for kind in layer.kinds:
        whole = layer.blocks(kind)
        triangle, diagonal = layer.triangles(kind)
        i, j = np.tril_indices(whole.shape[1], -1)
        assert whole.dtype == torch.float64
        assert torch.equal(whole, whole.mT)
        assert torch.equal(whole[:, i, j], triangle)
        assert torch.equal(whole.diagonal(dim1=1, dim2=2), diagonal)


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
    for read in (layer.recorded, layer.blocks, layer.buckets, layer.triangles):
        with pytest.raises(MismatchError, match=f"'act1' holds no {kind}: .*record again with"):
            read(kind)
