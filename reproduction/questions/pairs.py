"""(1) Are networks trained on the same data more alike than others, layer by layer?

Two settings. *Own data*: each network on its own training images, sample i of one paired with
sample i of the other, by Algorithm 1 as published and with the bias of it taken off. *Probe*: all
networks on one mixture of test images, from exact blocks (CKA) and buckets (NBS). The paper's three
desiderata, and (b) the AUC of telling "same data" from "other", come of the same scores.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..scale import DATA
from ..scoring import Plan, auc, summary
from .lab import KERNELS, OTHERS, Lab, Pairs

SAME = [f"{d}-{d}" for d in DATA]
NEAR, FAR, FARTHEST = "cifar10-cifar100", "cifar10-svhn", "cifar100-svhn"


def run(lab: Lab) -> dict[str, Any]:
    many, few = lab.scale.seeds, lab.scale.few
    found: dict[str, Pairs] = {}
    for where, variant, seeds, plans in (
        ("own", "sketch", many, _own()), ("own", "sketch", few, _own_dear()),
        ("probe", "default", many, _probe()), ("probe", "default", few, _probe_dear()),
    ):  # fmt: skip
        note = f"pairs of {seeds} networks a data set, {where}"
        found |= lab.pairs(where, variant, seeds, plans, note)
    return {
        "layers": lab.recordings(lab.zoo.originals()[0], "probe").layer_names,
        "networks": {"all": many, "few": few},
        "settings": {name: judged(scores) for name, scores in found.items()},
    }


def _own() -> dict[str, Plan]:
    cheap = [kernel for kernel in (*KERNELS, *OTHERS) if kernel != "transport"]
    return {
        f"own data, {name}, CKA, {kernel}": Plan(kernel, estimator=estimator)
        for kernel in cheap
        for name, estimator in (("Algorithm 1", "paper"), ("buckets", "buckets"))
    }


def _own_dear() -> dict[str, Plan]:
    """Those that take roots of matrices."""
    return {
        f"own data, Algorithm 1, NBS, {kernel}": Plan(kernel, "nbs", estimator="paper")
        for kernel in (*KERNELS, *OTHERS)
    } | {"own data, Algorithm 1, CKA, transport": Plan("transport", estimator="paper")}


def _probe() -> dict[str, Plan]:
    plans = {}
    for kernel in (*KERNELS, "sum", "elementwise"):
        plans[f"probe, blocks, CKA, {kernel}"] = Plan(kernel, estimator="blocks")
        plans[f"probe, Algorithm 1, CKA, {kernel}"] = Plan(kernel, estimator="paper")
    for kernel in KERNELS:
        centre = kernel != "features"
        name = f"probe, blocks, CKA, {kernel}, {'centred' if centre else 'not centred'}"
        plans[name] = Plan(kernel, "cka", centre, "blocks")
        debiased = Plan(kernel, "cka-debiased", None, "blocks")
        plans[f"probe, blocks, debiased CKA, {kernel}"] = debiased
    plans["probe, blocks, RSA, features"] = Plan("features", "rsa", None, "blocks")
    return plans


def _probe_dear() -> dict[str, Plan]:
    return {
        f"probe, buckets, NBS, {kernel}": Plan(kernel, "nbs", None, "buckets")
        for kernel in (*KERNELS, *OTHERS)
    } | {"probe, blocks, CKA, transport": Plan("transport", estimator="blocks")}


def judged(values: Pairs) -> dict[str, Any]:
    """Scores by pair of data sets, and what they say of the paper's three wishes."""
    same = np.concatenate([values[which] for which in SAME])
    other = np.concatenate([values[which] for which in (NEAR, FAR, FARTHEST)])
    mean = {which: v.mean(0) for which, v in values.items()}
    lowest = np.min([mean[which] for which in SAME], 0)
    highest = np.max([mean[which] for which in (NEAR, FAR, FARTHEST)], 0)
    return {
        "scores": {which: summary(v) for which, v in values.items()},
        "same above other": (lowest > highest).tolist(),
        "near above far": (mean[NEAR] > np.maximum(mean[FAR], mean[FARTHEST])).tolist(),
        "CIFAR-10/SVHN above CIFAR-100/SVHN": (mean[FAR] > mean[FARTHEST]).tolist(),
        "auc": [auc(same[:, i], other[:, i]) for i in range(same.shape[1])],
    }
