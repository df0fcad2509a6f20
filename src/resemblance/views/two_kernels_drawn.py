"""A figure of two networks by several kernels: a map of each, and all curves over layers in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..similarity.comparison import Comparison
from ..similarity.parting_layer import if_found
from . import figures as plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def drawn(found: Sequence[Comparison]) -> Figure:
    """Maps of all pairs of layers side by side, then a curve for each kernel with error bars.

    Rings mark where the networks part, if they are seen to.
    """
    rows, columns = found[0].scores.shape
    wide, tall = min(9.0, 0.5 * columns + 2.5), min(12.0, max(4.2, 0.42 * rows + 1.8))
    figure = plot.figure(wide * len(found) + 5.0, tall)
    axes = figure.subplots(1, len(found) + 1, width_ratios=[*[wide] * len(found), 5.0])
    lowest = 0.0
    for place, one in zip(axes, found, strict=False):
        image = plot.heatmap(place, one.scores, one.rows, one.columns)
        place.set(xlabel=plot.literal(one.models[1]), ylabel=plot.literal(one.models[0]))
        place.set_title(one.heading, fontsize=8, loc="left")
        value, error, _ = one.by_layer()
        parting = if_found(one)
        mark = parting.position if parting else None
        plot.curve(axes[-1], value, error, one.rows, label=one.kernel, mark=mark)
        lowest = min(lowest, float(np.nanmin(value, initial=0.0)))
    figure.colorbar(image, ax=list(axes[:-1]), shrink=0.8, pad=0.02)
    axes[-1].set_ylim(lowest, 1.03)
    axes[-1].set_title(f"layers matched by {found[0].matched_by}", fontsize=9, loc="left")
    handles, labels = axes[-1].get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))  # a ring may come with each kernel
    axes[-1].legend(once.values(), once.keys(), frameon=False, fontsize=8)
    return figure
