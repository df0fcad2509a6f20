"""Scores of very many layers with each other from exact kernels of blocks of samples.

The same as `block_estimates.scores` and `ratio_estimates.scores`, from sums that all pairs of
layers share (`layer_tables`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import MismatchError
from ..representation.layer import Layer
from ..representation.representation import Representation
from . import block_estimates, chance_moments, error_bars, left_out_sequences, ratio_estimates
from .block_estimates import BlockMeans, Said
from .chance_moments import Moments, Window
from .combinations import Index, Question
from .estimate import Estimate
from .kernel_strips import Strips, effects
from .layer_tables import Vectors, block_sums
from .pair_sums import factors
from .ratio_estimates import Sums
from .stored_kernels import round_off


@dataclass(frozen=True)
class _Halves:
    """Sums over the pairs of one block of n samples: within its halves, and across them."""

    vectors: Vectors
    within: Tensor  # (L, L)
    across: Tensor  # (L, L)
    visible: Tensor  # (L,)
    unit: Tensor  # (L, 1)
    entries: Tensor | None  # (L, …) float32, if asked for

    @property
    def n(self) -> int:
        return self.vectors.d.shape[1]


class OfBlocks:
    """Estimates between any layers of Representations that hold the same blocks of samples."""

    def __init__(
        self, layers: Sequence[Layer], rep: Representation, asked: Question
    ) -> None:  # `rep` is one of them; indices may differ from the one asked for here
        self._rep, self._layers, self._asked = rep, layers, asked
        tokens = rep.settings.tokens
        weight = block_estimates.weights(rep.block_sizes, rep.samples, centre=asked.centre)
        self._weight = weight[weight > 0]
        self._blocks: list[_Halves] = []
        self._windows: list[Window] = []
        carried = error_bars.Carried()
        window: list[tuple[Tensor, Tensor, _Halves]] = []
        for b, n in enumerate(rep.block_sizes):
            if not weight[b]:
                continue
            unit = self._blocks[0].unit if self._blocks else None
            found = _halves(layers, asked, b, n, unit, entries=tokens > 1)
            self._blocks.append(replace(found, entries=None))
            d, u = found.vectors.d, effects(found.vectors.r)
            carried.add([b // tokens], d[None])
            window.append((u, d, found))
            if len(window) == tokens:
                self._windows.append(_window(window))
                window = []
        self._n_eff = carried.n_eff()
        self._left_out = self._without_sequences() if tokens > 1 else None
        self._norms = None if asked.centre else _norms(layers, asked)
        self._moments: dict[Index, Moments] = {}

    def estimate(self, rows: slice, columns: slice, asked: Question) -> Estimate:
        """Scores of some layers with others, from blocks or from them and the norms of all."""
        each = _means(self._blocks, asked, self._rep.samples, rows, columns)
        n_eff = (self._n_eff[rows], self._n_eff[columns])
        said = Said(each, self._weight, [], None, n_eff)
        left_out = None
        if self._left_out is not None:
            left_out = torch.stack(
                [self._scores_without(gone, said, asked, rows, columns) for gone in self._left_out]
            )
        above = self._chance(asked.index).above_mean(rows, columns)
        plain = block_estimates.estimate(said, asked, self._rep, above, left_out)
        if asked.estimator != "ratio":
            return plain
        if self._norms is None:
            raise MismatchError(ratio_estimates.NO_NORMS)
        d, unit = self._norms
        sums = self._of_norms(rows, columns, self._blocks[0].unit / unit, unit)
        return ratio_estimates.estimate(plain, sums, d[rows], d[columns], self._rep)

    def _chance(self, index: Index) -> Moments:
        if index not in self._moments:
            tokens, samples = self._rep.settings.tokens, self._rep.samples
            share = (self._weight / self._weight.sum()).unflatten(0, (-1, tokens)).sum(1).tolist()
            self._moments[index] = chance_moments.moments(
                [
                    (s, factors(index, w.d.shape[2], samples, centre=self._asked.centre), w)
                    for s, w in zip(share, self._windows, strict=True)
                ]
            )
        return self._moments[index]

    def _of_norms(self, rows: slice, columns: slice, scale: Tensor, unit: Tensor) -> list[Sums]:
        """What `ratio_estimates` reads of blocks, at other units."""
        out: list[list[Sums]] = [[], [], [], []]
        over, full = scale[rows] * scale[columns].T, scale[:, 0] ** 2
        for block in self._blocks:
            n, d = block.n, block.vectors.d * scale
            inside, outside, _ = block_estimates.halves(n, d.device)
            parts = [
                [
                    x[rows, columns] * over,
                    (x.diagonal() * full)[rows],
                    (x.diagonal() * full)[columns],
                ]
                for x in (block.within, block.across)
            ]
            out[0].append(Sums(*(x + y for x, y in zip(*parts, strict=True))))
            out[2].append(Sums(*(inside * x + outside * y for x, y in zip(*parts, strict=True))))
            d1, d2 = d[None, rows], d[None, columns]
            every = ratio_estimates.pairs_of(d1, d2)
            ends = (slice(n // 2), slice(n // 2, n))
            of_halves = [ratio_estimates.pairs_of(d1[..., e], d2[..., e]) for e in ends]
            same = [x + y for x, y in zip(*of_halves, strict=True)]
            out[1].append(Sums(*(x[0] for x in every)))
            out[3].append(
                Sums(
                    *((inside * x + outside * (y - x))[0] for x, y in zip(same, every, strict=True))
                )
            )
        return [Sums(*(torch.stack(x) for x in zip(*sums, strict=True))) for sums in out]

    # -- tokens --

    def _without_sequences(self) -> list[tuple[slice, Tensor, list[_Halves]]]:
        """Of each group of sequences: its blocks, and those without it with their weights."""
        rep, asked, out = self._rep, self._asked, []
        used = block_estimates.weights(rep.block_sizes, rep.samples, centre=asked.centre) > 0
        for group in left_out_sequences.groups(rep):
            if not used[group.blocks.start]:
                continue
            rest: list[_Halves] = []
            n, unit = len(group.rest), self._blocks[0].unit
            of_rest = self._weight[:0]
            if n:
                layers = [left_out_sequences.only_layer(layer, group) for layer in self._layers]
                tokens = rep.settings.tokens
                rest = [_halves(layers, asked, b, n, unit) for b in range(tokens)]
                of_rest = block_estimates.weights([n] * tokens, rep.samples, centre=asked.centre)
            out.append((group.blocks, of_rest, rest))
        return out

    def _scores_without(
        self,
        gone: tuple[slice, Tensor, list[_Halves]],
        said: Said,
        asked: Question,
        rows: slice,
        columns: slice,
    ) -> Tensor:
        blocks, of_rest, halves = gone
        rest = BlockMeans(*(x[:0] for x in said.each))
        if halves:
            rest = _means(halves, asked, self._rep.samples, rows, columns)
        mean = said.each.without(said.weight, blocks, rest, of_rest)
        return mean.cross / mean.norms()


def _halves(
    layers: Sequence[Layer],
    asked: Question,
    block: int,
    n: int,
    unit: Tensor | None,
    *,
    entries: bool = False,
) -> _Halves:
    strips = Strips(layers, asked.kernel, block, n, loose=asked.centre, whole=False, unit=unit)
    strips = strips.levelled() if asked.centre else strips
    spans = [(0, n // 2), (n // 2, n)]
    found = block_sums(strips, spans, entries=entries)
    across = found.apart[0] + found.apart[1] - found.pairs  # those with an end in either half
    visible = round_off(layers, asked.kernel, slice(block, block + 1), n) / strips.unit[:, 0] ** 2
    kept = torch.cat(found.entries, 1) if entries else None
    return _Halves(found.vectors, found.pairs - across, across, visible, strips.unit, kept)


def _window(blocks: Sequence[tuple[Tensor, Tensor, _Halves]]) -> Window:
    u, d = (torch.stack(x, 1) for x in list(zip(*blocks, strict=True))[:2])
    entries = [found.entries for _, _, found in blocks if found.entries is not None]
    if entries:
        together = torch.stack(entries, 1)
        return Window(u, d, 2 * (together @ together.mT).double())
    found = blocks[0][2]
    return Window(u, d, (found.within + found.across).diagonal()[:, None, None])


def _means(
    blocks: Sequence[_Halves], asked: Question, samples: int, rows: slice, columns: slice
) -> BlockMeans:
    """What each block says about numerator and denominators, for rows × columns."""
    out = []
    for block in blocks:
        n, vectors = block.n, block.vectors
        add_up = factors(asked.index, n, samples, centre=asked.centre)
        inside, outside, _ = block_estimates.halves(n, block.within.device)
        both = block.within[rows, columns] + block.across[rows, columns]
        own = vectors.own(add_up, block.within.diagonal() + block.across.diagonal())
        apart = inside * block.within[rows, columns] + outside * block.across[rows, columns]
        own_apart = inside * block.within.diagonal() + outside * block.across.diagonal()
        first = float(add_up[0])
        out.append(
            (
                vectors.added(add_up, both, rows, columns),
                vectors.permuted(add_up, rows, columns),
                own[rows],
                own[columns],
                block.visible[rows],
                block.visible[columns],
                first * apart,
                first * own_apart[rows],
                first * own_apart[columns],
            )
        )
    return BlockMeans(*(torch.stack(x) for x in zip(*out, strict=True)))


def _norms(layers: Sequence[Layer], asked: Question) -> tuple[Tensor, Tensor] | None:
    """The norms of all samples at a mean of one, and what they were divided by; None if unknown."""
    found = ratio_estimates.norms(layers, asked.kernel)
    if found is None:
        return None
    unit = found.mean(1, keepdim=True).clamp_min(1e-300)
    return found / unit, unit
