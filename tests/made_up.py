"""Kernels, recordings and results made up for tests of what is done with them."""

from __future__ import annotations

import numpy as np
import torch

import resemblance as rs
from resemblance.similarity import pair_sums
from resemblance.similarity.comparison import Comparison


def comparison(scores, **changes):
    scores = np.array(scores, float)
    values = {
        "models": ("one", "two"),
        "rows": tuple(f"r{i}" for i in range(scores.shape[0])),
        "columns": tuple(f"c{j}" for j in range(scores.shape[1])),
        "scores": scores,
        "stderr": np.full(scores.shape, 0.01),
        "chance": None,
        "chance_high": None,
        "kernel": "features",
        "index": "cka",
        "centre": True,
        "estimator": "blocks",
        "paired": True,
        "samples": (100, 100),
        "notes": (),
    }
    return Comparison(**{**values, **changes})


def population(seed, n=7, d=3):
    """Features and gradients, with means, of few enough samples to try all subsets of."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) + 1, rng.normal(size=(n, d)) + 0.5


def packed(k):  # (n, n) -> (1, t), (1, n)
    """A kernel as blocks hold it: strict lower triangle, row by row, and diagonal."""
    k = torch.from_numpy(k)
    rows, columns = torch.tril_indices(len(k), len(k), -1)
    return k[rows, columns][None], k.diagonal()[None].clone()


def sums_of(k1, k2):  # (n, n), (n, n) -> (9, 1, 1, 1)
    """The sums over pairs of two kernels, as of one block."""
    return pair_sums.pair_sums(*(pair_sums.side(*packed(k)) for k in (k1, k2)))


def related(seed, n, d=6, layers=2):
    """Features and gradients of layers that share a hidden cause; seeds share it too."""
    cause = np.random.default_rng(99).normal(size=(n, 4))
    rng = np.random.default_rng(seed)
    f = {f"l{i}": cause @ rng.normal(size=(4, d)) + rng.normal(size=(n, d)) for i in range(layers)}
    g = {f"l{i}": cause @ rng.normal(size=(4, d)) + rng.normal(size=(n, d)) for i in range(layers)}
    return f, g


def recorded(seed, n, *, name="net", **options):
    """A recording of `related`, from blocks and buckets, of data that n alone decides."""
    f, g = related(seed, n)
    options = {"buckets": 64, "data_id": f"data of {n}", "elementwise": True, **options}
    return rs.record_arrays(f, g, name=name, **options)
