"""The index of a zoo in a folder: one SQLite database for any number of writers and readers.

It is in WAL mode, so that readers see the last commit while somebody writes, and a commit is on the
disk when it returns. Threads of a process take turns with one connection. It is closed while the
process forks, as SQLite's locks do not survive that, and parent and child open it again. What
SQLite says is told as this package's errors.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from ..errors import DataError, FormatError

VERSION = 1
_APPLICATION = 0x52534D5A  # "RSMZ", by which the database is known
_PATIENCE = 60.0  # seconds for others to finish writing
_PAGES_IN_WAL = 4000  # of 4 kB, before they are moved into the database
_TABLES = """
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
_REMEDY = (
    "the recordings are whole files in objects/ beside it: add those to a new zoo (resemblance "
    "zoo add NEW OLD/objects/*/*.rsm), or copy the index from a backup"
)


class Index:
    """A database that is opened when it is first needed, and again if another took its place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._turn = threading.RLock()
        self._uses = 0  # by the thread whose turn it is
        self._held: list[sqlite3.Connection] = []  # none or one
        self._file: tuple[int, int] | None = None  # which the connection has open
        self._closing = weakref.finalize(self, _close, self._held)
        _ALL.add(self)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """A connection to read with, or None where nothing was ever written."""
        with self._in_turn(), self._told():
            found = self._connection()
            fleeting = found is not None and found not in self._held
            try:
                yield found
            finally:
                if fleeting and found is not None:
                    found.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A connection inside a transaction that nobody else writes during.

        What was written is on the disk at the end of the block, or, after an error, undone.
        """
        with self._in_turn(), self._told():
            found = self._connection(create=True)
            if found is None or found not in self._held:
                raise sqlite3.OperationalError("attempt to write a readonly database")
            found.execute("BEGIN IMMEDIATE")
            try:
                yield found
                found.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    found.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Let go of the database; it is opened again when it is needed."""
        with self._turn:
            _close(self._held)

    @contextlib.contextmanager
    def _in_turn(self) -> Iterator[None]:
        with self._turn:
            self._uses += 1
            try:
                yield
            finally:
                self._uses -= 1

    def _connection(self, *, create: bool = False) -> sqlite3.Connection | None:
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            self.close()
            if not create:
                return None
        else:
            if self._held and self._file == (there.st_dev, there.st_ino):
                return self._held[0]
            self.close()
            if not (_may_write(self.path) and _may_write(self.path.parent)):
                return self._to_read_alone()
        return self._opened(create=create)

    def _opened(self, *, create: bool) -> sqlite3.Connection | None:
        found = sqlite3.connect(
            self.path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
        )
        try:
            if not self._begun(found):
                if not create:
                    found.close()
                    return None
                self._begin(found)
            found.execute("PRAGMA synchronous = FULL")
            found.execute(f"PRAGMA wal_autocheckpoint = {_PAGES_IN_WAL}")
            _switch_to_wal(found)
            there = os.stat(self.path)
        except BaseException:
            found.close()
            raise
        self._held.append(found)
        self._file = (there.st_dev, there.st_ino)
        return found

    def _to_read_alone(self) -> sqlite3.Connection | None:
        """A connection for one reading of what may not be written to.

        If nobody has the database open, there is no log beside it and one cannot be made; then it
        is read as a file that nobody changes.
        """
        log = self.path.with_name(f"{self.path.name}-wal")
        how = "mode=ro" if log.exists() else "mode=ro&immutable=1"
        name = f"{self.path.resolve().as_uri()}?{how}"
        found = sqlite3.connect(name, uri=True, isolation_level=None, check_same_thread=False)
        try:
            if self._begun(found):
                return found
        except BaseException:
            found.close()
            raise
        found.close()
        return None

    def _begun(self, connection: sqlite3.Connection) -> bool:
        """Whether tables are there, or an error if they are not those of this version."""
        asked = (  # at once, as somebody may be making them
            "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_master) "
            "FROM pragma_user_version, pragma_application_id"
        )
        version, application, tables = connection.execute(asked).fetchone()
        if version == application == tables == 0:
            return False
        if application != _APPLICATION or version < 1:
            raise FormatError(
                f"{self.path} is a database, but not the index of a zoo; expected one that Zoo "
                "made: name another folder"
            )
        if version > VERSION:
            raise FormatError(
                f"{self.path} has version {version}, newer than this version of resemblance reads "
                f"({VERSION}); upgrade resemblance"
            )
        return True

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Make the tables, unless somebody else was faster."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            if not self._begun(connection):
                for statement in _TABLES.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What SQLite or the system says, as an error that says what to do."""
        try:
            yield
        except sqlite3.Error as error:
            text = str(error)
            if "locked" in text:
                raise DataError(
                    f"cannot write {self.path}: somebody else has been writing for {_PATIENCE:.0f} "
                    "seconds; expected a turn: end the process that holds it, or wait"
                ) from error
            if any(word in text for word in ("readonly", "full", "unable to open", "I/O")):
                raise DataError(
                    f"cannot use {self.path}: {text}; expected a place that may be written to and "
                    "has room: make one, or name another"
                ) from error
            raise FormatError(f"{self.path} is damaged ({text}); {_REMEDY}") from error


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


def _close(held: list[sqlite3.Connection]) -> None:
    while held:
        held.pop().close()


_ALL: weakref.WeakSet[Index] = weakref.WeakSet()
_waiting: list[Index] = []  # while this process forks
_OF_THE_PARENT: list[sqlite3.Connection] = []


def _before_a_fork() -> None:
    """Wait until no other thread is at a database, and close all that this one is not at itself."""
    for index in list(_ALL):
        index._turn.acquire()
        _waiting.append(index)
        if not index._uses:
            _close(index._held)


def _in_the_parent() -> None:
    while _waiting:
        _waiting.pop()._turn.release()


def _in_a_child() -> None:
    """What was in use at the fork is the parent's: it must not be used, nor closed, by a child."""
    while _waiting:
        index = _waiting.pop()
        index._turn, index._uses = threading.RLock(), 0
        _OF_THE_PARENT.extend(index._held)
        index._held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_a_fork, after_in_parent=_in_the_parent, after_in_child=_in_a_child
    )
