"""The samples of one pass as a kernel machine needs them: all, or a sketch and a few held back.

`Gathered` keeps vectors while they are few. Once it sketches, it adds them into buckets and holds a
random thousand back, whose share of any sum can be taken off again, as cross-validation needs.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .._ops.count_sketch import CountSketch, add_to_buckets
from .kernel_ridge import Problem
from .sample_vectors import Vectors

_HELD = 1000


class Gathered:
    """Vectors, labels and buckets of one layer, `add`ed batch by batch."""

    def __init__(self, sketch: CountSketch, exact_up_to: float) -> None:
        self.sketch, self.exact_up_to, self.exact = sketch, exact_up_to, True
        self.count = 0
        self._indices: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []
        self._rows: list[Vectors] = []
        self._sums: Vectors = {}  # each (M, d)
        self._held: dict[int, Vectors] = {}  # position -> each (d,)
        self._rng = np.random.default_rng(sketch.seed)

    def add(self, indices: np.ndarray, labels: np.ndarray, rows: Vectors) -> None:
        """Take in a batch: indices (n,), labels (n,), vectors (n, d)."""
        self._indices.append(indices)
        self._labels.append(labels)
        self.count += len(indices)
        self._rows.append(rows)
        if self.count > self.exact_up_to:  # too many to keep: sketch what was kept, and go on so
            self.exact, kept, self._rows = False, self._rows, []
            start = self.count - sum(len(next(iter(x.values()))) for x in kept)
            for i, x in enumerate(kept, len(self._indices) - len(kept)):
                self._add_up(start, self._indices[i], x)
                start += len(self._indices[i])

    def _add_up(self, start: int, indices: np.ndarray, rows: Vectors) -> None:
        h, s = self.sketch.assign(indices)
        for kind, x in rows.items():
            table = self._sums.setdefault(kind, torch.zeros(self.sketch.buckets, x.shape[1]))
            add_to_buckets(table, x, h, s)
        for i in range(len(indices)):  # reservoir sampling: any sample is held with equal chance
            position = start + i
            if len(self._held) >= _HELD:
                if self._rng.integers(position + 1) >= _HELD:
                    continue
                self._held.pop(sorted(self._held)[self._rng.integers(_HELD)])
            self._held[position] = {kind: x[i].clone() for kind, x in rows.items()}

    def labels(self) -> np.ndarray:  # (n,)
        """Of all samples, by position: the order in which they came."""
        return np.concatenate(self._labels)

    def held(self) -> np.ndarray:
        """Positions of the samples whose vectors are here."""
        return np.arange(self.count) if self._rows else np.array(sorted(self._held))

    def rows(self, positions: np.ndarray | None = None) -> Vectors:
        """Vectors of held samples, each (n, d)."""
        if self._rows:
            whole = {kind: torch.cat([r[kind] for r in self._rows]) for kind in self._rows[0]}
            return whole if positions is None else {k: x[positions] for k, x in whole.items()}
        picked = [self._held[int(p)] for p in (self.held() if positions is None else positions)]
        return {kind: torch.stack([row[kind] for row in picked]) for kind in picked[0]}

    def problem(self, targets: Tensor, without: np.ndarray | None = None) -> Problem:
        """The sketched ridge problem to targets (n, C), with some held samples taken off."""
        kept = np.ones(self.count, bool)
        kept[without if without is not None else []] = False
        indices = np.concatenate(self._indices)
        items = {kind: x.double() for kind, x in self._sums.items()}
        if without is not None:
            h, s = self.sketch.assign(indices[without])
            for kind, x in self.rows(without).items():
                add_to_buckets(items[kind], x.double(), h, -s.double())
        table = sketch_targets(targets[kept], self.sketch, indices[kept], len(items))
        return Problem.of_items(items, table)


def sketch_targets(
    targets: Tensor, sketch: CountSketch, indices: np.ndarray, kinds: int
) -> Tensor:  # (n, C) -> (M, C)
    """Targets in the buckets of their samples, with the sign that their kernel has there.

    In the product of two bucket kernels a sample's sign stands twice and is gone, so there targets
    are added without it. (The paper gives them the sign for every kernel; with the product, labels
    of opposite sign then cancel, and little is learnt: docs/classification.md.)
    """
    h, s = sketch.assign(indices)
    table = torch.zeros(sketch.buckets, targets.shape[1], dtype=torch.float64)
    add_to_buckets(table, targets, h, s.double() ** kinds)
    return table
