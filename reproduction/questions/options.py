"""(9) Does it matter? Buckets, buckets a sample, β, labels, and the size of batches."""

from __future__ import annotations

from typing import Any

import numpy as np
from scoring import Job, same_layers, score

from questions.lab import KERNELS, Lab
from questions.pairs import judged

OWN = (
    "sketch", "few buckets", "four buckets a sample", "beta 0", "beta 0.25", "beta 0.75",
    "labels", "batches of 32", "batches of 1024",
)  # fmt: skip
PROBE = ("default", "beta 0", "beta 0.25", "beta 0.75")


def run(lab: Lab) -> dict[str, Any]:
    """Scores of same layers under each option; Algorithm 1 on own data, blocks on the probe."""
    seeds = min(lab.scale.seeds, max(2, lab.scale.origins))
    pairs = lab.pairs(seeds)
    names = [n for n in lab.zoo.originals() if int(n.split("/")[2]) < seeds]
    lab.recordings.make((n, _own(n), variant) for n in names for variant in OWN)
    lab.recordings.make((n, "probe", variant) for n in names for variant in PROBE)
    own, probe = "own data, Algorithm 1", "probe, blocks"
    keys = [(own, variant, kernel) for variant in OWN for kernel in KERNELS]
    jobs = [
        _job(lab, p, q, variant, kernel)
        for _, variant, kernel in keys for which in pairs for p, q in pairs[which]
    ]  # fmt: skip
    found = iter(score(jobs, "options on own data"))
    values = {
        key: {which: np.stack([next(found).values for _ in pairs[which]]) for which in pairs}
        for key in keys
    }
    place = {name: i for i, name in enumerate(names)}
    depth = len(lab.recordings(names[0], "probe").layer_names)
    for variant in PROBE:
        files = [lab.recordings.path(n, "probe", variant) for n in names]
        plans = [(kernel, "cka", None) for kernel in KERNELS]
        tables = same_layers(files, plans, depth, f"options on the probe, {variant}")
        for kernel, table in zip(KERNELS, tables, strict=True):
            values[probe, variant, kernel] = {
                which: np.stack([table[place[p], place[q]] for p, q in pairs[which]])
                for which in pairs
            }
    return {
        "networks": seeds,
        "options": [
            {"setting": s, "option": v, "kernel": k, **judged(values[s, v, k]),
             "difference": _difference(values[s, v, k], values[s, first, k])}
            for s, v, k in values
            for first in [OWN[0] if s.startswith("own") else PROBE[0]]
        ],
    }  # fmt: skip


def _own(network: str) -> str:
    return f"train:{network.split('/')[0]}"


def _job(lab: Lab, p: str, q: str, variant: str, kernel: str) -> Job:
    files = [lab.recordings.path(n, _own(n), variant) for n in (p, q)]
    return Job(*files, kernel, estimator="paper")


def _difference(values: dict[str, np.ndarray], first: dict[str, np.ndarray]) -> dict[str, float]:
    """From the default, over all pairs and layers."""
    apart = np.concatenate([(values[which] - first[which]).ravel() for which in values])
    return {"mean": float(apart.mean()), "mean absolute": float(np.abs(apart).mean()),
            "largest": float(np.abs(apart).max())}  # fmt: skip
