"""What the command prints: lines and tables for people, the same numbers as JSON for machines.

A table has one line a row: nothing is folded, and names give way where there is too little room. It
is as wide as the terminal or the variable COLUMNS says, or 100 characters in a pipe.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .._atomic_files import write_atomically
from .._shown_text import shown
from . import digits
from .output_files import STANDARD_OUTPUT
from .short_names import ELLIPSIS, cells, shared_prefix, shortened

if TYPE_CHECKING:
    from ..representation.representation import Representation

_IN_A_PIPE = 100  # characters
_LEAST = 40
_GAP = "  "
_RIGHT = ("n_eff", "width")  # columns of whole numbers
_FEW = 8  # layers that a line names
_IN_WORDS = ("shards", "lacks")  # facts that may take several lines
# where the output's encoding has no such characters
_BLOCKS = "▏▎▍▌▋▊▉█"  # an eighth of a cell to all of it
_PLAIN = dict(zip("…±–−×─‖μ∞", ("~", "+-", "-", "-", "x", "-", "|", "mu", "inf"), strict=True))
_PLAIN |= dict(zip(_BLOCKS, "   #####", strict=True))


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
    typer.echo(_encodable(shown(text), err=err), err=err)


def tell(text: str) -> None:
    """Print a sentence in lines as wide as a table, broken between words."""
    kept = shown(text).replace(" ± ", "\xa0±\xa0").replace(" %", "\xa0%")  # as one number
    how: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    for line in textwrap.wrap(kept, width(), **how):
        say(line.replace("\xa0±\xa0", " ± ").replace("\xa0%", " %"))


def width() -> int:
    """How many characters a line may have."""
    if not (sys.stdout.isatty() or "COLUMNS" in os.environ):
        return _IN_A_PIPE
    return max(_LEAST, shutil.get_terminal_size((_IN_A_PIPE, 24)).columns)


def speaks(symbols: str) -> bool:
    """Whether standard output's encoding has these characters."""
    return _encodable(symbols) == symbols


@dataclass(frozen=True)
class Column:
    """One column of a table: its heading and its cells."""

    head: str
    cells: Sequence[str]
    right: bool = False  # numbers, whose last digits stand one below the other
    gives_way: bool = False  # names, of which the middle is left out where there is no room

    def printable(self) -> Column:
        """With nothing that a terminal would obey or that standard output cannot take."""
        return replace(
            self, head=_encodable(self.head), cells=[_encodable(shown(x)) for x in self.cells]
        )

    @property
    def wide(self) -> int:
        return max(map(cells, (self.head, *self.cells)))


