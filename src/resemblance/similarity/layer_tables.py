"""Scores of very many layers with each other, from sums that all pairs of them share.

`compare` reads the kernels of two networks, and for every pair of networks anew. Here the layers of
all networks stand in one row, each kernel is read once, strip by strip (`kernel_strips`), and the
sums over pairs of samples of all pairs of layers come from one matrix product a strip. What becomes
of the sums is said in `tables_of_whole` (of the kernels of all samples) and `tables_of_blocks`.
Scores, standard errors and mean chance levels are those of `compare`, to round-off. The 95 % level
of chance is not drawn but taken from moments (`chance_moments`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from .kernel_strips import Strips
from .many_networks import symmetric_product


class Vectors(NamedTuple):
    """Diagonals and row sums of the kernels of one block, or of a part of it."""

    d: Tensor  # (L, n)
    r: Tensor  # (L, n)

    def added(self, add_up: Tensor, pairs: Tensor, rows: slice, columns: slice) -> Tensor:
        """An inner product of kernels from `pairs`, the sums over pairs, for rows × columns."""
        _, rr, dd, dr, rd, ss, tt, ts, st = add_up.tolist()
        (d1, r1), (d2, r2) = ((self.d[which], self.r[which]) for which in (rows, columns))
        t1, s1, t2, s2 = (x.sum(1, keepdim=True) for x in (d1, r1, d2, r2))
        out = pairs * float(add_up[0])
        out += dd * d1 @ d2.T + tt * t1 @ t2.T
        if rr or dr or ss or ts:  # of what is not centred, row sums do not count
            out += (rr * r1 + dr * d1) @ r2.T + rd * r1 @ d2.T
            out += (ss * s1 + ts * t1) @ s2.T + st * s1 @ t2.T
        return out

    def own(self, add_up: Tensor, pairs: Tensor) -> Tensor:  # (L,) of each layer with itself
        _, rr, dd, dr, rd, ss, tt, ts, st = add_up.tolist()
        t, s = self.d.sum(1), self.r.sum(1)
        out = pairs * float(add_up[0]) + dd * self.d.square().sum(1) + tt * t * t
        out += rr * self.r.square().sum(1) + (dr + rd) * (self.d * self.r).sum(1)
        return out + ss * s * s + (ts + st) * t * s

    def permuted(self, add_up: Tensor, rows: slice, columns: slice) -> Tensor:
        """The mean of `added` over all permutations of the samples of one side."""
        n = self.d.shape[1]
        c = add_up.tolist()
        t, s = self.d.sum(1, keepdim=True), self.r.sum(1, keepdim=True)
        (t1, s1), (t2, s2) = ((t[which], s[which]) for which in (rows, columns))
        of_both = c[0] / (n * (n - 1)) + c[1] / n + c[5]
        out = of_both * s1 @ s2.T + (c[2] / n + c[6]) * t1 @ t2.T
        return out + (c[3] / n + c[7]) * t1 @ s2.T + (c[4] / n + c[8]) * s1 @ t2.T


class BlockSums(NamedTuple):
    """Sums over the pairs of one block, of all pairs of layers."""

    strips: Strips
    vectors: Vectors
    pairs: Tensor  # (L, L) over ordered pairs of samples
    apart: Tensor  # (k, L, L) over those that have an end in each of k spans
    seen: Tensor | None  # (k, L, n) what the rows of each span add to row sums; if asked for
    entries: list[Tensor]  # (L, …) float32: those below the diagonal; if asked for


def block_sums(
    strips: Strips, spans: Sequence[tuple[int, int]], *, seen: bool = False, entries: bool = False
) -> BlockSums:
    """Every product once: of the rows of one span and the columns of another at a time."""
    layers, n = strips.diagonal.shape
    pairs = strips.diagonal.new_zeros(layers, layers)
    apart = pairs.new_zeros(len(spans), layers, layers)
    of_spans = pairs.new_zeros(len(spans), layers, n) if seen else None
    rows = pairs.new_zeros(layers, n)
    kept = []
    for g, (start, stop) in enumerate(spans):
        strip = strips.rows(start, stop)
        of_rows, of_columns = strip.sum(2), strip.sum(1)
        rows[:, start:stop] += of_rows
        rows[:, :stop] += of_columns
        if of_spans is not None:
            of_spans[g, :, :stop] += of_columns
        for h, (left, right) in enumerate(spans[: g + 1]):
            tile = strip[:, :, left:right]
            product = symmetric_product(tile.flatten(1)).mul_(2)
            pairs += product
            apart[g] += product
            if h < g:
                apart[h] += product
            if of_spans is not None:
                of_spans[h, :, start:stop] += tile.sum(2)
        if entries:
            kept.append(strip.flatten(1).float())
    return BlockSums(strips, Vectors(strips.diagonal, rows), pairs, apart, of_spans, kept)
