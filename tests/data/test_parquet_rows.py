"""Rows of Parquet files."""

from __future__ import annotations

import numpy as np
import pytest

import shards
from optional_libraries import needs
from resemblance._data.shard_files import read_parquet
from resemblance.errors import FormatError

pytestmark = needs("pyarrow")


def write(path, **columns):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)
    return path


def test_columns_are_told_by_what_they_hold(tmp_path):
    import pyarrow as pa

    picture = shards.image((1, 2, 3))
    path = write(
        tmp_path / "a.parquet",
        image=[{"bytes": picture, "path": None}] * 2,
        plain=[picture] * 2,
        x=[[1.0, 2.0], [3.0, 4.0]],
        deep=[[[1, 2], [3, 4]]] * 2,
        fixed=pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)),
        ragged=[[[1, 2], [3]]] * 2,
        words=[["a"], ["b"]],
        text=["one", None],
        label=["cat", "7"],
        number=[1.5, 2.5],
        other=[{"a": 1}] * 2,
    )
    first, second = read_parquet(path)
    kinds = {name: first.kind(name) for name in first if name != "__key__"}
    images, arrays = ("image", "plain"), ("x", "deep", "fixed", "ragged")
    others = ("words", "number", "other")
    assert kinds == {
        **dict.fromkeys(images, "image"),
        **dict.fromkeys(arrays, "array"),
        **dict.fromkeys(others, "other"),
        "text": "text",
        "label": "label",
    }
    assert second["x"].tolist() == [3, 4]
    assert second["deep"].shape == (2, 2)
    assert second["fixed"].tolist() == [3, 4]
    assert (first["text"], second["text"], first["label"], second["label"]) == (
        "one",
        None,
        "cat",
        7,
    )
    assert first["image"].size == second["plain"].size == (9, 7)
    assert first["number"] == 1.5


def test_keys_are_a_column_or_file_and_number(tmp_path):
    plain = write(tmp_path / "a.parquet", x=[[float(i)] for i in range(600)])
    rows = list(read_parquet(plain))
    assert [row.key for row in rows] == [f"a.parquet:{i}" for i in range(600)]
    assert np.concatenate([row["x"] for row in rows]).tolist() == list(range(600))
    keyed = write(tmp_path / "b.parquet", x=[[1.0], [2.0]], __key__=["k1", "k2"])
    assert [row.key for row in read_parquet(keyed)] == ["k1", "k2"]
    assert next(read_parquet(keyed)).where == f"0 in {keyed}"


def test_a_damaged_file_is_named(tmp_path):
    path = write(tmp_path / "a.parquet", x=[[1.0]])
    whole = write(tmp_path / "b.parquet", x=[f"{i} " * 50 for i in range(5000)]).read_bytes()
    for damaged in (path.read_bytes()[:-20], whole[:4] + bytes(3000) + whole[3004:]):
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"a\.parquet is not a readable \.parquet file"):
            list(read_parquet(path))
