"""A FamilyTree as a figure: roots on the left, what hangs from them to the right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..zoo.family_tree import FamilyTree, counted, told
from . import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 60  # entries whose names can be read


def drawn(tree: FamilyTree) -> Figure:
    """What `FamilyTree.plot` gives: a line an entry, ties with decibels, darker for nearer ones."""
    count = max(1, len(tree))
    deepest = max((x.depth for x in tree), default=0)
    figure = figures.figure(min(16.0, 3.6 + 2.2 * deepest), min(40.0, 0.8 + 0.28 * count))
    axes = figure.subplots()
    for place, x in enumerate(tree):
        if x.parent is not None:
            from_depth = tree.members[x.parent].depth
            near = float(np.clip(x.decibels / 40, 0.15, 1.0))  # 40 dB: as rounding leaves it
            axes.plot(
                [from_depth, from_depth, x.depth], [x.parent, place, place], "-", lw=1.2,
                color="black", alpha=near, zorder=1,
            )  # fmt: skip
            if count <= _MOST:
                axes.annotate(
                    told(x.decibels), ((from_depth + x.depth) / 2, place), xytext=(0, 2),
                    textcoords="offset points", ha="center", fontsize=6, color="0.35",
                )  # fmt: skip
        axes.plot([x.depth], [place], "o", ms=6, color="C0" if x.is_root else "C1", zorder=2)
        if count <= _MOST:
            tags = f"  [{', '.join(x.entry.tags)}]" if x.entry.tags else ""
            axes.annotate(
                figures.literal(f"{x.entry.name}{tags}"), (x.depth, place), xytext=(7, 0),
                textcoords="offset points", va="center", fontsize=8,
            )  # fmt: skip
    axes.set(xlim=(-0.2, deepest + 1.2), ylim=(count - 0.5, -0.5))
    axes.set_axis_off()
    families, alone = tree.counts()
    title = f"{counted(families, 'family', 'families')}, {alone} without relatives"
    axes.set_title(title, fontsize=9, loc="left")
    return figure
