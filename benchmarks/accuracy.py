"""How far each estimator lies from the exact index: blocks, buckets, and the paper's Algorithm 1.

Two small CNNs trained on scikit-learn's digits give real features and gradients; wide synthetic
ones, which share a cause, let the number of samples grow further. For each kernel the exact N × N
matrix gives the truth in float64. Errors are over all pairs of layers and several seeds.

    python -m benchmarks.accuracy --out benchmarks/results/accuracy.json \
        --figure docs/figures/accuracy.png
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

import resemblance as rs

TAPS = ("act1", "act2", "act3", "act4")
KERNELS = (("features", True), ("gradients", False), ("product", False))
Arrays = dict[str, tuple[np.ndarray, np.ndarray]]  # layer: features and gradients, (N, d) each


class DigitNet(nn.Sequential):
    """Three convolutions and a linear layer, each with a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.act1 = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU()
        self.conv2, self.act2 = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()
        self.conv3, self.act3 = nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.ReLU()
        self.flat = nn.Flatten()
        self.fc, self.act4 = nn.Linear(64, 32), nn.ReLU()
        self.head = nn.Linear(32, 10)


def trained(images: torch.Tensor, labels: torch.Tensor, seed: int) -> DigitNet:
    torch.manual_seed(seed)
    net = DigitNet()
    optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(8):
        for at in torch.randperm(len(images)).split(64):
            loss = nn.functional.cross_entropy(net(images[at]), labels[at])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return net


def features_and_gradients(net: DigitNet, images: torch.Tensor, beta: float = 0.5) -> Arrays:
    """At every tap, by plain autograd in float64."""
    double = DigitNet().double()
    double.load_state_dict(net.state_dict())
    x, kept = images.double(), {}
    for name, part in double.requires_grad_(False).named_children():
        x = part(x)
        if name in TAPS:
            x = kept[name] = x.requires_grad_() if x.is_leaf else x
            x.retain_grad()
    (-(x.detach() * beta).softmax(1) * x.log_softmax(1)).sum().backward()
    return {
        name: (value.detach().flatten(1).numpy(), value.grad.flatten(1).numpy())
        for name, value in kept.items()
    }


