"""The progress of a sweep, on standard error: a live table, or in a pipe a line for each pair."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .._shown_text import shown
from ..sweep.outcomes import Began, Event
from ..sweep.time_left import Course, in_words
from . import tables

if TYPE_CHECKING:
    from rich.console import Group

_LOOKS = 2  # at the table, in a second
_ELSE = 8  # lines of a terminal that the table leaves for what is around it


@contextlib.contextmanager
def progress(missing: Mapping[str, str]) -> Iterator[Callable[[Event], None]]:
    """Yields what is to be told of every event; `missing` are names of pairs and of their data."""
    course = Course(missing)
    if not sys.stderr.isatty():
        yield lambda event: _say(course, event)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    room = max(1, console.height - _ELSE)

    def table() -> Group:
        return _table(course, time.monotonic(), room)

    with Live(get_renderable=table, console=console, refresh_per_second=_LOOKS, transient=True):
        yield lambda event: course.told(event, time.monotonic())


def standing(course: Course, now: float) -> str:
    """A sweep in a line."""
    failed = sum(outcome.state == "failed" for outcome in course.ended.values())
    left = course.left(now)
    parts = [f"{len(course.ended)} of {len(course.data)} done"]
    parts += [f"{failed} failed"] if failed else []
    parts += [f"{len(course.running)} under way"] if course.running else []
    parts += [f"about {in_words(left)} left"] if left else []
    return ", ".join(parts)


def _say(course: Course, event: Event) -> None:
    """How a pair ended, in a line."""
    now = time.monotonic()
    course.told(event, now)
    if isinstance(event, Began):
        return
    what = {
        "recorded": f"recorded in {in_words(event.seconds)}",
        "there": "recorded by another sweep",
        "busy": "another sweep is at it",
        "failed": f"failed: {event.error}",
        "again": f"to be tried again: {event.error}",
    }[event.state]
    tables.say(f"{event.name}: {what} ({standing(course, now)})", err=True)


def _table(course: Course, now: float, room: int) -> Group:
    """Pairs under way, then those that failed, then the last that ended, as many as fit."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rows: list[tuple[str, ...]] = []
    for name, (since, where) in course.running.items():
        left = course.left_of(name, now)
        rest = "" if left is None else f"about {in_words(left)}"
        rows.append((name, "under way", in_words(now - since), rest, where))
    latest = list(reversed(course.ended.values()))
    for outcome in sorted(latest, key=lambda outcome: outcome.state != "failed"):
        rows.append((outcome.name, outcome.state, in_words(outcome.seconds), "", outcome.error))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    looks: dict[str, Any] = {"no_wrap": True, "overflow": "ellipsis"}
    for head in ("pair", "state", "time", "left", ""):
        table.add_column(head, **looks)
    for row in rows[:room]:
        table.add_row(*(Text(shown(cell), no_wrap=True, overflow="ellipsis") for cell in row))
    return Group(table, Text(standing(course, now)))
