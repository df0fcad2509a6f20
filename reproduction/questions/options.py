"""(9) Does it matter? Buckets, buckets a sample, β, labels, and the size of batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..scoring import Plan
from .lab import KERNELS, Lab, Pairs
from .pairs import judged

OWN = (
    "sketch", "few buckets", "four buckets a sample", "beta 0", "beta 0.25", "beta 0.75",
    "labels", "batches of 32", "batches of 1024",
)  # fmt: skip
PROBE = ("default", "beta 0", "beta 0.25", "beta 0.75")


def run(lab: Lab) -> dict[str, Any]:
    """Scores of same layers under each option; Algorithm 1 on own data, blocks on the probe."""
    seeds = min(lab.scale.seeds, max(2, lab.scale.origins))
    rows = []
    for setting, where, estimator, variants in (
        ("own data, Algorithm 1", "own", "paper", OWN),
        ("probe, blocks", "probe", "blocks", PROBE),
    ):
        plans = {kernel: Plan(kernel, estimator=estimator) for kernel in KERNELS}
        default: dict[str, Pairs] = {}
        for variant in variants:
            found = lab.pairs(where, variant, seeds, plans, f"options: {setting}, {variant}")
            default = default or found
            rows += [
                {"setting": setting, "option": variant, "kernel": kernel, **judged(found[kernel]),
                 "difference": _difference(found[kernel], default[kernel])}
                for kernel in KERNELS
            ]  # fmt: skip
    layers = lab.recordings(lab.zoo.originals()[0], "probe").layer_names
    return {"networks": seeds, "layers": layers, "options": rows}


def _difference(values: Pairs, default: Pairs) -> dict[str, float]:
    """From the default, over all pairs and layers."""
    apart = np.concatenate([(values[which] - default[which]).ravel() for which in values])
    return {"mean": float(apart.mean()), "mean absolute": float(np.abs(apart).mean()),
            "largest": float(np.abs(apart).max())}  # fmt: skip
