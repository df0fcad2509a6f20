"""Output of the commands: lines and tables, JSON, and checks of output files.

A table has one line per row: nothing is wrapped, and names are shortened (without their shared
prefix, or without their middle) if there is too little room. A table is as wide as the terminal or
the variable COLUMNS says, or 100 characters in a pipe. Width is counted in terminal cells; letters
of some scripts take two. `check_outputs` refuses output files that cannot be written before the
work starts.
"""

from __future__ import annotations

import codecs
import contextlib
import itertools
import json
import math
import os
import re
import shutil
import sys
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich.cells import cell_len, set_cell_size

from .._utils import formatting as digits
from .._utils.atomic_files import check_writable, write_atomically
from .._utils.formatting import printable, wrap_sentence
from ..errors import DataError, ResemblanceWarning
from .options import cli_options_in

if TYPE_CHECKING:
    from ..gate.copies import Copies


_Name = TypeVar("_Name", bound=str)
STANDARD_OUTPUT = ("-", "/dev/stdout")


def check_outputs(
    *files: str | Path | None,  # to be written, if any
    read: Iterable[str | Path | None] = (),  # what the command reads: paths, and other words
) -> None:
    """Refuse a file that could not be written, is to hold two things, or is read as well."""
    there = {_real_path(word) for word in read if word is not None}
    named: set[str] = set()
    for file in files:
        if file is None or str(file) in STANDARD_OUTPUT:
            continue
        check_writable(file)
        place = _real_path(file)
        if place in named:
            raise DataError(f"{file} is given for two outputs; choose a different file for one")
        if place in there:
            raise DataError(f"{file} is an input and would be overwritten; choose a different file")
        named.add(place)


def _real_path(word: str | Path) -> str:
    """Where a path leads, also that of FILE.py:FUNCTION."""
    return os.path.realpath(re.sub(r"(?<=\.py):[^/\\]*$", "", str(word)))


ELLIPSIS = "…"


def shared_prefix(names: Sequence[str]) -> str:
    """The dotted prefix that all names begin with, and that leaves something of each.

    >>> shared_prefix(["model.layers.0", "model.layers.10"]), shared_prefix(["fc1", "fc2"])
    ('model.layers.', '')
    """
    if len(names) < 2:
        return ""
    parts = zip(*(name.split(".")[:-1] for name in names), strict=False)
    shared = itertools.takewhile(lambda each: len(set(each)) == 1, parts)
    return "".join(f"{each[0]}." for each in shared)


def shorten_names(names: Sequence[str], room: int) -> list[str]:
    """Names no wider than some cells: of longer ones the middle is left out.

    The cut is where most names stay distinct, and as near to the middle as that allows.

    >>> shorten_names(["layers.7.attention.output", "layers.8.attention.output", "norm"], 16)
    ['layers.7….output', 'layers.8….output', 'norm']
    """
    if all(cell_len(name) <= room for name in names):
        return list(names)
    keep = max(room - 1, 0)
    heads = sorted(range(keep + 1), key=lambda head: (abs(2 * head - keep), head))
    best: list[str] = []
    for head in heads:
        found = [_cut_middle(name, head, keep - head, room) for name in names]
        best = max(best, found, key=lambda cut: len(set(cut)))
        if len(set(best)) == len(set(names)):
            break
    return best


def _cut_middle(name: str, head: int, tail: int, room: int) -> str:
    """Of a name that is too wide, so many cells of its beginning and of its end."""
    if cell_len(name) <= room:
        return name
    first, last = set_cell_size(name, head), set_cell_size(name[::-1], tail)[::-1]
    return f"{first.rstrip()}{ELLIPSIS}{last.lstrip()}"


_PIPE_WIDTH = 100  # characters
_MIN_WIDTH = 40
_COLUMN_GAP = "  "
_RIGHT_ALIGNED = ("n_eff", "width", "differ", "dB")  # columns of numbers
_MAX_NAMED = 8  # layers that a line names
_FACT_LABELS = {"kernels kept whole": "full Gram matrices"}  # keys of JSON, and as they are shown
_WRAPPED_FACTS = ("shards", "lacks")  # facts that may take several lines
# where the output's encoding has no such characters
_BAR_BLOCKS = "▏▎▍▌▋▊▉█"  # an eighth of a cell to all of it
_ASCII_FALLBACK = dict(
    zip("…±–−×─‖μ∞", ("~", "+-", "-", "-", "x", "-", "|", "mu", "inf"), strict=True)
)
_ASCII_FALLBACK |= dict(zip(_BAR_BLOCKS, "   #####", strict=True))


