"""The file of a design: its scores, and a description of the networks that they are of."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Design:
    """A design of one family: what was trained, and all scores (see `scores.Scores`)."""

    about: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def groups(self) -> np.ndarray:
        return np.array(self.about["groups"])


def save(path: Path, design: Design) -> None:
    """Write a file, so that it is there as a whole or not at all."""
    draft = path.with_name(f".{path.name}")
    with draft.open("wb") as file:
        np.savez_compressed(file, about=np.array(json.dumps(design.about)), **design.arrays)
    os.replace(draft, path)


def read(path: Path) -> Design:
    with np.load(path) as file:
        arrays = {name: file[name].astype(np.float64) for name in file if name != "about"}
        return Design(json.loads(str(file["about"])), arrays)
