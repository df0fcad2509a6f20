"""The SQLite index of a zoo: rows of entries, what is refused, and what is undone."""

from __future__ import annotations

import contextlib
import gc
import os
import sqlite3
import threading
import time
import weakref
from dataclasses import replace

import numpy as np
import pytest

import resemblance as rs
from resemblance.errors import DataError, FormatError
from resemblance.zoo import sqlite_index
from resemblance.zoo.sqlite_index import EntryRow, SqliteIndex, StoredFile
from zoo_workers import tiny


@pytest.fixture
def path(tmp_path):
    return tmp_path / "index.sqlite"


@pytest.fixture
def index(path):
    found = SqliteIndex(path)
    with found.writing() as db:
        db.execute("INSERT INTO tags VALUES (1, 'a')")
    yield found
    found.close()


def tags(index):
    with index.reading() as db:
        return [tag for (tag,) in db.execute("SELECT tag FROM tags ORDER BY tag")]


def change(path, statement):
    db = sqlite3.connect(path)
    db.execute(statement)
    db.commit()
    db.close()


def test_nothing_is_there_before_something_is_written(path):
    with SqliteIndex(path).reading() as db:
        assert db is None
    assert not path.exists()
    path.touch()  # as a writer leaves it that died at once
    index = SqliteIndex(path)
    with index.reading() as db:
        assert db is None
    with index.writing():
        pass
    assert tags(index) == []


def test_what_another_makes_while_it_is_looked_at_is_there_or_not(path):
    """Not half of it, which would pass for a database of something else."""

    class Interrupted(sqlite3.Connection):
        def execute(self, *asked):
            rows = super().execute(*asked).fetchall()
            with SqliteIndex(path).writing():
                pass
            return Rows(rows)

    class Rows(list):
        def fetchone(self):
            return self[0]

    path.touch()
    db = sqlite3.connect(path, factory=Interrupted, isolation_level=None)
    assert not SqliteIndex(path)._begun(db)
    assert SqliteIndex(path)._begun(db)
    db.close()


def test_commits_are_on_the_disk_when_they_return(index):
    with index.reading() as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_an_error_undoes_what_was_written(index):
    def fails():
        with index.writing() as db:
            db.execute("INSERT INTO tags VALUES (1, 'b')")
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert tags(index) == ["a"]
    with index.writing() as db:
        db.execute("INSERT INTO tags VALUES (1, 'c')")
    assert tags(index) == ["a", "c"]


def test_an_index_of_a_newer_version_is_refused(index, path):
    index.close()
    change(path, "PRAGMA user_version = 2")
    for use in (index.reading, index.writing):
        with (
            pytest.raises(FormatError, match=r"version 2, newer than .* reads \(1\); upgrade"),
            use(),
        ):
            pass


def test_a_database_of_something_else_is_refused(path):
    change(path, "CREATE TABLE cats (name)")
    with pytest.raises(FormatError, match="not the index of a zoo"), SqliteIndex(path).writing():
        pass


@pytest.mark.parametrize("content", [b"not a database at all" * 99, b"SQLite format 3\0" * 300])
def test_what_is_no_database_is_refused(path, content):
    path.write_bytes(content)
    for use in (SqliteIndex(path).reading, SqliteIndex(path).writing):
        with pytest.raises(FormatError, match=r"is damaged.*whole files in objects/"), use():
            pass


def test_a_damaged_page_is_told(index, path):
    with index.writing() as db:
        db.executemany("INSERT INTO tags VALUES (?, 'x')", [(i,) for i in range(5000)])
    index.close()
    content = bytearray(path.read_bytes())
    content[8192:-4096] = b"\xff" * len(content[8192:-4096])
    path.write_bytes(bytes(content))
    with pytest.raises(FormatError, match="is damaged"):
        tags(index)


def test_a_writer_that_does_not_end_is_told(index, path, monkeypatch):
    monkeypatch.setattr(sqlite_index, "_PATIENCE", 0.05)
    other = SqliteIndex(path)
    with index.writing():
        with (
            pytest.raises(DataError, match="a different process has held the lock"),
            other.writing(),
        ):
            pass
        assert tags(other) == ["a"]  # readers do not wait
    other.close()


def test_a_place_without_room_for_a_log_is_told():
    with (
        contextlib.closing(sqlite3.connect(":memory:")) as db,
        pytest.raises(sqlite3.OperationalError, match="unable to open a log"),
    ):
        sqlite_index._switch_to_wal(db)


def test_somebody_who_reads_at_the_first_opening_is_waited_for(path, monkeypatch):
    """SQLite may refuse the change of mode at once, whatever the patience of a connection."""
    change(path, "CREATE TABLE t (x)")
    reader = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM t").fetchall()
    with contextlib.closing(sqlite3.connect(path, timeout=0)) as db:
        timer = threading.Timer(0.1, lambda: reader.execute("COMMIT"))
        timer.start()
        sqlite_index._switch_to_wal(db)
        timer.join()
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    reader.close()


