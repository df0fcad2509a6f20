"""All pairs of layers on a terminal: two digits a pair, or a shade where those do not fit."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

import numpy as np

from .._shown_text import shown
from ..similarity.comparison import Comparison
from .short_names import cells, shared_prefix, shortened
from .tables import speaks

_SHADES = "▁▂▃▄▅▆▇█"
_PLAIN_SHADES = "0123456789"
_NAME = 24  # cells of a row's name at most
_LEAST_NAME = 8
_DIGITS = 4  # cells of a score in digits


def needs(found: Comparison) -> int:
    """The least room that a map can be shown in."""
    return min(_LEAST_NAME, _longest(found)) + 1 + len(found.columns)


def score_map(found: Comparison, room: int) -> Iterator[str]:
    """The map in lines of at most so many characters, which must be no fewer than it `needs`."""
    yield f"{found.kernel}: rows {found.models[0]}, columns {found.models[1]}"
    numbered, many = _numbered(found), len(found.columns)
    longest = _longest(found)
    if longest + _DIGITS * many <= room:
        yield from _in_digits(found, shortened(numbered, longest), longest)
        if not found.same_layers:
            named = ", ".join(f"{j} {shown(name)}" for j, name in enumerate(found.columns, 1))
            yield from textwrap.wrap(f"columns: {named}", room, break_on_hyphens=False)
        return
    wide, shades = min(longest, room - many - 1), _SHADES if speaks(_SHADES) else _PLAIN_SHADES
    for name, row in zip(shortened(numbered, wide), found.scores, strict=True):
        yield f"{_padded(name, wide)} {_shaded(row, shades)}"
    yield f"columns 1 to {many}, from {shades[0]} (0) to {shades[-1]} (1)"


def _numbered(found: Comparison) -> list[str]:
    """Rows by number and name, without what all names begin with."""
    prefix = shared_prefix(found.rows)
    return [shown(f"{i} {name.removeprefix(prefix)}") for i, name in enumerate(found.rows, 1)]


def _longest(found: Comparison) -> int:
    """Cells of the longest of them, of at most `_NAME`."""
    return min(_NAME, max(map(cells, _numbered(found))))


def _in_digits(found: Comparison, names: Sequence[str], wide: int) -> Iterator[str]:
    yield " " * wide + "".join(f"{j:{_DIGITS}}" for j in range(1, len(found.columns) + 1))
    for name, row in zip(names, found.scores, strict=True):
        yield _padded(name, wide) + "".join(f"{_two_digits(x):>{_DIGITS}}" for x in row)


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


def _shaded(row: np.ndarray, shades: str) -> str:
    """A shade for each score; blank where there is none."""
    level = np.clip(np.nan_to_num(row) * len(shades), 0, len(shades) - 1).astype(int)
    return "".join(" " if np.isnan(x) else shades[i] for x, i in zip(row, level, strict=True))


def _padded(name: str, wide: int) -> str:
    return name + " " * (wide - cells(name))
