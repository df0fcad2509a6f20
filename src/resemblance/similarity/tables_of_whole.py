"""Scores of very many layers with each other from kernels of all samples, which small data keep.

The same as `whole_estimates.scores`, from sums that all pairs of layers share (`layer_tables`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..representation.layer import Layer
from . import chance_moments, error_bars, indices, whole_estimates
from .chance_moments import Moments, Window
from .combinations import Index, Question
from .estimate import Estimate
from .kernel_strips import Strips, effects
from .layer_tables import Vectors, block_sums
from .pair_sums import factors
from .stored_kernels import round_off

_SOME = 256  # samples whose kernel tells how skewed chance is


class OfWhole:
    """Estimates between any layers that hold the kernels of all samples."""

    def __init__(self, layers: Sequence[Layer], samples: int, asked: Question) -> None:
        n = self._n = samples
        self._asked, self._spans = asked, whole_estimates.groups(n)
        strips = Strips(layers, asked.kernel, 0, n, loose=asked.centre, whole=True)
        self._block = block_sums(strips, self._spans, seen=asked.centre)
        least = round_off(layers, asked.kernel, slice(0, 1), n, whole=True)
        self._visible = least / strips.unit[:, 0] ** 2
        vectors = self._block.vectors
        self._u = effects(vectors.r)
        carried = vectors.d - 2 * self._u if asked.centre else vectors.d
        self._n_eff = error_bars.effective(carried.T)
        self._few = _corner(strips, min(n, _SOME))
        self._left_out = self._without_each()
        self._moments: dict[Index, Moments] = {}
        self._own: dict[Index, list[tuple[Tensor, Tensor]]] = {}

    def _without_each(self) -> list[tuple[Vectors, Tensor]]:
        """What is left of diagonals, row sums and sums over pairs without each span."""
        out = []
        for g, (start, stop) in enumerate(self._spans):
            d, r = self._block.vectors
            if self._block.seen is not None:
                r = r - self._block.seen[g]
            kept = Vectors(*(torch.cat([x[:, :start], x[:, stop:]], 1) for x in (d, r)))
            out.append((kept, self._block.pairs - self._block.apart[g]))
        return out

    def estimate(self, rows: slice, columns: slice, asked: Question) -> Estimate:
        """Scores of some layers with others."""
        index = asked.index
        (add_up, own), *lighter = self._own_sums(index)
        vectors, pairs = self._block.vectors, self._block.pairs
        alive = own > self._visible
        norms = self._norms(own, alive, rows, columns)
        value = vectors.added(add_up, pairs[rows, columns], rows, columns) / norms
        left = []
        for (kept, rest), (less, of_rest) in zip(self._left_out, lighter, strict=True):
            cross = kept.added(less, rest[rows, columns], rows, columns)
            left.append(cross / self._norms(of_rest, alive, rows, columns))
            if kept.d.shape[1] < (4 if self._asked.centre else 2):
                left[-1].fill_(torch.nan)
        mean = vectors.permuted(add_up, rows, columns) / norms
        high = mean + self._chance(index).above_mean(rows, columns) / norms
        return Estimate.of(
            value,
            [error_bars.left_out(torch.stack(left))],
            (alive[rows], alive[columns]),
            (mean, high),
            low=0.0 if index == "cka" else -1.0,
            n_eff=(self._n_eff[rows], self._n_eff[columns]),
        )

    def _own_sums(self, index: Index) -> list[tuple[Tensor, Tensor]]:
        """How sums add up, and each layer with itself: of all samples, then without each span."""
        if index not in self._own:
            every = [(self._block.vectors, self._block.pairs), *self._left_out]
            add_up = [self._add_up(index, vectors.d.shape[1]) for vectors, _ in every]
            self._own[index] = [
                (c, vectors.own(c, pairs.diagonal()))
                for c, (vectors, pairs) in zip(add_up, every, strict=True)
            ]
        return self._own[index]

    def _add_up(self, index: Index, n: int) -> Tensor:
        return factors(index, n, self._n, centre=self._asked.centre)

    def _norms(self, own: Tensor, alive: Tensor, rows: slice, columns: slice) -> Tensor:
        seen = own * alive
        return indices.norms(seen[rows], seen[columns])

    def _chance(self, index: Index) -> Moments:
        if index not in self._moments:
            pairs, d = self._block.pairs.diagonal(), self._block.vectors.d
            window = Window(self._u[:, None], d[:, None], pairs[:, None, None], self._few)
            add_up = self._add_up(index, self._n)
            self._moments[index] = chance_moments.moments([(1.0, add_up, window)])
        return self._moments[index]


def _corner(strips: Strips, m: int) -> Tensor:  # (L, m, m) float32
    """The kernels of the first m samples, with zeros on the diagonal."""
    lower = strips.rows(0, m).float()
    return lower + lower.mT
