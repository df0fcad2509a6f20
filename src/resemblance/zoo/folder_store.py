"""A zoo in a folder: recordings as files that go by their own hash, and an index of them.

    objects/ab/abcdef….rsm   a recording; its name is the SHA-256 of its bytes
    index.sqlite             entries, tags, signatures

A file never changes once it has its name, so that readers need no lock. It is on the disk before
its entry is, and an entry is gone before its file is: whatever moment a writer dies at, every entry
has its file, and what is left over is a file without an entry. Such a file is removed under the
lock that entries are written under, where a writer looks whether its file is still there.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._atomic_files import check_writable
from ..errors import DataError, FormatError
from ..representation.file_format import content, load
from ..representation.representation import Representation
from . import entry_rows
from .entry import Entry, told_by
from .entry_rows import Row
from .hashed_files import File, HashedFiles, make, sync_folder
from .sqlite_index import Index
from .store import AT_ONCE, Damage, Layers, Newcomer, exactly_nearest

_INDEX, _OBJECTS = "index.sqlite", "objects"


class FolderStore:
    """Recordings in a folder, for any number of processes and threads of one machine."""

    def __init__(self, folder: Path, *, create: bool = True) -> None:
        self.folder = folder
        self.where = str(folder)
        self._create = create
        self._index = Index(folder / _INDEX)
        self._files = HashedFiles(folder / _OBJECTS)
        self._check_place()

    # -- writing --------------------------------------------------------------------------------

    def put(self, several: Sequence[Newcomer]) -> list[Entry]:
        self._begin()
        files = [None if self._holds(new) else self._written(new) for new in several]
        self._files.sync(file for file in files if file is not None)
        unused: list[str] = []
        with self._index.writing() as db:
            pairs = zip(several, files, strict=True)
            out = [self._enter(db, new, file, unused) for new, file in pairs]
        self._remove_unused(unused)
        return out

    def retag(self, id: str, add: Iterable[str], remove: Iterable[str]) -> Entry | None:
        with self._writing() as db:
            row = None if db is None else entry_rows.find(db, id)
            if db is None or row is None:
                return None
            for tag in remove:
                db.execute("DELETE FROM tags WHERE number = ? AND tag = ?", (row.number, tag))
            entry_rows.add_tags(db, row.number, add)
            return entry_rows.entry_of(db, id)

    def drop(self, id: str) -> Entry | None:
        with self._writing() as db:
            row = None if db is None else entry_rows.find(db, id)
            if db is None or row is None:
                return None
            for table in ("entries", "tags", "signatures"):
                db.execute(f"DELETE FROM {table} WHERE number = ?", (row.number,))
        self._remove_unused([row.file.digest])
        return row.entry

    def close(self) -> None:
        self._index.close()

    def _enter(
        self, db: sqlite3.Connection, new: Newcomer, file: File | None, unused: list[str]
    ) -> Entry:
        """The entry of a recording, made or brought up to date, and files nobody needs any more.

        Nobody else writes meanwhile. A file that was written or seen before may be gone: then its
        entry was removed since.
        """
        row = entry_rows.find(db, new.entry.id)
        if row is not None and (file is None or row.file != file) and self._files.intact(row.file):
            if file is not None:
                unused.append(file.digest)  # somebody else was faster
            return entry_rows.joined(db, row, new.entry)
        if file is None or not self._files.path(file.digest).exists():
            file = self._written(new)
            self._files.sync([file])
        if row is not None:
            if row.file.digest != file.digest:
                unused.append(row.file.digest)
            return entry_rows.joined(db, entry_rows.pointed_to(db, row, file), new.entry)
        entry_rows.insert(db, new, file)
        return entry_rows.entry_of(db, new.entry.id)

    def _holds(self, new: Newcomer) -> bool:
        """Whether a recording is there, and whole."""
        with self._index.reading() as db:
            row = None if db is None else entry_rows.find(db, new.entry.id)
        return row is not None and self._files.intact(row.file)

    def _written(self, new: Newcomer) -> File:
        return self._files.write(content(new.rep))

    def _remove_unused(self, digests: Sequence[str]) -> None:
        """Remove files that no entry has.

        A writer that has written one of them, and has yet to enter it, looks again.
        """
        if not digests:
            return
        with self._index.writing() as db:
            for digest in digests:
                if not db.execute("SELECT 1 FROM entries WHERE digest = ?", (digest,)).fetchone():
                    with contextlib.suppress(OSError):  # it stays as a leftover, and no harm
                        self._files.path(digest).unlink()

    def _begin(self) -> None:
        """The folder, then its index, then the folder of recordings."""
        self._check_place()
        if (self.folder / _OBJECTS).is_dir():
            return
        make(self.folder)
        with self._index.writing():
            pass
        make(self.folder / _OBJECTS)
        sync_folder(self.folder)
        sync_folder(self.folder.resolve().parent)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection | None]:
        """A connection to change entries with, or None where there are none."""
        self._check_place()
        if not (self.folder / _INDEX).exists():
            yield None
            return
        with self._index.writing() as db:
            yield db

    # -- reading --------------------------------------------------------------------------------

    def entries(self, *, tag: str | None = None, group: str | None = None) -> list[Entry]:
        where, values = "1", []
        if group is not None:
            where, values = "grp = ?", [group]
        if tag is not None:
            where += " AND number IN (SELECT number FROM tags WHERE tag = ?)"
            values.append(tag)
        return [row.entry for row in self._rows(f"WHERE {where}", values)]

    def count(self) -> int:
        with self._reading() as db:
            return 0 if db is None else db.execute("SELECT count(*) FROM entries").fetchone()[0]

    def find(self, id: str) -> Entry | None:
        row = self._found(id)
        return None if row is None else row.entry

    def matching(self, key: str) -> list[Entry]:
        named = self._rows("WHERE name = ?", [key])
        # all ids that begin so come before those that go on with what is above every digit
        begun = self._rows("WHERE id >= ? AND id < ?", [key, f"{key}g"])
        return [row.entry for row in {row.number: row for row in (*named, *begun)}.values()]

    def read(self, id: str, layers: Layers = None) -> Representation | None:
        row = self._found(id)
        while row is not None:
            try:
                return self._loaded(row, layers)
            except FormatError:  # or it was removed or put right meanwhile
                again = self._found(id)
                if again is not None and again.file == row.file:
                    raise
                row = again
        return None

    def signatures(
        self, group: str, kernel: str, *, among: Sequence[str] | None = None
    ) -> Iterator[tuple[list[str], np.ndarray]]:
        for rows in self._vectors(group, kernel, among):
            for length in dict.fromkeys(len(vector) for *_, vector in rows):
                same = [(id, vector) for _, id, vector in rows if len(vector) == length]
                joined = b"".join(vector for _, vector in same)
                yield [id for id, _ in same], np.frombuffer(joined, "<f2").reshape(len(same), -1)

    def nearest(
        self,
        group: str,
        kernel: str,
        signature: np.ndarray,
        limit: int,
        *,
        among: Sequence[str] | None = None,
    ) -> list[tuple[str, float]]:
        return exactly_nearest(self.signatures(group, kernel, among=among), signature, limit)

    def _vectors(
        self, group: str, kernel: str, among: Sequence[str] | None
    ) -> Iterator[list[tuple[int, str, bytes]]]:
        """Number, id and signature of some hundred entries at a time."""
        asked = (
            "SELECT number, id, vector FROM signatures JOIN entries USING (number) WHERE "
            "signatures.grp = ? AND kernel = ? AND {} ORDER BY number LIMIT ?"
        )
        if among is not None:
            for start in range(0, len(among), AT_ONCE):
                ids = among[start : start + AT_ONCE]
                which = f"id IN ({', '.join('?' * len(ids))})"
                yield self._fetched(asked.format(which), (group, kernel, *ids, len(ids)))
            return
        last = -1
        while rows := self._fetched(asked.format("number > ?"), (group, kernel, last, AT_ONCE)):
            yield rows
            last = rows[-1][0]

    def _fetched(self, asked: str, values: Sequence[str | int]) -> list[Any]:
        with self._reading() as db:
            return [] if db is None else db.execute(asked, values).fetchall()

    def _loaded(self, row: Row, layers: Layers) -> Representation:
        """A recording, once its file, or its header if only some layers are read, is what it was.

        The header holds a checksum of each layer, which reading a layer compares.
        """
        path, file = self._files.path(row.file.digest), row.file
        try:
            if not (self._files.is_whole if layers is None else self._files.has_its_head)(file):
                raise FormatError("its bytes are not those that were added")
            return load(path, layers=layers)
        except (FormatError, OSError) as error:
            missing = isinstance(error, FileNotFoundError)
            why = f"{path} is missing" if missing else f"{path}: {error}"
            raise FormatError(
                f"the entry {row.entry.name!r} ({row.entry.id[:12]}) of {self.where} is damaged: "
                f"{why}; add the recording again, or remove the entry"
            ) from error

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        self._check_place()
        with self._index.reading() as db:
            yield db

    def _rows(self, where: str, values: Sequence[str]) -> list[Row]:
        return [
            entry_rows.as_row(x)
            for x in self._fetched(f"{entry_rows.SELECT} {where} ORDER BY number", values)
        ]

    def _found(self, id: str) -> Row | None:
        return next(iter(self._rows("WHERE id = ?", [id])), None)

    def _check_place(self) -> None:
        """An error if the folder is none, or is no zoo and cannot become one."""
        index = self.folder / _INDEX
        if index.exists():
            return
        try:
            there = os.listdir(self.folder)
        except FileNotFoundError:
            there = []
        except NotADirectoryError:
            raise DataError(
                f"expected a folder for a zoo, found a file at {self.folder}, or above it; name "
                "the folder first"
            ) from None
        if index.exists():  # somebody has just made it
            return
        if _OBJECTS in there:
            raise FormatError(
                f"{self.folder} has recordings but no {_INDEX}: it was removed; add the recordings "
                "to a new zoo (resemblance zoo add NEW OLD/objects/*/*.rsm), or put the index back"
            )
        if not self._create:
            raise DataError(f"no zoo at {self.folder}; expected a folder that `zoo add` made")
        if there:
            raise DataError(
                f"{self.folder} is no zoo, and not empty; expected a zoo, an empty folder or a new "
                "name"
            )

    # -- damage ---------------------------------------------------------------------------------

    def damage(self, *, sweep: bool = False) -> list[Damage]:
        self._check_place()
        found = self._of_index()
        there = self._files.listed()  # first: what is entered after this is no leftover
        rows = self._rows("", [])
        for row in rows:
            found += self._of_entry(row)
        entered = {self._files.path(row.file.digest) for row in rows}
        for path in there:
            found += [] if path in entered else [self._of_file(path)]
        if sweep:
            self._sweep([self.folder / x.where for x in found if x.state == "leftover"])
        return found

    def _of_index(self) -> list[Damage]:
        with self._reading() as db:
            said = [] if db is None else [x for (x,) in db.execute("PRAGMA quick_check").fetchall()]
        return [Damage("index", _INDEX, text) for text in said if text != "ok"]

    def _of_entry(self, row: Row) -> list[Damage]:
        """What is wrong with an entry, unless it was removed or put right meanwhile."""
        path, why = self._files.path(row.file.digest), ""
        try:
            if not told_by(row.entry, self._loaded(row, None)):
                why = "the index says something else of it than its file"
        except FormatError:
            why = "its bytes are not those that were added"
        again = self._found(row.entry.id) if why else None
        if again is None or again.file != row.file:
            return []
        where = str(path.relative_to(self.folder))
        if not path.exists():
            return [Damage("missing", where, "its file is not there", again.entry)]
        return [Damage("damaged", where, why, again.entry)]

    def _of_file(self, path: Path) -> Damage:
        where = str(path.relative_to(self.folder))
        if self._files.is_half_written(path):
            return Damage("leftover", where, "half written, now or by a writer that died")
        if self._files.is_one(path):
            return Damage("leftover", where, "a recording that was never entered, or removed")
        return Damage("foreign", where, "not a file of the zoo's own")

    def _sweep(self, leftovers: Sequence[Path]) -> None:
        self._remove_unused([path.stem for path in leftovers if self._files.is_one(path)])
        for folder in {path.parent for path in leftovers if self._files.is_half_written(path)}:
            check_writable(folder / "any")  # which removes what no live writer holds
