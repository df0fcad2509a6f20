"""A Trajectory as a figure: maps of layers × checkpoints over a curve of predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..similarity.training_course import Course, Trajectory
from . import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


def drawn(of: Trajectory) -> Figure:
    """What `Trajectory.plot` gives."""
    courses, told = list(of.courses()), of.behaviour
    predicted = told is not None and bool(np.isfinite(told.disagreement[:-1, -1]).any())
    wide = min(9.0, 0.45 * len(of.steps) + 2.2)
    tall = min(7.0, 0.3 * len(of.layers) + 1.3)
    heights = [tall, tall, *([1.9] if predicted else [])]
    figure = figures.figure(wide * len(courses) + 0.8, sum(heights) + 0.6)
    grid = figure.add_gridspec(len(heights), len(courses), height_ratios=heights)
    maps = []
    for column, course in enumerate(courses):
        for row, against_last in enumerate((True, False)):
            axes = figure.add_subplot(grid[row, column])
            maps.append((axes, _map(axes, of, course, against_last=against_last)))
    figure.colorbar(maps[0][1], ax=[axes for axes, _ in maps], shrink=0.6, pad=0.01)
    if predicted and told is not None:
        axes = figure.add_subplot(grid[2, :])
        for at, name in ((-1, "the last"), (0, "the first")):
            share, error = told.disagreement[at], told.disagreement_stderr[at]
            figures.curve(axes, share, error, _names(of), label=name)
        axes.set_ylim(0, None)
        axes.set_title("share of predictions unlike those of", fontsize=9)
        axes.legend(frameon=False, fontsize=8)
    figure.suptitle(of.heading, fontsize=10)
    return figure


def _map(axes: Axes, of: Trajectory, course: Course, *, against_last: bool) -> AxesImage:
    """One map, with its rings."""
    values = (course.against_last() if against_last else course.against_first())[0]
    image = figures.heatmap(axes, values, of.layers, _names(of))
    if against_last:
        end, settled = len(of.steps) - 1, enumerate(course.settled())
        rings = [(at, row) for row, at in settled if at is not None and at < end]
        title = f"{course.kernel}, against the last" + ("; rings: settled" if rings else "")
        axes.tick_params(labelbottom=False)  # the map below has the same
    else:
        found = enumerate(of.partings(course), 1)
        rings = [(at, x.position) for at, x in found if x.position is not None]
        title = f"{course.kernel}, against the first"
        title += "; rings: where they part" if rings else ""
    axes.plot(*np.array(rings).reshape(-1, 2).T, "o", ms=20, mfc="none", mec="C3", mew=1.5)
    axes.set_title(title, fontsize=9)
    return image


def _names(of: Trajectory) -> list[str]:
    return [str(step) for step in of.steps]
