"""Representations of arrays that come from elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import networks
import reference
import resemblance as rs
import stored
from resemblance.errors import DataError

G = torch.Generator().manual_seed(0)
VECTORS = torch.randn(40, 6, generator=G)


def mlp(seed=0):
    return networks.seeded(networks.MLP, seed=seed)


def test_the_size_of_a_representation_does_not_grow_with_samples():
    x = np.random.default_rng(0).normal(size=(4000, 4)).astype(np.float32)
    small, large = (
        rs.record_arrays(x[:n], data_id="x", block=16, blocks=8, buckets=32) for n in (400, 4000)
    )
    before, after = (stored.tensors(rep["features"]) for rep in (small, large))
    assert before.keys() == after.keys()
    for key, tensor in before.items():  # but for the norm of each sample, which is bounded as well
        assert tensor.shape == after[key].shape or key == "features.norms"


def test_arrays_give_what_the_pass_gives():
    net = mlp().eval()
    seen = {"act1": [], "act2": []}
    for name in seen:
        getattr(net, name).register_forward_hook(
            lambda _, __, out, name=name: seen[name].append(out.clone())
        )
    with torch.no_grad():
        net(VECTORS)
    features = {name: value[0] for name, value in seen.items()}
    expected = rs.record(mlp(), VECTORS, gradients=False, data_id="probe")
    for arrays in (features, {k: v.numpy() for k, v in features.items()}):
        stored.assert_same(rs.record_arrays(arrays, data_id="probe"), expected, tolerance=2e-5)


def test_arrays_with_gradients_match_the_reference(tmp_path):
    rng = np.random.default_rng(0)
    f, g = rng.normal(size=(2, 40, 3, 2)).astype(np.float32)
    np.save(tmp_path / "f.npy", f)
    mapped = np.load(tmp_path / "f.npy", mmap_mode="r")
    rep = rs.record_arrays({"a": mapped}, {"a": g}, data_id="x", elementwise=True, target="mine")
    assert rep.settings.target == "mine"
    assert stored.moments(rep["a"]) == pytest.approx(
        reference.moments(f, g, elementwise=True), rel=1e-5
    )
    h, s = (part.numpy() for part in rs.CountSketch().assign(range(40)))
    by_hand = reference.algorithm_1(g.reshape(40, -1), h, s, 512)
    assert reference.close(rep["a"].buckets("gradients"), by_hand, 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32])
def test_arrays_of_any_dtype(dtype):
    x = (VECTORS * 10).to(dtype).requires_grad_(dtype.is_floating_point)
    rep = rs.record_arrays(x, data_id="x")
    expected = float((x.detach().double() ** 2).sum())
    assert rep["features"].features.trace == pytest.approx(expected, rel=1e-5)
    assert rep.made.dtype == str(dtype).removeprefix("torch.")
    one_column = rs.record_arrays(x.detach()[:, 0], data_id="x")
    assert one_column["features"].dim == 1


def test_array_shards_and_bad_rows():
    x = VECTORS.clone()
    whole = rs.record_arrays(x, data_id="x", block=8)
    parts = [rs.record_arrays(x, data_id="x", block=8, shard=(i, 2)) for i in range(2)]
    stored.assert_same(rs.merge(parts), whole, tolerance=2e-5)
    x[3] = float("nan")
    assert rs.record_arrays(x, data_id="x", on_bad="skip").data.skipped == 1
    x[7] *= 1e25  # finite, but its square is not
    assert rs.record_arrays(x, data_id="x", on_bad="skip").data.skipped == 2
    with pytest.raises(DataError, match="layer 'features' at sample 3"):
        rs.record_arrays(x, data_id="x")


@pytest.mark.parametrize(
    ("features", "gradients", "message"),
    [
        ({}, None, "arrays of one length, found none"),
        ({"a": VECTORS, "b": VECTORS[:3]}, None, "arrays of one length, found {'a': 40, 'b': 3}"),
        ({"a": VECTORS}, {"b": VECTORS}, "gradients of the same layers"),
        (VECTORS, VECTORS[:, :2], r"found {'features': \(40, 2\)} for {'features': \(40, 6\)}"),
        (VECTORS[:0], None, "the data set is empty"),
    ],
)
def test_arrays_that_cannot_be(features, gradients, message):
    with pytest.raises(DataError, match=message):
        rs.record_arrays(features, gradients, data_id="x")
