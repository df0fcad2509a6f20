"""A zoo in Lance tables: a folder or an object store that many machines can reach.

What one `put` wrote goes by a *copy*, a name of its own, and its row in `entries` comes last: rows
of other tables whose copy is not there are what a writer that died left. Lance has no lock for
"only if it is not there", so two writers may add the same recording at once: then there are two
copies, which are told as one entry.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import DataError, FormatError, first_line
from ..representation.file_format import positions
from ..representation.representation import Representation
from . import lance_rows
from .entry import Entry, is_beginning, told_by
from .lance_rows import Copy
from .lance_signatures import Signatures
from .lance_tables import Tables, one_of
from .recording_parts import Parts, put_together, taken_apart
from .store import Damage, Layers, Newcomer, State

_YOUNG = 3600.0  # seconds within which a copy without an entry may be on its way
_AT_ONCE = 500  # names in one condition
_MOST = 64_000_000  # bytes of recordings in memory at a time, unless one is larger
_SHARES = {"layers": 16, "tags": 256, "entries": 64}  # joining writes a table anew: see Tables


class LanceStore:
    """Recordings in Lance tables, for processes of any number of machines."""

    def __init__(self, place: str, *, create: bool = True) -> None:
        if not place:
            raise DataError("expected a folder or an address after lance:, found nothing; name one")
        self.where = f"lance:{place}"
        local = "://" not in place
        if local and Path(place, "index.sqlite").exists():
            raise DataError(f"{place} is a zoo of files; open it without lance:")
        if local and Path(place).exists() and not Path(place).is_dir():
            raise DataError(f"expected a folder for a zoo, found a file at {place}; name another")
        missing = DataError(f"no zoo at {self.where}; expected one that `zoo add` made")
        if local and not create and not Path(place, "entries.lance").exists():
            raise missing  # before a folder is made
        self._tables = Tables(place, self.where, lance_rows.schemas, _SHARES)
        self._found_by = Signatures(self._tables)
        self.signatures, self.nearest = self._found_by.of, self._found_by.nearest
        if not create and self._tables.table("entries") is None:
            raise missing

    # -- writing --------------------------------------------------------------------------------

    def put(self, several: Sequence[Newcomer]) -> list[Entry]:
        there = self._copies([new.entry.id for new in several])
        whole = {id: [x for x in copies if self._intact(x)] for id, copies in there.items()}
        fresh: dict[str, tuple[str, Newcomer]] = {}
        tags: list[tuple[str, str]] = []
        for new in several:
            known = whole.get(new.entry.id) or []
            if not known:
                fresh.setdefault(new.entry.id, (lance_rows.new_name(), new))
            name = known[-1].name if known else fresh[new.entry.id][0]
            tags += [(name, tag) for tag in new.entry.tags]
            for copy in known:
                self._link(copy, new.entry.trained_on)
        self._tables.add("tags", lance_rows.of_tags(tags))
        if fresh:
            self._write(dict(fresh.values()))
        for id, (name, _) in fresh.items():
            self._replace(there.get(id, []), name)
        joined = self._tables.join_now_and_then()
        if "entries" in joined and not self._found_by.indexed("features"):
            self._found_by.index()
        found = {entry.id: entry for entry in self._entries(new.entry.id for new in several)}
        return [found.get(new.entry.id, new.entry) for new in several]

    def retag(self, id: str, add: Iterable[str], remove: Iterable[str]) -> Entry | None:
        copies = [copy.name for copy in self._copies([id]).get(id, [])]
        if not copies:
            return None
        gone, more = list(remove), list(add)
        if gone:
            self._tables.delete("tags", f"{one_of('copy', copies)} AND {one_of('tag', gone)}")
        self._tables.add("tags", lance_rows.of_tags([(copies[-1], tag) for tag in more]))
        return self.find(id)

    def drop(self, id: str) -> Entry | None:
        found, copies = self.find(id), self._copies([id]).get(id, [])
        if found is not None:
            self._forget([copy.name for copy in copies])
        return found

    def close(self) -> None:
        self._tables.close()

    def _write(self, fresh: Mapping[str, Newcomer]) -> None:
        """Write copies of recordings by their names, entries last."""
        parts = {name: taken_apart(new.rep) for name, new in fresh.items()}
        self._tables.add("layers", lance_rows.of_layers(parts))
        self._tables.add("entries", lance_rows.of_entries(fresh, parts))

    def _forget(self, copies: Sequence[str]) -> None:
        """Remove copies: their entries first, so that nobody is led to what is being removed."""
        for i in range(0, len(copies), _AT_ONCE):
            for table in ("entries", "tags", "layers"):
                self._tables.delete(table, one_of("copy", copies[i : i + _AT_ONCE]))

    def _replace(self, damaged: Sequence[Copy], name: str) -> None:
        """Hand on the tags of damaged copies to a whole one, and remove them."""
        if damaged:
            tags = set().union(*self._tags([copy.name for copy in damaged]).values())
            self._tables.add("tags", lance_rows.of_tags([(name, tag) for tag in sorted(tags)]))
            self._forget([copy.name for copy in damaged])

    def _link(self, copy: Copy, trained_on: str | None) -> None:
        """Write down what an entry's network was trained on, if that is news."""
        if trained_on not in (None, copy.entry.trained_on):
            known = lance_rows.facts(replace(copy.entry, trained_on=trained_on))
            self._tables.update("entries", one_of("copy", [copy.name]), {"facts": known})

    # -- reading --------------------------------------------------------------------------------

    def entries(self, *, tag: str | None = None, group: str | None = None) -> list[Entry]:
        where = None if group is None else one_of("grp", [group])
        return [x for x in self._entries(None, where) if tag is None or tag in x.tags]

    def count(self) -> int:
        return len({row["id"] for row in self._tables.rows("entries", ["id"])})

    def find(self, id: str) -> Entry | None:
        return next(iter(self._entries([id])), None)

    def matching(self, key: str) -> list[Entry]:
        begun = f" OR (id >= '{key}' AND id < '{key}g')" if is_beginning(key) else ""
        return self._entries(None, f"{one_of('name', [key])}{begun}")

    def read(self, id: str, layers: Layers = None) -> Representation | None:
        copies, failed = self._copies([id]).get(id, []), None
        for copy in reversed(copies):  # the latest was written because an earlier one was damaged
            try:
                return self._loaded(copy, layers)
            except FormatError as error:
                failed = error
        still = {copy.name for copy in self._copies([id]).get(id, [])}
        if failed is None or still.isdisjoint(copy.name for copy in copies):
            return self.read(id, layers) if still else None
        raise failed

    def _loaded(self, copy: Copy, layers: Layers) -> Representation:
        """A recording or some layers of it, whose bytes are those that were added."""
        wanted = positions(copy.entry.layers, layers)
        try:
            return put_together(self._parts(copy, wanted), copy.entry.classes)
        except Exception as error:
            raise FormatError(
                f"the entry {copy.entry.name!r} ({copy.entry.id[:12]}) of {self.where} is damaged: "
                f"{first_line(error.__cause__ or error)}; add the recording again, or remove the "
                "entry"
            ) from error

    def _parts(self, copy: Copy, wanted: Sequence[int]) -> Parts:
        """Some parts of a copy, or an error if they are not what was added."""
        at = f"{one_of('copy', [copy.name])} AND position IN ({', '.join(map(str, wanted))})"
        rows = self._tables.rows("layers", ["position", "content"], at)
        shared = b"" if copy.shared == lance_rows.NOTHING else self._shared([copy]).get(copy.name)
        return lance_rows.checked(
            copy, wanted, {row["position"]: row["content"] for row in rows}, shared
        )

    def _shared(self, copies: Sequence[Copy]) -> dict[str, bytes]:
        """What layers of copies share."""
        where = one_of("copy", [copy.name for copy in copies])
        rows = self._tables.rows("entries", ["copy", "shared"], where)
        return {row["copy"]: row["shared"] for row in rows}

    def _intact(self, copy: Copy) -> bool:
        try:
            self._parts(copy, range(len(copy.entry.layers)))
        except FormatError:
            return False
        return True

    def _entries(self, ids: Iterable[str] | None, where: str | None = None) -> list[Entry]:
        """Entries with their tags, each once, in the order in which they came."""
        copies = self._copies(ids, where)
        names = [copy.name for several in copies.values() for copy in several]
        tags = self._tags(names if len(names) <= _AT_ONCE else None)
        out = []
        for several in copies.values():
            every = set().union(*(tags.get(copy.name, set()) for copy in several))
            first, last = several[0].entry, several[-1].entry
            out.append(replace(last, tags=tuple(sorted(every)), added=first.added))
        return out

    def _copies(
        self, ids: Iterable[str] | None = None, where: str | None = None
    ) -> dict[str, list[Copy]]:
        """Copies by the id of their entry, the first to come first."""
        condition = where if ids is None else one_of("id", sorted(set(ids)))
        columns = ["copy", "facts", "parts", "shared_hash"]
        rows = self._tables.rows("entries", columns, condition)
        out: dict[str, list[Copy]] = {}
        for row in sorted(rows, key=lambda row: row["copy"]):
            entry, parts = lance_rows.entry_of(row["facts"]), tuple(row["parts"].split())
            copy = Copy(row["copy"], entry, parts, row["shared_hash"])
            out.setdefault(entry.id, []).append(copy)
        return out

    def _tags(self, copies: Sequence[str] | None) -> dict[str, set[str]]:
        out: dict[str, set[str]] = {}
        where = None if copies is None else one_of("copy", copies)
        for row in self._tables.rows("tags", ["copy", "tag"], where):
            out.setdefault(row["copy"], set()).add(row["tag"])
        return out

    # -- damage ---------------------------------------------------------------------------------

    def damage(self, *, sweep: bool = False) -> list[Damage]:
        found: list[Damage] = []
        names: set[str] = set()  # first: what is entered after this is no leftover
        for table in ("layers", "tags"):
            try:
                names.update(row["copy"] for row in self._tables.rows(table, ["copy"]))
            except FormatError as error:
                found.append(Damage("index", table, first_line(error.__cause__ or error)))
        copies = [copy for several in self._copies().values() for copy in several]
        for some in _in_runs(copies):
            found += self._of_copies(some)
        dead = sorted(names.difference(copy.name for copy in copies))
        why = "rows that were never entered, or removed"
        found += [Damage("leftover", f"copy {name}", why) for name in dead]
        if sweep:
            old = f"{time.time_ns() - int(_YOUNG * 1e9):016x}"
            self._forget([name for name in dead if name < old])
        return found

    def _of_copies(self, copies: Sequence[Copy]) -> list[Damage]:
        """What is wrong with copies, unless they were removed meanwhile."""
        files: dict[str, dict[int, bytes]] = {copy.name: {} for copy in copies}
        why: dict[str, str] = {}
        try:
            where = one_of("copy", list(files))
            for row in self._tables.rows("layers", ["copy", "position", "content"], where):
                files[row["copy"]][row["position"]] = row["content"]
            shared = self._shared(copies)
        except FormatError as error:
            why = dict.fromkeys(files, first_line(error.__cause__ or error))
        for copy in copies if not why else ():
            try:
                every = range(len(copy.entry.layers))
                parts = lance_rows.checked(copy, every, files[copy.name], shared.get(copy.name))
                if not told_by(copy.entry, put_together(parts, copy.entry.classes)):
                    why[copy.name] = "the entry says something else of it than its layers"
            except Exception as error:  # whatever bytes that are not what was added lead to
                why[copy.name] = first_line(error)
        harmed = [copy for copy in copies if copy.name in why]
        still = self._copies([copy.entry.id for copy in harmed]) if harmed else {}
        names = {copy.name for several in still.values() for copy in several}
        return [
            Damage(_state(why[x.name]), f"copy {x.name}", why[x.name], x.entry)
            for x in harmed
            if x.name in names
        ]


def _in_runs(copies: Sequence[Copy]) -> Iterator[list[Copy]]:
    """Copies in runs that fit into memory, and into a condition."""
    run: list[Copy] = []
    size = 0
    for copy in copies:
        if run and (size + copy.entry.size > _MOST or len(run) == _AT_ONCE):
            yield run
            run, size = [], 0
        run.append(copy)
        size += copy.entry.size
    if run:
        yield run


def _state(why: str) -> State:
    return "missing" if why.endswith("is missing") else "damaged"
