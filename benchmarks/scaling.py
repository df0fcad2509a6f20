"""Time against processes, what putting their parts together costs, and what checkpoints cost.

    OMP_NUM_THREADS=1 python -m benchmarks.scaling [--samples 12000] [--processes 1 2 4]
    python -m benchmarks.scaling --device cuda --samples 100000    # processes that share a GPU

A network of eight convolutions on images of 3 × 32 × 32, one thread a process, gloo on loopback,
processes as torchrun starts them. Of each number of processes: seconds of the pass by the clock and
of the processor (the longest of any process), and of joining the parts. The arithmetic of
docs/evidence/scale.md,

    seconds = fixed + samples · seconds a sample / processes + rounds of joining · seconds a round,
    bytes of a part = layers · kinds · (blocks, buckets, norms, sketch) + accumulators + outputs,

with its constants from 1,200 and 2,400 samples in one process and from one joining of two parts, is
then held against the full job, and against a sweep of several networks. It is the processor's
seconds that it predicts: where others use the machine, the clock's say little. Checkpoints: a
pass with 64 buckets with as many as there may be, and what was spent on them by the clock.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from torch import Tensor, nn

import resemblance as rs
from resemblance.recording import checkpoints as checkpoints_module
from resemblance.recording import distributed

SMALL = (1200, 2400)  # samples from which a sample's seconds are known
RESULTS = Path(__file__).parent / "results" / "scaling.json"


def network() -> nn.Sequential:
    torch.manual_seed(0)
    widths = [3, 16, 16, 32, 32, 64, 64, 64, 64]
    parts: list[nn.Module] = []
    for i in range(8):
        stride = 2 if i in (2, 4) else 1
        conv = nn.Conv2d(widths[i], widths[i + 1], 3, stride, 1)
        parts.append(nn.Sequential(conv, nn.BatchNorm2d(widths[i + 1]), nn.ReLU()))
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).eval()


def images(samples: int) -> Tensor:
    return torch.randn(samples, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def timed(samples: int, device: str = "cpu", **options: Any) -> tuple[float, float]:
    """Seconds of a pass by the clock, and of the processor."""
    net, data = network().to(device), images(samples)
    began = time.perf_counter(), time.process_time()
    rs.record(net, data, batch_size=128, progress=False, **options)
    return time.perf_counter() - began[0], time.process_time() - began[1]


def one_of_several(samples: int, device: str) -> None:
    """In each process: the pass, and of it the joining; the first prints both."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    timed(3000, device)  # so that nothing is the first time
    joining = [0.0, 0.0]
    upwards = distributed._reduce_to_rank_0

    def watched(part: Any, rank: int, count: int) -> Any:
        dist.barrier()
        began = time.perf_counter(), time.process_time()
        found = upwards(part, rank, count)
        joining[:] = time.perf_counter() - began[0], time.process_time() - began[1]
        return found

    distributed._reduce_to_rank_0 = watched
    dist.barrier()
    seconds, busy = timed(samples, device, shard="ranks")
    every = [0.0] * dist.get_world_size()
    dist.all_gather_object(every, busy)
    if dist.get_rank() == 0:
        found = {"seconds": seconds, "processor": max(every)}
        print(json.dumps({**found, "joining": joining[0], "joining_processor": joining[1]}))
    dist.destroy_process_group()


def with_processes(count: int, samples: int, device: str = "cpu") -> dict[str, float]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += [str(count), "-m", "benchmarks.scaling", "--worker", "--samples", str(samples)]
    command += ["--device", device]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def checkpoints(samples: int, every: float) -> dict[str, float]:
    """A pass with checkpoints, and the seconds that they took of it."""
    spent, count, size = 0.0, 0, 0
    own = checkpoints_module.CheckpointedPass._save

    def watched(self: checkpoints_module.CheckpointedPass) -> None:
        nonlocal spent, count, size
        began = time.perf_counter()
        own(self)
        spent += time.perf_counter() - began
        count += 1
        size = file.stat().st_size

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "checkpoint"
        checkpoints_module.CheckpointedPass._save = watched  # type: ignore[method-assign]
        try:
            seconds, _ = timed(samples, checkpoint=(file, every), buckets=64)
        finally:
            checkpoints_module.CheckpointedPass._save = own  # type: ignore[method-assign]
    return {
        "samples": samples,
        "every": every,
        "seconds": round(seconds, 2),
        "checkpoints": count,
        "spent": round(spent, 3),
        "share": round(spent / seconds, 4),
        "megabytes": round(size / 1e6, 1),
    }


JOBS = """
models: [{model: nets.py:network, weights: "*.pt"}]
data: {images: nets.py:images_}
options: {batch_size: 128}
"""
NETS = "from benchmarks.scaling import images, network\n\ndef images_():\n    return images({})\n"


