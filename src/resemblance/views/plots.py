"""Plots of results, which the `plot` of each result calls, and their parts from plain arrays.

A `Comparison` is drawn as a heatmap beside a curve over layers, comparisons by several kernels as
heatmaps side by side with all curves in one panel, a `ComparisonMatrix` as a clustered heatmap, a
`Trajectory` as heatmaps of layers × checkpoints above a curve of predictions, a `Sensitivity` as
bars, and a `FamilyTree` with roots on the left and their descendants to the right.

Everything returns a matplotlib `Figure` of its own: nothing is shown, and no global state is
changed. The colour map is viridis, which reads the same with and without colour vision.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .._utils.atomic_files import check_writable, write_atomically
from .._utils.formatting import count_noun, printable
from ..analysis.adaptation import Adaptation
from ..analysis.sensitivity import Sensitivity
from ..errors import DataError
from ..gate.copies import Copies
from ..similarity.comparison import Comparison
from ..similarity.comparison_matrix import ComparisonMatrix
from ..similarity.divergence import divergence_if_tested
from ..similarity.results import Plotted
from ..similarity.trajectory import KernelTrajectory, Trajectory
from ..zoo.family_tree import FamilyTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


_DARK, _LIGHT, _RED = "#00204c", "#c8b866", "#a63d40"
_MIN_SHARE = 5e-4  # the left end of the scale; what is less is drawn there


@functools.singledispatch
def plot_result(result: Plotted) -> Figure:
    """The figure of a result, by its class."""
    raise NotImplementedError


@plot_result.register(Trajectory)
def plot_trajectory(of: Trajectory) -> Figure:
    """What `Trajectory.plot` gives."""
    courses, told = list(of.courses()), of.behaviour
    predicted = told is not None and bool(np.isfinite(told.disagreement[:-1, -1]).any())
    wide = min(9.0, 0.45 * len(of.steps) + 2.2)
    tall = min(7.0, 0.3 * len(of.layers) + 1.3)
    heights = [tall, tall, *([1.9] if predicted else [])]
    figure = new_figure(wide * len(courses) + 0.8, sum(heights) + 0.6)
    grid = figure.add_gridspec(len(heights), len(courses), height_ratios=heights)
    maps = []
    for column, course in enumerate(courses):
        for row, against_last in enumerate((True, False)):
            axes = figure.add_subplot(grid[row, column])
            maps.append((axes, _trajectory_map(axes, of, course, against_last=against_last)))
    figure.colorbar(maps[0][1], ax=[axes for axes, _ in maps], shrink=0.6, pad=0.01)
    if predicted and told is not None:
        axes = figure.add_subplot(grid[2, :])
        for at, name in ((-1, "the last"), (0, "the first")):
            share, error = told.disagreement[at], told.disagreement_stderr[at]
            draw_curve(axes, share, error, list(map(str, of.steps)), label=name)
        axes.set_ylim(0, None)
        axes.set_title("share of predictions unlike those of", fontsize=9)
        axes.legend(frameon=False, fontsize=8)
    figure.suptitle(of.heading, fontsize=10)
    return figure


def _trajectory_map(
    axes: Axes, of: Trajectory, course: KernelTrajectory, *, against_last: bool
) -> AxesImage:
    """One map, with its rings."""
    values = (course.against_last() if against_last else course.against_first())[0]
    image = draw_heatmap(axes, values, of.layers, list(map(str, of.steps)))
    if against_last:
        end, settled = len(of.steps) - 1, enumerate(course.settled())
        rings = [(at, row) for row, at in settled if at is not None and at < end]
        title = f"{course.kernel}, against the last" + ("; rings: settled" if rings else "")
        axes.tick_params(labelbottom=False)  # the map below has the same
    else:
        found = enumerate(of.partings(course), 1)
        rings = [(at, x.position) for at, x in found if x.position is not None]
        title = f"{course.kernel}, against the first"
        title += "; rings: first divergence" if rings else ""
    axes.plot(*np.array(rings).reshape(-1, 2).T, "o", ms=20, mfc="none", mec="C3", mew=1.5)
    axes.set_title(title, fontsize=9)
    return image


_MAX_LABELLED = 60  # entries whose names can be read
_MAX_MAP_NAMES, _MAX_CURVE_NAMES = 32, 24  # names along an axis


@plot_result.register(FamilyTree)
def plot_family_tree(tree: FamilyTree) -> Figure:
    """What `FamilyTree.plot` gives: a line an entry, ties with decibels, darker for nearer ones."""
    count = max(1, len(tree))
    deepest = max((x.depth for x in tree), default=0)
    figure = new_figure(min(16.0, 3.6 + 2.2 * deepest), min(40.0, 0.8 + 0.28 * count))
    axes = figure.subplots()
    for place, x in enumerate(tree):
        if x.parent is not None:
            from_depth = tree.members[x.parent].depth
            near = float(np.clip(x.decibels / 40, 0.15, 1.0))  # 40 dB: as rounding leaves it
            axes.plot(
                [from_depth, from_depth, x.depth], [x.parent, place, place], "-", lw=1.2,
                color="black", alpha=near, zorder=1,
            )  # fmt: skip
            if count <= _MAX_LABELLED:
                axes.annotate(
                    x.words, ((from_depth + x.depth) / 2, place), xytext=(0, 2),
                    textcoords="offset points", ha="center", fontsize=6, color="0.35",
                )  # fmt: skip
        axes.plot([x.depth], [place], "o", ms=6, color="C0" if x.is_root else "C1", zorder=2)
        if count <= _MAX_LABELLED:
            tags = f"  [{', '.join(x.entry.tags)}]" if x.entry.tags else ""
            axes.annotate(
                escape_label(f"{x.entry.name}{tags}"), (x.depth, place), xytext=(7, 0),
                textcoords="offset points", va="center", fontsize=8,
            )  # fmt: skip
    axes.set(xlim=(-0.2, deepest + 1.2), ylim=(count - 0.5, -0.5))
    axes.set_axis_off()
    families, alone = tree.counts()
    title = f"{count_noun(families, 'family', 'families')}, {alone} without relatives"
    axes.set_title(title, fontsize=9, loc="left")
    return figure


@plot_result.register(ComparisonMatrix)
def plot_matrix(matrix: ComparisonMatrix) -> Figure:
    """What `ComparisonMatrix.plot` gives: a clustered heatmap with its dendrogram."""
    return clustered_heatmap(
        matrix.scores, matrix.models, matrix.order(), matrix.clusters(), matrix.heading
    )


@plot_result.register(Copies)
def plot_copies(of: Copies) -> Figure:
    """What `Copies.plot` gives, with the copy most like the base by gradients on top.

    Without gradients the order is that of the table.
    """
    rows = np.argsort(np.nan_to_num(of.gradients, nan=-1.0)[::-1], kind="stable")
    rows = len(rows) - 1 - rows  # of equals the first goes above
    figure = new_figure(8.6, 0.9 + 0.45 * len(rows))
    scores, shares = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    both = 0.0 if np.isnan(of.gradients).all() else 0.19
    for offset, label, colour, value, error in (
        (both, "features (centred CKA)", _DARK, of.features, of.features_stderr),
        (-both, "gradients (plain CKA)", _LIGHT, of.gradients, of.gradients_stderr),
    )[: 2 if both else 1]:
        width, bar = np.array(value)[rows], 2 * np.nan_to_num(np.array(error)[rows])
        style = {"lw": 1, "capsize": 2}
        at = np.arange(len(rows)) + offset
        scores.barh(at, width, 0.36, xerr=bar, label=label, color=colour, error_kw=style)
    predicts = not np.isnan(of.disagreement).all()
    label = "predicted differently" if predicts else "other nearest neighbours"
    shares.set(xscale="log", xlim=(_MIN_SHARE, 6), xlabel=label)
    shares.set_xticks([1e-3, 1e-2, 0.1, 1], ["0.1 %", "1 %", "10 %", "100 %"])
    shares.minorticks_off()
    shares.spines["bottom"].set_bounds(_MIN_SHARE, 1)
    shares.tick_params(axis="y", length=0)
    for place, row in enumerate(rows):
        share, error = of.disagreement[row], of.disagreement_stderr[row]
        if not predicts:
            share, error = 1 - of.neighbours[row], of.neighbours_stderr[row]
        if np.isnan(share):
            shares.text(_MIN_SHARE * 1.3, place, "not comparable", va="center", color="grey")
            continue
        ends = np.clip([share - 2 * error, share + 2 * error], _MIN_SHARE, 1.0)
        shares.plot(ends, [place, place], color="black", lw=1)
        shares.plot(max(share, _MIN_SHARE), place, "o", color=_RED, clip_on=False)
        shares.text(ends[1] * 1.35, place, f"{100 * share:.1f} %" if share else "none", va="center")
    scores.set_yticks(range(len(rows)), [escape_label(of.name[row]) for row in rows])
    scores.set(xlim=(0, 1.02), xlabel=f"CKA with {escape_label(of.base)}, mean over layers")
    for axes in (scores, shares):
        axes.spines[["top", "right"]].set_visible(False)
    scores.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return figure


@plot_result.register(Sensitivity)
def plot_sensitivity(of: Sensitivity) -> Figure:
    """What `Sensitivity.plot` gives: two bars for each block, the first block on top.

    Names of spared blocks are bold; dashed lines are the whole copy and what was verified.
    """
    count = len(of.blocks)
    figure = new_figure(7.2, min(24.0, 1.5 + 0.32 * count))
    axes = figure.subplots()
    for offset, label, colour, value, error in (
        (-0.19, "alone in the base", _DARK, of.own, of.own_stderr),
        (0.19, "gained if restored in the copy", _LIGHT, of.gain, of.gain_stderr),
    ):
        style = {"lw": 1, "capsize": 2}
        bars = 2 * np.nan_to_num(error)
        at = np.arange(count) + offset
        axes.barh(at, value, 0.36, xerr=bars, label=label, color=colour, error_kw=style)
    axes.axvline(of.whole, color=_RED, lw=1, ls="--", label="the whole copy")
    if of.spared:
        axes.axvline(of.remaining, color="0.4", lw=1, ls=":", label="with the spared restored")
    names = [escape_label(shorten_name(name)) for name in of.blocks]
    axes.set_yticks(range(count), names, fontsize=8)
    for tick, block in zip(axes.get_yticklabels(), of.blocks, strict=True):
        tick.set_fontweight("bold" if block in of.spared else "normal")
    axes.set(ylim=(count - 0.4, -0.6), xlabel=of.words)
    axes.axvline(0, color="black", lw=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="0.9", lw=0.6)
    axes.set_axisbelow(True)
    figure.legend(frameon=False, fontsize=8, loc="outside upper center", ncols=2)
    return figure


@plot_result.register(Comparison)
def plot_comparison(comparison: Comparison) -> Figure:
    """What `Comparison.plot` gives: heatmaps side by side, then a curve for each kernel.

    Rings mark where the networks diverge. The chance level is drawn where there is one kernel.
    """
    found = comparison.parts
    alone, (rows, columns) = len(found) == 1, found[0].scores.shape
    wide = min(12.0 if alone else 9.0, 0.5 * columns + 2.5)
    figure = new_figure(wide * len(found) + 5.0, min(12.0, max(4.2, 0.42 * rows + 1.8)))
    axes = figure.subplots(1, len(found) + 1, width_ratios=[*[wide] * len(found), 5.0])
    lowest = 0.0
    for place, one in zip(axes, found, strict=False):
        image = draw_heatmap(place, one.scores, one.rows, one.columns)
        second, first = map(escape_label, reversed(one.models))
        place.set(xlabel=second, ylabel=first)
        value, error, chance = one.by_layer()
        parting = divergence_if_tested(one)
        curve = {"chance": chance} if alone else {"label": one.kernel}
        mark = parting.position if parting else None
        draw_curve(axes[-1], value, error, one.rows, mark=mark, **curve)
        lowest = min(lowest, float(np.nanmin(value, initial=0.0)))
        if alone:
            figure.suptitle(one.heading, fontsize=10)
        else:
            place.set_title(one.heading, fontsize=8, loc="left")
    figure.colorbar(image, ax=list(axes[:-1]), shrink=0.8, pad=0.02)
    axes[-1].set_ylim(lowest, 1.03)
    axes[-1].set_title(f"layers matched by {found[0].matched_by}", fontsize=9, loc="left")
    handles, labels = axes[-1].get_legend_handles_labels()
    if once := dict(zip(labels, handles, strict=True)):  # a ring may come with each kernel
        axes[-1].legend(once.values(), once.keys(), frameon=False, fontsize=8)
    return figure


def plot_adaptations(found: Sequence[Adaptation], column: str) -> Figure:
    """What `Adaptation.plot` gives: a column over layers, a curve for each result."""
    figure = new_figure(6.4, 4.0)
    axes = figure.subplots()
    longest = max(found, key=lambda one: len(one.layers))
    for one in sorted(found, key=lambda one: one is not longest):
        draw_curve(axes, one[column], one[f"{column}_stderr"], one.layers, label=one.label)
    _set_tick_names(axes.xaxis, longest.layers, _MAX_CURVE_NAMES, rotation=90)
    axes.set(xlabel="layer", ylabel=column.replace("_", " "))
    axes.legend(frameon=False, fontsize=8)
    return figure


# -- parts, from plain arrays --------------------------------------------------------------------


def new_figure(width: float, height: float) -> Figure:
    """An empty figure with a constrained layout, which a notebook shows by itself."""
    from .shown_figure import ShownFigure

    return ShownFigure(figsize=(width, height), layout="constrained", facecolor="white")


def picture_path(path: Path) -> Path:
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


def save_figure(drawn: Figure, path: Path) -> Path:
    """Write a figure in the format of the file's ending; it appears whole or not at all."""
    content = io.BytesIO()
    drawn.savefig(content, format=path.suffix[1:], dpi=150)
    return write_atomically(path, content.getvalue())


