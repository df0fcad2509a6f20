"""Shards by name."""

from __future__ import annotations

import pytest

import shards
from resemblance._data.shard_files import expand_braces, find_shards, is_shards
from resemblance.errors import DataError


@pytest.fixture
def folder(tmp_path):
    for i in range(3):
        shards.write_tar(tmp_path / f"s-{i:03}.tar", [(f"{i}.txt", b"x")])
    return tmp_path


def test_a_file_a_folder_and_patterns(folder):
    names = [f"s-{i:03}.tar" for i in range(3)]
    for spec in (folder, f"{folder}/s-*.tar", f"{folder}/s-{{000..002}}.tar"):
        assert [file.name for file in find_shards(spec)] == names
    assert [x.name for x in find_shards(f"{folder}/s-{{002,000}}.tar")] == [
        "s-002.tar",
        "s-000.tar",
    ]
    assert [x.name for x in find_shards(folder / "s-001.tar")] == ["s-001.tar"]
    (folder / "odd{1}.tar").write_bytes(b"")
    assert len(find_shards(f"{folder}/odd{{1}}.tar")) == 1


def test_what_is_not_there_is_refused(folder):
    with pytest.raises(DataError, match=r"no shard at .*s-003\.tar"):
        find_shards(f"{folder}/s-{{000..003}}.tar")
    with pytest.raises(DataError, match=r"expected shards .* found none"):
        find_shards(f"{folder}/t-*.tar")
    (folder / "notes.md").write_text("x")
    with pytest.raises(DataError, match=r"found .*notes\.md"):
        find_shards(f"{folder}/*")
    for wrong in ("{3..1}", "{a..b}", "{0..9999999}"):
        with pytest.raises(DataError, match="expected numbers from the smaller to the larger"):
            expand_braces(f"s-{wrong}.tar")


def test_what_names_shards(folder):
    assert is_shards(str(folder))
    assert all(map(is_shards, ("x.tar", "x-{0..3}.tar.gz", "a*.tgz", "b.parquet")))
    assert not any(map(is_shards, ("digits", "x.npz", "x.txt")))
    (folder / "cat.png").write_bytes(b"")  # a folder of images, with an archive beside them
    assert not is_shards(str(folder))
    (folder / "cat.png").rename(folder / "cat.txt")
    assert is_shards(str(folder))
    (folder / "cats").mkdir()
    assert not is_shards(str(folder))