def digits() -> tuple[Arrays, Arrays]:
    from sklearn.datasets import load_digits

    content = load_digits()
    images = torch.from_numpy(content.images).float()[:, None] / 16
    labels = torch.from_numpy(content.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    one, two = (features_and_gradients(trained(images, labels, seed), images) for seed in (0, 1))
    return one, two


def synthetic(samples: int, width: int = 256) -> tuple[Arrays, Arrays]:
    """Layers of two networks with a common cause of 24 directions of falling weight, and noise."""
    rng = np.random.default_rng(0)
    causes = [rng.normal(size=(samples, 24)) * np.arange(1, 25) ** -0.5 for _ in range(2)]

    def network() -> Arrays:
        return {
            f"layer{i}": tuple(
                np.maximum(cause @ rng.normal(size=(24, width)), 0 if kind == 0 else -np.inf)
                + 0.5 * (i + 1) * rng.normal(size=(samples, width))
                for kind, cause in enumerate(causes)
            )  # type: ignore[misc]
            for i in range(3)
        }

    return network(), network()


# -- truth ----------------------------------------------------------------------------------------


def kernel_of(name: str, f: np.ndarray, g: np.ndarray, centre: bool) -> np.ndarray:
    if centre:
        f, g = f - f.mean(0), g - g.mean(0)
    if name == "features":
        return f @ f.T
    return g @ g.T if name == "gradients" else (f @ f.T) * (g @ g.T)


def exact(one: Arrays, two: Arrays, kernel: str, centre: bool, index: str) -> np.ndarray:
    kernels = [[kernel_of(kernel, *parts, centre) for parts in net.values()] for net in (one, two)]
    if index == "nbs":
        return np.array([[rs.nbs(p, q) for q in kernels[1]] for p in kernels[0]])
    flat = [np.stack([(k / np.linalg.norm(k)).ravel() for k in side]) for side in kernels]
    return flat[0] @ flat[1].T


# -- estimates ------------------------------------------------------------------------------------


def estimates(
    one: Arrays,
    two: Arrays,
    kernel: str,
    centre: bool,
    index: str,
    estimator: str,
    size: int,
    seeds: int,
) -> Iterator[rs.Comparison]:
    option = (
        {"block": size, "buckets": 0} if estimator == "blocks" else {"buckets": size, "blocks": 0}
    )
    for seed in range(seeds):
        reps = [
            rs.record_arrays(
                {name: f for name, (f, _) in net.items()},
                {name: g for name, (_, g) in net.items()},
                data_id="shared",
                seed=seed,
                **option,
            )
            for net in (one, two)
        ]
        yield rs.compare(*reps, kernel=kernel, centre=centre, index=index, estimator=estimator)


def row(
    data: str,
    one: Arrays,
    two: Arrays,
    kernel: str,
    centre: bool,
    index: str,
    estimator: str,
    size: int,
    seeds: int,
    truth: np.ndarray,
) -> dict[str, object]:
    found = list(estimates(one, two, kernel, centre, index, estimator, size, seeds))
    error = np.abs(np.stack([c.scores for c in found]) - truth)
    stderr = np.stack([c.stderr for c in found])
    out = {
        "data": data,
        "samples": len(next(iter(one.values()))[0]),
        "kernel": kernel,
        "index": index,
        "estimator": estimator,
        "size": size,
        "mean_error": round(float(error.mean()), 5),
        "worst_error": round(float(error.max()), 5),
        "mean_stderr": round(float(stderr.mean()), 5),
        "within_two_stderr": round(float((error <= 2 * stderr).mean()), 3),
    }
    print(out, flush=True)
    return out


def first(net: Arrays, samples: int) -> Arrays:
    return {name: (f[:samples], g[:samples]) for name, (f, g) in net.items()}


def measure(seeds: int) -> list[dict[str, object]]:
    rows = []
    sizes = {"blocks": (16, 32, 64, 128), "buckets": (128, 512, 2048), "paper": (128, 512, 2048)}
    default = {"blocks": (128,), "buckets": (512,), "paper": (512,)}
    whole = digits()
    cases = [("digits", *whole, sizes)]
    cases += [("digits", *(first(net, n) for net in whole), default) for n in (300, 600, 1200)]
    cases += [("synthetic", *synthetic(n), default) for n in (1000, 4000)]
    for data, one, two, tried in cases:
        for kernel, centre in KERNELS:
            truth = exact(one, two, kernel, centre, "cka")
            for estimator, at in tried.items():
                for size in at:
                    rows.append(
                        row(data, one, two, kernel, centre, "cka", estimator, size, seeds, truth)
                    )
    fewer = [first(net, 1200) for net in whole]
    for kernel, centre in (("features", True), ("product", False)):
        truth = exact(*fewer, kernel, centre, "nbs")
        for estimator, size in (("blocks", 128), ("buckets", 512)):
            rows.append(row("digits", *fewer, kernel, centre, "nbs", estimator, size, 1, truth))
    return rows


def draw(rows: list[dict], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.4), layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2, sharey=True)
    colours = {"features": "#0072b2", "gradients": "#d55e00", "product": "#009e73"}
    styles = {"blocks": "o-", "buckets": "s--", "paper": "^:"}
    hollow = {"paper": {"mfc": "white", "ms": 8}}  # stays in view where it meets the buckets
    most = max(r["samples"] for r in rows if r["data"] == "digits")
    for kernel, colour in colours.items():
        for estimator, style in styles.items():
            mine = [
                r
                for r in rows
                if (r["kernel"], r["estimator"], r["index"], r["data"])
                == (kernel, estimator, "cka", "digits")
            ]
            at = [r for r in mine if r["samples"] == most]
            label = f"{kernel}, {estimator}"
            left.plot(
                [r["size"] for r in at],
                [r["mean_error"] for r in at],
                style,
                color=colour,
                **{"ms": 4, **hollow.get(estimator, {})},
                lw=1.3,
                label=label,
            )
            usual = 128 if estimator == "blocks" else 512
            by_n = sorted((r for r in mine if r["size"] == usual), key=lambda r: r["samples"])
            right.plot(
                [r["samples"] for r in by_n],
                [r["mean_error"] for r in by_n],
                style,
                color=colour,
                **{"ms": 4, **hollow.get(estimator, {})},
                lw=1.3,
            )
    left.set(
        xscale="log",
        yscale="log",
        xlabel="samples in a block, or buckets",
        ylabel="mean error of CKA",
        title=f"size of the estimator, {most:,} samples",
    )
    left.set_xticks([16, 32, 64, 128, 512, 2048], ["16", "32", "64", "128", "512", "2048"])
    right.set(
        xscale="log", xlabel="samples", title="number of samples (blocks of 128, 512 buckets)"
    )
    ticks = sorted({r["samples"] for r in rows if r["data"] == "digits"})
    right.set_xticks(ticks, [f"{n:,}" for n in ticks])
    for axes in (left, right):
        axes.minorticks_off()
        axes.grid(color="0.9", lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--from-json", type=Path, help="draw the figure of an earlier run")
    options = parser.parse_args()
    if options.from_json:
        rows = json.loads(options.from_json.read_text())["rows"]
    else:
        torch.set_num_threads(1)
        rows = measure(options.seeds)
    if options.out:
        environment = {
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
        }
        what = "error of CKA and NBS against the exact index of all samples, over pairs of layers"
        content = {"what": what, "seeds": options.seeds, "environment": environment, "rows": rows}
        options.out.write_text(json.dumps(content, indent=1) + "\n")
    if options.figure:
        draw(rows, options.figure)


if __name__ == "__main__":
    main()
