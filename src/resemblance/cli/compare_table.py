"""The output of `resemblance compare`: one table line per layer, a map of all pairs, and sentences.

The table adapts to the width: names lose their shared prefix, the chance level moves from columns
to a sentence, errors lose a digit, and finally names lose their middle. The map shows two digits
for each pair of layers, or a shade where those do not fit.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len

from .._utils import formatting as digits
from .._utils.formatting import printable
from ..representation.notes import ALARMS
from ..similarity.jackknife import FULL_GRAM_SAMPLES
from . import output
from .output import (
    ELLIPSIS,
    TableColumn,
    format_bar,
    pad_cell,
    shared_prefix,
    shorten_names,
    table_width,
    to_encodable,
)

if TYPE_CHECKING:
    from ..similarity.comparison import Comparison, KernelComparison
    from ..similarity.drift import Coordinates


def show_comparison(of: Comparison, *, pairs: bool) -> None:
    """Print a comparison: its heading, the table, all `pairs` of layers if wanted, and the rest of
    its summary without the notes that were warned of."""
    room = output.output_width()
    notes = tuple(note for note in of.notes if note.code not in ALARMS)
    heading, *sentences = replace(of, notes=notes).summary().split("\n")  # type: ignore[type-var]
    output.print_wrapped(heading)
    lines, legend = comparison_table(of, room)
    output.print_line("", *lines)
    output.print_wrapped(*legend)
    if pairs:  # where there is no room for one map, this is said once
        for block in dict.fromkeys(tuple(score_map(one, room)) for one in of.parts):
            output.print_line("", *block)
    output.print_line("")
    output.print_wrapped(*sentences)


# -- the table ----------------------------------------------------------------------------------


_CHANCE_MARK = "*"


@dataclass(frozen=True)
class TableLayout:
    """How much of a comparison a table shows."""

    prefix: bool = True  # names whole, with what all begin with
    chance: bool = True  # the chance level in columns
    terse: bool = False  # errors with one digit
    bar: int = 10  # cells


_TABLE_LAYOUTS = (  # the first that fits
    TableLayout(),
    TableLayout(bar=6),
    TableLayout(bar=6, prefix=False),
    TableLayout(bar=6, prefix=False, chance=False),
    TableLayout(bar=4, prefix=False, chance=False, terse=True),
)


def comparison_table(of: Comparison, room: int) -> tuple[list[str], list[str]]:
    """The table in lines of at most so many characters, and sentences on what its signs mean."""
    for layout in _TABLE_LAYOUTS:
        columns = _table_columns(of, layout)
        if table_width(columns) <= room:
            break
    return output.table_lines(columns, room), list(_table_legend(of, layout))


def _table_columns(of: Comparison, layout: TableLayout) -> list[TableColumn]:
    names, counterparts = _layer_names(of, layout)
    columns = [TableColumn("layer", names, gives_way=True)]
    if counterparts:
        columns.append(TableColumn("counterpart", counterparts, gives_way=True))
    for one in of.parts:
        columns += _score_columns(one, layout)
    bars = [f"{format_bar(x, layout.bar):{layout.bar}}" for x in of.parts[-1].by_layer()[0]]
    columns.append(TableColumn("", bars))
    rows, same = of.parts[0].rows, getattr(of, "same_function", None)
    if (drift := of.coordinates) and drift.shared:
        columns += _drift_columns(drift, rows, () if same is None else same.moved)
    if same is not None:
        basis = dict(zip(same.layers, same.basis, strict=True))
        columns.append(TableColumn("basis", [basis.get(name, "") for name in rows]))
    return columns


def _score_columns(one: KernelComparison, layout: TableLayout) -> Iterator[TableColumn]:
    """Scores of one kernel with their errors, and what they are to be read beside."""
    value, error, chance = one.by_layer()
    pairs, significant = zip(value.tolist(), error.tolist(), strict=True), 1 if layout.terse else 2
    numbers = [digits.format_score(*pair, significant=significant) for pair in pairs]
    if layout.terse:
        numbers = [digits.shorten_error(number) for number in numbers]
    cells = digits.align_numbers(numbers, sign="±" if layout.terse else " ± ")
    longest = max(map(len, cells))
    for i in np.flatnonzero(_is_at_chance(one)):
        cells[i] = f"{cells[i]:{longest}}{_CHANCE_MARK}"
    yield TableColumn(one.kernel, cells)
    if chance is not None and layout.chance:
        yield TableColumn("chance", [_format_number(x, ".3f") for x in chance[1]], right=True)
    if one.n_eff is not None and any(note.code == "unreliable-errors" for note in one.notes):
        n_eff = one.of_counterparts(np.minimum.outer(*one.n_eff))
        yield TableColumn("n_eff", [_format_number(x, ",.0f") for x in n_eff], right=True)


def _drift_columns(
    coordinates: Coordinates, rows: Sequence[str], left_out: Sequence[str]
) -> list[TableColumn]:
    """The drift of the features of each layer, except where units are permuted or rotated."""
    moved = zip(coordinates.decibels[0].tolist(), coordinates.cosine[0].tolist(), strict=True)
    by_name = dict(zip(coordinates.layers, moved, strict=True))
    nothing = (np.nan, np.nan)
    known = [nothing if name in left_out else by_name.get(name, nothing) for name in rows]
    decibels = [_format_decibels(x, coordinates.floor) for x, _ in known]
    cosines = digits.align_numbers([digits.format_score(cosine) for _, cosine in known])
    return [TableColumn("dB", decibels, right=True), TableColumn("cosine", cosines)]


def _format_decibels(value: float, floor: float) -> str:
    """A change in decibels; beyond the floor it is rounding."""
    if np.isnan(value):
        return digits.MISSING
    if np.isinf(value):
        return "∞"
    return f">{floor:.0f}" if value > floor else f"{value:.1f}"


def _layer_names(of: Comparison, layout: TableLayout) -> tuple[list[str], list[str]]:
    """Of each layer, and of its counterpart unless all are namesakes; the same by all kernels."""
    first = of.parts[0]
    before = [""] * 2 if layout.prefix else [shared_prefix(x) for x in (first.rows, first.columns)]
    rows = [name.removeprefix(before[0]) for name in first.rows]
    matched = ["" if j is None else first.columns[j] for j in first.matched]
    if first.matched_by == "name" or matched == list(first.rows):
        return rows, []
    return rows, [name.removeprefix(before[1]) or digits.MISSING for name in matched]


def _is_at_chance(one: KernelComparison) -> np.ndarray:
    """Which scores are no higher than 95 % of those that chance gives."""
    value, _, chance = one.by_layer()
    return value <= (np.nan if chance is None else chance[1])


def _table_legend(of: Comparison, layout: TableLayout) -> Iterator[str]:
    """What was left out of the table, and what its signs mean."""
    first = of.parts[0]
    if not layout.prefix:
        for model, names in zip(first.models, (first.rows, first.columns), strict=True):
            if prefix := shared_prefix(names):
                yield f"Names of {model} begin with {prefix}{ELLIPSIS}"
            if not _layer_names(of, layout)[1]:
                break
    if not layout.chance:
        levels = [
            f"{one.kernel} {_chance_range(one)}" for one in of.parts if one.chance_high is not None
        ]
        if levels:
            yield f"Chance level (95 %): {', '.join(levels)}."
    if any(_is_at_chance(one).any() for one in of.parts):
        yield f"{_CHANCE_MARK} not above the 95 % chance level."
    if first.samples[0] > FULL_GRAM_SAMPLES and first.tokens is None:
        yield "± is the error for the recorded samples. `check` bounds scores of the population."
    if of.coordinates and of.coordinates.shared:
        yield "dB, cosine: drift of features, as signal-to-noise ratio and as cosine similarity."


def _chance_range(one: KernelComparison) -> str:
    chance = one.by_layer()[2]
    if chance is None or np.isnan(chance[1]).all():
        return digits.MISSING
    ends = dict.fromkeys(f"{end(chance[1]):.3f}" for end in (np.nanmin, np.nanmax))
    return " to ".join(ends)


def _format_number(value: float, form: str) -> str:
    return "" if np.isnan(value) else f"{value:{form}}"


# -- the map ------------------------------------------------------------------------------------


_SHADES = "▁▂▃▄▅▆▇█"
_PLAIN_SHADES = "0123456789"
_MAX_NAME = 24  # cells of a row's name at most
_MIN_NAME = 8
_SCORE_CELLS = 4  # cells of a score in digits


def score_map(found: KernelComparison, room: int) -> Iterator[str]:
    """The map in lines of at most so many cells, or what to do if they are too few."""
    prefix, many = shared_prefix(found.rows), len(found.columns)
    names = [printable(f"{i} {x.removeprefix(prefix)}") for i, x in enumerate(found.rows, 1)]
    longest = min(_MAX_NAME, max(map(cell_len, names)))
    least = min(_MIN_NAME, longest) + 1 + many
    heading = f"{found.kernel}: rows {found.models[0]}, columns {found.models[1]}"
    if longest + _SCORE_CELLS * many <= room:
        yield heading
        yield " " * longest + "".join(f"{j:{_SCORE_CELLS}}" for j in range(1, many + 1))
        for name, row in zip(shorten_names(names, longest), found.scores, strict=True):
            cells = (f"{_two_digits(x):>{_SCORE_CELLS}}" for x in row)
            yield pad_cell(name, longest) + "".join(cells)
        if not found.same_layers:
            named = ", ".join(f"{j} {printable(name)}" for j, name in enumerate(found.columns, 1))
            yield from textwrap.wrap(f"columns: {named}", room, break_on_hyphens=False)
    elif least <= room:
        yield heading
        wide = min(longest, room - many - 1)
        shades = _SHADES if to_encodable(_SHADES) == _SHADES else _PLAIN_SHADES
        for name, row in zip(shorten_names(names, wide), found.scores, strict=True):
            yield f"{pad_cell(name, wide)} {_shaded_row(row, shades)}"
        yield f"columns 1 to {many}, from {shades[0]} (0) to {shades[-1]} (1)"
    else:
        yield f"The map needs {least} columns, and {room} are available: use --png FILE instead."


def _two_digits(value: float) -> str:
    """A score without its leading zero; below 1 it is not rounded to 1.

    >>> [_two_digits(x) for x in (0.256, 0.999, 1.0, -0.04, float("nan"))]
    ['.26', '.99', '1', '-.0', '–']
    """
    if np.isnan(value):
        return "–"
    if value >= 1 - 1e-9:
        return "1"
    if value < 0:
        return f"{min(value, 0):.1f}".replace("0.", ".", 1)
    return f"{min(value, 0.99):.2f}"[1:]


def _shaded_row(row: np.ndarray, shades: str) -> str:
    """A shade for each score; blank where there is none."""
    level = np.clip(np.nan_to_num(row) * len(shades), 0, len(shades) - 1).astype(int)
    return "".join(" " if np.isnan(x) else shades[i] for x, i in zip(row, level, strict=True))
