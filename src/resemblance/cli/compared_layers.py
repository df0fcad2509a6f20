"""The table of `resemblance compare`: one line a layer, with its counterpart's scores and errors.

How much is shown depends on the room there is: names lose what all begin with, the level of chance
moves from columns of its own to a sentence, errors lose a digit, and at last names their middle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..similarity.comparison import Comparison
from ..similarity.coordinates_by_layer import Coordinates
from . import digits, tables
from .score_map import needs, score_map
from .short_names import ELLIPSIS, shared_prefix
from .tables import Column, bar, wide
from .two_kernels import Compared

_AT_CHANCE = "*"
_UNTRUSTED = "error bars cannot be trusted"  # in the note of a comparison that few samples carry


@dataclass(frozen=True)
class Layout:
    """How much of a comparison a table shows."""

    prefix: bool = True  # names whole, with what all begin with
    chance: bool = True  # the level of chance in columns
    terse: bool = False  # errors with one digit
    bar: int = 10  # cells


_LAYOUTS = (  # the first that fits
    Layout(),
    Layout(bar=6),
    Layout(bar=6, prefix=False),
    Layout(bar=6, prefix=False, chance=False),
    Layout(bar=4, prefix=False, chance=False, terse=True),
)


def show_compared(of: Compared, *, summary: bool, pairs: bool) -> None:
    """Print a comparison: the table, all `pairs` of layers if wanted, and sentences, those of the
    single Comparison's `summary` if wanted."""
    room = tables.width()
    if not summary:
        tables.tell(f"{of.heading()}.")
        tables.say("")
    lines, legend = table(of, room)
    for line in lines:
        tables.say(line)
    for sentence in legend:
        tables.tell(sentence)
    for block in _maps(of, room) if pairs else ():
        tables.say("")
        for line in block:
            tables.say(line)
    tables.say("")
    for sentence in of.found[0].summary().split("\n") if summary else of.sentences():
        tables.tell(sentence)


def _maps(of: Compared, room: int) -> Iterator[list[str]]:
    """All pairs of layers by each kernel, if they fit, or what to do if not."""
    first = of.found[0]
    if needs(first) > room:
        yield [f"The map needs {needs(first)} columns of {room}: draw it with --png FILE."]
        return
    for one in of.found:
        yield list(score_map(one, room))


def table(of: Compared, room: int) -> tuple[list[str], list[str]]:
    """The table in lines of at most so many characters, and sentences on what its signs mean."""
    for layout in _LAYOUTS:
        columns = _columns(of, layout)
        if wide([column.printable() for column in columns]) <= room:
            break
    return tables.lines(columns, room), list(_legend(of, layout))


def _columns(of: Compared, layout: Layout) -> list[Column]:
    names, counterparts = _names(of, layout)
    columns = [Column("layer", names, gives_way=True)]
    together = len({tuple(x) for x in counterparts}) == 1
    if counterparts and together:
        columns.append(Column("counterpart", counterparts[0], gives_way=True))
    for i, one in enumerate(of.found):
        if counterparts and not together:
            columns.append(Column("counterpart", counterparts[i], gives_way=True))
        columns += _scores(one, layout)
    bars = [f"{bar(x, layout.bar):{layout.bar}}" for x in of.found[-1].by_layer()[0]]
    columns.append(Column("", bars))
    if of.shared:
        columns += _moved(of.shared, of.found[0].rows)
    return columns


def _scores(one: Comparison, layout: Layout) -> Iterator[Column]:
    """Scores of one kernel with their errors, and what they are to be read beside."""
    value, error, chance = one.by_layer()
    numbers = list(zip(value.tolist(), error.tolist(), strict=True))
    if layout.terse:
        short = [digits.terse(digits.score(*x, significant=1)) for x in numbers]
        cells = digits.aligned(short, sign="±")
    else:
        cells = digits.aligned([digits.score(*x) for x in numbers])
    at_chance = _at_chance(one)
    longest = max(map(len, cells))
    marked = [
        f"{x:{longest}}{_AT_CHANCE}" if y else x for x, y in zip(cells, at_chance, strict=True)
    ]
    yield Column(one.kernel, marked)
    if chance is not None and layout.chance:
        yield Column("chance", [_number(x, ".3f") for x in chance[1]], right=True)
    if one.n_eff is not None and any(_UNTRUSTED in note for note in one.notes):
        rows, columns = one.counterparts()
        carried = np.full(len(one.rows), np.nan)
        carried[rows] = np.minimum(one.n_eff[0][rows], one.n_eff[1][columns])
        yield Column("n_eff", [_number(x, ",.0f") for x in carried], right=True)


