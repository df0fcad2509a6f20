"""Entries as rows of the index: read, entered and brought up to date, inside a transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from .entry import Entry
from .hashed_files import File
from .store import Newcomer

SELECT = (
    "SELECT number, digest, head, facts, (SELECT group_concat(tag, char(10)) FROM tags "
    "WHERE tags.number = entries.number) FROM entries"
)


@dataclass(frozen=True)
class Row:
    """An entry as the index has it."""

    number: int
    file: File
    entry: Entry


def find(db: sqlite3.Connection, id: str) -> Row | None:
    found = db.execute(f"{SELECT} WHERE id = ?", (id,)).fetchone()
    return None if found is None else as_row(found)


def entry_of(db: sqlite3.Connection, id: str) -> Entry:
    """An entry that is there."""
    return as_row(db.execute(f"{SELECT} WHERE id = ?", (id,)).fetchone()).entry


def as_row(found: tuple[int, str, str, str, str | None]) -> Row:
    number, digest, head, facts, tags = found
    known = json.loads(facts)
    known["tags"] = sorted(tags.split("\n")) if tags else []
    entry = Entry.from_dict(known)
    return Row(number, File(digest, head, entry.size), entry)


def insert(db: sqlite3.Connection, new: Newcomer, file: File) -> None:
    entry = replace(new.entry, size=file.size)
    values = (entry.id, entry.name, entry.group, file.digest, file.head, _facts(entry))
    number = db.execute(
        "INSERT INTO entries (id, name, grp, digest, head, facts) VALUES (?, ?, ?, ?, ?, ?)", values
    ).lastrowid
    add_tags(db, number or 0, entry.tags)
    db.executemany(
        "INSERT INTO signatures (number, grp, kernel, vector) VALUES (?, ?, ?, ?)",
        [
            (number, entry.group, kernel, np.asarray(vector, "<f2").tobytes())
            for kernel, vector in new.signatures.items()
        ],
    )


def pointed_to(db: sqlite3.Connection, row: Row, file: File) -> Row:
    """An entry with another file, which holds the same."""
    entry = replace(row.entry, size=file.size)
    db.execute(
        "UPDATE entries SET digest = ?, head = ?, facts = ? WHERE number = ?",
        (file.digest, file.head, _facts(entry), row.number),
    )
    return Row(row.number, file, entry)


def joined(db: sqlite3.Connection, row: Row, new: Entry) -> Entry:
    """An entry that was there, with what is said of it now as well."""
    add_tags(db, row.number, new.tags)
    if new.trained_on is not None and new.trained_on != row.entry.trained_on:
        entry = replace(row.entry, trained_on=new.trained_on)
        db.execute("UPDATE entries SET facts = ? WHERE number = ?", (_facts(entry), row.number))
    return entry_of(db, row.entry.id)


def add_tags(db: sqlite3.Connection, number: int, tags: Iterable[str]) -> None:
    rows = [(number, tag) for tag in tags]
    db.executemany("INSERT OR IGNORE INTO tags (number, tag) VALUES (?, ?)", rows)


def _facts(entry: Entry) -> str:
    facts = entry.to_dict()
    del facts["tags"]
    return json.dumps(facts)
