"""Pair sums of all layers from blocks and full Gram matrices; test_all_pairs.py has `compare`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import resemblance as rs
from resemblance.errors import MismatchError
from resemblance.similarity import block_estimator
from resemblance.similarity.all_pairs import BlockTable, FullGramTable, strip_sums
from resemblance.similarity.block_estimator import LayerPairing, full_gram_scores, sample_groups
from resemblance.similarity.kernels import CompareConfig
from resemblance.similarity.stored_kernels import KernelStrips


def test_sums_are_those_of_the_whole_matrices():
    rng = np.random.default_rng(0)
    layers = {name: rng.normal(size=(31, 4)) + 1 for name in "abc"}
    rep = rs.record_arrays(layers, data_id="x", buckets=0)
    strips = KernelStrips(rep.layers, "features", 0, 31, loose=False, whole=True)
    spans = [(0, 10), (10, 21), (21, 31)]
    found = strip_sums(strips, spans, seen=True, entries=True)
    lower = strips.rows(0, 31).clone()
    full = lower + lower.mT
    pairs = torch.einsum("aij,bij->ab", full, full)
    torch.testing.assert_close(found.pairs, pairs)
    torch.testing.assert_close(found.sums.rows, full.sum(2))
    for g, (start, stop) in enumerate(spans):
        touched = torch.zeros(31, dtype=torch.bool)
        touched[start:stop] = True
        either = touched[:, None] | touched
        of_span = torch.einsum("aij,bij->ab", full * either, full)
        torch.testing.assert_close(found.touching[g], of_span)
        torch.testing.assert_close(found.seen[g], full[:, start:stop].sum(1))
    assert sum(x.shape[1] for x in found.entries) == 10 * 10 + 11 * 21 + 10 * 31


def made(samples=64, **options):
    rng = np.random.default_rng(0)
    layers = {x: rng.normal(size=(samples, 4)) + 1 for x in "abc"}
    return rs.record_arrays(layers, data_id="x", block=10, blocks=5, **options)


@pytest.mark.parametrize("centre", [True, False])
def test_any_rows_and_columns_are_those_of_the_estimator(centre):
    rep = made()
    asked = CompareConfig("features", "cka", centre, "blocks")
    found = BlockTable(rep.layers, rep, asked).estimate(slice(0, 2), slice(1, 3), asked)
    truth = block_estimator.block_scores(rep, rep, asked)
    for name in ("scores", "stderr", "chance", "effective_blocks"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(truth, name)[:2, 1:], atol=1e-6, err_msg=name
        )


def test_a_ratio_without_norms_is_refused():
    rep = made()
    layers = [replace(x, features=replace(x.features, norms=None)) for x in rep]
    asked = CompareConfig("features", "cka", False, "ratio")
    tables = BlockTable(layers, rep, asked)
    with pytest.raises(MismatchError, match="needs the norm of every sample"):
        tables.estimate(slice(0, 1), slice(0, 1), asked)
    assert np.isfinite(
        tables.estimate(slice(0, 1), slice(1, 2), replace(asked, estimator="blocks")).stderr
    ).all()


@pytest.mark.parametrize("samples", [3, 5, 40])
@pytest.mark.parametrize("centre", [True, False])
def test_any_rows_and_columns_of_a_full_gram_table_are_those_of_the_estimator(samples, centre):
    rng = np.random.default_rng(0)
    rep = rs.record_arrays({x: rng.normal(size=(samples, 4)) for x in "abcd"}, data_id="x")
    asked = CompareConfig("features", "cka", centre, "blocks")
    found = FullGramTable(rep.layers, samples, asked).estimate(slice(1, 2), slice(1, 4), asked)
    spans = sample_groups(samples)
    truth = full_gram_scores(LayerPairing(rep.layers[1:2], rep.layers[1:], asked, samples, spans))
    for name in ("scores", "stderr", "replicates"):
        np.testing.assert_allclose(getattr(found, name), getattr(truth, name), atol=1e-6)
    assert found.scores[0, 0] == pytest.approx(1)
