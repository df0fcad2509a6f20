"""How time and memory grow with samples, width, buckets, layers, classes and networks compared.

    python -m benchmarks.growth [--device cuda] [--out FILE] [--figure FILE]

A chain of layers that are cheap to run is recorded whole, features and gradients, and one quantity
grows at a time, each point in a process of its own. Layers are many and narrow, and classes come
after two such layers; both axes are recorded as `record` does by default, but for the layers named.
Times are CPU seconds of one thread (on a GPU, seconds by the clock), the least of three runs (or
of one that takes longer than ten seconds). Memory is the peak over what the process held before,
as its data, in a run in which freed memory goes back at once; else it would show the allocator's
habits. A line a + b·x (or a + b·x², see SQUARED) is fitted to each, with its R², and the exponent
of x over the larger half of the points: 1 is in proportion.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import nn

import resemblance as rs

HERE = Path(__file__).parent
BASE = {"samples": 2048, "width": 2048, "buckets": 512, "layers": 6}
NARROW = {"samples": 256, "width": 64, "layers": 2, "classes": 10}
POINTS = {
    "samples": (8192, 12288, 16384, 20480, 24576),  # from where the 64 blocks are full
    "width": (512, 1024, 2048, 4096, 6144),
    "buckets": (64, 128, 256, 512, 1024),
    "layers": (10, 30, 100, 300, 1000, 3000),
    "classes": (10, 100, 1000, 10_000, 100_000, 250_000),
    "networks": (80, 160, 320, 480, 640),  # from where as many rows as fit are read at a time
}
AXES = {
    "samples": "samples N",
    "width": "width of a layer d",
    "buckets": "buckets M",
    "layers": "layers",
    "classes": "classes",
    "networks": "networks compared R",
}
REPEATS, LONG = 3, 10.0  # runs of a point, and seconds of one that is not run again
# M × M products come at the end of a recording, and a comparison holds R × R sums: x². Its time is
# a line while reading R networks takes longer than multiplying them, up to here.
SQUARED = {("buckets", "seconds"), ("networks", "peak_mb")}


def recording(
    device: str, samples: int, width: int, buckets: int, layers: int
) -> Callable[[], Any]:
    """One recording of a chain of layers with one weight a feature."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Scale(width) for _ in range(layers)), nn.Linear(width, 10)).to(device)
    data = torch.randn(samples, width, device=device)
    options = {"buckets": buckets, "max_dim": None, "data_id": "random", "progress": False}
    names = [str(i) for i in range(layers)]
    return lambda: rs.record(model, data, layers=names, batch_size=128, **options)


def recording_narrow(
    device: str, samples: int, width: int, layers: int, classes: int
) -> Callable[[], Any]:
    """The same of narrow layers and many classes, with the defaults of `record`."""
    torch.manual_seed(0)
    chain = (Scale(width) for _ in range(layers))
    model = nn.Sequential(*chain, nn.Linear(width, classes)).to(device)
    data, names = torch.randn(samples, width, device=device), [str(i) for i in range(layers)]
    return lambda: rs.record(model, data, layers=names, data_id="random", progress=False)


