"""Which layer of one network is set beside which of another: by name, by position or by similarity.

*By name*: layers of equal bare names, which leave wrappers out (adapters, data parallel, compiled,
sharded networks), also where all that differs is a prefix on one side (`model.`, `backbone.`). It
holds where at least half of the shorter network's layers have a namesake; the rest have no
counterpart. Shapes may differ, as in a narrower copy. A name that is a number alone says where in
a Sequential a layer stands, not which one it is: where names do not all agree, such layers are
namesakes only if their shapes agree too.

*By position*: networks of as many layers, of the same shapes one by one, under other names.

*By similarity*: the alignment of scores that keeps the order of layers, for all others. It takes
the best that there is, so it flatters: copies are not left to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple, get_args

import numpy as np

from ..representation.layer import Layer

MatchedBy = Literal["name", "position", "similarity"]
RULES: tuple[MatchedBy, ...] = get_args(MatchedBy)


class Known(NamedTuple):
    """What a layer is matched by."""

    name: str  # without the names of wrappers
    shape: tuple[int, ...] | None = None  # None: not known

    @property
    def numbered(self) -> bool:
        """Whether its name is a number alone, or numbers: `3`, `0.1`, `3:in`, `3#2`."""
        module = self.name.partition(":")[0].partition("#")[0]
        return module.replace(".", "").isdecimal()


@dataclass(frozen=True)
class Matching:
    """The counterpart of each row among the columns."""

    by: MatchedBy
    columns: tuple[int | None, ...]  # of each row, the place of its counterpart; None: it has none

    def turned(self, scores: np.ndarray) -> Matching:  # (rows, columns)
        """The counterpart of each column among the rows."""
        if self.by == "similarity":
            return Matching(self.by, align(scores.T))
        rows = {column: row for row, column in enumerate(self.columns)}
        return Matching(self.by, tuple(map(rows.get, range(scores.shape[1]))))


def known(layers: Iterable[Layer]) -> list[Known]:
    """What recorded layers are matched by."""
    return [Known(layer.bare_name or layer.name, layer.shape) for layer in layers]


def match(rows: Sequence[Known], columns: Sequence[Known], scores: np.ndarray) -> Matching:
    """The counterpart of each row, by the first of the three rules that applies.

    >>> rows = [Known("h.0"), Known("h.1"), Known("h.2")]
    >>> match(rows, [Known("model.h.0"), Known("model.h.2")], np.zeros((3, 2)))
    Matching(by='name', columns=(0, None, 1))
    """
    if named := by_name(rows, columns):
        return named
    if _same_shapes(rows, columns):
        return Matching("position", tuple(range(len(rows))))
    return Matching("similarity", align(scores))


def by_name(rows: Sequence[Known], columns: Sequence[Known]) -> Matching | None:
    """Namesakes, if at least half of the shorter network's layers have one."""
    if [layer.name for layer in rows] == [layer.name for layer in columns]:
        return Matching("name", tuple(range(len(rows))))
    tried = [
        _namesakes(rows, columns),
        *(_namesakes(_without(prefix, rows), columns) for prefix in _prefixes(rows, columns)),
        *(_namesakes(rows, _without(prefix, columns)) for prefix in _prefixes(columns, rows)),
    ]
    best = max(tried, key=len)  # the first of equals
    if 2 * len(best) < min(len(rows), len(columns)):
        return None
    return Matching("name", tuple(map(best.get, range(len(rows)))))


def in_all(networks: Sequence[Sequence[Known]]) -> list[list[int]] | None:
    """Of each of many networks, the places of the layers that have namesakes in all of them.

    None where those are fewer than half of the first network's.
    """
    found = [by_name(networks[0], other) for other in networks]
    columns = [matching.columns for matching in found if matching is not None]
    shared = [places for places in zip(*columns, strict=True) if None not in places]
    if len(columns) < len(networks) or 2 * len(shared) < len(networks[0]):
        return None
    return [list(places) for places in zip(*shared, strict=True)]


def align(scores: np.ndarray) -> tuple[int, ...]:  # (rows, columns) -> (rows,)
    """A column for each row such that later rows never get earlier ones, of the largest sum.

    By dynamic programming, O(rows · columns). An undefined score is never chosen if there is
    another.

    >>> align(np.array([[0.1, 0.9, 0.2], [0.8, 0.3, 0.2]]))
    (1, 1)
    """
    scores = np.nan_to_num(scores, nan=-1.0)
    total, came_from = scores[0].copy(), []
    for row in scores[1:]:
        upto = np.maximum.accumulate(total)
        # the first column that reaches the running maximum
        where = np.maximum.accumulate(np.where(total == upto, np.arange(len(total)), 0))
        came_from.append(where)
        total = row + upto
    path = [int(total.argmax())]
    for where in reversed(came_from):
        path.append(int(where[path[-1]]))
    return tuple(reversed(path))


def _namesakes(rows: Sequence[Known], columns: Sequence[Known]) -> dict[int, int]:
    """Rows and columns of equal names. Of layers that share one, the last is taken: it is the
    wrapper of the others, and gives what the layer in it gave before it was wrapped."""
    at = {layer.name: j for j, layer in enumerate(columns)}
    last = {layer.name: i for i, layer in enumerate(rows)}
    pairs = sorted((i, at[name]) for name, i in last.items() if name in at)
    return {i: j for i, j in pairs if not rows[i].numbered or _same_shapes([rows[i]], [columns[j]])}


def _prefixes(layers: Sequence[Known], others: Sequence[Known]) -> list[str]:
    """Dotted prefixes, shortest first, of so many layers that they can decide."""
    every: Counter[str] = Counter()
    for layer in layers:
        parts = layer.name.partition(":")[0].split(".")[:-1]
        every.update(f"{prefix}." for prefix in accumulate(parts, "{}.{}".format))
    enough = min(len(layers), len(others)) / 2
    return sorted((prefix for prefix, n in every.items() if n >= enough), key=len)


def _without(prefix: str, layers: Sequence[Known]) -> list[Known]:
    return [layer._replace(name=layer.name.removeprefix(prefix)) for layer in layers]


def _same_shapes(rows: Sequence[Known], columns: Sequence[Known]) -> bool:
    shapes = [layer.shape for layer in rows]
    return None not in shapes and shapes == [layer.shape for layer in columns]
