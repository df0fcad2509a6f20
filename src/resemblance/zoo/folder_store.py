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
import hashlib
import json
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .._atomic_files import check_writable, write_atomically
from ..errors import DataError, FormatError
from ..representation.file_format import content, load
from ..representation.representation import Representation
from .entry import Entry, told_by
from .sqlite_index import Index
from .store import AT_ONCE, Damage, Layers, Newcomer, exactly_nearest

_INDEX, _OBJECTS = "index.sqlite", "objects"
_NAME = re.compile(r"[0-9a-f]{64}\.rsm")
_HALF_WRITTEN = re.compile(r"\.resemblance-[0-9a-f]{16}\.part")
_ROW = (
    "SELECT number, digest, head, facts, (SELECT group_concat(tag, char(10)) FROM tags "
    "WHERE tags.number = entries.number) FROM entries"
)
_CHUNK = 1 << 20  # bytes read at a time
_LENGTH = 8  # bytes that say how long a file's header is


@dataclass(frozen=True)
class _File:
    """A recording's file: the hash of all of it, which is its name, and of its header."""

    digest: str
    head: str
    size: int


@dataclass(frozen=True)
class _Row:
    """An entry as the index has it."""

    number: int
    file: _File
    entry: Entry


class FolderStore:
    """Recordings in a folder, for any number of processes and threads of one machine."""

    def __init__(self, folder: Path, *, create: bool = True) -> None:
        self.folder = folder
        self.where = str(folder)
        self._create = create
        self._index = Index(folder / _INDEX)
        self._check_place()

    # -- writing --------------------------------------------------------------------------------

    def put(self, several: Sequence[Newcomer]) -> list[Entry]:
        self._begin()
        files = [None if self._holds(new) else self._written(new) for new in several]
        self._sync(file for file in files if file is not None)
        unused: list[str] = []
        with self._index.writing() as db:
            pairs = zip(several, files, strict=True)
            out = [self._enter(db, new, file, unused) for new, file in pairs]
        self._remove_unused(unused)
        return out

    def retag(self, id: str, add: Iterable[str], remove: Iterable[str]) -> Entry | None:
        with self._writing() as db:
            row = None if db is None else _row(db, id)
            if db is None or row is None:
                return None
            for tag in remove:
                db.execute("DELETE FROM tags WHERE number = ? AND tag = ?", (row.number, tag))
            _add_tags(db, row.number, add)
            return _entry(db, id)

    def drop(self, id: str) -> Entry | None:
        with self._writing() as db:
            row = None if db is None else _row(db, id)
            if db is None or row is None:
                return None
            for table in ("entries", "tags", "signatures"):
                db.execute(f"DELETE FROM {table} WHERE number = ?", (row.number,))
        self._remove_unused([row.file.digest])
        return row.entry

    def close(self) -> None:
        self._index.close()

    def _enter(
        self, db: sqlite3.Connection, new: Newcomer, file: _File | None, unused: list[str]
    ) -> Entry:
        """The entry of a recording, made or brought up to date, and files nobody needs any more.

        Nobody else writes meanwhile. A file that was written or seen before may be gone: then its
        entry was removed since.
        """
        row = _row(db, new.entry.id)
        if row is not None and (file is None or row.file != file) and self._intact(row.file):
            if file is not None:
                unused.append(file.digest)  # somebody else was faster
            return _joined(db, row, new.entry)
        if file is None or not self._path(file.digest).exists():
            file = self._written(new)
            self._sync([file])
        if row is not None:
            if row.file.digest != file.digest:
                unused.append(row.file.digest)
            return _joined(db, _pointed_to(db, row, file), new.entry)
        _insert(db, new, file)
        return _entry(db, new.entry.id)

    def _holds(self, new: Newcomer) -> bool:
        """Whether a recording is there, and whole."""
        with self._index.reading() as db:
            row = None if db is None else _row(db, new.entry.id)
        return row is not None and self._intact(row.file)

    def _written(self, new: Newcomer) -> _File:
        """Write the file of a recording; its folder has yet to be brought to the disk."""
        text = content(new.rep)
        file = _File(hashlib.sha256(text).hexdigest(), _of_head(text), len(text))
        path = self._path(file.digest)
        if not path.parent.exists():
            _make(path.parent)
            _sync_folder(path.parent.parent)
        write_atomically(path, text)
        return file

    def _sync(self, files: Iterable[_File]) -> None:
        """Bring the names of files to the disk."""
        for folder in {self._path(file.digest).parent for file in files}:
            _sync_folder(folder)

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
                        self._path(digest).unlink()

    def _begin(self) -> None:
        """The folder, then its index, then the folder of recordings."""
        self._check_place()
        if (self.folder / _OBJECTS).is_dir():
            return
        _make(self.folder)
        with self._index.writing():
            pass
        _make(self.folder / _OBJECTS)
        _sync_folder(self.folder)
        _sync_folder(self.folder.resolve().parent)

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

    def _loaded(self, row: _Row, layers: Layers) -> Representation:
        """A recording, once its file, or its header if only some layers are read, is what it was.

        The header holds a checksum of each layer, which reading a layer compares.
        """
        path, file = self._path(row.file.digest), row.file
        try:
            if not (_digest(path) == file.digest if layers is None else _head_is(path, file)):
                raise FormatError("its bytes are not those that were added")
            return load(path, layers=layers)
        except (FormatError, OSError) as error:
            missing = isinstance(error, FileNotFoundError)
            why = f"{path} is missing" if missing else f"{path}: {error}"
            raise FormatError(
                f"the entry {row.entry.name!r} ({row.entry.id[:12]}) of {self.where} is damaged: "
                f"{why}; add the recording again, or remove the entry"
            ) from error

    def _intact(self, file: _File) -> bool:
        try:
            return _digest(self._path(file.digest)) == file.digest
        except OSError:
            return False

    def _path(self, digest: str) -> Path:
        return self.folder / _OBJECTS / digest[:2] / f"{digest}.rsm"

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        self._check_place()
        with self._index.reading() as db:
            yield db

    def _rows(self, where: str, values: Sequence[str]) -> list[_Row]:
        return [_as_row(x) for x in self._fetched(f"{_ROW} {where} ORDER BY number", values)]

    def _found(self, id: str) -> _Row | None:
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
        there = self._files()  # first: what is entered after this is no leftover
        rows = self._rows("", [])
        for row in rows:
            found += self._of_entry(row)
        entered = {self._path(row.file.digest) for row in rows}
        for path in there:
            found += [] if path in entered else [self._of_file(path)]
        if sweep:
            self._sweep([self.folder / x.where for x in found if x.state == "leftover"])
        return found

    def _files(self) -> list[Path]:
        top = self.folder / _OBJECTS
        return sorted(path for path in top.rglob("*") if not path.is_dir()) if top.exists() else []

    def _of_index(self) -> list[Damage]:
        with self._reading() as db:
            said = [] if db is None else [x for (x,) in db.execute("PRAGMA quick_check").fetchall()]
        return [Damage("index", _INDEX, text) for text in said if text != "ok"]

    def _of_entry(self, row: _Row) -> list[Damage]:
        """What is wrong with an entry, unless it was removed or put right meanwhile."""
        path, why = self._path(row.file.digest), ""
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
        if path.parent.parent == self.folder / _OBJECTS:
            if _HALF_WRITTEN.fullmatch(path.name):
                return Damage("leftover", where, "half written, now or by a writer that died")
            if _NAME.fullmatch(path.name) and path.parent.name == path.name[:2]:
                return Damage("leftover", where, "a recording that was never entered, or removed")
        return Damage("foreign", where, "not a file of the zoo's own")

    def _sweep(self, leftovers: Sequence[Path]) -> None:
        self._remove_unused([path.stem for path in leftovers if _NAME.fullmatch(path.name)])
        for folder in {path.parent for path in leftovers if _HALF_WRITTEN.fullmatch(path.name)}:
            check_writable(folder / "any")  # which removes what no live writer holds


