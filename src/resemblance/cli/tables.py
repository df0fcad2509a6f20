"""What the command prints: tables for people, the same numbers as JSON for machines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ..representation.representation import Representation
    from ..similarity.comparison import Comparison


def wrote_json(file: str | None, content: Any) -> bool:
    """Whether JSON went to standard output, so that nothing else should."""
    if file is None:
        return False
    text = json.dumps(content, indent=1, default=str)
    if file == "-":
        typer.echo(text)
        return True
    Path(file).write_text(text + "\n")
    return False


def show(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    caption: str | None = None,
) -> None:
    """Print a table, numbers to the right: as wide as the terminal, or 100 characters in a pipe."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE, show_header=any(columns))
    table.caption, table.caption_justify = caption, "left"
    for column in columns:
        numbers = column.isdigit() or column in ("‖μ‖", "±", "log ratio", "width")
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 100
    Console(width=width, highlight=False).print(table)


def show_layers(layers: Iterable[Mapping[str, Any]]) -> None:
    """The modules that run, as `resemblance layers` lists them."""
    rows = []
    for layer in layers:
        shape = "" if layer["shape"] is None else _times(layer["shape"]) or "scalar"
        rows.append((layer["layer"], layer["kind"], shape, ", ".join(layer["auto"])))
    show(("layer", "kind", "shape of a sample", "auto"), rows)


def show_scores(found: Comparison) -> None:
    """Scores with rows and columns numbered alike, narrow enough for a terminal."""
    columns = [str(j) for j in range(1, len(found.columns) + 1)]
    numbered = ", ".join(map(" ".join, zip(columns, found.columns, strict=True)))
    rows = (
        (f"{i} {name}", *map(number, scores))
        for i, (name, scores) in enumerate(zip(found.rows, found.scores, strict=True), 1)
    )
    show(["", *columns], rows, caption=None if found.same_layers else f"columns: {numbered}")


def show_adaptation(table: Mapping[str, Any]) -> None:
    """‖μ‖ and the log ratio of each layer, with their standard errors."""
    names = ("mean_embedding", "mean_embedding_stderr", "log_ratio", "log_ratio_stderr")
    rows = zip(table["layers"], *(map(number, table[name]) for name in names), strict=True)
    show(("layer", "‖μ‖", "±", "log ratio", "±"), rows, title=table["model"])


def show_file(about: Mapping[str, Any]) -> None:
    """What a recorded file holds: where it came from, then its layers."""
    facts = ((key, str(about[key])) for key in about if key not in ("file", "layers"))
    show(("", ""), facts, title=about["file"])
    layers = []
    for layer in about["layers"]:
        width = f"{layer['dim']:,}" + (" (folded)" if layer["folded"] else "")
        layers.append((layer["name"], _times(layer["shape"]), width, ", ".join(layer["kinds"])))
    show(("layer", "shape", "width", "holds"), layers)


def about(rep: Representation, path: Path) -> dict[str, Any]:
    """What a file holds, as JSON can hold it."""
    settings, data = rep.settings, rep.data
    return {
        "file": str(path),
        "megabytes": round(path.stat().st_size / 1e6, 3),
        "model": rep.name,
        "model fingerprint": rep.model.fingerprint,
        "parameters": rep.model.parameters,
        "samples": rep.samples,
        "skipped": data.skipped,
        "data fingerprint": data.fingerprint,
        "order": data.order,
        "blocks": f"{len(rep.block_sizes)} of {settings.block}",
        **{k: getattr(settings, k) for k in ("buckets", "seed", "pool", "target", "beta")},
        **asdict(rep.made),
        "layers": [
            {name: getattr(layer, name) for name in ("name", "shape", "dim", "folded", "kinds")}
            for layer in rep
        ],
    }


def number(value: float | None) -> str:
    """Two digits after the point, three significant ones above ten, nothing for NaN."""
    if value is None or value != value:
        return ""
    return f"{value:.3g}" if value > 10 else f"{value:.2f}"


def _times(shape: Iterable[int]) -> str:
    return " × ".join(map(str, shape))
