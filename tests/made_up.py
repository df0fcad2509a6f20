"""Results made up for tests of what is done with them."""

from __future__ import annotations

import numpy as np

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
