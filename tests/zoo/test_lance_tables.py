"""Tables of Lance: conditions, errors, and files that are joined."""

from __future__ import annotations

import threading

import pytest

from resemblance.errors import DataError, FormatError
from resemblance.zoo import lance_tables
from resemblance.zoo.lance_tables import Tables, in_the_way, one_of

pytest.importorskip("lancedb")


def schemas():
    import pyarrow as pa

    return {"tags": pa.schema({"copy": pa.string(), "tag": pa.string()})}


@pytest.fixture
def tables(tmp_path):
    return Tables(str(tmp_path / "db"), "lance:db", schemas, {"tags": 256})


def put(tables, *tags):
    tables.add("tags", {"copy": ["x"] * len(tags), "tag": list(tags)})


def tags(tables, where=None):
    return sorted(row["tag"] for row in tables.rows("tags", ["tag"], where))


def test_rows_come_and_go(tables):
    assert tags(tables) == []
    tables.delete("tags", "true")
    tables.update("tags", "true", {"tag": "z"})
    put(tables, "a", "it's", "b")
    put(tables)
    assert tags(tables) == ["a", "b", "it's"]
    assert tags(tables, one_of("tag", ["it's", "no"])) == ["it's"]
    assert tags(tables, one_of("tag", [])) == []
    tables.delete("tags", one_of("tag", ["a"]))
    tables.update("tags", one_of("tag", ["b"]), {"tag": "c"})
    assert tags(tables) == ["c", "it's"]
    tables.close()
    assert tags(tables) == ["c", "it's"]


def test_many_writers_at_once(tables, tmp_path):
    failed = []

    def work(i):
        try:
            own = Tables(str(tmp_path / "db"), "lance:db", schemas, {"tags": 256})
            for k in range(4):
                put(own, f"{i} {k}")
            own.delete("tags", one_of("tag", [f"{i} 0"]))
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
        if len(tried) < 4:
            raise RuntimeError("lance error: Retryable commit conflict for version 7")
        return "done"

    assert tables._persist(conflicted) == "done"
    assert in_the_way(RuntimeError("Too many concurrent writers"))
    assert not in_the_way(RuntimeError("no such column"))
    monkeypatch.setattr(lance_tables, "_PATIENCE", 0.0)
    tried.clear()
    with pytest.raises(FormatError, match="commit conflict"):
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

    with pytest.raises(FormatError, match="index out of bounds"), tables.told():
        raise PanicException("index out of bounds")
    with pytest.raises(DataError, match="expected a place that may be written to"), tables.told():
        raise OSError("Permission denied (os error 13)")
    with pytest.raises(KeyboardInterrupt), tables.told():
        raise KeyboardInterrupt
