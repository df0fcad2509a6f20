"""`resemblance check`: whether a copy is close enough to its base, as an exit status.

0: it passes. 1: a threshold fails. 3: otherwise undecided. `main` adds 2 for a mistake and 70 for
what nobody expected. BASE and COPY are files, or models that are recorded on the spot.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from typer import Argument, Option

import resemblance as rs

from .._atomic_files import write_atomically
from ..errors import DataError, ResemblanceError
from ..gate.thresholds import gathered
from ..gate.verdict_files import junit_of_mistake
from . import tables
from .commands import Json, Raw, Size, app
from .output_files import STANDARD_OUTPUT, check_outputs
from .recorded_on_the_spot import Network, Samples, recorded

_WHICH = "A file (.rsm), or a model as --model of record takes it, with --data."
_Limit = Optional[float]  # noqa: UP045 - typer reads it at run time on Python 3.10
_Words = Optional[str]  # noqa: UP045
_TO_FILE = "; - for standard output."


@app.command()
def check(
    base: Annotated[str, Argument(help=f"What it is a copy of. {_WHICH}")],
    copy: Annotated[str, Argument(help="The copy: quantised, pruned, tuned, exported. Likewise.")],
    max_disagreement: Annotated[
        _Limit, Option(help="Largest share of samples predicted to be of another class.")
    ] = None,
    max_kl: Annotated[_Limit, Option(help="Largest KL(base‖copy) of predictions, in nats.")] = None,
    max_js: Annotated[_Limit, Option(help="Largest Jensen-Shannon divergence, in nats.")] = None,
    minimum: Annotated[
        Optional[list[str]],  # noqa: UP045
        Option(
            "--min",
            metavar="KERNEL=x",
            help="Least score at the worst layer, or mean:KERNEL=x on average; repeat for more.",
        ),
    ] = None,
    min_db: Annotated[_Limit, Option(help="Least decibels of features at the worst layer.")] = None,
    thresholds: Annotated[
        Optional[Path],  # noqa: UP045
        Option(metavar="FILE.toml", help="More thresholds; options go before them."),
    ] = None,
    data: Annotated[_Words, Option(help="To record models on, as for record.")] = None,
    base_weights: Annotated[_Words, Option(help="Weights for the base, if a model.")] = None,
    copy_weights: Annotated[_Words, Option(help="Weights for the copy, if a model.")] = None,
    layer: Annotated[
        Optional[list[str]],  # noqa: UP045
        Option("--layer", help="Of models, as for record; repeat for more. Default: auto."),
    ] = None,
    limit: Annotated[int, Option(min=0, help="Use only the first so many samples.")] = 0,
    size: Size = 224,
    raw: Raw = False,
    length: Annotated[
        Optional[int],  # noqa: UP045
        Option(min=1, help="Tokens in a sequence of text, as for record."),
    ] = None,
    device: Annotated[str, Option(help="cpu, cuda, ...; default: cuda if there.")] = "",
    json_file: Json = None,
    junit: Annotated[
        _Words, Option(metavar="FILE", help=f"Write JUnit XML, a test for each threshold{_TO_FILE}")
    ] = None,
    markdown: Annotated[
        _Words, Option(metavar="FILE", help=f"Write Markdown, for a pull request{_TO_FILE}")
    ] = None,
) -> None:
    """Check a copy against thresholds. Exit status: 0 passes, 1 fails, 3 undecided, 2 a mistake."""
    files = {"--json": json_file, "--junit": junit, "--markdown": markdown}
    _check_files(files, [base, copy, base_weights, copy_weights, thresholds, data])
    asked: dict[str, Any] = {"min": minimum, "min_db": min_db, "thresholds": thresholds}
    asked |= {"max_disagreement": max_disagreement, "max_kl": max_kl, "max_js": max_js}
    on = Samples(data, size, raw, limit, layer, device, length)
    with _mistakes_written(junit):
        gathered(**asked)  # mistakes in them are told before anything is recorded
        both = Network("base", base, base_weights), Network("copy", copy, copy_weights)
        verdict = rs.check(*recorded(*both, on), **asked)
    texts = {
        "--json": json.dumps(verdict.to_dict(), indent=1) + "\n",
        "--junit": verdict.to_junit(),
        "--markdown": verdict.to_markdown(),
    }
    with _reader_may_leave():
        if not _written([(file, texts[option]) for option, file in files.items() if file]):
            for line in verdict.summary().split("\n"):
                tables.tell(line)
    raise typer.Exit(verdict.exit_status)


def _check_files(files: Mapping[str, str | None], read: Sequence[str | Path | None]) -> None:
    """Refuse what could not be written once there is a verdict."""
    printed = [option for option, file in files.items() if file in STANDARD_OUTPUT]
    if len(printed) > 1:
        raise DataError(
            f"expected one thing on standard output, found {' and '.join(printed)}; give files to "
            "the others"
        )
    check_outputs(*files.values(), read=read)


def _written(files: Sequence[tuple[str, str]]) -> bool:
    """Write all of them, and say whether one went to standard output, so that nothing else should.

    That one comes last, so that files are there also if its reader leaves.
    """
    last = [text for file, text in files if file in STANDARD_OUTPUT]
    for file, text in files:
        if file not in STANDARD_OUTPUT:
            write_atomically(file, text.encode())
    for text in last:
        typer.echo(text, nl=False)
    return bool(last)


@contextlib.contextmanager
def _mistakes_written(junit: str | None) -> Iterator[None]:
    """A mistake as an error in the JUnit file as well, so that nobody reads an older one there."""
    try:
        yield
    except (ResemblanceError, OSError) as error:
        if junit is not None and junit not in STANDARD_OUTPUT:
            write_atomically(junit, junit_of_mistake(str(error)).encode())
        raise


@contextlib.contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Whoever reads standard output may stop; the exit status stays the verdict's."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
