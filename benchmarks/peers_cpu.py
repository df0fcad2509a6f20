"""This package and its peers on one CPU: a 10 × 10 map of centred CKA of features.

Two networks of eight convolutions see the same 4,096 images of 3 × 32 × 32. Every method runs in a
process of its own, after a warm-up batch, on one thread: CPU seconds, peak memory over what the
process held before, and error against the exact float64 CKA of all 4,096 samples (the debiased
one for the peers, since that is what they estimate). The bare forward passes of both networks are
the floor. Rounds go through all methods, so that they share whatever else the machine does.

`peak_mb` is the peak of an ordinary process, over what it holds once the memory that the warm-up
freed has been given back; `peak_mb_returning` is that of one more run in which all freed memory
goes back at once: what was alive, without the allocator's habits. Peers are needed for this file
only:

    pip install pytorch-cka torch-cka cka-pytorch
    python -m benchmarks.peers_cpu --out benchmarks/results/peers_cpu.json
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.metadata
import io
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTHS = (16, 16, 32, 32, 64, 64, 128, 128)
TAPS = [f"act{i}" for i in range(8)] + ["pool", "head"]
IMAGES, BATCH = 4096, 128


class Net(nn.Module):
    """Eight 3 × 3 convolutions, each with a batch norm and a ReLU, halved every second one."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        channels = 3
        for i, width in enumerate(WIDTHS):
            stride = 2 if i % 2 and i > 1 else 1
            conv = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
            nn.init.normal_(conv.weight, std=(2 / (9 * channels)) ** 0.5, generator=generator)
            self.add_module(f"conv{i}", conv)
            self.add_module(f"norm{i}", nn.BatchNorm2d(width))
            self.add_module(f"act{i}", nn.ReLU())
            channels = width
        self.pool, self.flatten = nn.AdaptiveAvgPool2d(1), nn.Flatten()
        self.head = nn.Linear(channels, 10)
        nn.init.normal_(self.head.weight, std=0.1, generator=generator)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in range(len(WIDTHS)):
            for part in ("conv", "norm", "act"):
                x = getattr(self, f"{part}{i}")(x)
        return self.head(self.flatten(self.pool(x)))


