"""(1) Are networks trained on the same data more alike than others, layer by layer?

Two settings. *Own data*: each network on its own training images, sample i of one paired with
sample i of the other, by Algorithm 1 as published and with the bias of it taken off. *Probe*: all
networks on one mixture of test images, from exact blocks (CKA) and buckets (NBS). The paper's three
desiderata, and (b) the AUC of telling "same data" from "other", come of the same scores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scale import DATA
from scoring import Job, auc, same_layers, score, summary

from questions.lab import KERNELS, OTHERS, Lab

SAME = [f"{d}-{d}" for d in DATA]
NEAR, FAR, FARTHEST = "cifar10-cifar100", "cifar10-svhn", "cifar100-svhn"

# (data, kernel, index, centre, estimator)
Setting = tuple[str, str, str, bool | None, str]


def settings() -> tuple[dict[str, Setting], dict[str, Setting], dict[str, Setting]]:
    """For all networks at once; for all pairs of networks; and for pairs of a few."""
    at_once: dict[str, Setting] = {}
    many: dict[str, Setting] = {}
    few: dict[str, Setting] = {}
    for kernel in (*KERNELS, *OTHERS):
        cheap = few if kernel == "transport" else many
        cheap[f"own data, Algorithm 1, CKA, {kernel}"] = ("own", kernel, "cka", None, "paper")
        few[f"own data, buckets, CKA, {kernel}"] = ("own", kernel, "cka", None, "buckets")
        few[f"probe, Algorithm 1, CKA, {kernel}"] = ("probe", kernel, "cka", None, "paper")
        few[f"own data, Algorithm 1, NBS, {kernel}"] = ("own", kernel, "nbs", None, "paper")
        few[f"probe, buckets, NBS, {kernel}"] = ("probe", kernel, "nbs", None, "buckets")
        exact = few if kernel == "transport" else at_once
        exact[f"probe, blocks, CKA, {kernel}"] = ("probe", kernel, "cka", None, "blocks")
    for kernel in KERNELS:
        other = kernel != "features"
        named = f"probe, blocks, CKA, {kernel}, {'centred' if other else 'not centred'}"
        at_once[named] = ("probe", kernel, "cka", other, "blocks")
        named = f"probe, blocks, debiased CKA, {kernel}"
        at_once[named] = ("probe", kernel, "cka-debiased", None, "blocks")
    few["probe, blocks, RSA, features"] = ("probe", "features", "rsa", None, "blocks")
    return at_once, many, few


def run(lab: Lab) -> dict[str, Any]:
    names = lab.zoo.originals()
    lab.recordings.make((n, "probe", "default") for n in names)
    lab.recordings.make((n, _own(n), "sketch") for n in names)
    at_once, many, few = settings()
    layers = lab.recordings(names[0], "probe").layer_names
    values = _at_once(lab, at_once, len(layers))
    for group, seeds in ((many, lab.scale.seeds), (few, lab.scale.few)):
        pairs = lab.pairs(seeds)
        keys = [(name, which) for name in group for which in pairs]
        jobs = [_job(lab, p, q, group[name]) for name, which in keys for p, q in pairs[which]]
        found = iter(score(jobs, f"pairs of {seeds} networks a data set"))
        for name, which in keys:
            scores = np.stack([next(found).values for _ in pairs[which]])
            values.setdefault(name, {})[which] = scores
    return {
        "layers": layers,
        "networks": {"all": lab.scale.seeds, "few": lab.scale.few},
        "settings": {name: judged(scores) for name, scores in values.items()},
    }


def _at_once(lab: Lab, plans: dict[str, Setting], depth: int) -> dict[str, dict[str, np.ndarray]]:
    names = lab.zoo.originals()
    files = [lab.recordings.path(n, "probe") for n in names]
    found = same_layers(files, [plan[1:4] for plan in plans.values()], depth, "all networks")
    place = {n: i for i, n in enumerate(names)}
    out: dict[str, dict[str, np.ndarray]] = {}
    for name, by_layer in zip(plans, found, strict=True):
        out[name] = {
            which: np.stack([by_layer[place[p], place[q]] for p, q in pairs])
            for which, pairs in lab.pairs(lab.scale.seeds).items()
        }
    return out


def _own(network: str) -> str:
    return f"train:{network.split('/')[0]}"


def _job(lab: Lab, p: str, q: str, setting: Setting) -> Job:
    data, kernel, index, centre, estimator = setting
    where = [(_own(n), "sketch") if data == "own" else (data, "default") for n in (p, q)]
    files = [lab.recordings.path(n, *w) for n, w in zip((p, q), where, strict=True)]
    return Job(*files, kernel, index, centre, estimator)


def judged(values: dict[str, np.ndarray]) -> dict[str, Any]:
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