def bar(value: float, room: int) -> str:
    """A bar as long as a number from 0 to 1, to an eighth of a cell.

    >>> bar(0.5, 4), bar(0.28, 4), bar(1.2, 4)
    ('██', '█▏', '████')
    """
    eighths = round(8 * room * min(max(value, 0.0), 1.0)) if value == value else 0
    return _BLOCKS[-1] * (eighths // 8) + (_BLOCKS[eighths % 8 - 1] if eighths % 8 else "")


def wide(columns: Sequence[Column]) -> int:
    """How wide a table is if nothing gives way."""
    return sum(column.wide for column in columns) + len(_GAP) * (len(columns) - 1)


def lines(columns: Sequence[Column], room: int) -> list[str]:
    """A table, one line a row, below its headings and a rule, if it has headings."""
    columns = _fitted([column.printable() for column in columns], room)
    padded = [[_padded(x, c.wide, c.right) for x in (c.head, *c.cells)] for c in columns]
    head, *rows = (_GAP.join(row).rstrip() for row in zip(*padded, strict=True))
    rule = _GAP.join("─" * column.wide for column in columns)
    return [head, rule, *rows] if any(column.head for column in columns) else rows


def show(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
    """Print a table; the first column is of names, which give way: what all begin with, and then
    their middle."""
    if title:
        say(title)
    every, room = list(rows), width()
    made = [
        Column(head, [row[i] for row in every], right=head in _RIGHT, gives_way=i == 0)
        for i, head in enumerate(columns)
    ]
    prefix = shared_prefix(made[0].cells) if wide([x.printable() for x in made]) > room else ""
    made[0] = replace(made[0], cells=[name.removeprefix(prefix) for name in made[0].cells])
    for line in lines(made, room):
        say(line)
    if prefix:
        say(f"Names begin with {prefix}{ELLIPSIS}")


def show_layers(layers: Sequence[Mapping[str, Any]], auto: Sequence[str], run: int) -> None:
    """Modules that run, one a line, and what `auto` records of all."""
    rows = []
    for layer in layers:
        shape = "" if layer["shape"] is None else _times(layer["shape"]) or "scalar"
        kinds = ["its input" if x.endswith(":in") else "yes" for x in layer["auto"]]
        rows.append((layer["layer"], layer["kind"], shape, ", ".join(sorted(kinds, reverse=True))))
    show(("layer", "kind", "shape", "auto"), rows)
    some = f"{len(rows)} of {run:,} modules that run" if len(rows) < run else f"{run:,} modules run"
    named = f": {', '.join(auto)}" if len(auto) <= _FEW else ""
    tell(f"{some}; auto records {len(auto)}{named}")


def show_adaptation(table: Mapping[str, Any], *, after: bool = False) -> None:
    """‖μ‖ and the log ratio of each layer, with their errors, and what they rest on; with a blank
    line before it where it comes `after` another."""
    if after:
        say("")
    columns = []
    for name in ("mean_embedding", "log_ratio"):
        errors = table[f"{name}_stderr"]
        pairs = zip(table[name], errors, strict=True)
        columns.append(digits.aligned([digits.quantity(*pair) for pair in pairs]))
    carried = ["" if n is None else f"{n:,.0f}" for n in table["n_eff"]]
    rows = zip(table["layers"], *columns, carried, strict=True)
    show(("layer", "‖μ‖", "log ratio", "n_eff"), list(rows), title=table["model"])


def show_file(about: Mapping[str, Any], *, after: bool = False) -> None:
    """What a recorded file holds: where it came from, a fact a line, then its layers."""
    if after:
        say("")
    say(about["file"])
    facts = {k: v for k, v in about.items() if k not in ("file", "layers") and v is not None}
    longest = max(map(len, facts))
    for key, value in facts.items():
        whole = type(value) is int and key not in ("seed", "tokens")
        text = f"{value:,}" if whole else str(value)
        room = width() - longest - len(_GAP)
        parts = textwrap.wrap(text, room) if key in _IN_WORDS else [text]
        for name, part in zip([key, *[""] * len(parts)], parts, strict=False):
            say(f"{name:{longest}}{_GAP}{part}")
    layers = []
    for layer in about["layers"]:
        folded = f"{layer['dim']:,}{' (folded)' if layer['folded'] else ''}"
        shape = _times(layer["shape"]) or "scalar"
        layers.append((layer["name"], shape, folded, ", ".join(layer["kinds"])))
    say("")
    show(("layer", "shape", "width", "holds"), layers)


def shards(rep: Representation) -> str:
    """Which shards of the data are in, and which are missing, in words."""
    count = rep.data.shards[0][1]
    there = {i for i, _ in rep.data.shards}
    missing = (str(i) for i in range(count) if i not in there)  # as many as a file says
    several, more = list(itertools.islice(missing, _FEW)), count - len(there) - _FEW
    if more > 0:
        several.append(f"{more} more")
    return f"{len(there)} of {count} shards, missing {', '.join(several)}"


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
        **({} if rep.complete else {"shards": shards(rep)}),
        "blocks": f"{len(rep.block_sizes)} of {settings.block} samples",
        "kernels kept whole": f"{sum(x.features.whole is not None for x in rep)} of {len(rep)}",
        **{k: getattr(settings, k) for k in ("unit", "tokens") if settings.unit == "token"},
        **{k: getattr(settings, k) for k in ("buckets", "seed", "pool", "target", "beta")},
        **asdict(rep.made),
        "outputs": None if rep.outputs is None else f"of {rep.outputs.classes:,} classes",
        "accumulators": "kept" if rep.mergeable else None,
        "lacks": ", ".join(rep.lacks) or None,
        "layers": [
            {name: getattr(layer, name) for name in ("name", "shape", "dim", "folded", "kinds")}
            | {"shape": layer.shape_in_network}
            for layer in rep
        ],
    }


def _fitted(columns: Sequence[Column], room: int) -> list[Column]:
    """Columns of names made narrower, the widest first, until all fit."""
    names = [i for i, column in enumerate(columns) if column.gives_way]
    left = room - wide([c for c in columns if not c.gives_way]) - len(_GAP) * len(names)
    out = list(columns)
    for rank, i in enumerate(sorted(names, key=lambda i: columns[i].wide)):
        share = max(left // (len(names) - rank), cells(columns[i].head))
        out[i] = replace(columns[i], cells=shortened(columns[i].cells, share))
        left -= out[i].wide
    return out


def _padded(cell: str, wide: int, right: bool) -> str:
    blank = " " * (wide - cells(cell))
    return blank + cell if right else cell + blank


def _encodable(text: str, *, err: bool = False) -> str:
    """The text in characters that the stream can take."""
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    if _has(encoding, text):
        return text
    plain = "".join(c if _has(encoding, c) else _PLAIN.get(c, c) for c in text)
    return plain.encode(encoding, "backslashreplace").decode(encoding)


def _has(encoding: str, text: str) -> bool:
    """Whether an encoding can write a text."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _times(shape: Iterable[int]) -> str:
    return " × ".join(map(str, shape))
