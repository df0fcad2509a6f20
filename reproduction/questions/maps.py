"""(4) Which layers are alike? Maps of all layers within and across ResNet-18 and ResNet-50.

Of each pair of data sets one map: two ResNet-18s of other seeds, a ResNet-50 and a ResNet-50 (for
one data set, with itself), a ResNet-18 and a ResNet-50.
"""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import Any

from scale import DATA
from scoring import Job, score

from questions.lab import KERNELS, Lab


def run(lab: Lab) -> dict[str, Any]:
    pairs = _pairs()
    names = {name for three in pairs.values() for pair in three.values() for name in pair}
    for name in sorted(names):
        own = f"train:{name.split('/')[0]}"
        lab.recordings.make([(name, "probe", "default"), (name, own, "sketch")])
    keys = [
        (kind, which, kernel, setting)
        for kind in pairs for which in pairs[kind] for kernel in KERNELS
        for setting in ("probe, blocks", "own data, Algorithm 1")
    ]  # fmt: skip
    found = score([_job(lab, pairs[k][w], kernel, s) for k, w, kernel, s in keys], "maps")
    maps = [
        {
            "networks": kind, "data": which, "kernel": kernel, "setting": setting,
            "pair": pairs[kind][which], "scores": scores.values.round(4).tolist(),
        }
        for (kind, which, kernel, setting), scores in zip(keys, found, strict=True)
    ]  # fmt: skip
    layers = {
        kind: lab.recordings(f"cifar10/{kind}/0", "probe").layer_names
        for kind in ("resnet18", "resnet50")
    }
    return {"layers": layers, "maps": maps}


def _pairs() -> dict[str, dict[str, tuple[str, str]]]:
    homes = list(combinations_with_replacement(DATA, 2))
    all_homes = [(a, b) for a in DATA for b in DATA]
    return {
        "resnet18-resnet18": {f"{a}-{b}": (f"{a}/resnet18/0", f"{b}/resnet18/1") for a, b in homes},
        "resnet50-resnet50": {f"{a}-{b}": (f"{a}/resnet50/0", f"{b}/resnet50/0") for a, b in homes},
        "resnet18-resnet50": {
            f"{a}-{b}": (f"{a}/resnet18/0", f"{b}/resnet50/0") for a, b in all_homes
        },
    }


def _job(lab: Lab, pair: tuple[str, str], kernel: str, setting: str) -> Job:
    if setting.startswith("probe"):
        files = [lab.recordings.path(name, "probe") for name in pair]
        return Job(*files, kernel, estimator="blocks", layers="all")
    files = [lab.recordings.path(n, f"train:{n.split('/')[0]}", "sketch") for n in pair]
    return Job(*files, kernel, estimator="paper", layers="all")
