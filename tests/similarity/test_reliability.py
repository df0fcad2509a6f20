"""When standard errors may be too small, and that a warning says so."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

import resemblance as rs
from resemblance.errors import ResemblanceWarning
from resemblance.similarity.jackknife import Estimate, unreliable_note


@pytest.mark.parametrize(
    ("samples", "options", "limit"),
    [(70, {}, 10), (1000, {}, 100), (3000, {"block": 64, "blocks": 40}, 300)],
)
def test_error_bars_are_doubted_where_few_samples_or_blocks_carry_a_score(samples, options, limit):
    x = np.random.default_rng(0).normal(size=(samples, 2))
    rep = rs.record_arrays(x, data_id="x", buckets=0, **options)

    def said(n_eff, blocks=1e6, score=0.5):
        carried = (np.array([n_eff]), np.array([1e6]))
        alive, known = (np.array([True]),) * 2, np.array([[float(blocks)]])
        found = Estimate(np.array([[score]]), np.array([[0.1]]), alive, n_eff=carried)
        return unreliable_note(rep, replace(found, effective_blocks=known))

    assert said(limit - 1).code == "unreliable-errors"
    assert said(limit + 1) is None
    assert said(limit - 1, score=1.0) is None  # a network and itself
    assert said(limit - 1, score=np.nan) is None
    fewest = min(12, len(rep.block_sizes) / 4)
    assert said(limit + 1, blocks=fewest - 0.5)
    assert said(limit + 1, blocks=fewest + 0.5) is None


@pytest.mark.parametrize(("block", "index"), [(8, "cka"), (15, "rsa")])
def test_errors_from_small_blocks_come_with_a_warning(block, index):
    x, y = np.random.default_rng(0).normal(size=(2, 1200, 10))
    how = {"data_id": "x", "buckets": 0, "blocks": 200}
    a, b = (rs.record_arrays(v, block=block, **how) for v in (x, x + y))
    said = f"standard errors of centred scores from blocks of {block} samples are too small; record"
    with pytest.warns(ResemblanceWarning, match=said):
        rs.compare(a, b, kernel="features", index=index)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rs.compare(a, b, kernel="features", index="cka-debiased")
        a, b = (rs.record_arrays(v, block=16, **how) for v in (x, x + y))
        rs.compare(a, b, kernel="features", index=index)


def test_one_of_very_few_samples_that_carries_all_is_told():
    x = np.random.default_rng(0).normal(size=(5, 12))
    a, b = (rs.record_arrays(v, data_id="x") for v in (x, x + np.eye(5, 12)))
    scale = np.array([[6], [1], [1], [1], [1]])
    heavy = [rs.record_arrays(v * scale, data_id="x") for v in (x, x**3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "only 5 samples")
        rs.compare(a, b, kernel="features", centre=False)
    with pytest.warns(ResemblanceWarning, match="standard errors may be too small"):
        rs.compare(*heavy, kernel="features", centre=False)
