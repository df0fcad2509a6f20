"""Recordings of all networks on a small probe, small enough to be shared with the results."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ..scale import ARCHITECTURES
from .lab import Lab


def run(lab: Lab, folder: Path) -> dict[str, Any]:
    names = [n for kind in ARCHITECTURES for n in lab.zoo.originals(kind)]
    lab.recordings.make((n, "summary", "summary") for n in names)
    sizes = {}
    for name in names:
        goal = folder / f"{name.replace('/', '_')}.rsm"
        shutil.copyfile(lab.recordings.path(name, "summary", "summary"), goal)
        sizes[goal.name] = goal.stat().st_size
    return {"samples": lab.scale.summary, "bytes": sum(sizes.values()), "files": sizes}