def write_json(file: str | None, content: Any) -> bool:
    """Whether JSON went to standard output, so that nothing else should."""
    if file is None:
        return False
    from ..similarity.results import plain

    text = json.dumps(plain(content), indent=1, default=str)
    if file in STANDARD_OUTPUT:
        typer.echo(text)
        return True
    write_atomically(file, f"{text}\n".encode())
    return False


def discard_stdout() -> None:
    """Send what is still to be written nowhere: its reader, such as head, has had enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_line(*lines: str, err: bool = False) -> None:
    """Print lines, with control characters escaped and options as they are typed."""
    for line in lines:
        typer.echo(to_encodable(printable(cli_options_in(line)), err=err), err=err)


def marks_or_words(marks: Mapping[_Name, str]) -> dict[_Name, str]:
    """Marks such as ✓ by the word they stand for; the words where they cannot be encoded."""
    whole = "".join(marks.values())
    return dict(marks) if to_encodable(whole) == whole else {word: word for word in marks}


def print_marked(mark: str, rest: str, colour: str) -> None:
    """Print a line whose mark is coloured on a terminal (not with NO_COLOR, nor when piped)."""
    dull = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if sys.stdout.isatty() and not dull:
        mark = typer.style(mark, fg=colour, bold=True)
    typer.echo(mark + to_encodable(printable(rest)))


@contextlib.contextmanager
def warnings_once(notes: list[str]) -> Iterator[None]:
    """Hold warnings back, and afterwards show those that are not among `notes`.

    Args:
        notes: what is printed anyway; may be filled while this is entered.
    """
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ResemblanceWarning)
            yield
    finally:
        for said in dict.fromkeys(
            (str(w.message), w.category, w.filename, w.lineno) for w in caught
        ):
            if said[0] not in notes:
                warnings.warn_explicit(*said)


def print_wrapped(*sentences: str) -> None:
    """Print each sentence in lines as wide as a table, broken between words."""
    for sentence in sentences:
        print_line(*wrap_sentence(printable(cli_options_in(sentence)), output_width()))


def output_width() -> int:
    """How many characters a line may have."""
    if not (sys.stdout.isatty() or "COLUMNS" in os.environ):
        return _PIPE_WIDTH
    return max(_MIN_WIDTH, shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns)


@dataclass
class TableColumn:
    """One column of a table: its heading and its cells, in characters that can be printed."""

    head: str
    cells: Sequence[str]
    right: bool = False  # numbers, whose last digits stand one below the other
    gives_way: bool = False  # names, of which the middle is left out where there is no room

    def __post_init__(self) -> None:
        self.head = to_encodable(self.head)
        self.cells = [to_encodable(printable(x)) for x in self.cells]

    @property
    def wide(self) -> int:
        return max(map(cell_len, (self.head, *self.cells)))


def format_bar(value: float, room: int) -> str:
    """A bar as long as a number from 0 to 1, to an eighth of a cell.

    >>> format_bar(0.5, 4), format_bar(0.28, 4), format_bar(1.2, 4)
    ('██', '█▏', '████')
    """
    eighths = round(8 * room * min(max(value, 0.0), 1.0)) if value == value else 0
    return _BAR_BLOCKS[-1] * (eighths // 8) + (_BAR_BLOCKS[eighths % 8 - 1] if eighths % 8 else "")


def table_width(columns: Sequence[TableColumn]) -> int:
    """How wide a table is if nothing gives way."""
    return sum(column.wide for column in columns) + len(_COLUMN_GAP) * (len(columns) - 1)


def table_lines(columns: Sequence[TableColumn], room: int) -> list[str]:
    """A table, one line a row, below its headings and a rule, if it has headings."""
    columns = _fit_columns(columns, room)
    padded = [[pad_cell(x, c.wide, c.right) for x in (c.head, *c.cells)] for c in columns]
    head, *rows = (_COLUMN_GAP.join(row).rstrip() for row in zip(*padded, strict=True))
    rule = _COLUMN_GAP.join("─" * column.wide for column in columns)
    return [head, rule, *rows] if any(column.head for column in columns) else rows


def print_columns(*columns: TableColumn) -> None:
    """Print a table that is as wide as a line may be."""
    print_line(*table_lines(columns, output_width()))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; the first column is of names, which give way: what all begin with, and then
    their middle."""
    cells = list(zip(columns, *rows, strict=True))
    names, *others = (
        TableColumn(head, below, right=head in _RIGHT_ALIGNED) for head, *below in cells
    )
    wide = table_width((names, *others))
    prefix = shared_prefix(names.cells) if wide > output_width() else ""
    short = [name.removeprefix(prefix) for name in names.cells]
    print_columns(TableColumn(names.head, short, gives_way=True), *others)
    if prefix:
        print_line(f"Names begin with {prefix}{ELLIPSIS}")


