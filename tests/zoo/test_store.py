"""The exact search that stores share."""

from __future__ import annotations

import numpy as np
import pytest

from resemblance.zoo.store import exactly_nearest


def test_the_nearest_are_those_of_a_plain_sort():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(50, 12)).astype(np.float16)
    query = rng.normal(size=12)
    exact = vectors.astype(float) @ query
    exact /= np.linalg.norm(vectors.astype(float), axis=1) * np.linalg.norm(query)
    ids = [str(i) for i in range(50)]
    blocks = [(ids[i : i + 7], vectors[i : i + 7]) for i in range(0, 50, 7)]
    found = exactly_nearest(blocks, query, 8)
    order = np.argsort(-exact)[:8]
    assert [id for id, _ in found] == [ids[i] for i in order]
    assert [x for _, x in found] == pytest.approx(exact[order], abs=1e-5)  # float32
    assert len(exactly_nearest(blocks, query, 99)) == 50


def test_equals_keep_their_order_and_others_lengths_are_passed_over():
    one = np.ones((1, 4), np.float16)
    blocks = [(["a"], one), (["other"], np.ones((1, 3), np.float16)), (["b"], 2 * one)]
    assert [id for id, _ in exactly_nearest(blocks, one[0], 3)] == ["a", "b"]


def test_nothing_and_zeros_have_no_direction():
    zero = np.zeros((1, 4), np.float16)
    assert exactly_nearest([], np.ones(4), 3) == []
    assert exactly_nearest([(["a"], zero)], np.ones(4), 3) == [("a", 0.0)]
    assert exactly_nearest([(["a"], zero + 1)], zero[0], 3) == [("a", 0.0)]
