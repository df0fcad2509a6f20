"""The commands about copies: `check` and `copies`.

`check` says whether a copy is close enough to its base, as an exit status.

0: passes. 1: a threshold fails. 3: otherwise undecided. `main` adds 2 for a user error and 70 for
an internal error. BASE and COPY are files, or models that are recorded by the command.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer
from typer import Argument, Option

import resemblance as rs

from .._utils.atomic_files import write_atomically
from ..errors import DataError, ResemblanceError
from . import output
from .commands import app, read_class_names, write_flips
from .load_or_record import NetworkArgument, RecordingNeeds, load_or_record
from .options import (
    DEFAULT_RECORDING,
    FILE_OR_MODEL,
    NO_THRESHOLDS,
    ClassNames,
    FlipsFile,
    Json,
    RecordingOptions,
    ThresholdOptions,
    cli_options_in,
    with_shared_options,
)
from .output import STANDARD_OUTPUT, TableColumn, check_outputs

if TYPE_CHECKING:
    from ..gate.verdict import Verdict

_HELP_STDOUT = "; - for standard output."


@app.command()
@with_shared_options
def check(
    base: Annotated[str, Argument(metavar="BASE", help=f"The original network. {FILE_OR_MODEL}")],
    copy: Annotated[
        str,
        Argument(
            metavar="COPY",
            help="Its quantised, pruned, fine-tuned or exported copy: a recording or a model.",
        ),
    ],
    limits: ThresholdOptions = NO_THRESHOLDS,
    base_weights: Annotated[
        Optional[str], Option(metavar="FILE", help="Weights for the base, if it is a model.")
    ] = None,
    copy_weights: Annotated[
        Optional[str], Option(metavar="FILE", help="Weights for the copy, if it is a model.")
    ] = None,
    copy_dtype: Annotated[
        Optional[str],
        Option(
            metavar="DTYPE",
            help="Precision to run the copy in, such as bfloat16, if it is a model.",
        ),
    ] = None,
    models: RecordingOptions = DEFAULT_RECORDING,
    flips: FlipsFile = None,
    classes: ClassNames = None,
    json_file: Json = None,
    junit: Annotated[
        Optional[str],
        Option(
            metavar="FILE",
            help=f"Write JUnit XML with one test case per threshold{_HELP_STDOUT}",
        ),
    ] = None,
    markdown: Annotated[
        Optional[str],
        Option(metavar="FILE", help=f"Write Markdown for a pull request{_HELP_STDOUT}"),
    ] = None,
) -> None:
    """Check a copy against thresholds, with an exit status for CI.

    Exit status: 0 if all thresholds pass, 1 if any fails, 3 if none fails and any is undecided
    (too few samples), 2 on a usage error.
    """
    files = {"--json": json_file, "--junit": junit, "--markdown": markdown}
    printed = [option for option, file in files.items() if file in STANDARD_OUTPUT]
    if len(printed) > 1:
        raise DataError(
            f"only one output can go to standard output, found {' and '.join(printed)}; write the "
            "rest to files"
        )
    check_outputs(
        *files.values(),
        flips,
        read=[base, copy, base_weights, copy_weights, limits.thresholds, models.data, classes],
    )
    names = read_class_names(classes, flips)
    networks = (
        NetworkArgument("base", base, base_weights),
        NetworkArgument("copy", copy, copy_weights, copy_dtype),
    )
    notes: list[str] = []
    with _errors_to_junit(junit):
        needed = {x.kernel for x in limits.collected() if x.kernel}  # refuses wrong ones
        with output.warnings_once(notes):
            both = load_or_record(*networks, models, RecordingNeeds(tuple(sorted(needed))))
            verdict = rs.check(*both, **limits.given())
            notes += verdict.notes
    write_flips(flips, *both, names)
    texts = {
        "--json": json.dumps(verdict.to_dict(), indent=1) + "\n",
        "--junit": verdict.to_junit(),
        "--markdown": verdict.to_markdown(),
    }
    for option, file in files.items():
        if file and option not in printed:
            write_atomically(file, texts[option].encode())
    try:  # last, so that files are there also if the reader of this leaves
        if printed:
            typer.echo(texts[printed[0]], nl=False)
        else:
            _show_verdict(verdict)
        sys.stdout.flush()
    except BrokenPipeError:  # the exit status stays the verdict's
        output.discard_stdout()
    raise typer.Exit(verdict.exit_status)


_COLOURS = {"failed": "red", "undecided": "yellow", "passed": "green"}


def _show_verdict(verdict: Verdict) -> None:
    """A line for each threshold, the failed ones first, then the verdict in words."""
    from ..gate.verdict import MARKS  # loads torch, which `--help` does not

    found = sorted(verdict.findings, key=lambda x: list(MARKS).index(x.status))
    marks = output.marks_or_words(MARKS)
    columns = [
        TableColumn("", [marks[x.status] for x in found]),
        TableColumn("measure", [x.subject() for x in found], gives_way=True),
        TableColumn("value", [x.value() for x in found]),
        TableColumn("95 % bound", [x.bound() for x in found]),
        TableColumn("limit", [x.limit() for x in found]),
    ]
    head, rule, *rows = output.table_lines(columns, output.output_width())
    output.print_line(head, rule)
    for row, finding in zip(rows, found, strict=True):
        mark = marks[finding.status]
        output.print_marked(mark, row.removeprefix(mark), _COLOURS[finding.status])
    output.print_line("")
    output.print_wrapped(*verdict.summary().split("\n"))


@app.command("copies")
@with_shared_options
def compare_copies(
    base: Annotated[
        Path, Argument(metavar="BASE", help="Recording of the original network (.rsm).")
    ],
    files: Annotated[
        list[Path],
        Argument(metavar="COPY...", help="Recordings of its copies, on the same samples (.rsm)."),
    ],
    limits: ThresholdOptions = NO_THRESHOLDS,
    json_file: Json = None,
    png: Annotated[
        Optional[Path],
        Option(
            metavar="FILE", help="Save a figure: features, gradients and predictions of each copy."
        ),
    ] = None,
) -> None:
    """Rank many copies of one network by their predictions.

    One line per copy, the copy with the fewest changed predictions first.
    """
    from ..views import plots

    if png is not None:
        png = plots.picture_path(png)
    check_outputs(json_file, png, read=[base, *files, limits.thresholds])
    found = rs.copies(base, files, **limits.given())
    if png is not None:
        plots.save_figure(found.plot(), png)
    if not output.write_json(json_file, found.to_dict()):
        output.show_copies(found)


@contextlib.contextmanager
def _errors_to_junit(junit: str | None) -> Iterator[None]:
    """A mistake as an error in the JUnit file as well, so that nobody reads an older one there."""
    try:
        yield
    except (ResemblanceError, OSError) as error:
        if junit is not None and junit not in STANDARD_OUTPUT:
            from ..gate.verdict import junit_error_xml  # loads torch, which `--help` does not

            write_atomically(junit, junit_error_xml(cli_options_in(str(error))).encode())
        raise