def swept(models: int, samples: int) -> dict[str, float]:
    """Seconds that the pairs of a sweep took together, in one worker."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "jobs.yaml").write_text(JOBS)
        (place / "nets.py").write_text(NETS.format(samples))
        for i in range(models):
            torch.save(network().state_dict(), place / f"{i}.pt")
        command = [sys.executable, "-m", "resemblance", "sweep", str(place / "jobs.yaml")]
        paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
        began = os.times()
        done = subprocess.run(
            [*command, "--json", "-"],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        spent = os.times()
        pairs = json.loads(done.stdout)["pairs"]
    return {
        "seconds": sum(pair["seconds"] for pair in pairs),
        "processor": spent.children_user - began.children_user
        + spent.children_system - began.children_system,
    }  # fmt: skip


def bytes_of_part(rep: rs.Representation) -> int:
    """Of a recording with its accumulators, by the sizes that docs/reference/format.md states."""
    block, kept, buckets = rep.settings.block, len(rep.block_sizes), rep.settings.buckets
    total = 0
    for layer in rep:
        width = min(layer.dim, rep.settings.max_dim or layer.dim)
        total += len(layer.kinds) * (
            kept * (block * (block - 1) + 4 * block)
            + 4 * min(rep.data.total or 65_536, 65_536)
            + 4 * 128 * 256
            + 3 * buckets * (buckets - 1) // 2
            + 8 * buckets
            + 4 * buckets * width
        )
    return total + 4 * kept * block * 10  # and the probabilities of ten classes


def arithmetic(samples: int, processes: int, each: float, fixed: float, round_: float) -> float:
    """Seconds, by the formula above."""
    return fixed + samples * each / processes + math.ceil(math.log2(processes)) * round_


def share_a_device(options: argparse.Namespace) -> None:
    """Seconds by the clock of one pass by so many processes on one GPU."""
    rows = []
    for count in options.processes:
        found = with_processes(count, options.samples, options.device)
        rows.append({"processes": count, **{key: round(value, 3) for key, value in found.items()}})
        print(rows[-1], flush=True)
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    about |= {"resemblance": rs.__version__, "samples": options.samples}
    path = options.out.with_stem("scaling_gpu") if options.out == RESULTS else options.out
    path.write_text(json.dumps({"environment": about, "rows": rows}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=12_000)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--checkpointed", type=int, default=30_000, help="samples of that pass")
    parser.add_argument("--models", type=int, default=6)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--device", default="cpu", help="one that all processes share")
    parser.add_argument("--worker", action="store_true", help="one process of several")
    options = parser.parse_args()
    if options.worker:
        one_of_several(options.samples, options.device)
        return
    if options.device != "cpu":
        share_a_device(options)
        return
    torch.set_num_threads(1)
    timed(300)
    few, more = (min(timed(n)[1] for _ in range(3)) for n in SMALL)
    each = (more - few) / (SMALL[1] - SMALL[0])
    fixed = max(0.0, few - SMALL[0] * each)
    joining = with_processes(2, 2 * SMALL[0])
    part = rs.record(network(), images(SMALL[1]), keep_sums=True, progress=False)
    with tempfile.TemporaryDirectory() as folder:
        size = part.save(Path(folder) / "part.rsm").stat().st_size
        began = time.process_time()
        result = part.without_sums().save(Path(folder) / "result.rsm").stat().st_size
        saving = time.process_time() - began
    rows = []
    for count in options.processes:
        found = with_processes(count, options.samples)
        expected = arithmetic(options.samples, count, each, fixed, joining["joining_processor"])
        row = {"processes": count, **{key: round(value, 3) for key, value in found.items()}}
        row |= {"expected": round(expected, 3), "ratio": round(found["processor"] / expected, 3)}
        print(row, flush=True)
        rows.append(row)
    saved = checkpoints(options.checkpointed, 0.0)  # as often as they may be
    print(saved, flush=True)
    found = swept(options.models, SMALL[1])
    begun = swept(1, SMALL[1])  # and what starting a sweep takes
    spent = found["processor"] - begun["processor"]
    expected = (options.models - 1) * (fixed + SMALL[1] * each + saving)
    sweep = {
        "models": options.models,
        "samples": SMALL[1],
        "seconds": round(found["seconds"], 2),
        "processor_of_first": round(begun["processor"], 2),
        "processor_of_others": round(spent, 2),
        "expected_of_others": round(expected, 2),
        "ratio": round(spent / expected, 3),
    }
    print(sweep, flush=True)
    content = {
        "environment": {
            "resemblance": rs.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
        },
        "samples": options.samples,
        "part_megabytes": round(size / 1e6, 2),
        "part_megabytes_expected": round(bytes_of_part(part) / 1e6, 2),
        "result_megabytes": round(result / 1e6, 2),
        "seconds_a_sample": each,
        "fixed_seconds": round(fixed, 3),
        "seconds_to_save": round(saving, 3),
        "seconds_a_joining": round(joining["joining"], 3),
        "processor_a_joining": round(joining["joining_processor"], 3),
        "rows": rows,
        "checkpoints": saved,
        "sweep": sweep,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
