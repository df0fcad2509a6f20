"""What recording costs: the pass with all blocks of a CIFAR ResNet-18 tapped, against the same
forward and activation-only backward without any recording, on CPU.

    python -m benchmarks.pass_cpu [--samples 512] [--repeats 5] [--threads 2]

Both run in evaluation mode with parameters frozen, on the same batches of random images; the bare
pass takes the same first tap as its leaf and the same loss. Times are interleaved in one process,
ratios are those of medians, and peak memory is measured in a process for each. Beside wall time
stands CPU time, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

# Before torch is loaded: threads that wait then sleep, so that CPU time is work.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

import resemblance as rs

from .networks import ResNet18

RESULT = Path(__file__).parent / "results" / "pass_cpu.json"
BATCH = 128


def setup(samples: int) -> tuple[ResNet18, torch.Tensor]:
    torch.manual_seed(0)
    return ResNet18().eval(), torch.randn(samples, 3, 32, 32)


def bare(model: ResNet18, images: torch.Tensor) -> None:
    """Forward and activation-only backward; the stem's output is the leaf, as in `record`."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for batch in images.split(BATCH):
        leaf = model.relu(model.bn1(model.conv1(batch))).detach().requires_grad_()
        z = model.fc(torch.flatten(model.pool(model.layers(leaf.clone())), 1))
        q = torch.softmax(0.5 * z.detach(), 1)
        torch.autograd.grad(-(q * torch.log_softmax(z, 1)).sum(), leaf)


def recorded(model: ResNet18, images: torch.Tensor) -> rs.Representation:
    return rs.record(model, images, batch_size=BATCH)


def peak_memory(what: str, samples: int, threads: int) -> float:
    """Peak resident memory in MB (10^6 bytes) of one way, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.pass_cpu", "--only", what]
    command += ["--samples", str(samples), "--threads", str(threads)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def own_peak_memory() -> float:
    """From /proc where there is one, as getrusage there counts what a parent used before exec."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def cpu_model() -> str:
    if not Path("/proc/cpuinfo").exists():
        return platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=["setup", "bare", "recorded"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, images = setup(args.samples)
    ways = {"bare": bare, "recorded": recorded}
    if args.only:
        if args.only in ways:
            ways[args.only](model, images)
        print(own_peak_memory())
        return

    clocks = {"wall": time.perf_counter, "cpu": time.process_time}
    times: dict[str, dict[str, list[float]]] = {
        clock: {way: [] for way in ways} for clock in clocks
    }
    loads = []
    for repeat in range(args.repeats + 1):
        for way, function in ways.items():
            start = {clock: read() for clock, read in clocks.items()}
            function(model, images)
            for clock, read in clocks.items():
                if repeat:  # the first round warms up
                    times[clock][way].append(read() - start[clock])
        loads.append(round(os.getloadavg()[0], 1))
    medians = {
        clock: {way: statistics.median(values) for way, values in by_way.items()}
        for clock, by_way in times.items()
    }
    ratios = {c: round(m["recorded"] / m["bare"], 3) for c, m in medians.items()}
    layers = recorded(model, images[:BATCH]).layer_names
    result = {
        "what": "record(all blocks) against forward + activation-only backward, CIFAR ResNet-18",
        "samples": args.samples,
        "batch_size": BATCH,
        "layers": layers,
        "repeats": args.repeats,
        "ratio_of_medians": ratios,
        "seconds": {
            clock: {way: [round(t, 2) for t in values] for way, values in by_way.items()}
            for clock, by_way in times.items()
        },
        "load_average_after_each_round": loads,
        "peak_memory_mb": {
            way: round(peak_memory(way, args.samples, args.threads), 1)
            for way in ("setup", "bare", "recorded")
        },
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "resemblance": rs.__version__,
            "cpu": cpu_model(),
            "threads": args.threads,
            "system": platform.system(),
            "date": date.today().isoformat(),
        },
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(f"{'':10} {'wall s':>8} {'CPU s':>8} {'peak MB':>8}")
    for way in ways:
        wall, cpu = medians["wall"][way], medians["cpu"][way]
        print(f"{way:10} {wall:8.2f} {cpu:8.2f} {result['peak_memory_mb'][way]:8.0f}")
    print(f"{'ratio':10} {ratios['wall']:8.3f} {ratios['cpu']:8.3f}")


if __name__ == "__main__":
    main()
