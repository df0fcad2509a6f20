"""The SQLite index of a zoo in a folder: the database connection, and entries as rows.

The database is in WAL mode, so readers see the last commit while somebody writes, and a commit is
on the disk when it returns. Threads of a process take turns with one connection. The connection is
closed while the process forks, because SQLite's locks do not survive a fork; parent and child open
it again. SQLite's errors are raised as this package's errors.

Rows are read, inserted and updated inside a transaction, and validated whenever they are read. The
facts column holds a checksum of the whole row, tags included, and one of each signature, so that an
edit of any cell is detected.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError, FormatError
from .entry import Damage, Entry, from_facts, is_digest, to_facts

INDEX_FILE = "index.sqlite"
INDEX_VERSION = 1
_APPLICATION_ID = 0x52534D5A  # "RSMZ", by which the database is known
_PATIENCE = 60.0  # seconds for others to finish writing
_WAL_PAGES = 4000  # of 4 kB, before they are moved into the database
_SQL_CREATE_TABLES = """
CREATE TABLE entries (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    grp TEXT NOT NULL,
    digest TEXT NOT NULL UNIQUE,
    head TEXT NOT NULL,
    facts TEXT NOT NULL
);
CREATE INDEX entries_by_name ON entries (name);
CREATE INDEX entries_by_group ON entries (grp);
CREATE TABLE tags (
    number INTEGER NOT NULL,
    tag TEXT NOT NULL,
    PRIMARY KEY (number, tag)
) WITHOUT ROWID;
CREATE INDEX tags_by_tag ON tags (tag);
CREATE TABLE signatures (
    number INTEGER NOT NULL,
    grp TEXT NOT NULL,
    kernel TEXT NOT NULL,
    vector BLOB NOT NULL,
    UNIQUE (grp, kernel, number)
);
CREATE INDEX signatures_by_number ON signatures (number);
"""
_MSG_REMEDY = (
    "the recordings are whole files in objects/ beside it: add those to a new zoo (resemblance "
    "zoo add NEW OLD/objects/*/*.rsm), or copy the index from a backup"
)


class SqliteIndex:
    """A database that is opened when it is first needed, and again if another took its place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._turn = threading.RLock()
        self._held: list[sqlite3.Connection] = []  # none or one
        self._file: tuple[int, int] | None = None  # which the connection has open
        weakref.finalize(self, _close_connections, self._held)
        _LIVE_INDEXES.add(self)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """A connection to read with, or None where nothing was ever written."""
        with self._turn, self._translated_errors():
            found = self._connection()
            try:
                yield found
            finally:
                if found is not None and found not in self._held:
                    found.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A connection inside a transaction that nobody else writes during.

        What was written is on the disk at the end of the block, or, after an error, undone.
        """
        with self._turn, self._translated_errors():
            found = self._connection(create=True)
            assert found is not None
            with found:  # commits, or rolls back after an error
                found.execute("BEGIN IMMEDIATE")
                yield found

    def close(self) -> None:
        """Let go of the database; it is opened again when it is needed."""
        with self._turn:
            _close_connections(self._held)

    def _connection(self, *, create: bool = False) -> sqlite3.Connection | None:
        """The connection that is held, or a new one; what may only be read is not held open."""
        there = self._identity()
        if self._held and self._file == there:
            return self._held[0]
        self.close()
        if there is None and not create:
            return None
        read_only = there is not None and not (
            _may_write(self.path) and _may_write(self.path.parent)
        )
        if read_only and create:
            raise sqlite3.OperationalError("attempt to write a readonly database")
        how = "rwc"
        if read_only:  # without a log, nobody has it open and none can be made: it does not change
            log = self.path.with_name(f"{self.path.name}-wal")
            how = "ro" if log.exists() else "ro&immutable=1"
        found = sqlite3.connect(
            f"{self.path.resolve().as_uri()}?mode={how}",
            uri=True,
            timeout=_PATIENCE,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            if not self._begun(found):
                if not create:
                    found.close()
                    return None
                self._begin(found)
            # bytes that are no UTF-8 are replaced, for the row's checksum to notice
            found.text_factory = lambda text: text.decode("utf-8", "replace")
            if read_only:
                return found
            found.execute("PRAGMA synchronous = FULL")
            found.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
            _switch_to_wal(found)
            self._file = self._identity()
        except BaseException:
            found.close()
            raise
        self._held.append(found)
        return found

    def _identity(self) -> tuple[int, int] | None:
        """Device and inode of the file; None if there is none."""
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return None
        return there.st_dev, there.st_ino

    def _begun(self, connection: sqlite3.Connection) -> bool:
        """Whether tables are there, or an error if they are not those of this version."""
        asked = (  # at once, as somebody may be making them
            "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_master) "
            "FROM pragma_user_version, pragma_application_id"
        )
        version, application, tables = connection.execute(asked).fetchone()
        if version == application == tables == 0:
            return False
        if application != _APPLICATION_ID or version < 1:
            raise FormatError(
                f"{self.path} is a database, but not the index of a zoo; choose a different folder"
            )
        if version > INDEX_VERSION:
            raise FormatError(
                f"{self.path} has version {version}, newer than this version of resemblance reads "
                f"({INDEX_VERSION}); upgrade resemblance"
            )
        return True

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Make the tables, unless somebody else was faster."""
        with connection:  # commits, or rolls back after an error
            connection.execute("BEGIN IMMEDIATE")
            if not self._begun(connection):
                for statement in _SQL_CREATE_TABLES.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {INDEX_VERSION}")

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """SQLite's errors, as errors that say what to do."""
        try:
            yield
        except sqlite3.Error as error:
            text = str(error)
            if "locked" in text:
                raise DataError(
                    f"cannot write {self.path}: a different process has held the lock for "
                    f"{_PATIENCE:.0f} seconds; wait, or end that process"
                ) from error
            if any(word in text for word in ("readonly", "full", "unable to open", "I/O")):
                raise DataError(
                    f"cannot use {self.path}: {text}; expected a place that may be written to and "
                    "has room: make one, or name another"
                ) from error
            raise FormatError(f"{self.path} is damaged ({text}); {_MSG_REMEDY}") from error


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Which a database stays in; while others open it for the first time, SQLite may refuse."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise sqlite3.OperationalError("the file system is unable to open a log for it")
        return


