"""The command `resemblance sweep`: record models on data sets, one file per pair, with progress.

Exit status 0: all recordings exist. 1: some failed. `main` adds 2 for a user error, such as one in
the jobs file. Progress goes to standard error: a live table, or in a pipe one line per pair.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from typer import Argument, Option

from .._utils.formatting import join_names, printable
from ..errors import DataError
from ..sweep.progress import Event, PairStarted, SweepProgress, format_duration
from . import output
from .commands import app
from .options import Json, yaml_options_in
from .output import check_outputs

if TYPE_CHECKING:
    from rich.console import Group

    from ..sweep.job_file import Jobs
    from ..sweep.run_sweep import Engine, PairStatus


_REFRESH_PER_SECOND = 2  # at the table, in a second
_RESERVED_LINES = 8  # lines of a terminal that the table leaves for what is around it


@contextlib.contextmanager
def show_progress(missing: Mapping[str, str]) -> Iterator[Callable[[Event], None]]:
    """Yields what is to be told of every event; `missing` are names of pairs and of their data."""
    course = SweepProgress(missing)
    if not sys.stderr.isatty():
        yield lambda event: _print_event(course, event)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    room = max(1, console.height - _RESERVED_LINES)

    with Live(
        get_renderable=lambda: _progress_table(course, time.monotonic(), room),
        console=console,
        refresh_per_second=_REFRESH_PER_SECOND,
        transient=True,
    ):
        yield lambda event: course.told(event, time.monotonic())


def progress_line(course: SweepProgress, now: float) -> str:
    """A sweep in a line."""
    failed = sum(outcome.state == "failed" for outcome in course.ended.values())
    left = course.left(now)
    parts = [f"{len(course.ended)} of {len(course.data)} done"]
    parts += [f"{failed} failed"] if failed else []
    parts += [f"{len(course.running)} running"] if course.running else []
    parts += [f"about {format_duration(left)} left"] if left else []
    return ", ".join(parts)


def _print_event(course: SweepProgress, event: Event) -> None:
    """How a pair ended, in a line."""
    now = time.monotonic()
    course.told(event, now)
    if isinstance(event, PairStarted):
        return
    what = {
        "recorded": f"recorded in {format_duration(event.seconds)}",
        "there": "recorded by another sweep",
        "busy": "another sweep is recording it" + (f" ({event.error})" if event.error else ""),
        "failed": f"failed: {event.error}",
        "again": f"will be retried: {event.error}",
    }[event.state]
    output.print_line(f"{event.name}: {what} ({progress_line(course, now)})", err=True)


def _progress_table(course: SweepProgress, now: float, room: int) -> Group:
    """Pairs under way, then those that failed, then the last that ended, as many as fit."""
    from rich.console import Group
    from rich.table import Column, Table
    from rich.text import Text

    rows: list[tuple[str, ...]] = []
    for name, (since, where) in course.running.items():
        left = course.left_of(name, now)
        rest = "" if left is None else f"about {format_duration(left)}"
        rows.append((name, "running", format_duration(now - since), rest, where))
    latest = list(reversed(course.ended.values()))
    for x in sorted(latest, key=lambda x: x.state != "failed"):
        rows.append((x.name, x.state, format_duration(x.seconds), "", x.error))
    heads = (Column(x, no_wrap=True) for x in ("pair", "state", "time", "left", ""))
    table = Table(*heads, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows[:room]:
        table.add_row(*(Text(printable(cell), overflow="ellipsis") for cell in row))
    return Group(table, Text(progress_line(course, now)))


_ENGINES = ("local", "ray")
_MAX_SHOWN = 5  # pairs with one and the same warning


@app.command()
def sweep(
    jobs: Annotated[
        Path,
        Argument(
            metavar="JOBS.yaml",
            help="YAML file with the models, data sets, options and output folder.",
        ),
    ],
    engine: Annotated[
        str,
        Option(
            metavar="ENGINE",
            help="Where to run: local (one process per device) or ray (tasks on a Ray cluster).",
        ),
    ] = "local",
    workers: Annotated[
        Optional[int],
        Option(min=1, metavar="N", help="Number of processes. Default: one per device."),
    ] = None,
    devices: Annotated[
        str,
        Option(
            metavar="DEVICES",
            help="Devices, such as cuda:0,cuda:1. Default: all GPUs, or the CPU.",
        ),
    ] = "",
    retries: Annotated[
        int,
        Option(
            min=0,
            metavar="N",
            help="Retries of a pair whose worker died or that failed with a transient error.",
        ),
    ] = 1,
    time_limit: Annotated[
        Optional[float],
        Option(min=0.001, metavar="SECONDS", help="Abort a pair that takes longer."),
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="List the missing recordings without making them.")
    ] = False,
    json_file: Json = None,
) -> None:
    """Record many networks on many data sets.

    Writes one recording per pair of a model and a data set. An interrupted sweep resumes: existing
    recordings are skipped.
    """
    from ..sweep import job_file, run_sweep

    check_outputs(json_file, read=[jobs])
    asked = job_file.read_jobs(jobs)
    with_engine = _make_engine(engine, workers, devices, retries, time_limit)
    found = run_sweep.sweep_status(asked)
    if not dry_run:
        missing = {x.pair.name: x.pair.data for x in found if x.state == "missing"}
        with show_progress(missing) as watch:
            found = run_sweep.run_sweep(asked, found, with_engine, watch)
    if not output.write_json(json_file, _sweep_to_dict(asked, found)):
        (_show_missing if dry_run else _show_sweep)(asked, found)
    failed = any(status.state == "failed" for status in found)
    raise typer.Exit(1 if failed and not dry_run else 0)


def _make_engine(
    name: str, workers: int | None, devices: str, retries: int, seconds: float | None
) -> Engine:
    from ..sweep import local_engine, ray_engine

    if name not in _ENGINES:
        raise DataError(f"--engine must be {' or '.join(_ENGINES)}; found {name!r}")
    if name == "ray":
        if devices:
            raise DataError(
                "--devices requires --engine local: Ray assigns devices itself; omit it"
            )
        if seconds is not None:
            raise DataError("--time-limit requires --engine local; omit it with --engine ray")
        return partial(ray_engine.run_ray, workers=workers, retries=retries)
    chosen = local_engine.devices_for(devices.split(",") if devices else [], workers)
    return partial(local_engine.run_local, devices=chosen, retries=retries, seconds=seconds)


def _sweep_to_dict(jobs: Jobs, found: Sequence[PairStatus]) -> dict[str, Any]:
    """The sweep as JSON can hold it."""
    counts = Counter(status.state for status in found)
    return {
        "jobs": str(jobs.file),
        "out": str(jobs.out),
        **{state: counts[state] for state in ("recorded", "there", "failed", "missing")},
        "pairs": [
            {
                "name": status.pair.name,
                "model": status.pair.wanted.address,
                "data": status.pair.wanted.data,
                "file": str(status.file),
                "state": status.state,
                "seconds": None if status.seconds is None else round(status.seconds, 3),
                "error": status.error,
                "error_file": None if status.error_file is None else str(status.error_file),
                "warnings": list(status.warnings),
            }
            for status in found
        ],
    }


def _show_sweep(jobs: Jobs, found: Sequence[PairStatus]) -> None:
    """What warned, what failed and why, and how many are there."""
    warned: dict[str, list[str]] = {}
    for status in found:
        for text in map(yaml_options_in, status.warnings):
            warned.setdefault(text, []).append(status.pair.name)
    for text, names in warned.items():
        output.print_line(f"warning: {join_names(names, _MAX_SHOWN)}: {text}", err=True)
    counts = Counter(status.state for status in found)
    failed = [status for status in found if status.state == "failed"]
    for status in failed:
        output.print_wrapped(f"failed: {status.pair.name}: {yaml_options_in(str(status.error))}")
    there = counts["recorded"] + counts["there"]
    output.print_wrapped(
        f"{there} of {len(found)} recordings are in {jobs.out}: {counts['recorded']} new, "
        f"{counts['there']} already there."
    )
    if failed:
        unkept = sum(status.error_file is None for status in failed)
        why = "see NAME.error.txt in that folder"
        if unkept:
            why += f" (except for {unkept} whose error file could not be written)"
        output.print_wrapped(
            f"{len(failed)} failed; {why}. Existing files were not changed. Run the sweep again to "
            "retry the missing recordings."
        )


def _show_missing(jobs: Jobs, found: Sequence[PairStatus]) -> None:
    """A table of all pairs, and how many would be recorded."""
    rows = [(x.pair.name, x.state, yaml_options_in(x.error or "")) for x in found]
    columns = 3 if any(error for *_, error in rows) else 2
    heads = ("pair", "state", "last error")
    output.print_table(heads[:columns], [row[:columns] for row in rows])
    missing = sum(status.state == "missing" for status in found)
    output.print_wrapped(f"{missing} of {len(found)} recordings are missing in {jobs.out}.")
