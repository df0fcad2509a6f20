"""Which of our modules a call enters: the path that a reader has to follow through the code.

    python -m benchmarks.walks [--list] [--out FILE]

Each walk is a fixed call, made once before it is traced, so that imports do not count: `record` to
a file, `compare` of features, `check` with every kind of threshold, and `recommend` with labels. A
module counts where a function of its own begins to run, `__init__` files left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import resemblance as rs

SOURCE = Path(rs.__file__).parent


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 5)
    )


def walks(folder: Path) -> dict[str, Callable[[], Any]]:
    torch.manual_seed(0)
    x, y = torch.randn(300, 12), torch.arange(300) % 5
    base = network(0)
    copy = network(0)
    with torch.no_grad():
        for p in copy.parameters():
            p.mul_(1 + 0.01 * torch.randn_like(p))
    a, b = rs.record(base, x, name="base"), rs.record(copy, x, name="copy")
    candidates = {"base": base, "other": network(1)}

    def check() -> Any:
        return rs.check(
            a, b, max_disagreement=0.5, max_kl=0.5, max_js=0.5, min_db=1,
            min={"features": 0.5, "gradients": 0.3, "mean:product": 0.3},
        )  # fmt: skip

    return {
        "record": lambda: rs.record(base, x, name="base").save(folder / "base.rsm"),
        "compare": lambda: rs.compare(a, b, kernel="features"),
        "check": check,
        "recommend": lambda: rs.recommend(candidates, x, y),
    }


def entered(call: Callable[[], Any]) -> list[str]:
    """The modules of the package whose functions a call runs, in all threads."""
    found: set[str] = set()

    def trace(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found.add(frame.f_code.co_filename)

    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    own = (Path(path) for path in found if path.startswith(str(SOURCE)))
    return sorted(
        ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for path in own
        if path.name != "__init__.py"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="name the modules")
    parser.add_argument("--out", type=Path, help="write the names as JSON")
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, call in walks(Path(folder)).items():
            call()
            found[name] = entered(call)
            print(f"{name:10} {len(found[name]):3} modules")
            if options.list:
                print("  " + "\n  ".join(found[name]))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
