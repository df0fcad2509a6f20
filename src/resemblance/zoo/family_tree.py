"""The family tree of a zoo: which entries are of one descent, and which are nearest to which.

Pairs that share coordinates are related (`descent`); how far features moved between them, in
decibels, says how near they are. Of each family the tree keeps the strongest ties that join all of
its members: the spanning tree of the largest sum. It shows nearness: a copy of a copy hangs from
the copy, as it moved less from that. Recordings do not say who came first. The root is the member
tagged `base`, if there is one alone; else the one that is related to most others, the nearest of
those: copies of one origin are nearer to it than to each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._shown_text import shown
from ..errors import DataError, FormatError, nearest, optional
from ..representation.layer import Recorded
from ..representation.representation import Representation
from ..similarity.moved_copies import moved_copies
from .descent import mean_decibels, with_own_units
from .entry import Entry
from .kernel_signature import depths

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from .collection import Zoo

BASE = "base"  # the tag of an entry that others were made from
_MOST = 400  # entries of a group, whose sketches are held at once: a megabyte each
_EQUAL = 200.0  # decibels: what stands for no change at all


@dataclass(frozen=True)
class Kin:
    """An entry in a family tree."""

    entry: Entry
    parent: int | None  # its place among all; None: it is a root
    depth: int  # ties between it and its root
    decibels: float  # how far features moved from the parent, the mean over layers; NaN of a root

    @property
    def is_root(self) -> bool:
        return self.parent is None


@dataclass(frozen=True)
class FamilyTree:
    """A forest of entries: each family with its root first, every entry after its parent."""

    members: tuple[Kin, ...]
    alarms: float  # how often two networks trained apart are taken for related
    left_out: dict[str, int]  # why entries are not in it, and how many

    def __iter__(self) -> Iterator[Kin]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __repr__(self) -> str:
        families, alone = self.counts()
        what = counted(families, "family", "families")
        return f"FamilyTree({len(self)} entries: {what}, {alone} alone)"

    def counts(self) -> tuple[int, int]:
        """Families of two or more, and entries that have no relatives."""
        parents = {x.parent for x in self.members}
        roots = [place for place, x in enumerate(self.members) if x.is_root]
        families = sum(place in parents for place in roots)
        return families, len(roots) - families

    def children(self, place: int) -> list[int]:
        """Places of the entries that hang from one."""
        return [i for i, x in enumerate(self.members) if x.parent == place]

    def to_text(self) -> str:
        """The forest for a terminal: a line an entry, and what there is to say about it."""
        families, alone = self.counts()
        lines = []
        for place, x in enumerate(self.members):
            if x.is_root:
                lines += self._drawn(place, "", "")
        note = (
            f"{counted(families, 'family', 'families')}, {alone} without relatives. Related: units "
            f"share coordinates (false alarms: {self.alarms:g} a pair). Decibels: how little "
            f"features moved from the one above. Roots are those tagged {BASE}, else a guess."
        )
        out = [*lines, note]
        if self.left_out:
            parts = [f"{count:,} {why}" for why, count in self.left_out.items()]
            out.append(f"Left out: {', '.join(parts)}.")
        return "\n".join(out)

    def _drawn(self, place: int, before: str, below: str) -> list[str]:
        x = self.members[place]
        moved = "" if x.is_root else f"  {told(x.decibels)}"
        tags = f"  [{', '.join(map(shown, x.entry.tags))}]" if x.entry.tags else ""
        out = [f"{before}{shown(x.entry.name)} ({x.entry.id[:8]}){moved}{tags}"]
        under = self.children(place)
        for child in under:
            last = child == under[-1]
            lead, rest = ("└─ ", "   ") if last else ("├─ ", "│  ")
            out += self._drawn(child, below + lead, below + rest)
        return out

    def to_frame(self) -> pandas.DataFrame:
        """One row for each entry: name, id, group, parent (its id), decibels, depth and tags."""
        rows = [
            {
                "name": x.entry.name,
                "id": x.entry.id,
                "group": x.entry.group,
                "parent": None if x.parent is None else self.members[x.parent].entry.id,
                "decibels": x.decibels,
                "depth": x.depth,
                "tags": ", ".join(x.entry.tags),
            }
            for x in self.members
        ]
        return optional("pandas", "pandas", "frames").DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; what is not finite becomes None."""
        return {
            "members": [
                {
                    "entry": x.entry.to_dict(),
                    "parent": x.parent,
                    "depth": x.depth,
                    "decibels": float(x.decibels) if np.isfinite(x.decibels) else None,
                }
                for x in self.members
            ],
            "alarms": self.alarms,
            "left_out": dict(self.left_out),
        }

    def plot(self) -> Figure:
        """The forest from left to right, with the decibels of each tie."""
        from ..views.family_drawn import drawn

        return drawn(self)