def show_layers(layers: Sequence[Mapping[str, Any]], auto: Sequence[str], run: int) -> None:
    """Modules that run, one a line, and what `auto` records of all."""
    rows = []
    for layer in layers:
        shape = "" if layer["shape"] is None else _format_shape(layer["shape"]) or "scalar"
        kinds = ["its input" if x.endswith(":in") else "yes" for x in layer["auto"]]
        rows.append((layer["layer"], layer["kind"], shape, ", ".join(sorted(kinds, reverse=True))))
    print_table(("layer", "kind", "shape", "auto"), rows)
    some = f"{len(rows)} of {run:,} modules that run" if len(rows) < run else f"{run:,} modules run"
    named = f": {', '.join(auto)}" if len(auto) <= _MAX_NAMED else ""
    print_wrapped(f"{some}; auto selects {len(auto)}{named}")


def show_copies(of: Copies) -> None:
    """A line for each copy; columns of which nothing is known are left out."""
    from ..similarity.results import count_samples  # loads torch, which `--help` does not

    def numbers(values: Sequence[float], form: str, scale: float = 1.0) -> list[str]:
        return ["" if math.isnan(x) else form.format(scale * x) for x in values]

    columns = {
        "copy": list(of.name),
        "differ": numbers(of.disagreement, "{:.3g} %", 100),
        "KL": numbers(of.kl, "{:.2g}"),
        "neighbours": numbers(of.neighbours, "{:.3g} %", 100),
        "cosine p01": numbers(of.cosine, "{:.4f}"),
        "dB": numbers(of.decibels, "{:.1f}"),
        "at": list(of.layer),
        "features": ["" if math.isnan(x) else digits.format_score(x)[0] for x in of.features],
        "gradients": ["" if math.isnan(x) else digits.format_score(x)[0] for x in of.gradients],
        "verdict": list(of.verdict),
    }
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    print_table(list(columns), zip(*columns.values(), strict=True))
    meaning = (
        ""
        if "neighbours" in columns and "differ" not in columns
        else ("differ: share of samples with a different predicted class; KL in nats; ")
    )
    if "neighbours" in columns:
        meaning += (
            "neighbours: share of nearest neighbours in common; cosine p01: 1st percentile of the "
            "cosine similarity; "
        )
    print_wrapped(
        f"Copies of {of.base}, on {count_samples(of.samples, of.sequences)}. {meaning}dB: SQNR of "
        "features at the worst layer; features, gradients: CKA, mean over layers."
    )


def show_adaptation(table: Mapping[str, Any], outputs: str, *, after: bool = False) -> None:
    """‖μ‖ and the log ratio of each layer, with their errors, and the effective sample size, then
    a sentence on the outputs; with a blank line before it where it comes `after` another."""
    if after:
        print_line("")
    columns = []
    for name in ("mean_embedding", "log_ratio"):
        errors = table[f"{name}_stderr"]
        pairs = zip(table[name], errors, strict=True)
        columns.append(digits.align_numbers([digits.format_quantity(*pair) for pair in pairs]))
    carried = ["" if n is None else f"{n:,.0f}" for n in table["n_eff"]]
    rows = zip(table["layers"], *columns, carried, strict=True)
    print_line(table["model"])
    print_table(("layer", "‖μ‖", "log ratio", "n_eff"), rows)
    print_wrapped(outputs)


def show_file(about: Mapping[str, Any], *, after: bool = False) -> None:
    """What a recorded file holds: where it came from, a fact a line, then its layers."""
    if after:
        print_line("")
    print_line(about["file"])
    facts = {k: v for k, v in about.items() if k not in ("file", "layers") and v is not None}
    longest = max(map(len, facts))
    for key, value in facts.items():
        whole = type(value) is int and key not in ("seed", "tokens")
        text = f"{value:,}" if whole else str(value)
        room = output_width() - longest - len(_COLUMN_GAP)
        parts = textwrap.wrap(text, room) if key in _WRAPPED_FACTS else [text]
        for name, part in zip([key, *[""] * len(parts)], parts, strict=False):
            print_line(f"{_FACT_LABELS.get(name, name):{longest}}{_COLUMN_GAP}{part}")
    layers = []
    for layer in about["layers"]:
        folded = f"{layer['dim']:,}{' (folded)' if layer['folded'] else ''}"
        shape = _format_shape(layer["shape"]) or "scalar"
        layers.append((layer["name"], shape, folded, ", ".join(layer["kinds"])))
    print_line("")
    print_table(("layer", "shape", "width", "holds"), layers)