def images() -> torch.Tensor:
    """Smooth random images of ten kinds: noise at two scales about one of ten patterns."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(10, 3, 4, 4, generator=generator)
    coarse = patterns[torch.randint(10, (IMAGES,), generator=generator)]
    coarse = coarse + torch.randn(IMAGES, 3, 4, 4, generator=generator)
    smooth = nn.functional.interpolate(coarse, size=(32, 32), mode="bilinear")
    return smooth + 0.3 * torch.randn(IMAGES, 3, 32, 32, generator=generator)


def networks(x: torch.Tensor) -> tuple[Net, Net]:
    """Two networks whose batch norms know the data, in evaluation mode."""
    nets = Net(1), Net(2)
    with torch.no_grad():
        for net in nets:
            net.train()
            for start in range(0, 1024, 256):
                net(x[start : start + 256])
            net.eval()
    return nets


# -- the methods: each returns the (10, 10) map ---------------------------------------------------


def forwards(nets: tuple[Net, ...], x: torch.Tensor, loader: DataLoader) -> None:
    size = loader.batch_size or BATCH
    with torch.inference_mode():
        for net in nets:
            for start in range(0, len(x), size):
                net(x[start : start + size])


def resemblance_tensor(nets: tuple[Net, Net], x: torch.Tensor, loader: DataLoader) -> np.ndarray:
    import resemblance as rs

    size = loader.batch_size
    options = {"block": size, "batch_size": size, "buckets": 0, "gradients": False}
    a, b = (rs.record(net, x, layers=TAPS, progress=False, **options) for net in nets)
    return rs.compare(a, b, kernel="features").scores


def resemblance_buckets(nets: tuple[Net, Net], x: torch.Tensor, loader: DataLoader) -> np.ndarray:
    import resemblance as rs

    a, b = (rs.record(n, x, layers=TAPS, gradients=False, progress=False) for n in nets)
    return rs.compare(a, b, kernel="features").scores


def pytorch_cka(nets: tuple[Net, Net], x: torch.Tensor, loader: DataLoader) -> np.ndarray:
    from cka import compute_cka

    return compute_cka(*nets, loader, layers=TAPS, device="cpu", progress=False)[0].numpy()


def torch_cka(nets: tuple[Net, Net], x: torch.Tensor, loader: DataLoader) -> np.ndarray:
    from torch_cka import CKA

    names = {"model1_name": "a", "model2_name": "b"}
    cka = CKA(*nets, **names, model1_layers=TAPS, model2_layers=TAPS, device="cpu")
    with torch.no_grad():
        cka.compare(loader)
    return cka.export()["CKA"].numpy()


def cka_pytorch(nets: tuple[Net, Net], x: torch.Tensor, loader: DataLoader) -> np.ndarray:
    _torchvision_operators()
    from cka_pytorch.cka import CKACalculator

    layers = {"model1_layers": TAPS, "model2_layers": TAPS}
    names = {"model1_name": "a", "model2_name": "b"}
    calculator = CKACalculator(*nets, **layers, **names, verbose=False)
    return calculator.calculate_cka_matrix(loader, num_epochs=1).cpu().numpy()  # 10 by default


METHODS = {  # name: function, package, samples in a batch and in a block
    "two bare forwards": (forwards, None, BATCH),
    "resemblance": (resemblance_tensor, "resemblance", BATCH),
    "resemblance, with buckets": (resemblance_buckets, "resemblance", BATCH),
    "pytorch-cka": (pytorch_cka, "pytorch_cka", BATCH),
    "torch-cka": (torch_cka, "torch-cka", BATCH),
    "cka-pytorch": (cka_pytorch, "cka-pytorch", BATCH),
    "two bare forwards, batches of 64": (forwards, None, 64),
    "resemblance, batches of 64": (resemblance_tensor, "resemblance", 64),
    "pytorch-cka, batches of 64": (pytorch_cka, "pytorch_cka", 64),
}


def _torchvision_operators() -> None:
    """Let torchvision import where its compiled part does not fit this torch; nothing calls it."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [m for m in sys.modules if m.startswith("torchvision")]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        globals()["_library"] = library  # operators live as long as it does


# -- measuring ------------------------------------------------------------------------------------


def exact(nets: tuple[Net, Net], x: torch.Tensor) -> dict[str, np.ndarray]:
    """CKA of all samples from float64 kernels: centred, and debiased (what the peers estimate)."""
    sides: list[dict[str, list[torch.Tensor]]] = []
    for net in nets:
        kept: dict[str, list[torch.Tensor]] = {name: [] for name in TAPS}
        hooks = [
            net.get_submodule(name).register_forward_hook(
                lambda _, __, out, into=kept[name]: into.append(out.flatten(1))
            )
            for name in TAPS
        ]
        forwards((net,), x, DataLoader(TensorDataset(x), batch_size=BATCH))
        for hook in hooks:
            hook.remove()
        side: dict[str, list[torch.Tensor]] = {"centred": [], "debiased": []}
        for name in TAPS:
            features = torch.cat(kept.pop(name)).double()
            features -= features.mean(0)
            kernel = features @ features.T
            side["centred"].append((kernel / kernel.norm()).float())  # float32 holds twenty
            n = len(kernel)
            kernel.fill_diagonal_(0)
            sums = kernel.sum(0)
            kernel -= (sums[:, None] + sums) / (n - 2)
            kernel += sums.sum() / ((n - 1) * (n - 2))
            kernel.fill_diagonal_(0)
            side["debiased"].append((kernel / kernel.norm()).float())
        sides.append(side)
    return {
        kind: np.array(
            [[float((p * q).sum(dtype=torch.float64)) for q in sides[1][kind]] for p in one]
        )
        for kind, one in sides[0].items()
    }


