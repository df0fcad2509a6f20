"""The family tree of a zoo: which entries are related by descent, and which are nearest to which.

Pairs that share unit order are related (`descent`); the drift of features between them, in
decibels, measures how near they are. For each family the tree keeps the strongest edges that
connect all members: the maximum spanning tree. It shows nearness: a copy of a copy hangs below the
copy, from which it drifted less. Recordings do not say who came first; only the tag `base` does.
Entries with that tag come first, and what hangs directly below one was made from it; all other
edges have no known direction. A family without the tag starts with the entry related to the most
others, and among those the nearest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._utils.formatting import count_noun, left_out_sentence, printable
from ..errors import DataError, close_matches
from ..representation.layer import Recorded
from ..representation.representation import Representation
from ..similarity.drift import FALSE_ALARM_RATE, coordinates
from ..similarity.drift_of_copies import drift_of_copies
from ..similarity.results import Content, Plotted, Result
from .descent import mean_decibels, sharing_strength, without_logits
from .entry import Entry, entry_columns
from .search import REASON_DAMAGED, read_entries
from .signature import depth_indices

if TYPE_CHECKING:
    from .zoo import Zoo


Direction = Literal["tagged", "unknown"]
UNKNOWN = "direction unknown"
BASE = "base"  # the tag of an entry that others were made from
_MOST = 400  # entries of a group, whose sketches are held at once: a megabyte each
_EQUAL_DECIBELS = 200.0  # decibels: what stands for no change at all


@dataclass(frozen=True)
class TreeMember(Content):
    """An entry in a family tree."""

    entry: Entry
    parent: int | None  # place of the entry it is drawn below; None: it is drawn first
    depth: int  # ties between it and the first
    decibels: float  # how far features moved from the parent, the mean over layers; NaN: no parent
    direction: Direction | None = None  # tagged: its parent is a base, and it is not; unknown: it
    # may have been made from its parent, its parent from it, or both from a third

    _also = ("words",)

    @property
    def is_root(self) -> bool:
        return self.parent is None

    @property
    def words(self) -> str:
        """Its tie: how little its features moved, and whether the direction is known."""
        if self.is_root:
            return ""
        return format_decibels(self.decibels) + (
            f", {UNKNOWN}" if self.direction == "unknown" else ""
        )


@dataclass(frozen=True, eq=False, repr=False)
class FamilyTree(Plotted, Result):
    """A forest of entries: each family with its base first, every entry after its parent.

    `plot` draws it from left to right, with the decibels of each edge. `to_frame` has one row for
    each entry: name, id, group, parent (its id), direction, decibels, depth and tags.

    Attributes:
        members: the entries in order, each with the index of its parent and the drift from it.
        alarms: false alarm rate: how often two networks trained independently are called related.
        left_out: why entries were skipped, and how many.
    """

    members: tuple[TreeMember, ...]
    alarms: float
    left_out: dict[str, int]

    _kind = "family_tree"
    _also = ("note",)

    def __iter__(self) -> Iterator[TreeMember]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def _text(self) -> str:
        families, alone = self.counts()
        several = count_noun(families, "family", "families")
        return f"{len(self)} entries: {several}, {alone} without relatives"

    def counts(self) -> tuple[int, int]:
        """Families of two or more, and entries that have no relatives.

        Returns:
            The number of families and the number of single entries.
        """
        parents = {x.parent for x in self.members}
        roots = [place for place, x in enumerate(self.members) if x.is_root]
        families = sum(place in parents for place in roots)
        return families, len(roots) - families

    def to_text(self) -> str:
        """The forest for a terminal: a line an entry, and what there is to say about it.

        Returns:
            Several lines, the summary at the end.
        """
        lines: list[str] = []
        going_on: set[int] = set()  # depths at which a branch goes on further down
        for x in reversed(self.members):
            going_on = {depth for depth in going_on if depth <= x.depth}
            before = "".join("│  " if i in going_on else "   " for i in range(1, x.depth))
            branch = "├─ " if x.depth in going_on else "└─ "
            moved = f"  {x.words}" if x.words else ""
            tags = f"  [{', '.join(map(printable, x.entry.tags))}]" if x.entry.tags else ""
            line = f"{printable(x.entry.name)} ({x.entry.id[:8]}){moved}{tags}"
            lines.append(line if x.is_root else f"{before}{branch}{line}")
            going_on.add(x.depth)
        return "\n".join([*reversed(lines), self.summary()])

    def _sentences(self) -> list[str]:
        return [self.note, *([left_out_sentence(self.left_out)] if self.left_out else [])]

    @property
    def note(self) -> str:
        """What the forest shows, in a few plain sentences."""
        families, alone = self.counts()
        return (
            f"{count_noun(families, 'family', 'families')}, {alone} without relatives. Networks "
            "are related if their units are in the same order at most layers (false-alarm rate: "
            f"{self.alarms:g} per pair). Decibels (SQNR) say how close features are to those of "
            f"the entry above. Each entry is drawn below its nearest relative. Only the tag {BASE} "
            "marks which came first; otherwise the direction is unknown."
        )

    def _columns(self) -> Mapping[str, Any]:
        entries = [x.entry for x in self.members]
        parents = [None if x.parent is None else entries[x.parent].id for x in self.members]
        own = ("direction", "decibels", "depth")
        return {
            **entry_columns(entries, "name", "id", "group"),
            "parent": parents,
            **{key: [getattr(x, key) for x in self.members] for key in own},
            **entry_columns(entries, "tags"),
        }


def family_tree(zoo: Zoo, *, group: str | None = None) -> FamilyTree:
    """Which entries are of one descent, of a group or of each group by itself.

    Layers at four relative depths are compared, of every pair of a group at once, so that copies
    must have been recorded at the same layers; where only some of these share units, all layers
    decide, as in `descent`. The entries tagged `base` come first in their families, and never hang
    from an entry without that tag. Copies whose units were exchanged are not found
    (see `descent`). Cost: a product of all sketches of a group with each other, and of the pairs
    that look related, the test whether they are.

    Args:
        zoo: whose entries.
        group: only those recorded on the same samples in the same way; by default, each group.
    """
    entries, unreadable = zoo.store.listed(group=group)
    if group is not None and not entries:
        there = dict.fromkeys(entry.group for entry in zoo.store.listed()[0])
        known = f"nearest: {close_matches(group, there)}" if there else "it is empty"
        raise DataError(f"no group {group!r} in {zoo.store.where}; {known}")
    by_group: dict[str, list[Entry]] = {}
    for entry in entries:
        by_group.setdefault(entry.group, []).append(entry)
    members: list[TreeMember] = []
    left_out = Counter({REASON_DAMAGED: len(unreadable)})
    for some in by_group.values():
        if len(some) > _MOST:
            raise DataError(
                f"expected at most {_MOST} entries of one group, found {len(some):,}; a tree of so "
                "many cannot be read: ask for the derivatives of one network instead"
            )
        first = len(members)
        members += [
            replace(x, parent=None if x.parent is None else x.parent + first)
            for x in _group_forest(zoo, some, left_out)
        ]
    return FamilyTree(tuple(members), FALSE_ALARM_RATE, dict(+left_out))


def _group_forest(zoo: Zoo, entries: Sequence[Entry], left_out: Counter[str]) -> list[TreeMember]:
    """The forest of one group; entries that are damaged are counted."""
    at_depths = read_entries(zoo, entries, lambda x: depth_indices(len(x.layers)), left_out)
    found = [(entry, _feature_sketches_only(without_logits(rep))) for entry, rep in at_depths]
    near = np.full((len(found), len(found)), -np.inf)  # decibels; not related: minus infinity
    for (i, j), moved in drift_of_copies([rep for _, rep in found]):
        shared = coordinates(found[i][1], found[j][1])
        if not shared.shared_layers.all():  # then all layers decide
            pair = read_entries(zoo, (found[i][0], found[j][0]), lambda _: None, Counter())
            whole = [without_logits(rep) for _, rep in pair]
            shared = coordinates(*whole) if len(whole) == 2 else shared
        if sharing_strength(shared) > 1:
            near[i, j] = min(_EQUAL_DECIBELS, mean_decibels(moved.decibels[0]))
            near[j, i] = near[i, j]
    return build_forest([entry for entry, _ in found], near)


def build_forest(
    entries: Sequence[Entry], near: np.ndarray
) -> list[TreeMember]:  # near: (n, n) decibels
    """Families by their strongest ties, the largest family first, each from its base on.

    Prim's tree: the strongest tie to what hangs already, again and again. It begins with the
    entries tagged `base`, which hang from each other alone. A family without any begins with the
    entry that is nearest to all others, which need not be the origin.
    """
    from scipy.sparse.csgraph import connected_components

    count, labels = connected_components(np.isfinite(near), directed=False)
    families = [np.flatnonzero(labels == k).tolist() for k in range(count)]
    parents: dict[int, int | None] = {}
    for family in sorted(families, key=len, reverse=True):
        parents |= _family_parents(near, family, [x for x in family if BASE in entries[x].tags])
    members: list[TreeMember] = []
    places: dict[int, int] = {}
    waiting = [x for x, above in reversed(parents.items()) if above is None]
    while waiting:
        who = waiting.pop()
        above = parents[who]
        places[who] = len(members)
        if above is None:
            members.append(TreeMember(entries[who], None, 0, float("nan")))
        else:
            known = BASE in entries[above].tags and BASE not in entries[who].tags
            direction: Direction = "tagged" if known else "unknown"
            at, decibels = places[above], float(near[who, above])
            depth = members[at].depth + 1
            members.append(TreeMember(entries[who], at, depth, decibels, direction))
        below = [x for x, parent in parents.items() if parent == who]
        waiting += sorted(below, key=lambda x: -near[x, who])[::-1]
    return members


def _family_parents(
    near: np.ndarray, family: Sequence[int], tagged: Sequence[int]
) -> dict[int, int | None]:
    """What each entry of a family hangs from; of the first ones, None."""
    parents: dict[int, int | None] = {}
    waiting = list(tagged) or [_most_related(near, family)]
    while waiting:
        first = _most_related(near, waiting)
        waiting.remove(first)
        parents[first] = None
        _attach(near, parents, waiting)
    _attach(near, parents, [x for x in family if x not in parents])
    return parents


def _attach(near: np.ndarray, parents: dict[int, int | None], waiting: list[int]) -> None:
    """Hang what waits by its strongest tie, as long as there is one."""
    while waiting:
        ties = near[np.ix_(list(parents), waiting)]
        at, to = np.unravel_index(int(ties.argmax()), ties.shape)
        if not np.isfinite(ties[at, to]):
            return
        parents[waiting.pop(int(to))] = list(parents)[int(at)]


def _most_related(near: np.ndarray, family: Sequence[int]) -> int:
    """The entry that is related to most others, and of those the nearest to them."""
    ties = near[np.ix_(family, family)]
    related = np.isfinite(ties).sum(1)
    closeness = np.where(np.isfinite(ties), ties, 0.0).sum(1) / np.maximum(related, 1)
    return family[max(range(len(family)), key=lambda i: (related[i], closeness[i], -i))]


def _feature_sketches_only(rep: Representation) -> Representation:
    """A recording with its sketches of features alone, so that many fit into memory."""
    layers = tuple(
        replace(
            x,
            features=Recorded(trace=x.features.trace, sketch=x.features.sketch),
            gradients=None,
            elementwise=None,
            products=None,
            signs=None,
        )
        for x in rep
    )
    return replace(rep, layers=layers, outputs=None)


def format_decibels(decibels: float) -> str:
    """A tie in words."""
    return "equal features" if decibels >= _EQUAL_DECIBELS else f"{decibels:.1f} dB"