def family_tree(zoo: Zoo, *, group: str | None = None) -> FamilyTree:
    """Which entries are of one descent, of a group or of each group by itself.

    Layers at four relative depths are compared, of every pair of a group at once, so that copies
    must have been recorded at the same layers. Copies whose units were exchanged are not found
    (see `descent`). Cost: a product of all sketches of a group with each other, and of the pairs
    that look related, the test whether they are.
    """
    from ..similarity.shared_coordinates import FALSE_ALARMS

    entries = zoo.store.entries(group=group)
    if group is not None and not entries:
        there = dict.fromkeys(entry.group for entry in zoo.store.entries())
        known = f"nearest: {nearest(group, there)}" if there else "it is empty"
        raise DataError(f"no group {group!r} in {zoo.store.where}; {known}")
    by_group: dict[str, list[Entry]] = {}
    for entry in entries:
        by_group.setdefault(entry.group, []).append(entry)
    members: list[Kin] = []
    damaged = 0
    for some in by_group.values():
        if len(some) > _MOST:
            raise DataError(
                f"expected at most {_MOST} entries of one group, found {len(some):,}; a tree of so "
                "many cannot be read: ask for the derivatives of one network instead"
            )
        found, lost = _forest(zoo, some)
        members += [
            replace(x, parent=None if x.parent is None else x.parent + len(members)) for x in found
        ]
        damaged += lost
    return FamilyTree(tuple(members), FALSE_ALARMS, {"damaged": damaged} if damaged else {})


def _forest(zoo: Zoo, entries: Sequence[Entry]) -> tuple[list[Kin], int]:
    """The forest of one group, and how many entries are damaged."""
    reps: list[Representation] = []
    kept: list[Entry] = []
    damaged = 0
    for entry in entries:
        try:
            rep = zoo.store.read(entry.id, sorted(set(depths(len(entry.layers)))))
        except FormatError:
            damaged += 1
            continue
        if rep is not None:  # else it has just been removed
            kept.append(entry)
            reps.append(_sketches(with_own_units(rep)))
    near = np.full((len(kept), len(kept)), -np.inf)  # decibels; not related: minus infinity
    for (i, j), moved in moved_copies(reps):
        decibels = min(_EQUAL, mean_decibels(moved.decibels[0]))
        near[i, j] = near[j, i] = decibels
    return hung(kept, near), damaged


def hung(entries: Sequence[Entry], near: np.ndarray) -> list[Kin]:  # near: (n, n) decibels
    """Families by their strongest ties, the largest family first, each from its root on."""
    out: list[Kin] = []
    for family in sorted(_families(near), key=len, reverse=True):
        root = _root(entries, near, family)
        out += _from_root(entries, near, family, root, len(out))
    return out


def _from_root(
    entries: Sequence[Entry], near: np.ndarray, family: Sequence[int], root: int, begin: int
) -> list[Kin]:
    """Prim's tree: the strongest tie to what hangs already, again and again; then in order."""
    parent: dict[int, int] = {}
    hanging, waiting = [root], [x for x in family if x != root]
    while waiting:
        ties = near[np.ix_(hanging, waiting)]
        at, to = np.unravel_index(int(ties.argmax()), ties.shape)
        parent[waiting[to]] = hanging[at]
        hanging.append(waiting.pop(int(to)))
    out: list[Kin] = []
    place: dict[int, int] = {}

    def add(who: int, depth: int) -> None:
        above = parent.get(who)
        decibels = float("nan") if above is None else float(near[who, above])
        place[who] = begin + len(out)
        out.append(Kin(entries[who], None if above is None else place[above], depth, decibels))
        under = [x for x, p in parent.items() if p == who]
        for child in sorted(under, key=lambda x: -near[x, who]):
            add(child, depth + 1)

    add(root, 0)
    return out


def _families(near: np.ndarray) -> list[list[int]]:
    """Entries joined by ties, directly or through others."""
    out, seen = [], set[int]()
    for first in range(len(near)):
        if first in seen:
            continue
        family, new = [first], [first]
        seen.add(first)
        while new:
            who = new.pop()
            for other in np.flatnonzero(np.isfinite(near[who])).tolist():
                if other not in seen:
                    seen.add(other)
                    family.append(other)
                    new.append(other)
        out.append(sorted(family))
    return out


def _root(entries: Sequence[Entry], near: np.ndarray, family: Sequence[int]) -> int:
    tagged = [x for x in family if BASE in entries[x].tags]
    if len(tagged) == 1:
        return tagged[0]
    ties = near[np.ix_(family, family)]
    related = np.isfinite(ties).sum(1)
    closeness = np.where(np.isfinite(ties), ties, 0.0).sum(1) / np.maximum(related, 1)
    best = max(range(len(family)), key=lambda i: (related[i], closeness[i], -i))
    return family[best]


def _sketches(rep: Representation) -> Representation:
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


def told(decibels: float) -> str:
    """A tie in words."""
    return "equal features" if decibels >= _EQUAL else f"{decibels:.1f} dB"


def counted(count: int, one: str, several: str) -> str:
    """A number of things.

    >>> counted(1, "family", "families"), counted(2, "family", "families")
    ('1 family', '2 families')
    """
    return f"{count} {one if count == 1 else several}"
