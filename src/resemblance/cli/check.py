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
from typing import Annotated, Any, Optional

import typer
from typer import Argument, Option

import resemblance as rs

from .._utils.atomic_files import write_atomically
from ..errors import DataError, ResemblanceError
from ..gate.thresholds import collect_thresholds
from . import output
from .commands import app, read_class_names, write_flips
from .load_or_record import NetworkArgument, RecordingNeeds, load_or_record
from .options import (
    DEFAULT_RECORDING,
    FILE_OR_MODEL,
    ClassNames,
    FlipsFile,
    Json,
    RecordingOptions,
    cli_options_in,
    with_recording_options,
)
from .output import STANDARD_OUTPUT, check_outputs

_HELP_STDOUT = "; - for standard output."
MaxDisagreement = Annotated[
    Optional[float], Option(help="Largest share of samples predicted to be of another class.")
]
MaxKL = Annotated[
    Optional[list[str]],
    Option(
        metavar="x or pNN=x",
        help="Largest mean KL(base‖copy), in nats, or a percentile of it (p99=0.05); repeat.",
    ),
]
MinDecibels = Annotated[
    Optional[float], Option(help="Least decibels of features at the worst layer.")
]
MinNeighbours = Annotated[
    Optional[float], Option(help="Least share of common nearest neighbours, of embeddings.")
]
MinCosine = Annotated[
    Optional[list[str]],
    Option(
        metavar="pNN=x",
        help="Least cosine of a sample's embeddings, as a percentile (p01=0.98); repeat.",
    ),
]
ThresholdsFile = Annotated[
    Optional[Path], Option(metavar="FILE.toml", help="More thresholds; options go before them.")
]


@app.command()
@with_recording_options
def check(
    base: Annotated[str, Argument(help=f"What it is a copy of. {FILE_OR_MODEL}")],
    copy: Annotated[str, Argument(help="The copy: quantised, pruned, tuned, exported. Likewise.")],
    max_disagreement: MaxDisagreement = None,
    max_kl: MaxKL = None,
    max_js: Annotated[
        Optional[list[str]],
        Option(metavar="x or pNN=x", help="Largest Jensen-Shannon divergence, likewise."),
    ] = None,
    min_kappa: Annotated[
        Optional[float], Option(help="Least Cohen's kappa of the predictions.")
    ] = None,
    kl_cap: Annotated[
        Optional[float], Option(help="Largest KL of one sample in the mean, in nats. Default: 1.")
    ] = None,
    minimum: Annotated[
        Optional[list[str]],
        Option(
            "--min",
            metavar="KERNEL=x",
            help="Least score at the worst layer, or mean:KERNEL=x on average; repeat for more.",
        ),
    ] = None,
    min_db: MinDecibels = None,
    min_neighbours: MinNeighbours = None,
    min_cosine: MinCosine = None,
    ignore_unmatched: Annotated[
        bool,
        Option(
            "--ignore-unmatched",
            help="Judge scores and dB though layers of the base have no counterpart.",
        ),
    ] = False,
    thresholds: ThresholdsFile = None,
    base_weights: Annotated[Optional[str], Option(help="Weights for the base, if a model.")] = None,
    copy_weights: Annotated[Optional[str], Option(help="Weights for the copy, if a model.")] = None,
    copy_dtype: Annotated[
        Optional[str], Option(help="Precision of the copy alone, such as bfloat16, if a model.")
    ] = None,
    models: RecordingOptions = DEFAULT_RECORDING,
    flips: FlipsFile = None,
    classes: ClassNames = None,
    json_file: Json = None,
    junit: Annotated[
        Optional[str],
        Option(metavar="FILE", help=f"Write JUnit XML, a test for each threshold{_HELP_STDOUT}"),
    ] = None,
    markdown: Annotated[
        Optional[str],
        Option(metavar="FILE", help=f"Write Markdown, for a pull request{_HELP_STDOUT}"),
    ] = None,
) -> None:
    """Check a copy against thresholds. Exit status: 0 passes, 1 fails, 3 undecided, 2 a mistake."""
    files = {"--json": json_file, "--junit": junit, "--markdown": markdown}
    printed = [option for option, file in files.items() if file in STANDARD_OUTPUT]
    if len(printed) > 1:
        raise DataError(
            f"expected one thing on standard output, found {' and '.join(printed)}; give files to "
            "the others"
        )
    check_outputs(
        *files.values(),
        flips,
        read=[base, copy, base_weights, copy_weights, thresholds, models.data, classes],
    )
    names = read_class_names(classes, flips)
    asked: dict[str, Any] = {"min": minimum, "min_db": min_db, "thresholds": thresholds}
    asked |= {"max_disagreement": max_disagreement, "min_kappa": min_kappa, "kl_cap": kl_cap}
    asked |= {"max_kl": max_kl or None, "max_js": max_js or None}
    asked |= {"min_neighbours": min_neighbours, "min_cosine": min_cosine or None}
    networks = (
        NetworkArgument("base", base, base_weights),
        NetworkArgument("copy", copy, copy_weights, copy_dtype),
    )
    notes: list[str] = []
    with _errors_to_junit(junit):
        needed = {x.kernel for x in collect_thresholds(**asked) if x.kernel}  # refuses wrong ones
        with output.warnings_once(notes):
            both = load_or_record(*networks, models, RecordingNeeds(tuple(sorted(needed))))
            verdict = rs.check(*both, **asked, ignore_unmatched=ignore_unmatched)
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
            output.print_wrapped(*verdict.summary().split("\n"))
        sys.stdout.flush()
    except BrokenPipeError:  # the exit status stays the verdict's
        output.discard_stdout()
    raise typer.Exit(verdict.exit_status)


@app.command("copies")
def compare_copies(
    base: Annotated[Path, Argument(help="What they are copies of: a file (.rsm).")],
    files: Annotated[list[Path], Argument(help="The copies, recorded on the same samples.")],
    max_disagreement: MaxDisagreement = None,
    max_kl: MaxKL = None,
    min_db: MinDecibels = None,
    min_neighbours: MinNeighbours = None,
    min_cosine: MinCosine = None,
    thresholds: ThresholdsFile = None,
    json_file: Json = None,
    png: Annotated[
        Optional[Path], Option(help="Draw features, gradients and predictions of each.")
    ] = None,
) -> None:
    """List many copies of one network, those that predict most like it first."""
    from ..views import plots

    if png is not None:
        png = plots.picture_path(png)
    check_outputs(json_file, png, read=[base, *files, thresholds])
    limits: dict[str, Any] = {"max_disagreement": max_disagreement, "max_kl": max_kl or None}
    limits |= {"min_db": min_db, "thresholds": thresholds}
    limits |= {"min_neighbours": min_neighbours, "min_cosine": min_cosine or None}
    asked = {name: limit for name, limit in limits.items() if limit is not None}
    found = rs.copies(base, files, **asked)
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
