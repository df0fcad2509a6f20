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

from .._atomic_files import check_writable, write_atomically
from .._shown_text import shown

if TYPE_CHECKING:
    from ..representation.representation import Representation
    from ..similarity.comparison import Comparison

STANDARD_OUTPUT = ("-", "/dev/stdout")


def check_json(file: str | None) -> None:
    """Refuse a file that could not be written once there is something to write."""
    if file is not None and file not in STANDARD_OUTPUT:
        check_writable(file)


def wrote_json(file: str | None, content: Any) -> bool:
    """Whether JSON went to standard output, so that nothing else should."""
    if file is None:
        return False
    text = json.dumps(content, indent=1, default=str)
    if file in STANDARD_OUTPUT:
        typer.echo(text)
        return True
    write_atomically(file, f"{text}\n".encode())
    return False


def say(text: str, *, err: bool = False) -> None:
    """Print one line; what a terminal would obey in it is spelt out."""
    typer.echo(shown(text), err=err)


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

    table = Table(title_justify="left", box=box.SIMPLE, show_header=any(columns))
    table.title, table.caption = (text and shown(text) for text in (title, caption))
    table.caption_justify = "left"
    for column in columns:
        numbers = column.isdigit() or column in ("‖μ‖", "±", "log ratio", "n_eff", "width", "with")
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(shown, row))
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 100
    Console(width=width, highlight=False, markup=False, emoji=False).print(table)


def show_layers(layers: Iterable[Mapping[str, Any]]) -> None:
    """The modules that run, as `resemblance layers` lists them."""
    rows = []
    for layer in layers:
        shape = "" if layer["shape"] is None else _times(layer["shape"]) or "scalar"
        rows.append((layer["layer"], layer["kind"], shape, ", ".join(layer["auto"])))
    show(("layer", "kind", "shape of a sample", "auto"), rows)


def show_scores(found: Comparison) -> None:
    """Scores with rows and columns numbered alike, narrow enough for a terminal.

    Where counterparts do not simply stand on the diagonal, the last column has their numbers.
    """
    columns = [str(j) for j in range(1, len(found.columns) + 1)]
    rows = [
        [f"{i} {name}", *map(number, scores)]
        for i, (name, scores) in enumerate(zip(found.rows, found.scores, strict=True), 1)
    ]
    caption, last = f"layers matched by {found.matched_by}", []
    if found.matched != tuple(range(len(columns))):
        last = ["with"]
        for row, j in zip(rows, found.matched, strict=True):
            row.append("–" if j is None else columns[j])
    if not found.same_layers:
        numbered = ", ".join(map(" ".join, zip(columns, found.columns, strict=True)))
        caption += f"; columns: {numbered}"
    show(["", *columns, *last], rows, caption=caption)


def show_adaptation(table: Mapping[str, Any]) -> None:
    """‖μ‖ and the log ratio of each layer, with their errors, and what they rest on."""
    names = ("mean_embedding", "mean_embedding_stderr", "log_ratio", "log_ratio_stderr")
    carried = ("" if n is None else f"{n:,.0f}" for n in table["n_eff"])
    columns = (map(number, table[name]) for name in names)
    rows = zip(table["layers"], *columns, carried, strict=True)
    show(("layer", "‖μ‖", "±", "log ratio", "±", "n_eff"), rows, title=table["model"])


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
        "all weights": rep.model.weights,
        "address": rep.model.address,
        "tokenizer": rep.model.tokenizer,
        "parameters": rep.model.parameters,
        "samples": rep.samples,
        "skipped": data.skipped,
        "data fingerprint": data.fingerprint,
        "content": data.content,
        "order": data.order,
        "blocks": f"{len(rep.block_sizes)} of {settings.block}",
        "kernels kept whole": f"{sum(x.features.whole is not None for x in rep)} of {len(rep)}",
        **{k: getattr(settings, k) for k in ("unit", "tokens") if settings.unit == "token"},
        **{k: getattr(settings, k) for k in ("buckets", "seed", "pool", "target", "beta")},
        **asdict(rep.made),
        "outputs": None if rep.outputs is None else f"of {rep.outputs.classes:,} classes",
        "lacks": ", ".join(rep.lacks) or None,
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
