"""Tables of Lance: rows, conditions, errors, and recordings split and joined."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest
import torch

import resemblance as rs
import small
from resemblance.errors import DataError, FormatError
from resemblance.zoo import lance_tables
from resemblance.zoo.entry import NewRecording, entry_for
from resemblance.zoo.lance_tables import (
    CHECKSUM_COLUMNS,
    SIGNATURE_COLUMNS,
    CopyContent,
    LanceTables,
    column_values,
    copy_facts,
    copy_rows,
    join_recording,
    new_copy_name,
    parse_copy,
    split_recording,
    sql_in,
    table_schemas,
    verified_layers,
)
from resemblance.zoo.signature import DEPTHS, WIDTH

pytest.importorskip("lancedb")


@pytest.fixture
def tables(tmp_path):
    return LanceTables(str(tmp_path / "db"), "lance:db")


def put(tables, *tags):
    tables.add("tags", [{"copy": "x", "tag": tag} for tag in tags])


def tags(tables, where=None):
    return sorted(row["tag"] for row in tables.rows("tags", ["tag"], where))


def test_rows_come_and_go(tables):
    assert tags(tables) == []
    tables.delete("tags", "true")
    tables.update("tags", "true", {"tag": "z"})
    put(tables, "a", "it's", "b")
    put(tables)
    assert tags(tables) == ["a", "b", "it's"]
    assert tags(tables, sql_in("tag", ["it's", "no"])) == ["it's"]
    assert tags(tables, sql_in("tag", [])) == []
    tables.delete("tags", sql_in("tag", ["a"]))
    tables.update("tags", sql_in("tag", ["b"]), {"tag": "c"})
    assert tags(tables) == ["c", "it's"]
    tables.close()
    assert tags(tables) == ["c", "it's"]


def test_many_writers_at_once(tables, tmp_path):
    failed = []

    def work(i):
        try:
            own = LanceTables(str(tmp_path / "db"), "lance:db")
            for k in range(4):
                put(own, f"{i} {k}")
            own.delete("tags", sql_in("tag", [f"{i} 0"]))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(tags(tables)) == 18


def test_what_is_in_the_way_is_tried_again_for_a_while(tables, monkeypatch):
    tried = []

    def conflicted():
        tried.append(1)
        if len(tried) == 1:
            raise RuntimeError("Too many concurrent writers")
        if len(tried) < 4:
            raise RuntimeError("lance error: Retryable commit conflict for version 7")
        return "done"

    assert tables._persist(conflicted) == "done"

    def fails_otherwise():
        tried.append(1)
        raise RuntimeError("no such column")

    tried.clear()
    with pytest.raises(FormatError, match="no such column"):
        tables._persist(fails_otherwise)
    assert len(tried) == 1
    monkeypatch.setattr(lance_tables, "_PATIENCE", 0.0)
    tried.clear()
    with pytest.raises(FormatError, match="concurrent writers"):
        tables._persist(conflicted)


def test_files_are_joined_now_and_then(tables, monkeypatch):
    monkeypatch.setattr(lance_tables, "_FILES", 4)
    for i in range(8):
        put(tables, str(i))
    tables._until_joined = 1
    assert tables.join_now_and_then() == ["tags"]
    assert tables.table("tags").stats()["fragment_stats"]["num_fragments"] == 1
    assert len(tags(tables)) == 8
    assert tables.join_now_and_then() == []


def test_what_lance_says_is_told(tables):
    put(tables, "a")
    with pytest.raises(FormatError, match=r"lance:db cannot be read or written \("):
        tags(tables, "no such thing = 1")

    class PanicException(BaseException):  # as Rust's come
        pass

    with pytest.raises(FormatError, match="index out of bounds"), tables.translated_errors():
        raise PanicException("index out of bounds")
    with (
        pytest.raises(DataError, match="expected a place that may be written to"),
        tables.translated_errors(),
    ):
        raise OSError("Permission denied (os error 13)")
    with pytest.raises(KeyboardInterrupt), tables.translated_errors():
        raise KeyboardInterrupt


REP = small.record(layers=["*"])
ENTRY = entry_for(REP, tags=("a",), size=5, trained_on=None)


def written(rep=REP, **signatures):
    """What is written of a recording: the content of its layers, and the row of its entry."""
    layers, row = copy_rows("one", NewRecording(ENTRY, rep, signatures))
    assert [x["position"] for x in layers] == list(range(len(rep)))
    return [x["content"] for x in layers], row


def test_a_copy_comes_back_from_what_is_written_of_it():
    files, row = written()
    copy = parse_copy(row)
    size = sum(map(len, files)) + len(row["shared"])  # in the tables, not in a file
    assert copy.entry == dataclasses.replace(ENTRY, tags=(), size=size)
    assert (copy.name, copy.signatures) == ("one", {})
    assert parse_copy({**row, "facts": copy_facts(copy)}) == copy


@pytest.mark.parametrize("column", [*CHECKSUM_COLUMNS, "facts"])
@pytest.mark.parametrize("value", [None, "", "{", "two", "../x " * 2, "0" * 64])
def test_a_row_with_any_other_value_is_refused(column, value):
    _, row = written()
    with pytest.raises(FormatError, match=r"its|it "):
        parse_copy({**row, column: value})


def test_parts_that_are_not_what_was_written_are_refused():
    layers, row = written()
    copy, files, shared = parse_copy(row), dict(enumerate(layers)), row["shared"]
    every = range(len(layers))
    assert len(layers) > 1
    assert verified_layers(copy, CopyContent(files, shared), every) == layers
    assert verified_layers(copy, CopyContent({1: files[1]}, shared), [1]) == layers[1:2]
    with pytest.raises(FormatError, match=f"^{ENTRY.layers[1]}.* is missing"):
        verified_layers(copy, CopyContent({0: files[0]}, shared), every)
    with pytest.raises(FormatError, match="its own row is missing"):
        verified_layers(copy, CopyContent(files, None), every)
    for harmed in ({**files, 1: files[0]}, {**files, 0: files[0] + b" "}):
        with pytest.raises(FormatError, match="bytes differ from those that were added"):
            verified_layers(copy, CopyContent(harmed, shared), every)
    with pytest.raises(FormatError, match="bytes differ from those that were added"):
        verified_layers(copy, CopyContent(files, shared + b" "), every)


def test_rows_are_those_of_the_tables():
    pa = pytest.importorskip("pyarrow")
    vector = np.arange(DEPTHS * WIDTH, dtype=np.float16) / 100
    news = [NewRecording(ENTRY, REP, given) for given in ({"features": vector}, {})]
    rows = [copy_rows(name, new) for name, new in zip(("one", "two"), news, strict=True)]
    layers = [layer for some, _ in rows for layer in some]
    assert len(pa.Table.from_pylist(layers, schema=table_schemas()["layers"])) == 2 * len(REP)
    entries = pa.Table.from_pylist([row for _, row in rows], schema=table_schemas()["entries"])
    found = column_values(entries, SIGNATURE_COLUMNS["features"])
    assert found == [vector.tobytes(), None]
    assert column_values(entries, SIGNATURE_COLUMNS["gradients"]) == [None, None]


def test_names_of_copies_are_sorted_by_time():
    names = [new_copy_name() for _ in range(20)]
    assert [name[:16] for name in names] == sorted(name[:16] for name in names)
    assert len(set(names)) == 20
    assert {len(name) for name in names} == {32}


@pytest.mark.parametrize("outputs", [True, False])
def test_what_is_taken_apart_comes_together_bit_for_bit(outputs):
    rep = small.record(outputs=outputs, layers=["*"])
    files, shared = split_recording(rep)
    classes = None if rep.outputs is None else rep.outputs.classes
    assert join_recording(files, shared, classes) == rep
    assert len(files) == len(rep) > 1
    assert bool(shared) == outputs


def test_some_layers_alone():
    rep = small.record(layers=["*"])
    files, shared = split_recording(rep)
    some = join_recording(files[1:2], shared, rep.outputs.classes)
    assert some == dataclasses.replace(rep, layers=rep.layers[1:2])
    assert some[0].signs is not None


def test_tokens_keep_their_places():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Embedding(20, 8), torch.nn.Linear(8, 20))
    rep = rs.record(net, torch.randint(20, (60, 9)), unit="token", tokens=3, target="tempered")
    assert rep.rows is not None
    assert join_recording(*split_recording(rep), rep.outputs.classes) == rep
