"""(a) Layer identification: is a layer's most similar layer in a twin the same layer?

Kornblith et al. 2019, Table 2, for every kernel and index.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scoring import Job, Scores, score

from questions.lab import Lab
from questions.pairs import SAME


def run(lab: Lab) -> dict[str, Any]:
    """Share of right answers over layers and ordered pairs of twins, with the spread over pairs."""
    plans = {
        "features, centred": ("features", "cka", True, "blocks", "many"),
        "features, not centred": ("features", "cka", False, "blocks", "many"),
        "features, debiased": ("features", "cka-debiased", None, "blocks", "few"),
        "features, RSA": ("features", "rsa", None, "blocks", "few"),
        "gradients": ("gradients", "cka", None, "blocks", "many"),
        "gradients, debiased": ("gradients", "cka-debiased", None, "blocks", "few"),
        "product": ("product", "cka", None, "blocks", "many"),
        "product, debiased": ("product", "cka-debiased", None, "blocks", "few"),
        "sum": ("sum", "cka", None, "blocks", "many"),
        "sum, centred": ("sum", "cka", True, "blocks", "few"),
        "elementwise": ("elementwise", "cka", None, "blocks", "few"),
        "transport": ("transport", "cka", None, "blocks", "few"),
        "features, Algorithm 1": ("features", "cka", None, "paper", "many"),
        "gradients, Algorithm 1": ("gradients", "cka", None, "paper", "many"),
        "product, Algorithm 1": ("product", "cka", None, "paper", "many"),
        "features, NBS, centred": ("features", "nbs", True, "buckets", "small"),
        "gradients, NBS": ("gradients", "nbs", None, "buckets", "small"),
        "product, NBS": ("product", "nbs", None, "buckets", "small"),
        "features, NBS, Algorithm 1": ("features", "nbs", None, "paper", "small"),
        "product, NBS, Algorithm 1": ("product", "nbs", None, "paper", "small"),
    }
    lab.recordings.make((n, "probe", "default") for n in lab.zoo.originals())
    few = [n for n in lab.zoo.originals() if int(n.split("/")[2]) < lab.scale.few]
    lab.recordings.make((n, "probe", "few buckets") for n in few)
    twins = {
        seeds: [pair for which in SAME for pair in lab.pairs(seeds)[which]]
        for seeds in (lab.scale.seeds, lab.scale.few)
    }
    keys, jobs = [], []
    for name, (kernel, index, centre, estimator, kind) in plans.items():
        seeds = lab.scale.seeds if kind == "many" else lab.scale.few
        variant = "few buckets" if kind == "small" else "default"
        for pair in twins[seeds]:
            files = [lab.recordings.path(n, "probe", variant) for n in pair]
            keys.append((name, pair))
            jobs.append(Job(*files, kernel, index, centre, estimator, layers="all"))
    right: dict[str, dict[str, list[np.ndarray]]] = {name: {} for name in plans}
    for (name, pair), found in zip(keys, score(jobs, "layer identification"), strict=True):
        home = pair[0].split("/")[0]
        right[name].setdefault(home, []).append(_right(found))
    return {
        name: {
            "accuracy": float(np.mean([np.mean(v) for v in homes.values()])),
            "by data": {home: float(np.mean(v)) for home, v in homes.items()},
            "sd over pairs": float(np.std([r.mean() for v in homes.values() for r in v])),
            "by layer": np.mean([r for v in homes.values() for r in v], 0).round(4).tolist(),
            "pairs": sum(len(v) for v in homes.values()),
            "buckets": lab.scale.few_buckets if plans[name][4] == "small" else lab.scale.buckets,
        }
        for name, homes in right.items()
    }


def _right(found: Scores) -> np.ndarray:
    """Of each layer, how often it is found: looking from either network."""
    own = np.arange(len(found.values))
    return ((found.values.argmax(1) == own) + (found.values.argmax(0) == own)) / 2.0
