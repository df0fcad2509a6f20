"""Comparisons of every pair of many networks, as `compare` makes them, from sums that they share.

Networks that hold the same blocks of samples share their sums (`tables_of_whole`,
`tables_of_blocks`), so that each kernel is read once, whatever their number. Pairs of others, and
those that `compare` would take from buckets, are compared one by one. A score, a standard error and
a mean chance level are those of `compare` to 1e-6; the 95 % level of chance is known from its
moments instead of being drawn, and agrees as far as draws do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ..errors import MismatchError
from ..representation.representation import Representation
from .combinations import Index, Kernel, Question
from .comparison import Comparison
from .estimate import Estimate
from .kernel_strips import SHARED
from .same_predictions import Behaviour
from .tables_of_blocks import OfBlocks
from .tables_of_whole import OfWhole
from .two_networks import check_recorded, compare, no_blocks, question, result
from .whole_estimates import is_whole

Pair = tuple[int, int]  # places of two networks, the earlier first; both the same: with itself
Key = tuple[int, int, Index]
_LAYERS = 800  # whose sums are held at a time: about a gigabyte


def every_pair(
    reps: Sequence[Representation],
    kernel: Kernel,
    indices: Sequence[Index],
    predicted: Mapping[Pair, Behaviour],
    done: Callable[[int], None] = lambda pairs: None,
) -> tuple[dict[Key, Comparison], dict[Key, str]]:
    """Each pair of networks and each network with itself, or why it cannot be compared.

    `predicted` is what is known of behaviour; `done` hears how many comparisons were finished.
    Cost: about L² N² / 4 multiplications for L layers of all networks together and N samples; where
    those are in blocks of n, L² N n / 4.
    """
    compared: dict[Key, Comparison] = {}
    missing: dict[Key, str] = {}
    asked: dict[Key, Question] = {}
    every = itertools.combinations_with_replacement(range(len(reps)), 2)
    for (i, j), index in itertools.product(every, indices):
        try:
            check_recorded(reps[i], reps[j], kernel)
            asked[i, j, index] = question(reps[i], reps[j], kernel, index, None, "auto")
        except MismatchError as error:
            missing[i, j, index] = str(error)
            done(1)
    for places in _alike(reps, kernel):
        for key, found in _shared(reps, places, asked):
            a, b = (reps[i] for i in key[:2])
            known = predicted.get(key[:2])
            compared[key] = result(a, b, asked[key], found, known, automatic=True)
            done(1)
    for i, j, index in asked.keys() - compared.keys():
        compared[i, j, index] = compare(reps[i], reps[j], kernel=kernel, index=index)
        done(1)
    return compared, missing


def _alike(reps: Sequence[Representation], kernel: Kernel) -> list[list[int]]:
    """Networks that hold the same blocks of samples of a kernel, in groups."""
    out: list[list[int]] = []
    for i, rep in enumerate(reps):
        whole = {is_whole(layer, kernel) for layer in rep} if _recorded(rep, kernel) else set()
        if len(whole) != 1 or kernel not in SHARED:
            continue
        for group in out:
            first = reps[group[0]]
            if is_whole(first[0], kernel) in whole and no_blocks(first, rep) is None:
                group.append(i)
                break
        else:
            out += [[i]] if no_blocks(rep, rep) is None else []
    return out


def _recorded(rep: Representation, kernel: Kernel) -> bool:
    try:
        check_recorded(rep, rep, kernel)
    except MismatchError:
        return False
    return True


def _shared(
    reps: Sequence[Representation], places: Sequence[int], asked: Mapping[Key, Question]
) -> Iterator[tuple[Key, Estimate]]:
    """Estimates of networks that are alike, of as many layers at a time as memory holds."""
    room = _LAYERS if sum(len(reps[i]) for i in places) <= _LAYERS else _LAYERS // 2
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
            yield from _at_once(reps, sorted({*one, *two}), here)


def _at_once(
    reps: Sequence[Representation], places: Sequence[int], asked: Mapping[Key, Question]
) -> Iterator[tuple[Key, Estimate]]:
    """Estimates of pairs of networks whose layers stand in one row: a row of pairs at a time."""
    layers = [layer for i in places for layer in reps[i]]
    ends = dict(zip(places, np.cumsum([len(reps[i]) for i in places]).tolist(), strict=True))
    first, some = reps[places[0]], next(iter(asked.values()))
    whole = is_whole(first[0], some.kernel)
    tables = OfWhole(layers, first.samples, some) if whole else OfBlocks(layers, first, some)
    for i, q in dict.fromkeys((key[0], q) for key, q in asked.items()):
        rows = slice(ends[i] - len(reps[i]), ends[i])
        others = [j for j in places if asked.get((i, j, q.index)) == q]
        start = min(ends[j] - len(reps[j]) for j in others)
        columns = slice(start, max(ends[j] for j in others))
        found = tables.estimate(rows, columns, q)
        for j in others:
            at = slice(ends[j] - len(reps[j]) - start, ends[j] - start)
            yield (i, j, q.index), found.of_columns(at)
