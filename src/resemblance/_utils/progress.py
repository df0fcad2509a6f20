"""A progress bar on the terminal, with throughput and remaining time.

Uses rich, which is imported only when a bar is shown.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Protocol

from .formatting import printable


class Advance(Protocol):
    def __call__(self, count: int = 0, status: str = "") -> None: ...


@contextlib.contextmanager
def progress_bar(
    wanted: bool | None, total: int | None, what: str, unit: str = "samples"
) -> Iterator[Advance]:
    """Yields `advance(count, status)`. A bar on standard error; nothing in pipes unless wanted."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield lambda count=0, status="": None
        return
    drawn = random.getstate()  # rich draws a number when it is loaded
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    random.setstate(drawn)

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)  # in a pipe, what remains is the last line
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:
        task = bar.add_task(printable(what), total=total, rate="")

        def advance(count: int = 0, status: str = "") -> None:
            if status:
                bar.update(task, description=printable(f"{what}, {status}"))
                return
            bar.advance(task, count)
            speed = bar.tasks[0].finished_speed or bar.tasks[0].speed
            bar.update(task, rate=f"{speed:,.3g} {unit}/s" if speed else "")

        yield advance
