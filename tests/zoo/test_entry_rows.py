"""Entries as rows: entered, found, joined and pointed elsewhere; no tag comes twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import resemblance as rs
from resemblance.zoo import entry_rows
from resemblance.zoo.hashed_files import File
from resemblance.zoo.sqlite_index import Index
from zoo_workers import tiny

FILE = File("a" * 64, "b" * 64, 123)


@pytest.fixture
def db(tmp_path):
    with Index(tmp_path / "index.sqlite").writing() as found:
        yield found


@pytest.fixture
def new(tmp_path):
    with rs.Zoo(tmp_path / "zoo") as zoo:
        return zoo._newcomer(tiny(0), ("b", "a"), None)


def test_what_is_entered_is_found_with_its_file_and_its_tags_in_order(db, new):
    assert entry_rows.find(db, new.entry.id) is None
    entry_rows.insert(db, new, FILE)
    row = entry_rows.find(db, new.entry.id)
    assert row.file == FILE
    assert row.entry == replace(new.entry, size=FILE.size, tags=("a", "b"))
    assert entry_rows.entry_of(db, new.entry.id) == row.entry
    kept = dict(db.execute("SELECT kernel, vector FROM signatures").fetchall())
    assert set(kept) == set(new.signatures)
    for kernel, vector in new.signatures.items():
        np.testing.assert_array_equal(np.frombuffer(kept[kernel], "<f2"), vector)


def test_an_entry_that_comes_again_gets_what_is_said_of_it_as_well(db, new):
    entry_rows.insert(db, new, FILE)
    row = entry_rows.find(db, new.entry.id)
    again = replace(new.entry, tags=("b", "c"), trained_on="0" * 64)
    found = entry_rows.joined(db, row, again)
    assert found.tags == ("a", "b", "c")
    assert found.trained_on == "0" * 64
    assert entry_rows.joined(db, row, replace(again, trained_on=None)) == found
    assert db.execute("SELECT count(*) FROM entries").fetchone() == (1,)


def test_an_entry_can_have_another_file(db, new):
    entry_rows.insert(db, new, FILE)
    other = File("c" * 64, "d" * 64, 456)
    row = entry_rows.pointed_to(db, entry_rows.find(db, new.entry.id), other)
    assert row == entry_rows.find(db, new.entry.id)
    assert (row.file, row.entry.size) == (other, 456)
