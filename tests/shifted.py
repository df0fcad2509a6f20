"""Vectors about a mean that is not zero, recorded in blocks of eight."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from resemblance import record_arrays


def arrays(n=96, d=6, seed=0, mean=0.7):
    rng = np.random.default_rng(seed)
    f, g = rng.normal(mean, 1, (n, d)), rng.normal(mean, 1, (n, d))
    return f.astype(np.float32), g.astype(np.float32)


def recorded(f, g, seed=0, **options):
    return record_arrays(
        f, g, data_id="x", seed=seed, **{"block": 8, "buckets": 32, "elementwise": True, **options}
    )


def apart(f, g, seed=0, **options):
    """A recording that keeps blocks of 8 alone, and not all samples in them."""
    return recorded(f, g, seed, **{"blocks": len(f) // 8 - 1, **options})


def without_norms(rep):
    """As a file of the first format has it."""
    layers = tuple(
        replace(
            x, features=replace(x.features, norms=None), gradients=replace(x.gradients, norms=None)
        )
        for x in rep
    )
    return replace(rep, layers=layers)
