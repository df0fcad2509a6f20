"""The picture of the results: scores against how differently networks predict."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from resemblance.views.plots import new_figure

from .scale import SIZES

STYLES = {  # unit, kernel: colour, marker, label
    ("tokens", "features"): ("tab:blue", "o", "features"),
    ("tokens", "product"): ("tab:purple", "D", "product"),
    ("tokens", "gradients"): ("tab:red", "s", "gradients"),
    ("mean", "gradients"): ("0.55", "^", "gradients, mean over the sequence"),
}
NAMED = ("int8", "int4", "pruned-50", "twin", "other text", "untrained")


def draw(content: dict[str, Any], path: Path) -> None:
    """Mean scores over layers against KL(base‖network), one panel a size of network."""
    sizes = [size for size in SIZES if size in content["sizes"]]
    drawn = new_figure(5.6 * len(sizes), 4.6)
    panels = drawn.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    for axes, size in zip(panels, sizes, strict=True):
        _panel(axes, content, size)
    panels[0].set_ylabel("CKA with the base, mean over layers")
    panels[0].legend(frameon=False, fontsize=8, loc="lower left")
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, dpi=130)


def _panel(axes: Axes, content: dict[str, Any], size: str) -> None:
    rows = [row for row in content["sizes"][size]["networks"] if row["behaviour"]["kl"] > 0]
    for (unit, kernel), (colour, marker, label) in STYLES.items():
        for copies in (True, False):
            some = [row for row in rows if row["descends"] == copies]
            one = [row["scores"][unit][kernel] for row in some]
            axes.errorbar(
                [row["behaviour"]["kl"] for row in some], [_number(x["mean"]) for x in one],
                [2 * _number(x["mean stderr"]) for x in one], fmt=marker, color=colour, ms=5,
                markerfacecolor=colour if copies else "white", capsize=2, lw=0.8,
                label=label if copies else None,
            )  # fmt: skip
    for row in rows:
        if row["kind"] in NAMED:
            axes.annotate(
                row["kind"], (row["behaviour"]["kl"], 1.0), xytext=(0, 6), rotation=60,
                textcoords="offset points", fontsize=7, color="0.35",
            )  # fmt: skip
    parameters = content["training"][f"{size}/0"]["parameters"] / 1e6
    axes.set(xscale="log", xlabel="KL(base‖network), nats a byte", ylim=(-0.02, 1.19))
    axes.set_title(f"{parameters:.3g} million parameters", fontsize=10, loc="left")
    axes.grid(color="0.92", lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
