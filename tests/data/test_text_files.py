"""Texts in files and tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from optional_libraries import needs
from resemblance._data import text_files
from resemblance._data.text_files import texts_in, texts_of
from resemblance.errors import DataError, FormatError

needs_arrow = needs("pyarrow")
ROWS = [{"id": str(i), "text": f"text {i}\nof two lines", "n": i} for i in range(5)]
EXPECTED = [row["text"] for row in ROWS]


def written(path: Path, rows) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def test_a_txt_file_is_one_running_text_or_a_text_a_line(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\n\r\ntwo é\nthree".encode())
    texts = texts_in(path)
    assert (list(texts.pieces), texts.running, texts.name) == (
        ["one\n\ntwo é\nthree"],
        True,
        str(path),
    )
    lines = texts_in(path, lines=True)
    assert (list(lines.pieces), lines.running) == (["one", "", "two é", "three"], False)
    monkeypatch.setattr(text_files, "_STRETCH", 2)
    assert list(texts_in(path).pieces) == ["one\n", "\ntwo é\n", "three"]


@needs_arrow
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_rows_hold_their_text_in_a_field(tmp_path, suffix):
    path = written(tmp_path / f"a{suffix}", ROWS)
    texts = texts_in(path)
    assert (list(texts.pieces), texts.running) == (EXPECTED, False)
    assert texts.name == f"{path} (text)"
    assert list(texts_in(path, "id").pieces) == [str(i) for i in range(5)]
    only = written(tmp_path / f"b{suffix}", [{"n": 1, "words": "a"}, {"n": 2, "words": None}])
    assert list(texts_in(only).pieces) == ["a", ""]


@needs_arrow
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize(
    ("row", "field", "message"),
    [
        ({"text": "a"}, "txt", r"has no field 'txt'; nearest: text"),
        ({"text": "a", "n": 1}, "n", r"'n' of .* holds no text; say which .*--text-field: text"),
        ({"a": "a", "b": "b"}, None, r"found the fields a, b in .*--text-field: a, b"),
        ({"n": 1}, None, r"found the fields n in .*; expected one of text"),
    ],
)
def test_a_wrong_field(tmp_path, suffix, row, field, message):
    with pytest.raises(DataError, match=message):
        texts_in(written(tmp_path / f"a{suffix}", [row]), field)


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        ('{"text": "a"}\n{"text": ', FormatError, "line 2 of .* is not JSON"),
        ('{"text": "a"}\n\n[1]\n', FormatError, "expected an object in line 3 of .*, found list"),
        ('{"text": "a"}\n{"text": 3}\n', DataError, "as 'text' in line 2 of .*, found int"),
        ('{"text": "a"}\n{"texts": "b"}\n', DataError, "in line 2 of .*, found no such field"),
        ("\n \n", DataError, "is empty: expected an object"),
    ],
)
def test_lines_that_are_no_rows(tmp_path, content, kind, message):
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    with pytest.raises(kind, match=message):
        list(texts_in(path).pieces)


def test_a_txt_file_has_no_fields_and_is_utf_8(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"caf\xe9")
    with pytest.raises(FormatError, match="is not text in UTF-8"):
        list(texts_in(path).pieces)
    with pytest.raises(DataError, match="has no field 'text': it is one text"):
        texts_in(path, "text")


@needs_arrow
def test_a_damaged_parquet_file(tmp_path):
    path = written(tmp_path / "a.parquet", [{"text": f"{i} " * 50} for i in range(5000)])
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    with pytest.raises(FormatError, match=r"is not a readable \.parquet file"):
        texts_in(path)
    path.write_bytes(whole[:4] + bytes(3000) + whole[3004:])
    with pytest.raises(FormatError, match=r"is not a readable \.parquet file"):
        list(texts_in(path).pieces)


def test_a_table_of_the_library_datasets():
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list([*ROWS, {"id": "5", "text": None, "n": 5}])
    texts = texts_of(table, "some")
    assert (list(texts.pieces), texts.name) == ([*EXPECTED, ""], "some (text)")
    with pytest.raises(DataError, match="'n' of some holds no text"):
        texts_of(table, "some", "n")
