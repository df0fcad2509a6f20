"""Squared norms and inner products against plain float64."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch

import resemblance as rs
from resemblance._utils.hashing import seeded_permutation
from resemblance.recording import layer_accumulator
from resemblance.recording.layer_accumulator import Moments


@pytest.mark.parametrize("options", [{}, {"batch_size": 7}, {"blocks": 2}, {"block": 100}], ids=str)
def test_the_norm_of_each_sample_lies_at_its_place_in_the_order(options):
    x, g = np.random.default_rng(0).normal(size=(2, 2000, 5))
    x[17] = np.nan
    rep = rs.record_arrays(x, g, data_id="x", on_bad="skip", **options)
    order = seeded_permutation(2000, 0)
    for kind, rows in (("features", x), ("gradients", g)):
        expected = (rows[order] ** 2).sum(1)
        expected[order == 17] = np.nan
        found = rep["features"].recorded(kind).norms.numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_only_so_many_norms_are_kept(monkeypatch):
    monkeypatch.setattr("resemblance.recording.layer_accumulator.NORMS_KEPT", 1500)
    x = np.random.default_rng(0).normal(size=(2000, 5))
    whole = rs.record_arrays(x, data_id="x")
    assert len(whole["features"].features.norms) == 1500
    merged = rs.merge(rs.record_arrays(x, data_id="x", shard=(i, 3)) for i in range(3))
    assert torch.equal(merged["features"].features.norms, whole["features"].features.norms)


def test_a_place_whose_norm_was_not_kept_is_empty():
    moments = Moments()
    moments.add([("features", 0)], torch.tensor([[4.0, 9.0]]), None)
    found = moments.send(np.array([1, 0, 2]))()[0].norms["features"]
    torch.testing.assert_close(found, torch.tensor([9.0, 4.0]))


@pytest.mark.parametrize("held", [1, 3, 32])
def test_sums_of_layers_are_those_of_plain_loops(held, monkeypatch):
    """However many batches wait, and of layers whose numbers leave one out."""
    monkeypatch.setitem(layer_accumulator._BATCHES_PER_SUM, "cpu", held)
    keys = [("features", 0), ("features", 2), ("gradients", 0), ("gradients", 2)]
    values, inner = torch.rand(4, 50).square(), torch.randn(2, 50)
    moments = Moments()
    for start in range(0, 50, 7):
        moments.add(keys, values[:, start : start + 7], inner[:, start : start + 7])
    found = moments.send(np.arange(50))()
    assert sorted(found) == [0, 2]
    for at, i in enumerate((0, 2)):
        f, g, fg = values[at].double(), values[2 + at].double(), inner[at].double()
        traces = {"features": float(f.sum()), "gradients": float(g.sum())}
        assert found[i].traces == pytest.approx(traces)
        torch.testing.assert_close(found[i].norms["gradients"], values[2 + at])
        assert found[i].norms["gradients"].untyped_storage().nbytes() == 4 * 50  # and no more
        expected = [float(x) for x in (f @ g, fg.sum(), (fg**2).sum(), (fg**4).sum())]
        assert list(asdict(found[i].products).values()) == pytest.approx(expected)