def _row(db: sqlite3.Connection, id: str) -> _Row | None:
    found = db.execute(f"{_ROW} WHERE id = ?", (id,)).fetchone()
    return None if found is None else _as_row(found)


def _entry(db: sqlite3.Connection, id: str) -> Entry:
    """An entry that is there."""
    return _as_row(db.execute(f"{_ROW} WHERE id = ?", (id,)).fetchone()).entry


def _as_row(found: tuple[int, str, str, str, str | None]) -> _Row:
    number, digest, head, facts, tags = found
    known = json.loads(facts)
    known["tags"] = sorted(tags.split("\n")) if tags else []
    entry = Entry.from_dict(known)
    return _Row(number, _File(digest, head, entry.size), entry)


def _insert(db: sqlite3.Connection, new: Newcomer, file: _File) -> None:
    entry = replace(new.entry, size=file.size)
    values = (entry.id, entry.name, entry.group, file.digest, file.head, _facts(entry))
    number = db.execute(
        "INSERT INTO entries (id, name, grp, digest, head, facts) VALUES (?, ?, ?, ?, ?, ?)", values
    ).lastrowid
    _add_tags(db, number or 0, entry.tags)
    db.executemany(
        "INSERT INTO signatures (number, grp, kernel, vector) VALUES (?, ?, ?, ?)",
        [
            (number, entry.group, kernel, np.asarray(vector, "<f2").tobytes())
            for kernel, vector in new.signatures.items()
        ],
    )


