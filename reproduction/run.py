"""The paper's experiments from data to figures.

    python -m reproduction.run --data-dir DIR                the full run; it wants a GPU
    python -m reproduction.run --quick                       the same chain on digits, in minutes
    python -m reproduction.run --data-dir DIR train pairs    some steps alone

DIR holds cifar10.npz, cifar100.npz and svhn.npz (xtr, ytr, xte, yte); what is missing is fetched
through torchvision. Networks, recordings and results that are there already are not made again:
delete a file to have it made anew.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch

import resemblance as rs

from .images import load
from .questions import (
    exact,
    fidelity,
    identification,
    maps,
    norms,
    options,
    pairs,
    pretrained,
    ridge,
    rivals,
    summaries,
)  # fmt: skip
from .questions.lab import Lab
from .recordings import Recordings
from .scale import ARCHITECTURES, FULL, QUICK
from .zoo import Zoo

HERE = Path(__file__).resolve().parent
QUESTIONS = {
    "pairs": pairs.run, "identification": identification.run, "rivals": rivals.run,
    "maps": maps.run, "norms": norms.run, "ridge": ridge.run, "options": options.run,
    "exact": exact.run, "fidelity": fidelity.run, "pretrained": pretrained.run,
}  # fmt: skip
STEPS = ("train", "copies", "deep", *QUESTIONS, "summaries", "figures")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", nargs="*", help=f"of {', '.join(STEPS)}; none means all")
    parser.add_argument("--data-dir", type=Path, help="the three .npz files; digits without it")
    parser.add_argument("--work-dir", type=Path, help="networks and recordings; default: work/")
    parser.add_argument("--out-dir", type=Path, help="results and figures; default: results/")
    parser.add_argument("--quick", action="store_true", help="small networks on few samples")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = parser.parse_args()
    unknown = set(chosen.steps) - set(STEPS)
    if unknown:
        parser.error(f"no such step: {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    if chosen.data_dir is None and not chosen.quick:
        parser.error("the full run needs --data-dir; --quick runs on digits without it")
    scale = QUICK if chosen.quick else FULL
    work = chosen.work_dir or HERE / ("work-quick" if chosen.quick else "work")
    out = chosen.out_dir or HERE / ("results-quick" if chosen.quick else "results")
    out.mkdir(parents=True, exist_ok=True)
    data = load(chosen.data_dir, scale, torch.device(chosen.device))
    zoo = Zoo(data, scale, work / "networks")
    lab = Lab(data, scale, zoo, Recordings(zoo, data, scale, work / "recordings"))
    for step in chosen.steps or STEPS:
        start = time.perf_counter()
        _take(step, lab, out)
        print(f"-- {step}: {time.perf_counter() - start:.1f} s", flush=True)


def _take(step: str, lab: Lab, out: Path) -> None:
    if step == "figures":
        from . import figures

        return figures.draw(out)
    if step in ("train", "copies", "deep"):
        names = {
            # a seed of each data set in turn, as some questions need but the first few
            "train": sorted(lab.zoo.originals(), key=lambda name: int(name.split("/")[-1])),
            "deep": lab.zoo.originals(ARCHITECTURES[1]),
            "copies": [n for o in lab.zoo.origins() for n in lab.zoo.descendants(o)],
        }[step]
        for name in names:
            if not lab.zoo.path(name).exists():
                lab.zoo(name)
        return _write(out / "networks.json", lab, {"accuracies": lab.zoo.accuracies()})
    if step == "summaries":
        return _write(out / "summaries.json", lab, summaries.run(lab, out))
    path = out / f"{step}.json"
    if path.exists():
        print(f"{path.name} is there already", flush=True)
        return None
    result = QUESTIONS[step](lab)
    return _write(path, lab, result) if result else None


def _write(path: Path, lab: Lab, result: dict[str, Any]) -> None:
    """A result with where it was made; it appears whole or not at all."""
    environment = {
        "date": str(date.today()), "python": platform.python_version(),
        "torch": torch.__version__, "resemblance": rs.__version__,
        "device": torch.cuda.get_device_name() if lab.zoo.device.type == "cuda" else "cpu",
        "quick": lab.scale == QUICK,
    }  # fmt: skip
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps({"environment": environment, **result}, separators=(",", ":")))
    draft.rename(path)


if __name__ == "__main__":
    main()