def _close_connections(held: list[sqlite3.Connection]) -> None:
    while held:
        held.pop().close()


_LIVE_INDEXES: weakref.WeakSet[SqliteIndex] = weakref.WeakSet()
_LOCKED_INDEXES: list[SqliteIndex] = []  # while this process forks
_PARENT_CONNECTIONS: list[sqlite3.Connection] = []


def _before_fork() -> None:
    """Wait until no other thread is at a database, and close all that this one does not write."""
    for index in list(_LIVE_INDEXES):
        index._turn.acquire()
        _LOCKED_INDEXES.append(index)
        if not any(connection.in_transaction for connection in index._held):
            _close_connections(index._held)


def _after_fork() -> None:
    while _LOCKED_INDEXES:
        _LOCKED_INDEXES.pop()._turn.release()


def _after_fork_in_child() -> None:
    """What was in use at the fork is the parent's: it must not be used, nor closed, by a child."""
    for index in _LOCKED_INDEXES:
        _PARENT_CONNECTIONS.extend(index._held)
        index._held.clear()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork,
        after_in_child=_after_fork_in_child,
    )


_ROW_COLUMNS = ("id", "name", "grp", "digest", "head")
SELECT_ROW = (
    f"SELECT number, {', '.join(_ROW_COLUMNS)}, facts, (SELECT group_concat(tag, char(10)) FROM "
    "tags WHERE tags.number = entries.number) FROM entries"
)
_SQL_WRITE = (  # a row without a number is a new one
    f"INSERT INTO entries (number, {', '.join(_ROW_COLUMNS)}, facts) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (number) DO UPDATE SET digest = excluded.digest, head = excluded.head, "
    "facts = excluded.facts"
)