class Scale(nn.Module):
    """x ↦ tanh(w ∘ x)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.weight * x)


def comparing(device: str, networks: int) -> Callable[[], Any]:
    """All pairs of networks of one layer, 16 blocks of 128 samples."""
    rng = np.random.default_rng(0)
    cause = rng.normal(size=(2048, 8))
    reps = [
        rs.record_arrays(
            cause @ rng.normal(size=(8, 16)) + rng.normal(size=(2048, 16)),
            data_id="random",
            buckets=0,
            name=str(i),
        )
        for i in range(networks)
    ]
    return lambda: rs.compare_all(reps, kernel="features", device=device)


def peak(device: str) -> float:  # MB
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / 1e6
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024 / 1e6


def measure(device: str, axis: str, value: int, repeats: int) -> dict[str, float]:
    """Time and peak memory of one point, in this process."""
    torch.set_num_threads(1)
    if axis == "networks":
        comparing(device, 2)()
        work = comparing(device, value)
    elif axis in ("layers", "classes"):
        recording_narrow(device, **NARROW)()
        work = recording_narrow(device, **{**NARROW, axis: value})
    else:
        recording(device, 256, 64, 16, 2)()
        work = recording(device, **{**BASE, axis: value})
    before = peak(device)
    clock = time.process_time if device == "cpu" else time.perf_counter
    times = []
    while not times or (len(times) < repeats and times[0] < LONG):
        start = clock()
        work()
        times.append(clock() - start)
    return {"seconds": min(times), "peak_mb": peak(device) - before}


def point(device: str, axis: str, value: int) -> dict[str, float]:
    """The same from two processes: one for the time, one for memory."""

    def worker(repeats: int, **environment: str) -> dict[str, float]:
        words = [sys.executable, "-m", "benchmarks.growth", "--device", device]
        words += ["--worker", axis, str(value), str(repeats)]
        found = subprocess.run(
            words, check=True, capture_output=True, text=True, env={**os.environ, **environment}
        )
        return json.loads(found.stdout.splitlines()[-1])

    seconds = worker(REPEATS)["seconds"]
    memory = worker(1, MALLOC_MMAP_THRESHOLD_="65536", MALLOC_TRIM_THRESHOLD_="65536")
    return {"x": value, "seconds": seconds, "peak_mb": memory["peak_mb"]}


def line(x: np.ndarray, y: np.ndarray, power: int) -> dict[str, float]:
    """The least-squares line a + b·x^power, its R², and the slope of log y at the larger x."""
    b, a = np.polyfit(x**power, y, 1)
    rest, spread = y - (a + b * x**power), y - y.mean()
    large = slice(len(x) // 2, None)
    slope = np.polyfit(np.log(x[large]), np.log(np.maximum(y[large], 1e-9)), 1)[0]
    r2 = 1 - (rest @ rest) / (spread @ spread)
    return {"a": a, "b": b, "power": power, "r2": r2, "exponent": slope}


def draw(result: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(AXES), figsize=(15, 6), constrained_layout=True)
    for column, (axis, label) in enumerate(AXES.items()):
        found = result[axis]
        x = np.array([point["x"] for point in found["points"]])
        for row, (key, unit) in enumerate((("seconds", "seconds"), ("peak_mb", "peak memory, MB"))):
            ax, fit = axes[row][column], found[key]
            y = [point[key] for point in found["points"]]
            ax.plot(x, y, "o", color="C0")
            along = np.linspace(x[0], x[-1], 50)
            ax.plot(along, fit["a"] + fit["b"] * along ** fit["power"], color="C1", lw=1)
            ax.set_ylim(0, 1.15 * max(*y, 1e-3))
            ax.set_xlim(0, None)
            kind = "a + b x²" if fit["power"] == 2 else "a + b x"
            flat = max(y) - min(y) < 0.1 * max(y)
            title = "flat" if flat else f"{kind}, R² = {fit['r2']:.3f}"
            ax.set_title(title, fontsize=10)
            ax.locator_params(axis="x", nbins=4)
            ax.set_xlabel(label)
            ax.spines[["top", "right"]].set_visible(False)
            if column == 0:
                ax.set_ylabel(unit)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=HERE / "results/growth.json")
    parser.add_argument("--figure", type=Path, default=HERE.parent / "docs/figures/growth.png")
    parser.add_argument(
        "--axes", nargs="*", default=list(POINTS), help="to measure; others stay as they are"
    )
    parser.add_argument("--most", type=int, help="leave out points beyond this")
    parser.add_argument("--worker", nargs=3, metavar=("AXIS", "VALUE", "REPEATS"))
    options = parser.parse_args()
    if options.worker:
        axis, value, repeats = options.worker
        print(json.dumps(measure(options.device, axis, int(value), int(repeats))))
        return
    result: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    result |= {
        "base": BASE,
        "environment": {
            "device": "one CPU thread" if options.device == "cpu" else torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "date": str(date.today()),
        },
    }
    for axis in options.axes:
        points = [
            point(options.device, axis, value)
            for value in POINTS[axis]
            if value <= (options.most or value)
        ]
        result[axis] = {"points": points, "date": str(date.today())}
    for axis in (axis for axis in POINTS if axis in result):
        x = np.array([found["x"] for found in result[axis]["points"]], float)
        for key in ("seconds", "peak_mb"):
            y = np.array([found[key] for found in result[axis]["points"]])
            fit = result[axis][key] = line(x, y, 2 if (axis, key) in SQUARED else 1)
            formula = f"{fit['a']:.3f} + {fit['b']:.3e} x^{fit['power']}"
            shown = f"R² {fit['r2']:.4f} exponent {fit['exponent']:.2f}"
            print(f"{axis:<10}{key:<9}{formula:<28}{shown}", y.round(3), flush=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    draw(result, options.figure)


if __name__ == "__main__":
    main()