def _moved(coordinates: Coordinates, rows: Sequence[str]) -> list[Column]:
    """How far the features of each layer moved from the one network to the other."""
    at = {name: i for i, name in enumerate(coordinates.layers)}
    decibels, cosines = [], []
    for name in rows:
        i = at.get(name)
        if i is None or np.isnan(coordinates.decibels[0, i]):
            decibels.append(digits.NONE)
            cosines.append(digits.NONE)
            continue
        decibels.append(_decibels(coordinates.decibels[0, i], coordinates.floor))
        cosines.append(digits.score(float(coordinates.cosine[0, i]))[0])
    signed = digits.aligned([(cosine, "") for cosine in cosines])
    return [Column("dB", decibels, right=True), Column("cosine", signed)]


def _decibels(value: float, floor: float) -> str:
    """A change in decibels; beyond the floor it is rounding."""
    if np.isinf(value):
        return "∞"
    return f">{floor:.0f}" if value > floor else f"{value:.1f}"


def _names(of: Compared, layout: Layout) -> tuple[list[str], list[list[str]]]:
    """Of each layer, and of its counterparts by each kernel unless they are its namesakes."""
    first = of.found[0]
    before = [""] * 2 if layout.prefix else [shared_prefix(x) for x in (first.rows, first.columns)]
    rows, columns = (
        [name.removeprefix(prefix) for name in names]
        for prefix, names in zip(before, (first.rows, first.columns), strict=True)
    )
    if all(one.matched_by == "name" or _namesakes(one) for one in of.found):
        return rows, []
    return rows, [
        [digits.NONE if j is None else columns[j] for j in one.matched] for one in of.found
    ]


def _namesakes(one: Comparison) -> bool:
    """Whether every layer's counterpart is called as it is."""
    pairs = zip(one.rows, one.matched, strict=True)
    return all(j is not None and one.columns[j] == name for name, j in pairs)


def _at_chance(one: Comparison) -> np.ndarray:  # (rows,) bool
    """Which scores are no higher than 95 % of those that chance gives."""
    value, _, chance = one.by_layer()
    if chance is None:
        return np.zeros(len(value), bool)
    with np.errstate(invalid="ignore"):
        found: np.ndarray = value <= chance[1]
    return found


def _legend(of: Compared, layout: Layout) -> Iterator[str]:
    """What was left out of the table, and what its signs mean."""
    first = of.found[0]
    if not layout.prefix:
        for model, names in zip(first.models, (first.rows, first.columns), strict=True):
            if prefix := shared_prefix(names):
                yield f"Names of {model} begin with {prefix}{ELLIPSIS}"
            if not _names(of, layout)[1]:
                break
    if not layout.chance:
        levels = [f"{one.kernel} {_range(one)}" for one in of.found if one.chance_high is not None]
        if levels:
            yield f"Level of chance (95 %): {', '.join(levels)}."
    if any(_at_chance(one).any() for one in of.found):
        yield f"{_AT_CHANCE} no higher than chance (its 95 % level)."
    if of.shared:
        yield "dB, cosine: of features, in the coordinates that both share."


def _range(one: Comparison) -> str:
    chance = one.by_layer()[2]
    if chance is None or np.isnan(chance[1]).all():
        return digits.NONE
    ends = dict.fromkeys(f"{end(chance[1]):.3f}" for end in (np.nanmin, np.nanmax))
    return " to ".join(ends)


def _number(value: float, form: str) -> str:
    return "" if np.isnan(value) else f"{value:{form}}"