def memory(field: str) -> float:  # MB
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise KeyError(field)


def measure(name: str) -> dict[str, object]:
    """Run one method in this process."""
    x = images()
    nets = networks(x)
    method, _, size = METHODS[name]
    few = TensorDataset(x[: 2 * BATCH], torch.zeros(2 * BATCH))
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        method(networks(x), few.tensors[0], DataLoader(few, batch_size=size))  # warm-up
        ctypes.CDLL(None).malloc_trim(0)  # what the warm-up left behind is no base to count from
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        base, before = memory("VmRSS"), resource.getrusage(resource.RUSAGE_SELF)
        loader = DataLoader(TensorDataset(x, torch.zeros(len(x))), batch_size=size)
        found = method(nets, x, loader)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "peak_mb": memory("VmHWM") - base,
        "scores": None if found is None else np.asarray(found, float).tolist(),
    }


def version(package: str | None) -> str | None:
    """Of what was run, which need not be what is installed."""
    if package == "resemblance":
        import resemblance

        return resemblance.__version__
    try:
        return importlib.metadata.version(package) if package else None
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def worker(name: str, **environment: str) -> dict[str, object]:
    """What `measure` found in a process of its own, or why it did not."""
    command = [sys.executable, "-m", "benchmarks.peers_cpu", "--worker", name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
        )
    except subprocess.TimeoutExpired:
        return {"failed": "took more than 300 s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def row(
    name: str, runs: list[dict[str, object]], truth: dict[str, np.ndarray]
) -> dict[str, object]:
    """A method's medians over its runs, and one more run with freed memory returned at once."""
    out: dict[str, object] = {"method": name, "version": version(METHODS[name][1])}
    failed = [run["failed"] for run in runs if "failed" in run]
    if failed:
        return {**out, "failed": failed[0]}
    for key in ("cpu_s", "peak_mb"):
        values = [float(run[key]) for run in runs]  # type: ignore[arg-type]
        out[key] = round(statistics.median(values), 2)
        out[f"{key}_range"] = [round(min(values), 2), round(max(values), 2)]
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    returning = worker(name, **settings).get("peak_mb")
    out["peak_mb_returning"] = round(float(returning), 1) if returning is not None else None  # type: ignore[arg-type]
    if runs[0]["scores"] is not None:
        out["estimates"] = "centred" if name.startswith("resemblance") else "debiased"
        error = np.abs(np.array(runs[0]["scores"]) - truth[str(out["estimates"])])
        out["mean_error"], out["worst_error"] = (
            round(float(error.mean()), 5),
            round(float(error.max()), 5),
        )
    print(out, flush=True)
    return out


def run_all(repeats: int, earlier: Path | None) -> dict[str, object]:
    x = images()
    known = json.loads(earlier.read_text())["exact"] if earlier else exact(networks(x), x)
    truth = {kind: np.array(values) for kind, values in known.items()}
    for kind, values in truth.items():
        print(f"exact {kind} CKA runs from {values.min():.3f} to {values.max():.3f}")
    runs: dict[str, list[dict[str, object]]] = {name: [] for name in METHODS}
    for _ in range(repeats):
        for name, found in runs.items():
            if not any("failed" in run for run in found):
                found.append(worker(name))
    rows = [row(name, found, truth) for name, found in runs.items()]
    return {
        "what": "10 × 10 map of centred CKA of features, two 8-conv networks, 4,096 images of "
        "3 × 32 × 32, one thread; CPU seconds and peak memory over the base, medians",
        "repeats": repeats,
        "environment": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "threads": 1,
        },
        "exact": {kind: values.round(7).tolist() for kind, values in truth.items()},
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", choices=list(METHODS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--exact-from", type=Path, help="an earlier result, to save its minutes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.worker:
        torch.set_num_threads(1)
        print(json.dumps(measure(options.worker)))
        return
    result = run_all(options.repeats, options.exact_from)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
