"""Rows of Lance tables: what is written comes back, and nothing else passes for it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import small
from resemblance.errors import FormatError
from resemblance.zoo.entry import described
from resemblance.zoo.kernel_signature import DEPTHS, SEARCHED, WIDTH
from resemblance.zoo.lance_rows import (
    NOTHING,
    Copy,
    checked,
    entry_of,
    facts,
    new_name,
    of_entries,
    of_layers,
    schemas,
    signature_column,
)
from resemblance.zoo.recording_parts import taken_apart
from resemblance.zoo.store import Newcomer

REP = small.record(layers=["*"])
ENTRY = described(REP, tags=("a",), size=5, trained_on=None)


def columns(rep=REP, entry=ENTRY):
    parts = {"one": taken_apart(rep)}
    return parts["one"], of_entries({"one": Newcomer(entry, rep, {})}, parts)


def copy_of(row, entry=ENTRY):
    return Copy("one", entry, tuple(row["parts"][0].split()), row["shared_hash"][0])


def test_an_entry_comes_back_from_what_is_written_of_it():
    assert entry_of(facts(ENTRY)) == dataclasses.replace(ENTRY, tags=())
    parts, row = columns()
    assert entry_of(row["facts"][0]).size == parts.size  # in the tables, not in a file


def test_parts_that_are_not_what_was_written_are_refused():
    parts, row = columns()
    copy, files = copy_of(row), dict(enumerate(parts.layers))
    every = range(len(parts.layers))
    assert len(parts.layers) > 1
    assert checked(copy, every, files, row["shared"][0]) == parts
    assert checked(copy, [1], {1: files[1]}, row["shared"][0]).layers == parts.layers[1:2]
    with pytest.raises(FormatError, match=f"^{ENTRY.layers[1]}.* is missing"):
        checked(copy, every, {0: files[0]}, row["shared"][0])
    with pytest.raises(FormatError, match="its own row is missing"):
        checked(copy, every, files, None)
    for harmed in ({**files, 1: files[0]}, {**files, 0: files[0] + b" "}):
        with pytest.raises(FormatError, match="not those that were added"):
            checked(copy, every, harmed, row["shared"][0])
    with pytest.raises(FormatError, match="not those that were added"):
        checked(copy, every, files, row["shared"][0] + b" ")


def test_where_layers_share_nothing_the_hash_says_so():
    _, row = columns(small.record(outputs=False))
    assert row["shared_hash"] == [NOTHING]
    assert columns()[1]["shared_hash"] != [NOTHING]


def test_columns_are_those_of_the_tables():
    pa = pytest.importorskip("pyarrow")
    vector = np.arange(DEPTHS * WIDTH, dtype=np.float16) / 100
    parts = {name: taken_apart(REP) for name in ("one", "two")}
    fresh = {"one": Newcomer(ENTRY, REP, {SEARCHED[0]: vector}), "two": Newcomer(ENTRY, REP, {})}
    for table, found in (("entries", of_entries(fresh, parts)), ("layers", of_layers(parts))):
        made = pa.table(found, schema=schemas()[table])
        assert len(made) == (2 if table == "entries" else 2 * len(REP))
    signatures = of_entries(fresh, parts)[signature_column(SEARCHED[0])].to_pylist()
    assert signatures[0] == vector.tolist()
    assert signatures[1] is None


def test_names_of_copies_are_sorted_by_time():
    names = [new_name() for _ in range(20)]
    assert [name[:16] for name in names] == sorted(name[:16] for name in names)
    assert len(set(names)) == 20
    assert {len(name) for name in names} == {32}
