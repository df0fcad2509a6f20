"""Comparisons of every pair of many networks, from pair sums that they share.

`compare` reads the kernels of two networks, and reads them again for every pair. Here the layers of
all networks stand in one row, each kernel is read once, strip by strip (`KernelStrips`), and the
sums over pairs of samples for all pairs of layers come from one matrix product per strip.
`BlockTable` gives the scores of the `blocks` and `ratio` estimators, `FullGramTable` those from
full Gram matrices. Scores, standard errors and chance levels agree with `compare` to 1e-6.

`compare_every_pair` is used by the report: networks with the same blocks of samples share their
sums, and all other pairs, and those for which `compare` would take buckets, are compared one by
one. A search of a zoo calls `row_estimates`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import MismatchError, warn
from ..representation.layer import Layer
from ..representation.notes import ALARMS
from ..representation.representation import Representation
from . import block_estimator, jackknife, ratio_estimator
from .agreement import AnyBehaviour
from .block_estimator import BlockSums, LayerPairing
from .compare import build_comparison, compare_kernel, resolve_config
from .compare_all import symmetric_product
from .comparison import KernelComparison
from .jackknife import Estimate
from .kernels import CompareConfig, Index, Kernel
from .pair_statistics import (
    SKEWNESS_SAMPLES,
    PairSums,
    PermutationMoments,
    PermutationWindow,
    RowSums,
    cross_products,
    own_products,
    permutation_moments,
    permutation_window,
    permuted_products,
    row_effects,
    sum_weights,
)
from .pairing import Matching, blocks_obstacle, check_recorded
from .stored_kernels import STRIP_KERNELS, KernelStrips, has_full_gram, round_off_level


class StripSums(NamedTuple):
    """What the kernels of one block add up to, for all pairs of layers."""

    sums: RowSums
    pairs: Tensor  # (L, L) over ordered pairs of samples
    touching: Tensor  # (k, L, L) over those that have an end in each of k spans
    seen: Tensor | None  # (k, L, n) what the rows of each span add to row sums; if asked for
    entries: list[Tensor]  # (L, …) float32: those below the diagonal; if asked for


def strip_sums(
    strips: KernelStrips,
    spans: Sequence[tuple[int, int]],
    *,
    seen: bool = False,
    entries: bool = False,
) -> StripSums:
    """Every product once: of the rows of one span and the columns of another at a time."""
    layers, n = strips.diagonal.shape
    pairs = strips.diagonal.new_zeros(layers, layers)
    touching = pairs.new_zeros(len(spans), layers, layers)
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
            touching[g] += product
            if h < g:
                touching[h] += product
            if of_spans is not None:
                of_spans[h, :, start:stop] += tile.sum(2)
        if entries:
            kept.append(strip.flatten(1).float())
    return StripSums(RowSums(strips.diagonal, rows), pairs, touching, of_spans, kept)


@dataclass(frozen=True)
class _TableBlock:
    """What the kernels of one block of n samples add up to, for all pairs of layers."""

    sums: RowSums
    pairs: Tensor  # (L, L) over ordered pairs of samples
    apart: Tensor  # (L, L) over pairs within halves of the block less those across them
    visible: Tensor  # (L,)
    unit: Tensor  # (L, 1)
    entries: Tensor | None  # (L, …) float32, if asked for
    leading: Tensor  # (L, m, m) the kernel of the first samples

    def part(self, rows: slice, columns: slice) -> BlockSums:
        """The same of some layers with others."""

        def sums(x: Tensor) -> PairSums:
            own = x.diagonal()[None]
            return PairSums(x[None, rows, columns], own[:, rows], own[:, columns])

        every = RowSums(*(x[None] for x in self.sums))
        visible = (self.visible[None, rows], self.visible[None, columns])
        return BlockSums(
            sums(self.pairs), sums(self.apart), every.of(rows), every.of(columns), visible
        )


class BlockTable:
    """Estimates between any layers of Representations that hold the same blocks of samples."""

    def __init__(
        self, layers: Sequence[Layer], rep: Representation, asked: CompareConfig
    ) -> None:  # `rep` is one of them; indices may differ from the one asked for here
        self._rep, self._layers, self._asked = rep, layers, asked
        tokens = rep.settings.tokens
        weight = block_estimator.block_weights(rep.block_sizes, rep.samples, centre=asked.centre)
        self._weight = weight[weight > 0]
        self._blocks: list[_TableBlock] = []
        self._windows: list[PermutationWindow] = []
        carried = jackknife.EffectiveSamples()
        window: list[_TableBlock] = []
        for b, n in enumerate(rep.block_sizes):
            if not weight[b]:
                continue
            unit = self._blocks[0].unit if self._blocks else None
            block = _table_block(layers, asked, b, n, unit, entries=tokens > 1)
            self._blocks.append(replace(block, entries=None, leading=block.leading[:0]))
            carried.add([b // tokens], block.sums.diagonal[None])
            window.append(block)
            if len(window) == tokens:
                self._windows.append(_permutation_window(window))
                window = []
        self._n_eff = carried.n_eff()
        self._left_out = self._without_sequences() if tokens > 1 else None
        self._norms: tuple[Tensor, Tensor] | None = None  # of all samples, and their unit
        self._moments: dict[Index, PermutationMoments] = {}

    def estimate(self, rows: slice, columns: slice, asked: CompareConfig) -> Estimate:
        """Scores of some layers with others, from blocks or from them and the norms of all."""
        rep = self._rep
        blocks = [block.part(rows, columns) for block in self._blocks]
        each = block_estimator.block_means(blocks, asked, rep.samples)
        n_eff = (self._n_eff[rows], self._n_eff[columns])
        left_out = None
        if self._left_out is not None:
            scores = []
            for gone, of_rest, halves in self._left_out:
                kept = [block.part(rows, columns) for block in halves]
                rest = block_estimator.block_means(kept, asked, rep.samples) if kept else None
                scores.append(each.without(self._weight, gone, rest, of_rest).scores())
            left_out = torch.stack(scores)
        if asked.index not in self._moments:
            self._moments[asked.index] = block_estimator.block_permutation_moments(
                self._windows, self._weight, replace(asked, centre=self._asked.centre), rep
            )
        null = self._moments[asked.index].null(rows, columns)
        plain = block_estimator.estimate_from_blocks(
            each, self._weight, n_eff, asked, rep, null, left_out
        )
        if asked.estimator != "ratio":
            return plain
        if self._norms is None:
            self._norms = ratio_estimator.unit_norms(self._layers, asked.kernel)
        d, unit = self._norms
        scale = self._blocks[0].unit / unit
        sums = ratio_estimator.norm_sums(blocks, scale[rows], scale[columns])
        return ratio_estimator.estimate_from_norms(plain, sums, d[rows], d[columns], rep)

    def _without_sequences(self) -> list[tuple[slice, Tensor, list[_TableBlock]]]:
        """Of each group of sequences: its blocks, and those without it with their weights."""
        out, unit = [], self._blocks[0].unit
        for group, weight in block_estimator.used_sequence_groups(self._rep, self._asked):
            rest: list[_TableBlock] = []
            if n := len(group.rest):
                layers = [jackknife.layer_without_group(layer, group) for layer in self._layers]
                rest = [_table_block(layers, self._asked, b, n, unit) for b in range(len(weight))]
            out.append((group.blocks, weight, rest))
        return out


def _table_block(
    layers: Sequence[Layer],
    asked: CompareConfig,
    block: int,
    n: int,
    unit: Tensor | None,
    *,
    entries: bool = False,
) -> _TableBlock:
    strips = KernelStrips(
        layers, asked.kernel, block, n, loose=asked.centre, whole=False, unit=unit
    )
    strips = strips.levelled() if asked.centre else strips
    found = strip_sums(strips, [(0, n // 2), (n // 2, n)], entries=entries)
    across = found.touching[0] + found.touching[1] - found.pairs  # those with an end in either half
    inside, outside, _ = block_estimator.half_weights(n, across.device)
    least = round_off_level(layers, asked.kernel, slice(block, block + 1), n)
    return _TableBlock(
        found.sums,
        found.pairs,
        inside * (found.pairs - across) + outside * across,
        least / strips.unit[:, 0] ** 2,
        strips.unit,
        torch.cat(found.entries, 1) if entries else None,
        _leading_kernel(strips, min(n, SKEWNESS_SAMPLES)),
    )


def _permutation_window(blocks: Sequence[_TableBlock]) -> PermutationWindow:
    u, d = (
        torch.stack(x, 1)
        for x in zip(*((row_effects(b.sums.rows), b.sums.diagonal) for b in blocks), strict=True)
    )
    entries = [block.entries for block in blocks if block.entries is not None]
    if entries:
        together = torch.stack(entries, 1)
        return permutation_window(u, d, 2 * (together @ together.mT).double())
    own = blocks[0].pairs.diagonal()[:, None, None]
    return permutation_window(u, d, own, blocks[0].leading)


_SKEWNESS_SAMPLES = 256  # samples whose kernel tells how skewed chance is


class FullGramTable:
    """Estimates between any layers that hold the kernels of all samples."""

    def __init__(self, layers: Sequence[Layer], samples: int, asked: CompareConfig) -> None:
        n = self._n = samples
        self._layers, self._asked = layers, asked
        self._spans = block_estimator.sample_groups(n)
        strips = KernelStrips(layers, asked.kernel, 0, n, loose=asked.centre, whole=True)
        found = strip_sums(strips, self._spans, seen=asked.centre)
        least = round_off_level(layers, asked.kernel, slice(0, 1), n, whole=True)
        self._visible = least / strips.unit[:, 0] ** 2
        self._u = row_effects(found.sums.rows)
        d, r = found.sums
        self._n_eff = jackknife.effective_number((d - 2 * self._u if asked.centre else d).T)
        self._leading = _leading_kernel(strips, min(n, _SKEWNESS_SAMPLES))
        # sums over pairs and rows of all samples, then without each span
        self._sums = [(found.pairs, found.sums)]
        for g, (start, stop) in enumerate(self._spans):
            rest = r if found.seen is None else r - found.seen[g]
            kept = RowSums(*(torch.cat([x[:, :start], x[:, stop:]], 1) for x in (d, rest)))
            self._sums.append((found.pairs - found.touching[g], kept))
        self._own: dict[Index, list[tuple[Tensor, Tensor]]] = {}
        self._moments: dict[Index, PermutationMoments] = {}

    def estimate(self, rows: slice, columns: slice, asked: CompareConfig) -> Estimate:
        """Scores of some layers with others."""
        own = self._own_products(asked.index)
        every, *left = (
            PairSums(
                cross_products(weights, pairs[rows, columns], sums.of(rows), sums.of(columns)),
                same[rows],
                same[columns],
            )
            for (pairs, sums), (weights, same) in zip(self._sums, own, strict=True)
        )
        weights, (_, sums) = own[0][0], self._sums[0]
        chance = (
            permuted_products(weights, sums.of(rows), sums.of(columns)),
            self._moments[asked.index].null(rows, columns),
        )
        pairing = LayerPairing(
            self._layers[rows], self._layers[columns], asked, self._n, self._spans
        )
        visible = (self._visible[rows], self._visible[columns])
        n_eff = (self._n_eff[rows], self._n_eff[columns])
        return block_estimator.estimate_from_full_gram(pairing, every, left, visible, n_eff, chance)

    def _own_products(self, index: Index) -> list[tuple[Tensor, Tensor]]:
        """Weights of sums, and ⟨K, K⟩ of each layer: of all samples, then without each span.

        They are the same for all pairs of networks, as are the moments of permuted scores.
        """
        if index not in self._own:
            self._own[index] = []
            for pairs, sums in self._sums:
                weights = sum_weights(index, sums.n, self._n, centre=self._asked.centre)
                own = own_products(weights, pairs.diagonal(), sums)
                self._own[index].append((weights, own))
            pairs, sums = self._sums[0]
            inner = pairs.diagonal()[:, None, None]
            d = sums.diagonal[:, None]
            window = permutation_window(self._u[:, None], d, inner, self._leading)
            self._moments[index] = permutation_moments([(1.0, self._own[index][0][0], window)])
        return self._own[index]


def _leading_kernel(strips: KernelStrips, m: int) -> Tensor:  # (L, m, m) float32
    """The kernels of the first m samples, with zeros on the diagonal."""
    lower = strips.rows(0, m).float()
    return lower + lower.mT


NetworkPair = tuple[
    int, int
]  # places of two networks, the earlier first; both the same: with itself
ComparisonKey = tuple[int, int, Index]
_LAYERS_AT_ONCE = 800  # whose sums are held at a time: about a gigabyte


def compare_every_pair(
    reps: Sequence[Representation],
    kernel: Kernel,
    indices: Sequence[Index],
    predicted: Mapping[NetworkPair, AnyBehaviour],
    done: Callable[[int], None] = lambda pairs: None,
    matchings: Mapping[ComparisonKey, Matching] | None = None,
) -> tuple[dict[ComparisonKey, KernelComparison], dict[ComparisonKey, str]]:
    """Each pair of networks and each network with itself, or why it cannot be compared.

    `predicted` is what is known of behaviour; `done` hears how many comparisons were finished;
    `matchings` are the counterparts of layers, which are otherwise matched by this kernel's scores.
    Cost: about L² N² / 4 multiplications for L layers of all networks together and N samples; where
    those are in blocks of n, L² N n / 4.
    """
    compared: dict[ComparisonKey, KernelComparison] = {}
    missing: dict[ComparisonKey, str] = {}
    asked: dict[ComparisonKey, CompareConfig] = {}
    matchings = matchings or {}
    every = itertools.combinations_with_replacement(range(len(reps)), 2)
    for (i, j), index in itertools.product(every, indices):
        try:
            check_recorded(reps[i], reps[j], kernel)
            asked[i, j, index] = resolve_config(reps[i], reps[j], kernel, index, None, "auto")
        except MismatchError as error:
            missing[i, j, index] = str(error)
            done(1)
    recorded = sorted({i for i, j, _ in asked if i == j})
    for places in _same_block_groups(reps, recorded, kernel):
        for key, found in _shared_estimates(reps, places, asked):
            a, b = (reps[i] for i in key[:2])
            known = predicted.get(key[:2])
            matching = matchings.get(key)
            compared[key] = build_comparison(
                a, b, asked[key], found, known, matching, automatic=True
            )
            done(1)
    for key in asked.keys() - compared.keys():
        a, b = (reps[i] for i in key[:2])
        known, matching = predicted.get(key[:2]), matchings.get(key)
        compared[key] = compare_kernel(
            a, b, kernel, key[2], None, "auto", "cpu", True, None, known, matching=matching
        )
        done(1)
    for note in itertools.chain.from_iterable(found.notes for found in compared.values()):
        if note.code in ALARMS:
            warn(note)
    return compared, missing


def _same_block_groups(
    reps: Sequence[Representation], recorded: Sequence[int], kernel: Kernel
) -> list[list[int]]:
    """Networks that hold the same blocks of samples of a kernel they recorded, in groups."""
    out: list[list[int]] = []
    for i in recorded:
        rep = reps[i]
        whole = {has_full_gram(layer, kernel) for layer in rep}
        if len(whole) != 1 or kernel not in STRIP_KERNELS:
            continue
        for group in out:
            first = reps[group[0]]
            if has_full_gram(first[0], kernel) in whole and blocks_obstacle(first, rep) is None:
                group.append(i)
                break
        else:
            out += [[i]] if blocks_obstacle(rep, rep) is None else []
    return out


def _shared_estimates(
    reps: Sequence[Representation],
    places: Sequence[int],
    asked: Mapping[ComparisonKey, CompareConfig],
) -> Iterator[tuple[ComparisonKey, Estimate]]:
    """Estimates of networks that are alike, of as many layers at a time as memory holds."""
    room = (
        _LAYERS_AT_ONCE
        if sum(len(reps[i]) for i in places) <= _LAYERS_AT_ONCE
        else _LAYERS_AT_ONCE // 2
    )
    groups: list[list[int]] = [[]]
    for i in places:
        if groups[-1] and sum(len(reps[j]) for j in [*groups[-1], i]) > room:
            groups.append([])
        groups[-1].append(i)
    shares = {
        key: q
        for key, q in asked.items()
        if q.estimator in ("blocks", "ratio") and q.index in ("cka", "cka-debiased")
    }
    for one, two in itertools.combinations_with_replacement(groups, 2):
        here = {key: q for key, q in shares.items() if key[0] in one and key[1] in two}
        if here:
            yield from row_estimates(reps, sorted({*one, *two}), here)


def row_estimates(
    reps: Sequence[Representation],
    places: Sequence[int],
    asked: Mapping[ComparisonKey, CompareConfig],
) -> Iterator[tuple[ComparisonKey, Estimate]]:
    """Estimates of pairs of networks whose layers stand in one row: a row of pairs at a time."""
    layers = [layer for i in places for layer in reps[i]]
    ends = dict(zip(places, np.cumsum([len(reps[i]) for i in places]).tolist(), strict=True))
    first, some = reps[places[0]], next(iter(asked.values()))
    whole = has_full_gram(first[0], some.kernel)
    tables = (
        FullGramTable(layers, first.samples, some) if whole else BlockTable(layers, first, some)
    )
    for i, q in dict.fromkeys((key[0], q) for key, q in asked.items()):
        rows = slice(ends[i] - len(reps[i]), ends[i])
        others = [j for j in places if asked.get((i, j, q.index)) == q]
        start = min(ends[j] - len(reps[j]) for j in others)
        columns = slice(start, max(ends[j] for j in others))
        found = tables.estimate(rows, columns, q)
        for j in others:
            at = slice(ends[j] - len(reps[j]) - start, ends[j] - start)
            yield (i, j, q.index), found.of_columns(at)
