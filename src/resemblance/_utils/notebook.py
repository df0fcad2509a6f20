"""How a result shows itself: HTML for notebooks, with heat maps, and a table for `print`.

Plain HTML and SVG without scripts or style sheets. Colours of text and lines are those of the page,
so that it reads on light and on dark. Every name is escaped.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .formatting import format_quantity, format_score, printable

_SCORES = ("score", "features", "gradients", "first to last")  # columns of similarities
_MAX_ROWS = 16  # of a table
_MAX_CELLS = 2500  # of a heat map; beyond, `plot` draws it
_MAX_NAMES = 24  # beside a heat map
_VIRIDIS = (  # as matplotlib has it, at 0, 0.1, ..., 1
    "440154", "482475", "414487", "355f8d", "2a788e", "21918c", "22a884", "44bf70", "7ad151",
    "bddf26", "fde725",
)  # fmt: skip
_ANCHORS = np.array([[int(c[i : i + 2], 16) for i in (0, 2, 4)] for c in _VIRIDIS])
_LINE = "1px solid rgba(128, 128, 128, 0.35)"


class HeatMap(NamedTuple):
    """Scores from 0 to 1; NaN is left blank."""

    title: str
    scores: np.ndarray  # (rows, columns)
    rows: Sequence[str]
    columns: Sequence[str]


def result_html(
    title: str, maps: Iterable[HeatMap], columns: Mapping[str, Any], summary: str
) -> str:
    """What a notebook shows of a result.

    Args:
        title: the result in one line.
        maps: its heat maps.
        columns: the columns of its table by name.
        summary: its summary.
    """
    drawn = "".join(heat_map_svg(one) for one in maps if one.scores.size <= _MAX_CELLS)
    lines = "<br>".join(map(_text, summary.split("\n")))
    return (
        f'<div><div style="font-weight: bold; margin: 4px 0">{_text(title)}</div>'
        f'<div style="display: flex; flex-wrap: wrap; gap: 20px">{drawn}</div>'
        f"{table_html(columns)}"
        f'<details style="margin: 6px 0"><summary>Summary</summary>{lines}</details></div>'
    )


def table_html(columns: Mapping[str, Any]) -> str:
    """The first rows of a table; a standard error stands beside its value.

    >>> "0.500 ± 0.010" in table_html({"layer": ["fc"], "score": [0.5], "stderr": [0.01]})
    True
    """
    table = _shown_cells(columns)
    number = len(next(iter(columns.values()), ()))
    style = f"text-align: left; padding: 2px 10px 2px 0; border-bottom: {_LINE}"
    head = "".join(f'<th style="{style}">{_text(name)}</th>' for name in table)
    rows = [
        "".join(f'<td style="{style}">{cell}</td>' for cell in row)
        for row in zip(*table.values(), strict=True)
    ]
    more = number - len(rows)
    rest = f"<div>and {more:,} more rows: <code>to_frame()</code> has all</div>" if more > 0 else ""
    body = "".join(f"<tr>{row}</tr>" for row in (head, *rows))
    table_style = "border-collapse: collapse; white-space: nowrap"
    return (
        f'<div style="overflow-x: auto; margin: 6px 0"><table style="{table_style}">{body}</table>'
        f"{rest}</div>"
    )


def table_text(columns: Mapping[str, Any]) -> str:
    """The same rows as plain text, for `print`.

    >>> print(table_text({"layer": ["fc", "conv"], "score": [0.5, 1.0], "stderr": [0.01, 0.0]}))
    layer  score
    fc     0.500 ± 0.010
    conv   1
    """
    table = {
        name: [html.unescape(x) for x in cells] for name, cells in _shown_cells(columns).items()
    }
    widths = [max(map(len, (name, *cells))) for name, cells in table.items()]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in (tuple(map(printable, table)), *zip(*table.values(), strict=True))
    ]
    more = len(next(iter(columns.values()), ())) - len(lines) + 1
    return "\n".join([*lines, f"and {more:,} more rows: to_frame() has all"] if more > 0 else lines)


def _shown_cells(columns: Mapping[str, Any]) -> dict[str, list[str]]:
    """The first cells of each column, escaped, with standard errors beside their values."""
    table: dict[str, list[str]] = {}
    names = list(columns)
    for name, after in zip(names, [*names[1:], ""], strict=True):
        if name.endswith("stderr"):
            continue
        values = list(columns[name])[:_MAX_ROWS]
        with_error = after in ("stderr", f"{name}_stderr")
        errors = list(columns[after])[:_MAX_ROWS] if with_error else [math.nan] * len(values)
        cells = [_cell(name, x, error) for x, error in zip(values, errors, strict=True)]
        if any(cells):
            table[name] = cells
    return table


def heat_map_svg(of: HeatMap) -> str:
    """A heat map with the names beside it, and each score where the pointer rests on a cell."""
    rows, columns = of.scores.shape
    size = min(24.0, max(6.0, 220 / max(rows, columns)))
    left = _name_width(of.rows)
    below = _name_width(of.columns)
    wide, tall = size * columns, size * rows
    parts = [f'<text x="{left}" y="12">{_text(_short(of.title, 60))}</text>']
    for i, j in np.ndindex(rows, columns):
        score = float(of.scores[i, j])
        at = f'x="{left + j * size:g}" y="{20 + i * size:g}" width="{size:g}" height="{size:g}"'
        words = f"{of.rows[i]}, {of.columns[j]}: {format_score(score)[0]}"
        parts.append(
            f'<rect {at} fill="{_colour(score)}" stroke="none"><title>{_text(words)}</title></rect>'
        )
    middle = size / 2 + 4
    if left > 1:
        parts += [
            f'<text x="{left - 5}" y="{20 + i * size + middle:g}" text-anchor="end">'
            f"{_text(_short(name))}</text>"
            for i, name in enumerate(of.rows)
        ]
    if below > 1:
        for j, name in enumerate(of.columns):
            x, y = left + j * size + middle, 26 + tall
            parts.append(
                f'<text x="{x:g}" y="{y:g}" text-anchor="end" '
                f'transform="rotate(-90 {x:g} {y:g})">{_text(_short(name))}</text>'
            )
    scale = left + wide + 14  # from 0 below to 1 above
    for k in range(20):
        y = 20 + (19 - k) * 4
        parts.append(f'<rect x="{scale:g}" y="{y}" width="8" height="4" fill="{_colour(k / 19)}"/>')
    parts += [f'<text x="{scale + 12:g}" y="{y}">{end}</text>' for end, y in ((1, 29), (0, 100))]
    width = max(scale + 24, left + 6.2 * min(len(of.title), 60))
    height = max(26 + tall + below, 106)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'role="img" font-family="sans-serif" font-size="11" fill="currentColor">'
        f"{''.join(parts)}</svg>"
    )


def _colour(score: float) -> str:
    """A colour of viridis.

    >>> _colour(0.0), _colour(1.0), _colour(float("nan"))
    ('#440154', '#fde725', 'none')
    """
    if math.isnan(score):
        return "none"
    at = min(max(score, 0.0), 1.0) * (len(_ANCHORS) - 1)
    channels = (np.interp(at, range(len(_ANCHORS)), channel) for channel in _ANCHORS.T)
    return "#" + "".join(f"{round(float(value)):02x}" for value in channels)


def _cell(column: str, value: Any, error: float = math.nan) -> str:
    """A value of a table with its standard error, escaped; nothing for what is not known."""
    if isinstance(value, float | np.floating):
        if math.isnan(value):
            return ""
        if math.isinf(value):
            return "∞" if value > 0 else "−∞"
        shown = format_score if column in _SCORES else format_quantity
        text, after = shown(float(value), float(error))
        return f"{text} ± {after}" if after else text
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        return ", ".join(_cell(column, one) for one in value)
    return "" if value is None else _text(_short(str(value), 48))


def _name_width(names: Sequence[str]) -> int:
    """Room for names beside a heat map; too many are left to the cells."""
    if len(names) > _MAX_NAMES:
        return 1
    return 8 + round(6.2 * max(len(_short(name)) for name in names))


def _short(name: str, most: int = 20) -> str:
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-most // 2 :]}"


def _text(value: str) -> str:
    return html.escape(printable(value))