def _pointed_to(db: sqlite3.Connection, row: _Row, file: _File) -> _Row:
    """An entry with another file, which holds the same."""
    entry = replace(row.entry, size=file.size)
    db.execute(
        "UPDATE entries SET digest = ?, head = ?, facts = ? WHERE number = ?",
        (file.digest, file.head, _facts(entry), row.number),
    )
    return _Row(row.number, file, entry)


def _joined(db: sqlite3.Connection, row: _Row, new: Entry) -> Entry:
    """An entry that was there, with what is said of it now as well."""
    _add_tags(db, row.number, new.tags)
    if new.trained_on is not None and new.trained_on != row.entry.trained_on:
        entry = replace(row.entry, trained_on=new.trained_on)
        db.execute("UPDATE entries SET facts = ? WHERE number = ?", (_facts(entry), row.number))
    return _entry(db, row.entry.id)


def _add_tags(db: sqlite3.Connection, number: int, tags: Iterable[str]) -> None:
    rows = [(number, tag) for tag in tags]
    db.executemany("INSERT OR IGNORE INTO tags (number, tag) VALUES (?, ?)", rows)


def _facts(entry: Entry) -> str:
    facts = entry.to_dict()
    del facts["tags"]
    return json.dumps(facts)


def _digest(path: Path) -> str:
    """The hash of all bytes of a file."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def _head_is(path: Path, file: _File) -> bool:
    """Whether a file has its length and its header still."""
    with open(path, "rb") as opened:
        if os.fstat(opened.fileno()).st_size != file.size:
            return False
        start = opened.read(_LENGTH)
        return _of_head(start + opened.read(min(_head_length(start), file.size))) == file.head


def _of_head(text: bytes) -> str:
    """The hash of the header that a file begins with."""
    return hashlib.sha256(text[: _LENGTH + _head_length(text)]).hexdigest()


def _head_length(text: bytes) -> int:
    return int.from_bytes(text[:_LENGTH], "little")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot make the folder {folder} ({error.strerror}); expected a place that may be "
            "written to: name another"
        ) from None


def _sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the system has a call for it."""
    if os.name != "posix":
        return
    try:
        opened = os.open(folder, os.O_RDONLY)
    except PermissionError:  # it may be entered, but not read
        return
    try:
        os.fsync(opened)
    except OSError as error:
        raise DataError(
            f"cannot write {folder}: {error.strerror}; expected a disk that works"
        ) from None
    finally:
        os.close(opened)
