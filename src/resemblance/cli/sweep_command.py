"""`resemblance sweep`: networks by data sets, one recording for each pair, in a folder.

0: all are there. 1: some failed. `main` adds 2 for a mistake, such as one in the file of jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from typer import Argument, Option

from ..errors import DataError
from . import tables
from .commands import Json, app
from .output_files import check_outputs

if TYPE_CHECKING:
    from ..sweep.job_files import Jobs
    from ..sweep.whole_sweep import Engine, Status

_ENGINES = ("local", "ray")
_SHOWN = 5  # pairs with one and the same warning


@app.command()
def sweep(
    jobs: Annotated[Path, Argument(help="What to record, in YAML: models, data, options, out.")],
    engine: Annotated[
        str, Option(help="local: a process for each device. ray: tasks on a Ray cluster.")
    ] = "local",
    workers: Annotated[
        Optional[int],  # noqa: UP045 - typer reads it at run time on Python 3.10
        Option(min=1, help="Processes; default: one for each device."),
    ] = None,
    devices: Annotated[
        str, Option(help="Such as cuda:0,cuda:1; default: all GPUs, or else the CPU.")
    ] = "",
    retries: Annotated[
        int,
        Option(min=0, help="More attempts at a pair whose worker died or whose error may pass."),
    ] = 1,
    dry_run: Annotated[bool, Option("--dry-run", help="Say what is missing, and stop.")] = False,
    json_file: Json = None,
) -> None:
    """Record many networks on many data sets; a second start does only what is missing."""
    from ..sweep import job_files, whole_sweep
    from .sweep_progress import progress

    check_outputs(json_file, read=[jobs])
    asked = job_files.read(jobs)
    with_engine = _engine(engine, workers, devices, retries)
    found = whole_sweep.standing(asked)
    if not dry_run:
        missing = {x.pair.name: x.pair.data for x in found if x.state == "missing"}
        with progress(missing) as watch:
            found = whole_sweep.swept(asked, found, with_engine, watch)
    if not tables.wrote_json(json_file, _content(asked, found)):
        (_show_missing if dry_run else _show)(asked, found)
    failed = any(status.state == "failed" for status in found)
    raise typer.Exit(1 if failed and not dry_run else 0)


def _engine(name: str, workers: int | None, devices: str, retries: int) -> Engine:
    from ..errors import optional
    from ..sweep import local_engine, ray_engine

    if name not in _ENGINES:
        raise DataError(f"--engine must be {' or '.join(_ENGINES)}; found {name!r}")
    if name == "ray":
        if devices:
            raise DataError("--devices is for --engine local; Ray gives each task a device itself")
        optional("ray", "Ray", "ray")
        return partial(ray_engine.run, workers=workers, retries=retries)
    chosen = local_engine.devices_for(devices.split(",") if devices else [], workers)
    return partial(local_engine.run, devices=chosen, retries=retries)


def _content(jobs: Jobs, found: Sequence[Status]) -> dict[str, Any]:
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


def _show(jobs: Jobs, found: Sequence[Status]) -> None:
    """What warned, what failed and why, and how many are there."""
    warned: dict[str, list[str]] = {}
    for status in found:
        for text in status.warnings:
            warned.setdefault(text, []).append(status.pair.name)
    for text, names in warned.items():
        more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
        tables.say(f"warning: {', '.join(names[:_SHOWN] + more)}: {text}", err=True)
    counts = Counter(status.state for status in found)
    failed = [status for status in found if status.state == "failed"]
    for status in failed:
        tables.tell(f"failed: {status.pair.name}: {status.error}")
    there = counts["recorded"] + counts["there"]
    tables.tell(
        f"{there} of {len(found)} recordings are in {jobs.out}: {counts['recorded']} new, "
        f"{counts['there']} that were there."
    )
    if failed:
        unkept = sum(status.error_file is None for status in failed)
        why = "why is in NAME.error.txt there"
        if unkept:
            why += f", but for {unkept} that there was no room to write"
        tables.tell(
            f"{len(failed)} failed; {why}. What was in the folder before is as it was; a second "
            "start does only what is missing."
        )


def _show_missing(jobs: Jobs, found: Sequence[Status]) -> None:
    """A table of all pairs, and how many would be recorded."""
    rows = [(status.pair.name, status.state, status.error or "") for status in found]
    if any(error for *_, error in rows):
        tables.show(("pair", "state", "error of the last time"), rows)
    else:
        tables.show(("pair", "state"), [row[:2] for row in rows])
    missing = sum(status.state == "missing" for status in found)
    tables.tell(f"{missing} of {len(found)} recordings are missing in {jobs.out}.")
