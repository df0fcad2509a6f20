"""The samples of one pass as a kernel machine needs them: all, or a sketch and a few held back.

`Gathered` keeps vectors while they are few. Once it sketches, it adds them into buckets and holds a
random thousand back for cross-validation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .._ops.count_sketch import CountSketch, add_to_buckets
from .kernel_ridge import Problem, best, kernel
from .sample_vectors import Vectors, joined

_HELD = 1000
_FOLDS = 5


class Gathered:
    """Vectors or buckets of one layer, `add`ed batch by batch."""

    def __init__(self, sketch: CountSketch, exact_up_to: float) -> None:
        self.sketch, self.exact_up_to, self.exact = sketch, exact_up_to, True
        self.count = 0
        self.held: dict[int, Vectors] = {}  # by position, in that order, each (1, d)
        self._indices: list[np.ndarray] = []
        self._rows: list[Vectors] = []  # of the last batches, while not sketched
        self._sums: Vectors = {}  # each (M, d)
        self._sketched = 0
        self._rng = np.random.default_rng(sketch.seed)

    def add(self, indices: np.ndarray, rows: Vectors) -> None:
        """Take in a batch: indices (n,), vectors (n, d)."""
        self._indices.append(indices)
        self._rows.append(rows)
        self.count += len(indices)
        if self.count > self.exact_up_to:  # too many to keep: sketch what was kept, and go on so
            self.exact = False
            for i, x in zip(self._indices[-len(self._rows) :], self._rows, strict=True):
                self._add_up(i, x)
            self._rows = []

    def _add_up(self, indices: np.ndarray, rows: Vectors) -> None:
        h, s = self.sketch.assign(indices)
        for kind, x in rows.items():
            table = self._sums.setdefault(kind, torch.zeros(self.sketch.buckets, x.shape[1]))
            add_to_buckets(table, x, h, s)
        for i in range(len(indices)):  # reservoir sampling: any sample is held with equal chance
            self._sketched += 1
            if len(self.held) >= _HELD:
                if self._rng.integers(self._sketched) >= _HELD:
                    continue
                del self.held[list(self.held)[self._rng.integers(_HELD)]]
            self.held[self._sketched - 1] = {k: x[i : i + 1].clone() for k, x in rows.items()}

    def problem(self, targets: Tensor, without: list[int] | None = None) -> Problem:
        """The ridge problem to targets (n, C), in the order of `add`, less some held samples."""
        if self.exact:
            return Problem.of_items(joined(self._rows), targets)
        indices = np.concatenate(self._indices)
        items = {kind: x.double() for kind, x in self._sums.items()}
        if without:
            h, s = self.sketch.assign(indices[without])
            for kind, x in joined([self.held[i] for i in without]).items():
                add_to_buckets(items[kind], x.double(), h, -s.double())
        kept = np.setdiff1d(np.arange(self.count), without or [])
        table = sketch_targets(targets[kept], self.sketch, indices[kept], len(items))
        return Problem.of_items(items, table)

    def best_by_folds(self, targets: Tensor, alphas: Sequence[float]) -> tuple[float, float]:
        """The α of least squared error on left-out folds of held samples, and its accuracy."""
        mixed = np.random.default_rng(self.sketch.seed).permutation(list(self.held))
        predicted = []
        for part in np.array_split(mixed, min(_FOLDS, len(mixed))):
            fold = part.tolist()
            others = self.problem(targets, without=fold)
            similar = kernel(joined([self.held[i] for i in fold]), others.items)
            predicted.append(torch.stack([similar @ others.weights(alpha) for alpha in alphas]))
        return best(alphas, list(torch.cat(predicted, 1)), targets[mixed])


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
