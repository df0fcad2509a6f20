"""What every question needs at hand."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement

from datasets import Images
from recordings import Recordings
from scale import DATA, Scale
from zoo import Zoo

KERNELS = ("features", "gradients", "product")
OTHERS = ("sum", "elementwise", "transport")


@dataclass(frozen=True)
class Lab:
    data: dict[str, Images]
    scale: Scale
    zoo: Zoo
    recordings: Recordings

    def pairs(self, seeds: int) -> dict[str, list[tuple[str, str]]]:
        """Pairs of different ResNet-18s for each of the six pairs of data sets."""
        out = {}
        for a, b in combinations_with_replacement(DATA, 2):
            left = [f"{a}/resnet18/{s}" for s in range(seeds)]
            right = [f"{b}/resnet18/{s}" for s in range(seeds)]
            out[f"{a}-{b}"] = (
                list(combinations(left, 2)) if a == b else [(p, q) for p in left for q in right]
            )
        return out
