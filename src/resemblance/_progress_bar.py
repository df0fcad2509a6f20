"""A progress bar with rate and time left, on a terminal."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ._shown_text import shown


@dataclass(frozen=True)
class Advance:
    """What moves a bar on."""

    by: Callable[[int], None] = lambda count: None
    say: Callable[[str], None] = lambda text: None  # something beside what it is about

    def __call__(self, count: int) -> None:
        self.by(count)


@contextlib.contextmanager
def progress(
    wanted: bool | None, total: int | None, what: str, unit: str = "samples"
) -> Iterator[Advance]:
    """Yields `advance(count)`. A bar on standard error; nothing in pipes unless wanted."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield Advance()
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
        task = bar.add_task(shown(what), total=total, rate="")

        def advance(count: int) -> None:
            bar.advance(task, count)
            speed = bar.tasks[0].finished_speed or bar.tasks[0].speed
            bar.update(task, rate=f"{speed:,.3g} {unit}/s" if speed else "")

        def say(text: str) -> None:
            bar.update(task, description=shown(f"{what}, {text}"))

        yield Advance(advance, say)
