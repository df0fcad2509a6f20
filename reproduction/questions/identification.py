"""(a) Layer identification: is a layer's most similar layer in a twin the same layer?

Kornblith et al. 2019, Table 2, for every kernel and index: the share of right answers over layers
and ordered pairs of twins, looking from either of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..scale import DATA
from ..scoring import Job, Plan, score
from .lab import Lab

MANY = {
    "features, centred": Plan("features", "cka", True, "blocks"),
    "features, not centred": Plan("features", "cka", False, "blocks"),
    "features, debiased": Plan("features", "cka-debiased", None, "blocks"),
    "features, RSA": Plan("features", "rsa", None, "blocks"),
    "gradients": Plan("gradients", "cka", None, "blocks"),
    "gradients, debiased": Plan("gradients", "cka-debiased", None, "blocks"),
    "product": Plan("product", "cka", None, "blocks"),
    "product, debiased": Plan("product", "cka-debiased", None, "blocks"),
    "sum": Plan("sum", "cka", None, "blocks"),
    "sum, centred": Plan("sum", "cka", True, "blocks"),
    "elementwise": Plan("elementwise", "cka", None, "blocks"),
    "features, Algorithm 1": Plan("features", "cka", None, "paper"),
    "gradients, Algorithm 1": Plan("gradients", "cka", None, "paper"),
    "product, Algorithm 1": Plan("product", "cka", None, "paper"),
}
FEW = {"transport": Plan("transport", "cka", None, "blocks")}
SMALL = {  # roots of every pair of layers: fewer buckets
    "features, NBS, centred": Plan("features", "nbs", True, "buckets"),
    "gradients, NBS": Plan("gradients", "nbs", None, "buckets"),
    "product, NBS": Plan("product", "nbs", None, "buckets"),
    "features, NBS, Algorithm 1": Plan("features", "nbs", None, "paper"),
}


def run(lab: Lab) -> dict[str, Any]:
    scale, out = lab.scale, {}
    groups = (("default", scale.seeds, scale.buckets, MANY), ("default", scale.few, scale.buckets,
              FEW), ("few buckets", scale.few, scale.few_buckets, SMALL))  # fmt: skip
    for variant, seeds, buckets, plans in groups:
        jobs = [
            Job(files, files, None, (plan,))
            for plan in plans.values()
            for home in DATA
            for files in [lab.files(home, "probe", variant, seeds)]
        ]
        found = iter(score(jobs, f"layer identification, {seeds} networks a data set"))
        for name in plans:
            homes = {home: found_in_twins(next(found)[0].values, seeds) for home in DATA}
            every = np.concatenate(list(homes.values()))
            out[name] = {
                "accuracy": float(every.mean()),
                "by data": {home: float(v.mean()) for home, v in homes.items()},
                "sd over pairs": float(every.mean(1).std()),
                "by layer": every.mean(0).round(4).tolist(),
                "ordered pairs": len(every),
                "buckets": buckets,
            }
    return out


def found_in_twins(scores: np.ndarray, networks: int) -> np.ndarray:  # (ordered pairs, layers)
    """Whether each layer of a network is most like itself in another.

    `scores` has a row and a column for each layer of each network, network by network.
    """
    depth = len(scores) // networks
    maps = scores.reshape(networks, depth, networks, depth)
    return np.stack(
        [
            maps[a, :, b].argmax(1) == np.arange(depth)
            for a in range(networks)
            for b in range(networks)
            if a != b
        ]
    ).astype(float)
