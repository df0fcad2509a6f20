"""How long `report` takes, and how large its page is: thirty networks of twenty layers.

The networks are residual networks of fully connected layers (width 32, 18 blocks between a first
and a last layer), ten initialisations of each of which three checkpoints are recorded (untrained,
and after 60 and 100 steps), on N samples of a synthetic task of ten classes. So there are related
and unrelated pairs, predictions to compare, and coordinates that are shared. The time is that of
`report` on files, from reading them to the page on disk; recording them is not in it.

    python -m benchmarks.report_many --out benchmarks/results/report_many.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import tempfile
import time
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

import resemblance as rs
from resemblance.errors import ResemblanceWarning

NETWORKS, LAYERS, WIDTH = 30, 20, 32
STEPS = (0, 60, 100)  # of training, at which each of ten networks is recorded


class Block(nn.Module):
    """x + ½ relu(Wx + b)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.5 * torch.relu(self.linear(x))


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    blocks = [Block() for _ in range(LAYERS - 2)]
    return nn.Sequential(nn.Linear(16, WIDTH), *blocks, nn.Linear(WIDTH, 10))


def recorded(samples: int, folder: Path) -> list[Path]:
    """The files of all networks."""
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(16, 40), nn.Tanh(), nn.Linear(40, 10)).requires_grad_(False)
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 16, generator=draw)
    data, out = (x, teacher(x).argmax(1)), []
    for seed in range(NETWORKS // len(STEPS)):
        net = network(seed)
        optimizer = torch.optim.Adam(net.parameters(), 1e-3)
        for step in range(max(STEPS) + 1):
            if step in STEPS:
                options = {"name": f"run {seed} step {step}", "data_id": "synthetic"}
                names = [str(i) for i in range(LAYERS)]
                rep = rs.record(net, data, layers=names, progress=False, **options)
                out.append(rep.save(folder / f"{seed}-{step}.rsm"))
            batch = torch.randn(128, 16, generator=draw)
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(batch), teacher(batch).argmax(1)).backward()
            optimizer.step()
    return out


def measured(files: list[Path], page: Path) -> dict[str, float]:
    wall, processor = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResemblanceWarning)
        rs.report(files, page, progress=False)
    return {
        "wall_s": round(time.perf_counter() - wall, 1),
        "processor_s": round(time.process_time() - processor, 1),
        "megabytes": round(page.stat().st_size / 1e6, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/report_many.json"))
    parser.add_argument("--samples", type=int, nargs="+", default=[1024, 5000])
    given = parser.parse_args()
    result = {
        "networks": __doc__.split("\n\n")[1].replace("\n", " "),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 1),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "reports": [],
    }
    for samples in given.samples:
        with tempfile.TemporaryDirectory() as folder:
            files = recorded(samples, Path(folder))
            found = measured(files, Path(folder) / "report.html")
        result["reports"].append({"samples": samples, "pairs": 465, **found})
        print(result["reports"][-1])
    result["most_memory_gb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 1)
    given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