def draw_heatmap(
    axes: Axes, values: np.ndarray, rows: Sequence[str], columns: Sequence[str]
) -> AxesImage:
    """A map from 0 to 1 with names, and the values where they fit; NaN is left blank."""
    image = axes.imshow(values, cmap="viridis", vmin=0, vmax=1, aspect="auto")
    _set_tick_names(axes.yaxis, rows, _MAX_MAP_NAMES)
    _set_tick_names(axes.xaxis, columns, _MAX_MAP_NAMES, rotation=90)
    axes.tick_params(length=0)
    if len(columns) <= 14 and len(rows) <= 20:
        for (i, j), value in np.ndenumerate(values):
            if np.isfinite(value):
                colour = "black" if value > 0.55 else "white"  # on bright and on dark
                axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=7)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return image


def draw_curve(
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
        label = escape_label(f" {label}" if label.startswith("_") else label)
    axes.errorbar(x, values, yerr=2 * np.nan_to_num(stderr), fmt="o-", ms=4, capsize=2, label=label)
    if chance is not None:
        axes.fill_between(x, chance[0], chance[1], color="0.8", lw=0, label="chance (mean to 95 %)")
    if mark is not None:
        ring = axes.plot([mark], [values[mark]], "o", ms=11, mfc="none", mec="C3")
        ring[0].set_label("first divergence")
    _set_tick_names(axes.xaxis, names, _MAX_CURVE_NAMES, rotation=90)
    axes.grid(axis="y", color="0.9", lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def clustered_heatmap(
    scores: np.ndarray, names: Sequence[str], order: Sequence[int], links: np.ndarray, title: str
) -> Figure:
    """A models × models map in the order of its dendrogram, which stands beside it.

    `links` (n-1, 4) are merges (left, right, height, size) as in SciPy's hierarchy.
    """
    from scipy.cluster import hierarchy

    side = min(14.0, max(5.0, 0.32 * len(names) + 2.5))
    fig = new_figure(side * 1.25, side)
    tree, axes = fig.subplots(1, 2, width_ratios=[1, 4])
    axes.sharey(tree)
    if len(links):
        merges = hierarchy.dendrogram(links, no_plot=True)  # leaves lie at 5, 15, 25, ...
        for y, x in zip(merges["icoord"], merges["dcoord"], strict=True):
            tree.plot(x, (np.array(y) - 5) / 10, color="#333333", lw=1)
    tree.invert_xaxis()
    tree.set_xlabel("1 − similarity", fontsize=8)
    tree.spines[["top", "right", "left"]].set_visible(False)
    tree.tick_params(labelsize=7, labelleft=False, left=False)
    labels = [names[i] for i in order]
    image = draw_heatmap(axes, scores[np.ix_(order, order)], labels, labels)
    axes.yaxis.tick_right()
    fig.colorbar(image, ax=axes, shrink=0.7, pad=0.02)
    fig.suptitle(escape_label(title), fontsize=11)
    return fig


def shorten_name(name: str, limit: int = 28) -> str:
    """A long dotted name with its middle left out."""
    return name if len(name) <= limit else f"{name[: limit // 2 - 1]}…{name[-limit // 2 :]}"


def escape_label(name: str) -> str:
    r"""A name to be drawn as it is: no dollar begins a formula, no control is obeyed.

    >>> print(escape_label("net$x$"))
    net\$x\$
    """
    return printable(name).replace("$", r"\$")


def _set_tick_names(axis: Axis, names: Sequence[str], most: int, rotation: int = 0) -> None:
    """Names along an axis, evenly thinned out where more than `most` would overlap."""
    step = -(-len(names) // most)
    labels = [escape_label(shorten_name(name)) for name in names[::step]]
    axis.set_ticks(range(0, len(names), step), labels, rotation=rotation, fontsize=8)
