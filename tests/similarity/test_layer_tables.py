"""Sums over pairs of all layers, from strips: those of plain matrices."""

from __future__ import annotations

import numpy as np
import torch

import resemblance as rs
from resemblance.similarity.chance_level import permuted_sums
from resemblance.similarity.kernel_strips import Strips
from resemblance.similarity.layer_tables import block_sums
from resemblance.similarity.pair_sums import factors, own_sums, pair_sums, side


def test_sums_are_those_of_the_whole_matrices():
    rng = np.random.default_rng(0)
    layers = {name: rng.normal(size=(31, 4)) + 1 for name in "abc"}
    rep = rs.record_arrays(layers, data_id="x", buckets=0)
    strips = Strips(rep.layers, "features", 0, 31, loose=False, whole=True)
    spans = [(0, 10), (10, 21), (21, 31)]
    found = block_sums(strips, spans, seen=True, entries=True)
    lower = strips.rows(0, 31).clone()
    full = lower + lower.mT
    pairs = torch.einsum("aij,bij->ab", full, full)
    torch.testing.assert_close(found.pairs, pairs)
    torch.testing.assert_close(found.vectors.r, full.sum(2))
    for g, (start, stop) in enumerate(spans):
        touched = torch.zeros(31, dtype=torch.bool)
        touched[start:stop] = True
        either = touched[:, None] | touched
        of_span = torch.einsum("aij,bij->ab", full * either, full)
        torch.testing.assert_close(found.apart[g], of_span)
        torch.testing.assert_close(found.seen[g], full[:, start:stop].sum(1))
    assert sum(x.shape[1] for x in found.entries) == 10 * 10 + 11 * 21 + 10 * 31
    i, j = torch.tril_indices(31, 31, -1)
    plain = side(full[:, i, j], strips.diagonal)
    rows, columns = slice(0, 1), slice(1, 3)
    for index, centre in (("cka", True), ("cka-debiased", True), ("cka", False)):
        add_up = factors(index, 31, 31, centre=centre)
        sums = pair_sums(plain, plain)[:, 0]
        exact = torch.tensordot(add_up, sums, 1)
        part = found.vectors.added(add_up, found.pairs[rows, columns], rows, columns)
        torch.testing.assert_close(part, exact[rows, columns])
        own = torch.tensordot(add_up, own_sums(plain), 1)
        torch.testing.assert_close(found.vectors.own(add_up, found.pairs.diagonal()), own)
        chance = torch.tensordot(add_up, permuted_sums(sums, 31), 1)
        torch.testing.assert_close(found.vectors.permuted(add_up, rows, columns), chance[:1, 1:])