@dataclass(frozen=True)
class StoredFile:
    """A recording's file: the hash of all of it, which is its name, and of its header."""

    digest: str
    head: str
    size: int


@dataclass(frozen=True)
class EntryRow:
    """An entry as the index has it."""

    number: int | None  # None: not in the index yet
    file: StoredFile
    entry: Entry
    signatures: Mapping[str, int]  # checksums, by kernel


def read_rows(
    db: sqlite3.Connection, condition: str, values: Sequence[str] = ()
) -> tuple[list[EntryRow], list[Damage]]:
    """The rows that meet a condition, in the order in which they came, and damage to others."""
    rows, damaged = list[EntryRow](), list[Damage]()
    for found in db.execute(f"{SELECT_ROW} WHERE {condition} ORDER BY number", values).fetchall():
        try:
            rows.append(parse_row(found))
        except FormatError as error:
            damaged.append(Damage("damaged", f"{INDEX_FILE}, row {found[0]}", str(error)))
    return rows, damaged


def find_row(db: sqlite3.Connection, id: str) -> EntryRow | None:
    """The row of an entry; None if there is none, or it is damaged."""
    rows, _ = read_rows(db, "id = ?", [id])
    return rows[0] if rows else None


def parse_row(found: tuple[Any, ...]) -> EntryRow:
    """What `SELECT_ROW` returned, validated.

    Raises:
        FormatError: if anything in the row is not as it was written.
    """
    number, *values, facts, tags = found
    columns = dict(zip(_ROW_COLUMNS, values, strict=True))
    entry, signatures = from_facts(facts, columns, sorted(tags.split("\n")) if tags else [])
    file = StoredFile(columns["digest"], columns["head"], entry.size)
    return EntryRow(number, file, entry, signatures)


def write_row(
    db: sqlite3.Connection, row: EntryRow, vectors: Mapping[str, np.ndarray] | None = None
) -> Entry:
    """Add a row, or replace what is there of it, with its tags and its checksums.

    Args:
        db: a connection inside a transaction.
        row: the row; its file is on the disk.
        vectors: the signatures of the entry, which replace those that are there; None leaves them.

    Returns:
        The entry as it is now.
    """
    file, tags = row.file, tuple(sorted(row.entry.tags))
    entry = replace(row.entry, size=file.size, tags=tags)
    values = (entry.id, entry.name, entry.group, file.digest, file.head)
    columns = dict(zip(_ROW_COLUMNS, values, strict=True))
    facts = to_facts(entry, row.signatures, columns, tags)
    written = db.execute(_SQL_WRITE, (row.number, *values, facts))
    number = written.lastrowid if row.number is None else row.number
    db.execute("DELETE FROM tags WHERE number = ?", (number,))
    db.executemany("INSERT INTO tags (number, tag) VALUES (?, ?)", [(number, x) for x in tags])
    if vectors is not None:
        db.execute("DELETE FROM signatures WHERE number = ?", (number,))
        db.executemany(
            "INSERT OR REPLACE INTO signatures (number, grp, kernel, vector) VALUES (?, ?, ?, ?)",
            [
                (number, entry.group, kernel, np.asarray(x, "<f2").tobytes())
                for kernel, x in vectors.items()
            ],
        )
    return entry


def delete_row(db: sqlite3.Connection, number: int | None) -> None:
    """Remove a row, its tags and its signatures."""
    for table in ("entries", "tags", "signatures"):
        db.execute(f"DELETE FROM {table} WHERE number = ?", (number,))


def delete_damaged_rows(db: sqlite3.Connection, id: str, digest: str) -> list[str]:
    """Remove the damaged rows of an entry or of a file, to make room for a new row.

    Returns:
        The digests of other files that these rows named.
    """
    digests: list[str] = []
    rows = db.execute(f"{SELECT_ROW} WHERE id = ? OR digest = ?", (id, digest)).fetchall()
    for found in rows:
        try:
            parse_row(found)
        except FormatError:
            delete_row(db, found[0])
            digests += [x for x in found[4:5] if is_digest(x) and x != digest]
    return digests