def test_but_not_for_ever(path, monkeypatch):
    monkeypatch.setattr(sqlite_index, "_PATIENCE", 0.05)
    change(path, "CREATE TABLE t (x)")
    with (
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader,
        contextlib.closing(sqlite3.connect(path, timeout=0)) as db,
    ):
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM t").fetchall()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            sqlite_index._switch_to_wal(db)


def test_who_may_only_read_sees_the_last_commit_and_holds_nothing_open(index, path, monkeypatch):
    other = SqliteIndex(path)
    with index.writing() as db:
        db.execute("INSERT INTO tags VALUES (2, 'in the log')")
    assert path.with_name("index.sqlite-wal").stat().st_size > 0
    monkeypatch.setattr(sqlite_index, "_may_write", lambda path: False)
    assert tags(other) == ["a", "in the log"]
    with other.reading() as db:
        pass
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        db.execute("SELECT 1")


def test_threads_take_turns(index):
    def work(i):
        for k in range(20):
            with index.writing() as db:
                db.execute("INSERT INTO tags VALUES (?, ?)", (100 * i + k, "t"))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tags(index).count("t") == 80


def test_a_child_keeps_its_own_hold_on_the_log_when_its_parent_lets_go(index, path):
    """An inherited connection would let the parent remove the log that the child writes to."""
    end, told = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            assert tags(index) == ["a"]
            os.write(told, b"open")
            deadline = time.monotonic() + 10
            while os.path.exists(path.with_name("go")) is False and time.monotonic() < deadline:
                time.sleep(0.005)
            with index.writing() as db:
                db.execute("INSERT INTO tags VALUES (2, 'by the child')")
            status = 0
        os._exit(status)
    assert os.read(end, 4) == b"open"
    assert tags(index) == ["a"]
    index.close()
    path.with_name("go").touch()
    assert os.waitpid(child, 0)[1] == 0
    assert tags(index) == ["a", "by the child"]
    os.close(end)
    os.close(told)


def test_a_fork_waits_for_other_threads_and_not_for_itself(index):
    with index.writing() as db:  # of this thread
        child = os.fork()
        if child == 0:
            os._exit(0 if index._held == [] else 1)
        db.execute("INSERT INTO tags VALUES (3, 'c')")
    assert os.waitpid(child, 0)[1] == 0
    assert tags(index) == ["a", "c"]


def test_a_forgotten_index_is_closed(path):
    index = SqliteIndex(path)
    with index.writing() as db:
        known = weakref.ref(index)
    del index
    gc.collect()
    assert known() is None
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        db.execute("SELECT 1")


FILE = StoredFile("a" * 64, "b" * 64, 123)
CHECKSUMS = {"features": 1}


@pytest.fixture
def db(tmp_path):
    with SqliteIndex(tmp_path / "index.sqlite").writing() as found:
        yield found


@pytest.fixture
def new(tmp_path):
    with rs.Zoo(tmp_path / "zoo") as zoo:
        return zoo._new_recording(tiny(0), ("b", "a"), None)


def test_what_is_entered_is_found_with_its_file_and_its_tags_in_order(db, new):
    assert sqlite_index.find_row(db, new.entry.id) is None
    entry = sqlite_index.write_row(db, EntryRow(None, FILE, new.entry, CHECKSUMS), new.signatures)
    row = sqlite_index.find_row(db, new.entry.id)
    assert row.file == FILE
    assert row.entry == entry == replace(new.entry, size=FILE.size, tags=("a", "b"))
    kept = dict(db.execute("SELECT kernel, vector FROM signatures").fetchall())
    assert set(kept) == set(new.signatures)
    for kernel, vector in new.signatures.items():
        np.testing.assert_array_equal(np.frombuffer(kept[kernel], "<f2"), vector)


def test_a_row_is_replaced_with_its_tags_and_keeps_its_signatures(db, new):
    sqlite_index.write_row(db, EntryRow(None, FILE, new.entry, CHECKSUMS), new.signatures)
    row = sqlite_index.find_row(db, new.entry.id)
    other = StoredFile("c" * 64, "d" * 64, 456)
    entry = replace(row.entry, tags=("b", "c"), trained_on="0" * 64)
    found = sqlite_index.write_row(db, replace(row, file=other, entry=entry))
    assert found == replace(entry, size=456)
    again = sqlite_index.find_row(db, new.entry.id)
    assert (again.file, again.entry, again.signatures) == (other, found, row.signatures)
    assert db.execute("SELECT count(*) FROM entries").fetchone() == (1,)
    assert db.execute("SELECT count(*) FROM signatures").fetchone() == (len(new.signatures),)
