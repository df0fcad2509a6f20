"""Kernels, recordings and results made up for tests of what is done with them."""

from __future__ import annotations

import numpy as np
import torch

import resemblance as rs
from resemblance.similarity.agreement_matrix import BehaviourMatrix
from resemblance.similarity.comparison import KernelComparison
from resemblance.similarity.trajectory import KernelTrajectory, Trajectory


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
    return KernelComparison(**{**values, **changes})


def population(seed, n=7, d=3):
    """Features and gradients, with means, of few enough samples to try all subsets of."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) + 1, rng.normal(size=(n, d)) + 0.5


def packed(k):  # (n, n) -> (1, t), (1, n)
    """A kernel as blocks hold it: strict lower triangle, row by row, and diagonal."""
    k = torch.from_numpy(k)
    rows, columns = torch.tril_indices(len(k), len(k), -1)
    return k[rows, columns][None], k.diagonal()[None].clone()


def sums_of(k1, k2):  # (n, n), (n, n) -> (9,)
    """The nine sums of two kernels over a block, which estimates are linear in."""
    d1, d2 = (np.diag(k) for k in (k1, k2))
    off1, off2 = k1 - np.diag(d1), k2 - np.diag(d2)
    r1, r2 = off1.sum(1), off2.sum(1)
    totals = [x.sum() * y.sum() for x, y in ((r1, r2), (d1, d2), (d1, r2), (r1, d2))]
    sums = [(off1 * off2).sum(), r1 @ r2, d1 @ d2, d1 @ r2, r1 @ d2, *totals]
    return torch.tensor(sums, dtype=torch.float64)


def permuted_sums(k1, k2):  # (n, n), (n, n) -> (9,)
    """The mean of `sums_of` over all permutations of the samples of one side."""
    n, sums = len(k1), sums_of(k1, k2)
    ss, tt, ts, st = sums[5:]
    means = torch.stack([ss / (n * (n - 1)), ss / n, tt / n, ts / n, st / n])
    return torch.cat([means, sums[5:]])


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


def course(kernel="features", **changes):
    """Two layers at three checkpoints: the first settles at once, the second at the end."""
    scores = np.ones((2, 3, 3))
    scores[0, 0, 1] = scores[0, 1, 0] = 0.98
    scores[0, 0, 2] = scores[0, 2, 0] = 0.97
    scores[0, 1, 2] = scores[0, 2, 1] = 0.99
    scores[1, 0, 1] = scores[1, 1, 0] = 0.5
    scores[1, 0, 2] = scores[1, 2, 0] = 0.3
    scores[1, 1, 2] = scores[1, 2, 1] = 0.6
    spread = np.random.default_rng(0).normal(size=(16, 2, 3)) * 1e-3
    values = {
        "kernel": kernel,
        "estimator": "blocks",
        "scores": scores,
        "stderr": np.full((2, 3, 3), 0.01),
        "replicates": scores[:, 0] + spread * (np.arange(3) > 0),
    }
    return KernelTrajectory(**{**values, **changes})


def trajectory(**changes):
    share = np.array([[0, 0.5, 0.6], [0.5, 0, 0.2], [0.6, 0.2, 0]])
    names = ("start", "middle", "end")
    told = BehaviourMatrix(names, (3,) * 3, 50, None, share, share / 10, share, share / 10, False)
    values = {
        "models": names,
        "steps": (0, 10, 200),
        "layers": ("low", "high"),
        "matched_by": "name",
        "samples": 50,
        "tokens": None,
        "features": course(),
        "gradients": course("gradients"),
        "behaviour": told,
    }
    return Trajectory(**{**values, **changes})