def describe_shards(shards: Sequence[Sequence[int]]) -> str:  # of (i, n)
    """Which shards of the data are in, and which are missing, in words."""
    count, there = shards[0][1], {i for i, _ in shards}
    missing = (str(i) for i in range(count) if i not in there)  # as many as a file says
    several, more = list(itertools.islice(missing, _MAX_NAMED)), count - len(there) - _MAX_NAMED
    if more > 0:
        several.append(f"{more} more")
    return f"{len(there)} of {count} shards, missing {', '.join(several)}"


_MADE_FACTS = ("dtype", "autocast", "device", "torch", "resemblance", "date", "logits")


def file_facts(path: Path) -> dict[str, Any]:
    """What a file holds, as JSON can hold it."""
    from ..representation.file_header import read_file_header
    from ..representation.schema import embedding_dimensions, predicted_labels, recorded_kinds

    header = read_file_header(path)
    about, tensors = header.content, header.tensors
    settings, data, model, layers = (about[key] for key in ("settings", "data", "model", "layers"))
    unit, whole = settings.get("unit", "sample"), "{}.features.whole.triangle"
    labels, classes, shards = predicted_labels(about), about.get("classes"), data["shards"]
    predicted = f"of {labels:,} labels" if labels else None
    predicted = f"of {classes:,} classes" if classes else predicted
    if dimensions := embedding_dimensions(about):
        predicted = f"embeddings of {dimensions:,} dimensions"
    return {
        "file": str(path),
        "megabytes": round(path.stat().st_size / 1e6, 3),
        "model": model["name"],
        "model fingerprint": model["fingerprint"],
        "all weights": model.get("weights"),
        "address": model.get("address"),
        "tokenizer": model.get("tokenizer"),
        "parameters": model["parameters"],
        "samples": about["samples"],
        "skipped": data["skipped"],
        "data fingerprint": data["fingerprint"],
        "content": data.get("content"),
        "order": data["order"],
        **({} if len(shards) == shards[0][1] else {"shards": describe_shards(shards)}),
        "blocks": f"{len(about['block_sizes'])} of {settings['block']} samples",
        "kernels kept whole": f"{sum(whole.format(i) in tensors for i in range(len(layers)))} of "
        f"{len(layers)}",
        **({"unit": unit, "tokens": settings["tokens"]} if unit == "token" else {}),
        **{key: settings[key] for key in ("buckets", "seed", "pool", "target", "beta")},
        **{key: about["made"].get(key) for key in _MADE_FACTS},
        "outputs": predicted,
        "accumulators": "kept" if "0.features.sums" in tensors else None,
        "lacks": ", ".join(header.lacks) or None,
        "layers": [
            {
                "name": layer["name"],
                "shape": layer["shape"][1:] + layer["shape"][:1]
                if layer.get("channels_last")
                else layer["shape"],
                "dim": layer["dim"],
                "folded": layer["folded"],
                "kinds": recorded_kinds(layer),
            }
            for layer in layers
        ],
    }


def _fit_columns(columns: Sequence[TableColumn], room: int) -> list[TableColumn]:
    """Columns of names made narrower, the widest first, until all fit."""
    out = list(columns)
    names = sorted(
        (i for i, column in enumerate(columns) if column.gives_way), key=lambda i: columns[i].wide
    )
    others = [column.wide for column in columns if not column.gives_way]
    left = room - sum(others) - len(_COLUMN_GAP) * (len(columns) - 1)
    for rank, i in enumerate(names):
        share = max(left // (len(names) - rank), cell_len(columns[i].head))
        out[i] = replace(columns[i], cells=shorten_names(columns[i].cells, share))
        left -= out[i].wide
    return out


def pad_cell(cell: str, wide: int, right: bool = False) -> str:
    """A cell made wider by blanks."""
    blank = " " * (wide - cell_len(cell))
    return blank + cell if right else cell + blank


def _spell_plainly(error: UnicodeError) -> tuple[str, int]:
    """Stand-ins for characters that an encoding does not have."""
    assert isinstance(error, UnicodeEncodeError)
    found = error.object[error.start : error.end]
    spelt = [
        _ASCII_FALLBACK.get(c) or c.encode("ascii", "backslashreplace").decode() for c in found
    ]
    return "".join(spelt), error.end


codecs.register_error("resemblance", _spell_plainly)


def to_encodable(text: str, *, err: bool = False) -> str:
    """The text in characters that the stream can take."""
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "resemblance").decode(encoding)


def _format_shape(shape: Iterable[int]) -> str:
    return " × ".join(map(str, shape))
