"""What every question needs at hand."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np

import resemblance as rs

from ..images import Images
from ..recordings import Recordings
from ..scale import DATA, Scale
from ..scoring import Job, Plan, score
from ..zoo import Zoo

KERNELS = ("features", "gradients", "product")
OTHERS = ("sum", "elementwise", "transport")
Pairs = dict[str, np.ndarray]  # a pair of data sets: scores (pairs of networks, layers)


@dataclass(frozen=True)
class Lab:
    data: dict[str, Images]
    scale: Scale
    zoo: Zoo
    recordings: Recordings

    def pairs(
        self, where: str, variant: str, seeds: int, plans: dict[str, Plan], note: str
    ) -> dict[str, Pairs]:
        """Same layers of all pairs of ResNet-18s, for each of the six pairs of data sets.

        `where` is `own`, each network on its own training images, or the name of shared data.
        """
        files = {home: self.files(home, where, variant, seeds) for home in DATA}
        depth = len(rs.load(files[DATA[0]][0]).layer_names)
        which = list(combinations_with_replacement(DATA, 2))
        keys = [(pair, layer) for pair in which for layer in range(depth)]
        jobs = [Job(files[a], files[b], layer, tuple(plans.values())) for (a, b), layer in keys]
        found = dict(zip(keys, score(jobs, note), strict=True))
        out: dict[str, Pairs] = {name: {} for name in plans}
        for a, b in which:
            for i, name in enumerate(plans):
                table = np.stack([found[(a, b), layer][i].values for layer in range(depth)], -1)
                once = np.triu_indices(seeds, 1) if a == b else np.indices((seeds, seeds))
                out[name][f"{a}-{b}"] = table[tuple(once)].reshape(-1, depth)
        return out

    def files(self, home: str, where: str, variant: str, seeds: int) -> tuple[Path, ...]:
        """Recordings of the first few ResNet-18s of a data set."""
        data = f"train:{home}" if where == "own" else where
        names = [f"{home}/resnet18/{seed}" for seed in range(seeds)]
        self.recordings.make((name, data, variant) for name in names)
        return tuple(self.recordings.path(name, data, variant) for name in names)
