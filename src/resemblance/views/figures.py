"""Figures from plain arrays: a map of scores, curves over layers, a clustered map of models.

Everything returns a matplotlib `Figure` of its own: nothing is shown, and no global state is
touched. The colour map is viridis, which reads the same with and without colour vision.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .._atomic_files import check_writable, write_atomically
from .._shown_text import shown
from ..errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


def figure(width: float, height: float) -> Figure:
    """An empty figure with a constrained layout."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def picture(path: Path) -> Path:
    """Where a picture can be saved, as its ending says how; `.png` is added if there is none."""
    from matplotlib.backend_bases import FigureCanvasBase

    path = path if path.suffix else path.with_name(f"{path.name}.png")
    formats = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix[1:].lower() not in formats:
        raise DataError(
            f"cannot draw {path}: {path.suffix} is no format of matplotlib's; name a file that "
            f"ends in one of {', '.join(formats)}"
        )
    check_writable(path)
    return path


def save(drawn: Figure, path: Path) -> Path:
    """Write a figure in the format of the file's ending; it appears whole or not at all."""
    content = io.BytesIO()
    drawn.savefig(content, format=path.suffix[1:], dpi=150)
    return write_atomically(path, content.getvalue())


def heatmap(
    axes: Axes, values: np.ndarray, rows: Sequence[str], columns: Sequence[str]
) -> AxesImage:
    """A map from 0 to 1 with names, and the values where they fit; NaN is left blank."""
    image = axes.imshow(values, cmap="viridis", vmin=0, vmax=1, aspect="auto")
    _name(axes.yaxis, rows, 32)
    _name(axes.xaxis, columns, 32, rotation=90)
    axes.tick_params(length=0)
    if len(columns) <= 14 and len(rows) <= 20:
        for (i, j), value in np.ndenumerate(values):
            if np.isfinite(value):
                colour = "black" if value > 0.55 else "white"  # on bright and on dark
                axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=7)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return image


def curve(
    axes: Axes,
    values: np.ndarray,
    stderr: np.ndarray,
    names: Sequence[str],
    *,
    label: str | None = None,
    chance: np.ndarray | None = None,  # mean and 95 % quantile, (2, layers)
    mark: int | None = None,  # the layer where networks part
) -> None:
    """A line over layers with bars of two standard errors, above a shaded chance level."""
    x = np.arange(len(values))
    if label is not None:  # a legend leaves out what begins with an underscore
        label = literal(f" {label}" if label.startswith("_") else label)
    axes.errorbar(x, values, yerr=2 * np.nan_to_num(stderr), fmt="o-", ms=4, capsize=2, label=label)
    if chance is not None:
        axes.fill_between(x, chance[0], chance[1], color="0.8", lw=0, label="chance (mean to 95 %)")
    if mark is not None:
        ring = axes.plot([mark], [values[mark]], "o", ms=11, mfc="none", mec="C3")
        ring[0].set_label("where they part")
    _name(axes.xaxis, names, 24, rotation=90)
    axes.grid(axis="y", color="0.9", lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def clustered(
    scores: np.ndarray, names: Sequence[str], order: Sequence[int], links: np.ndarray, title: str
) -> Figure:
    """A models × models map in the order of its dendrogram, which stands beside it.

    `links` (n-1, 4) are merges (left, right, height, size) as in SciPy's hierarchy.
    """
    n = len(names)
    side = min(14.0, max(5.0, 0.32 * n + 2.5))
    fig = figure(side * 1.25, side)
    tree, axes = fig.subplots(1, 2, width_ratios=[1, 4])
    axes.sharey(tree)
    place = {leaf: float(position) for position, leaf in enumerate(order)}
    height = dict.fromkeys(order, 0.0)
    for i, (left, right, level, _) in enumerate(links):
        y = [place[int(left)], place[int(right)]]
        x = [height[int(left)], level, level, height[int(right)]]
        tree.plot(x, [y[0], *y, y[1]], color="#333333", lw=1)
        place[n + i], height[n + i] = float(np.mean(y)), float(level)
    tree.invert_xaxis()
    tree.set_xlabel("1 − similarity", fontsize=8)
    tree.spines[["top", "right", "left"]].set_visible(False)
    tree.tick_params(labelsize=7, labelleft=False, left=False)
    labels = [names[i] for i in order]
    image = heatmap(axes, scores[np.ix_(order, order)], labels, labels)
    axes.yaxis.tick_right()
    fig.colorbar(image, ax=axes, shrink=0.7, pad=0.02)
    fig.suptitle(literal(title), fontsize=11)
    return fig


def shorten(name: str, limit: int = 28) -> str:
    """A long dotted name with its middle left out."""
    return name if len(name) <= limit else f"{name[: limit // 2 - 1]}…{name[-limit // 2 :]}"


def literal(name: str) -> str:
    r"""A name to be drawn as it is: no dollar begins a formula, no control is obeyed.

    >>> print(literal("net$x$"))
    net\$x\$
    """
    return shown(name).replace("$", r"\$")


def _name(axis: Axis, names: Sequence[str], most: int, rotation: int = 0) -> None:
    """Names along an axis, evenly thinned out where more than `most` would overlap."""
    step = -(-len(names) // most)
    labels = [literal(shorten(name)) for name in names[::step]]
    axis.set_ticks(range(0, len(names), step), labels, rotation=rotation, fontsize=8)
