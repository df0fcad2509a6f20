"""The figure of the copies: how alike each is to the network it came from, and what it does.

On the left the mean over layers of features and of gradients, on the right the share of images
that a copy predicts to be of another class, on a logarithmic scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..similarity.same_predictions import Behaviour
from ..views import figures as plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DARK, _LIGHT, _RED = "#00204c", "#c8b866", "#a63d40"
_LEAST = 5e-4  # the left end of the scale; what is less is drawn there


@dataclass(frozen=True)
class Beside:
    """A network beside the one that it is compared with; scores are (mean, standard error)."""

    name: str
    features: tuple[float, float]
    gradients: tuple[float, float]
    behaviour: Behaviour | None  # None if it has other classes


def drawn(of: str, others: Sequence[Beside]) -> Figure:
    """The figure, with the network most like `of` by gradients on top."""
    rows = sorted(others, key=lambda one: one.gradients[0])
    figure = plot.figure(8.6, 0.9 + 0.45 * len(rows))
    scores, shares = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    _draw_scores(scores, rows)
    _draw_shares(shares, rows)
    scores.set_yticks(range(len(rows)), [row.name for row in rows])
    scores.set(xlim=(0, 1.02), xlabel=f"alike to {of}, mean over layers")
    shares.set_xlabel("predicted otherwise, share of images")
    for axes in (scores, shares):
        axes.spines[["top", "right"]].set_visible(False)
    scores.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return figure


def _draw_scores(axes: Axes, rows: Sequence[Beside]) -> None:
    for offset, label, colour, found in (
        (0.19, "features (centred CKA)", _DARK, [row.features for row in rows]),
        (-0.19, "gradients (plain CKA)", _LIGHT, [row.gradients for row in rows]),
    ):
        (value, error), at = np.array(found).T, np.arange(len(rows)) + offset
        bars = {"lw": 1, "capsize": 2}
        axes.barh(at, value, 0.36, xerr=2 * error, label=label, color=colour, error_kw=bars)


def _draw_shares(axes: Axes, rows: Sequence[Beside]) -> None:
    axes.set(xscale="log", xlim=(_LEAST, 6))
    axes.set_xticks([1e-3, 1e-2, 0.1, 1], ["0.1 %", "1 %", "10 %", "100 %"])
    axes.minorticks_off()
    axes.spines["bottom"].set_bounds(_LEAST, 1)
    axes.tick_params(axis="y", length=0)
    for at, row in enumerate(rows):
        if row.behaviour is None:
            axes.text(_LEAST * 1.3, at, "has other classes", va="center", color="grey")
            continue
        share, error = row.behaviour.disagreement, row.behaviour.disagreement_stderr
        low, high = max(share - 2 * error, _LEAST), max(min(share + 2 * error, 1.0), _LEAST)
        axes.plot([low, high], [at, at], color="black", lw=1)
        axes.plot(max(share, _LEAST), at, "o", color=_RED, clip_on=False)
        axes.text(high * 1.25, at, f"{100 * share:.1f} %" if share else "none", va="center")
