"""The shelf: the entries of a zoo as they were a moment ago, to be listed without asking it anew.

Other processes may add to a zoo while it is shown, so what is known of it is read again after a
second, or ten times as long as reading it takes.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from .._shown_text import shown
from ..zoo.collection import Zoo
from ..zoo.entry import Entry

Sort = Literal["added", "name", "parameters", "samples", "layers"]
FRESH = 1.0  # seconds
_ORDER: dict[Sort, Callable[[Entry], Any]] = {
    "added": lambda entry: entry.added,
    "name": lambda entry: entry.name.casefold(),
    "parameters": lambda entry: entry.parameters or 0,
    "samples": lambda entry: entry.samples,
    "layers": lambda entry: len(entry.layers),
}


@dataclass(frozen=True)
class Holding:
    """What a zoo holds at one moment."""

    entries: tuple[Entry, ...]

    @cached_property
    def by_id(self) -> dict[str, Entry]:
        return {entry.id: entry for entry in self.entries}

    @cached_property
    def state(self) -> str:
        """A hash that changes with any entry or tag: answers about all entries go by it."""
        found = hashlib.sha256()
        for entry in self.entries:
            found.update(f"{entry.id}{entry.tags}{entry.trained_on}".encode("utf-8", "replace"))
        return found.hexdigest()

    @cached_property
    def groups(self) -> list[dict[str, Any]]:
        """Each group with how many entries it has, the largest first."""
        counts = Counter(entry.group for entry in self.entries)
        first = {entry.group: entry for entry in reversed(self.entries)}
        return [
            {"group": group, "probe": shown(first[group].probe), "count": count}
            for group, count in sorted(counts.items(), key=lambda x: (-x[1], x[0]))
        ]

    @cached_property
    def tags(self) -> list[dict[str, Any]]:
        """Each tag with how many entries have it, the most frequent first."""
        counts = Counter(tag for entry in self.entries for tag in entry.tags)
        order = sorted(counts.items(), key=lambda x: (-x[1], x[0]))
        return [{"tag": shown(tag), "count": count} for tag, count in order]

    def found(
        self, find: str = "", tag: str | None = None, group: str | None = None, sort: Sort = "added"
    ) -> Sequence[Entry]:
        """Entries in whose name, tags, probe or id every word is, in order."""
        words = find.casefold().split()
        chosen = [
            entry
            for entry in self.entries
            if (tag is None or tag in entry.tags)
            and (group is None or group == entry.group)
            and (not words or _holds(entry, words))
        ]
        backward = sort in ("added", "parameters", "samples", "layers")
        return sorted(chosen, key=_ORDER[sort], reverse=backward)


class Shelf:
    """What a zoo holds, read at most once in `fresh` seconds."""

    def __init__(self, zoo: Zoo, fresh: float = FRESH) -> None:
        self.zoo, self.fresh = zoo, fresh
        self._turn = threading.Lock()
        self._due = -float("inf")
        self._held = Holding(())

    def now(self) -> Holding:
        """What is there."""
        with self._turn:
            began = time.monotonic()
            if began > self._due:
                entries = tuple(self.zoo.list())
                if entries != self._held.entries:  # what was worked out of it stays otherwise
                    self._held = Holding(entries)
                now = time.monotonic()
                self._due = now + max(self.fresh, 10 * (now - began))
            return self._held

    def forget(self) -> None:
        """Read it anew when it is next asked for."""
        with self._turn:
            self._due = -float("inf")


def in_a_list(entry: Entry) -> dict[str, Any]:
    """An entry in a line: how many layers, rather than which."""
    facts = entry.to_dict()
    facts["layers"] = len(entry.layers)
    return {key: spelt_out(value) for key, value in facts.items()}


def spelt_out(value: Any) -> Any:
    """A value for JSON in which no text holds what a screen would obey, and numbers are finite."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [spelt_out(x) for x in value]
    if isinstance(value, dict):
        return {shown(str(key)): spelt_out(x) for key, x in value.items()}
    return value


def without_place(error: Exception, zoo: Zoo) -> str:
    """What an error says, but not where on this machine the zoo is."""
    return str(error).replace(zoo.store.where, "the zoo")


def _holds(entry: Entry, words: Sequence[str]) -> bool:
    text = "\n".join((entry.name, entry.probe, entry.id, *entry.tags)).casefold()
    return all(word in text for word in words)
