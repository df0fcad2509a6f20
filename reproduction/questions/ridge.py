"""(8) Kernel ridge on sketched kernels, block by block, against a linear probe of the last vector.

Networks classify data that they were not trained on, without being trained further. The paper's
figure has one curve for the product kernel; features are set beside it. The linear probe is
multinomial logistic regression on the pooled vector: to convergence, and for one epoch.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import resemblance as rs

from ..images import inputs
from ..nets import ResNet
from .lab import KERNELS, Lab

TASKS = (("cifar100", "cifar10"), ("cifar100", "svhn"), ("cifar10", "cifar100"))
RATES = (1e-3, 1e-2, 1e-1)
Job = tuple[Path, str, int, Path, str, str, int, str]


def run(lab: Lab) -> dict[str, Any]:
    rows = []
    jobs: list[Job] = []
    for source, target in TASKS:
        name, data = f"{source}/resnet18/0", lab.data[target]
        net, n = lab.zoo(name), lab.scale.ridge
        file = lab.recordings.folder / f"labelled-{target}.safetensors"
        known = torch.isin(data.yte, data.ytr[:n])  # a few labels may not have all classes
        content = {
            "x": data.xtr[:n], "y": data.ytr[:n], "xte": data.xte[known], "yte": data.yte[known],
        }  # fmt: skip
        save_file({k: v.contiguous().cpu() for k, v in content.items()}, file)
        rows.append({"source": source, "target": target, "samples": n, **_probes(net, content)})
        print(f"linear probe, {source} to {target}: {rows[-1]}", flush=True)
        jobs += [
            (lab.zoo.path(name), "resnet18", lab.scale.width, file, tap, kernel,
             lab.scale.buckets, str(lab.zoo.device))
            for tap in net.taps for kernel in KERNELS
        ]  # fmt: skip
    workers = min(8, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        found = iter(pool.map(_ridge, jobs))
        for row in rows:
            by_tap = [[next(found) for _ in KERNELS] for _ in net.taps]
            row["ridge"] = dict(zip(KERNELS, zip(*by_tap, strict=True), strict=True))
    return {"layers": net.taps, "buckets": lab.scale.buckets, "tasks": rows}


def _ridge(job: Job) -> dict[str, float]:
    """Accuracy on test images of ridge on M sketched items, α by cross-validation."""
    weights, architecture, width, file, tap, kernel, buckets, device = job
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 8))
    content, state = load_file(file, device=device), load_file(weights)
    net = ResNet(architecture, len(state["head.bias"]), width)
    net.load_state_dict(state)
    net = net.to(device).eval()
    chooser = rs.KernelClassifier(
        net, layer=tap, kernel=kernel, sketch="both", buckets=buckets, batch_size=512
    )
    with torch.autocast("cuda", torch.bfloat16, enabled=device.startswith("cuda")):
        chooser.fit(inputs(content["x"]), content["y"].cpu().numpy())
        score = chooser.score(inputs(content["xte"]), content["yte"].cpu().numpy())
    return {"accuracy": score, "alpha": chooser.alpha_}


def _probes(net: ResNet, content: dict[str, Tensor]) -> dict[str, float]:
    x, xte = (_pooled(net, content[key]) for key in ("x", "xte"))
    mean, spread = x.mean(0), x.std(0).clamp_min(1e-6)
    x, xte = (x - mean) / spread, (xte - mean) / spread
    classes = int(content["y"].max()) + 1
    held = len(x) // 10

    def accuracy(head: nn.Linear, a: Tensor, b: Tensor) -> float:
        return float((head(a).argmax(1) == b).double().mean())

    y, yte = content["y"], content["yte"]
    decays = (1e-4, 1e-3, 1e-2)
    best = max(decays, key=lambda d: accuracy(converged(x[held:], y[held:], classes, d),
                                              x[:held], y[:held]))  # fmt: skip
    rate = max(RATES, key=lambda r: accuracy(one_epoch(x[held:], y[held:], classes, r),
                                             x[:held], y[:held]))  # fmt: skip
    return {
        "probe, converged": accuracy(converged(x, y, classes, best), xte, yte),
        "probe, one epoch": accuracy(one_epoch(x, y, classes, rate), xte, yte),
        "decay": best,
        "rate": rate,
    }


@torch.no_grad()
def _pooled(net: ResNet, images: Tensor) -> Tensor:
    return torch.cat([net.trunk(inputs(part)).float() for part in images.split(2048)])


def converged(x: Tensor, y: Tensor, classes: int, decay: float) -> nn.Linear:
    """Multinomial logistic regression at its minimum."""
    head = nn.Linear(x.shape[1], classes, device=x.device)
    nn.init.zeros_(head.weight)
    optimiser = torch.optim.LBFGS(
        head.parameters(), max_iter=500, history_size=20, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(head(x), y) + decay * head.weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return head


def one_epoch(x: Tensor, y: Tensor, classes: int, rate: float) -> nn.Linear:
    """The same after one epoch of SGD in batches of 128."""
    torch.manual_seed(0)
    head = nn.Linear(x.shape[1], classes, device=x.device)
    optimiser = torch.optim.SGD(head.parameters(), rate, momentum=0.9)
    for rows in torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).split(128):
        rows = rows.to(x.device)
        optimiser.zero_grad()
        F.cross_entropy(head(x[rows]), y[rows]).backward()
        optimiser.step()
    return head
