"""(4) Which layers are alike? Maps of all layers within and across ResNet-18 and ResNet-50.

Of each pair of data sets one map: two ResNet-18s of other seeds, a ResNet-50 and a ResNet-50 (for
one data set, with itself), a ResNet-18 and a ResNet-50.
"""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import Any

from ..scale import ARCHITECTURES, DATA
from ..scoring import Job, Plan, score
from .lab import KERNELS, Lab

SETTINGS = {"probe, blocks": "blocks", "own data, Algorithm 1": "paper"}


def run(lab: Lab) -> dict[str, Any]:
    keys = [(kind, which, setting) for kind, which in _pairs() for setting in SETTINGS]
    jobs = [_job(lab, _pairs()[kind, which], setting) for kind, which, setting in keys]
    maps = [
        {
            "networks": kind, "data": which, "kernel": kernel, "setting": setting,
            "pair": _pairs()[kind, which], "scores": scores.values.round(4).tolist(),
        }
        for (kind, which, setting), found in zip(keys, score(jobs, "maps"), strict=True)
        for kernel, scores in zip(KERNELS, found, strict=True)
    ]  # fmt: skip
    layers = {
        kind: lab.recordings(f"cifar10/{kind}/0", "probe").layer_names for kind in ARCHITECTURES
    }
    return {"layers": layers, "maps": maps}


def _pairs() -> dict[tuple[str, str], tuple[str, str]]:
    homes = list(combinations_with_replacement(DATA, 2))
    out = {}
    for a, b in homes:
        out["resnet18-resnet18", f"{a}-{b}"] = (f"{a}/resnet18/0", f"{b}/resnet18/1")
        out["resnet50-resnet50", f"{a}-{b}"] = (f"{a}/resnet50/0", f"{b}/resnet50/0")
    for a in DATA:
        for b in DATA:
            out["resnet18-resnet50", f"{a}-{b}"] = (f"{a}/resnet18/0", f"{b}/resnet50/0")
    return out


def _job(lab: Lab, pair: tuple[str, str], setting: str) -> Job:
    shared = setting.startswith("probe")
    data = [("probe", "default") if shared else (_own(name), "sketch") for name in pair]
    wanted = [(name, *where) for name, where in zip(pair, data, strict=True)]
    lab.recordings.make(wanted)
    rows, columns = ((lab.recordings.path(*w),) for w in wanted)
    plans = tuple(Plan(kernel, estimator=SETTINGS[setting]) for kernel in KERNELS)
    return Job(rows, columns, None, plans)


def _own(network: str) -> str:
    return f"train:{network.split('/')[0]}"
