"""Caches of the server: `EntryCache` for a zoo's entries, `AnswerCache` for computed answers.

Other processes may add to a zoo while it is shown, so entries are read again after one second, or
after ten times as long as reading them takes. Answers are kept in least-recently-used order up to a
number of bytes; when several clients ask the same thing at once, the first computes the answer and
the others wait for it. Also here: entries and errors as JSON that is safe to show
(`entry_summary`, `json_safe`, `hide_zoo_path`).
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal
from urllib.parse import quote

from starlette.exceptions import HTTPException

from .._utils.formatting import printable
from ..errors import ResemblanceError
from ..similarity.results import plain
from ..zoo.entry import Entry
from ..zoo.zoo import Zoo

CACHE_BYTES = 64 * 2**20  # bytes
ENTRY_OVERHEAD = 2048  # bytes that a question takes, whatever its answer


class AnswerCache:
    """Answers by what was asked; those not asked for the longest give way.

    >>> kept = AnswerCache()
    >>> kept.of("a", lambda: b"1"), kept.of("a", lambda: b"2"), len(kept)
    (b'1', b'1', 1)
    """

    def __init__(self, room: int = CACHE_BYTES) -> None:
        self.room = room
        self._turn = threading.Lock()
        self._kept: OrderedDict[Hashable, Future[bytes]] = OrderedDict()  # some under way
        self._taken = 0

    def of(self, asked: Hashable, make: Callable[[], bytes]) -> bytes:
        """The answer, made if it is not there. An error is for those who wait, and not kept."""
        with self._turn:
            known = asked in self._kept
            answer = self._kept.setdefault(asked, Future())
            self._kept.move_to_end(asked)
        if not known:
            try:
                made = make()
            except BaseException as error:
                with self._turn:
                    del self._kept[asked]
                answer.set_exception(error)
            else:
                self._keep(asked, made)
        return answer.result()

    def _keep(self, asked: Hashable, made: bytes) -> None:
        with self._turn:
            self._kept[asked].set_result(made)
            if ENTRY_OVERHEAD + len(made) > self.room // 4:
                del self._kept[asked]
                return
            self._taken += ENTRY_OVERHEAD + len(made)
            while self._taken > self.room:
                oldest = next(key for key, answer in self._kept.items() if answer.done())
                self._taken -= ENTRY_OVERHEAD + len(self._kept.pop(oldest).result())

    def __len__(self) -> int:
        return len(self._kept)


SortKey = Literal["added", "name", "parameters", "samples", "layers"]
REFRESH_SECONDS = 1.0  # seconds
_SORT_KEYS: dict[SortKey, Callable[[Entry], Any]] = {
    "added": lambda entry: entry.added,
    "name": lambda entry: entry.name.casefold(),
    "parameters": lambda entry: entry.parameters or 0,
    "samples": lambda entry: entry.samples,
    "layers": lambda entry: len(entry.layers),
}


@dataclass(frozen=True)
class ZooSnapshot:
    """What a zoo holds at one moment."""

    entries: tuple[Entry, ...]
    damaged: int = 0  # rows of the index that cannot be read

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
        first = {entry.group: printable(entry.probe) for entry in reversed(self.entries)}
        counted = _most_frequent(entry.group for entry in self.entries)
        return [{"group": x, "probe": first[x], "count": count} for x, count in counted]

    @cached_property
    def tags(self) -> list[dict[str, Any]]:
        """Each tag with how many entries have it, the most frequent first."""
        counted = _most_frequent(tag for entry in self.entries for tag in entry.tags)
        return [{"tag": printable(tag), "count": count} for tag, count in counted]

    def found(
        self,
        find: str = "",
        tag: str | None = None,
        group: str | None = None,
        sort: SortKey = "added",
    ) -> Sequence[Entry]:
        """Entries in whose name, tags, probe or id every word is, in order."""
        words = find.casefold().split()

        def is_found(entry: Entry) -> bool:
            if (tag is not None and tag not in entry.tags) or group not in (None, entry.group):
                return False
            text = "\n".join((entry.name, entry.probe, entry.id, *entry.tags)).casefold()
            return all(word in text for word in words)

        return sorted(filter(is_found, self.entries), key=_SORT_KEYS[sort], reverse=sort != "name")


class EntryCache:
    """What a zoo holds, read at most once in `fresh` seconds."""

    def __init__(self, zoo: Zoo, fresh: float = REFRESH_SECONDS) -> None:
        self.zoo, self.fresh = zoo, fresh
        self._turn = threading.Lock()
        self._due = -float("inf")
        self._held = ZooSnapshot(())

    def now(self) -> ZooSnapshot:
        """What is there."""
        with self._turn:
            began = time.monotonic()
            if began > self._due:
                try:
                    listed, damage = self.zoo.store.listed()
                except ResemblanceError as error:
                    why = hide_zoo_path(error, self.zoo.store.where)
                    raise HTTPException(503, why) from error
                held = ZooSnapshot(tuple(listed), len(damage))
                if held != self._held:  # what was computed from it stays valid otherwise
                    self._held = held
                now = time.monotonic()
                self._due = now + max(self.fresh, 10 * (now - began))
            return self._held

    def forget(self) -> None:
        """Read it anew when it is next asked for."""
        with self._turn:
            self._due = -float("inf")


def entry_summary(entry: Entry) -> dict[str, Any]:
    """An entry in a line: how many layers, rather than which."""
    return json_safe({**entry.to_dict(), "layers": len(entry.layers)})


# Values for JSON in which no text holds what a screen would obey, and numbers are finite.
json_safe = functools.partial(plain, spell=printable)


def hide_zoo_path(error: Exception, where: str) -> str:
    """What an error says, but not where on this machine the zoo is.

    Libraries write its path in forms of their own: without a slash before it, resolved, or quoted
    as a URL.
    """
    text, place = str(error), where.removeprefix("lance:")
    paths = [place] if "://" in place else [os.path.abspath(place), os.path.realpath(place), place]
    forms = [where, *paths, *(path.lstrip("/") for path in paths)]
    forms += [quote(form) for form in forms]
    for form in sorted(set(forms), key=len, reverse=True):
        text = text.replace(form, "the zoo")
    return text


def _most_frequent(words: Iterable[str]) -> list[tuple[str, int]]:
    """Each word with how often it comes, the most frequent first, then by the alphabet."""
    return sorted(Counter(words).items(), key=lambda x: (-x[1], x[0]))
