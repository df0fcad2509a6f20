"""Tar shards of every kind, friendly and not."""

from __future__ import annotations

import tarfile

import pytest

import shards
from resemblance._data import shard_files
from resemblance._data.shard_files import read_tar
from resemblance.errors import DataError, FormatError

PAIR = [("cats/1.jpg", b"picture"), ("cats/1.cls", b"0"), ("cats/2.jpg", b"other")]


def read(path):
    return [(row.key, sorted(name for name in row if name != "__key__")) for row in read_tar(path)]


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_files_of_one_key_are_a_sample(tmp_path, mode):
    path = shards.write_tar(tmp_path / "s.tar", PAIR, mode)
    assert read(path) == [("cats/1", ["cls", "jpg"]), ("cats/2", ["jpg"])]


def test_names_are_names_wherever_they_point(tmp_path):
    members = [
        ("/etc/passwd.txt", b"a"),
        ("../../up.txt", b"b"),
        ("./plain.TXT", b"c"),
        (f"{'long/' * 60}name.txt", b"d"),
        ("c:\\windows.txt", b"e"),
        ("\x1b[31m.txt", b"f"),
    ]
    path = shards.write_tar(tmp_path / "s.tar", members)
    before = sorted(tmp_path.rglob("*"))
    assert [row["txt"] for row in read_tar(path)] == list("abcdef")
    assert [row.key for row in read_tar(path)][:3] == ["/etc/passwd", "../../up", "plain"]
    assert sorted(tmp_path.rglob("*")) == before


def special(name, kind, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def test_what_is_no_plain_file_is_left_out(tmp_path):
    members = [
        special("folder.d", tarfile.DIRTYPE),
        special("1.jpg", tarfile.SYMTYPE, "/etc/passwd"),
        special("2.jpg", tarfile.LNKTYPE, "3.jpg"),
        special("4.jpg", tarfile.FIFOTYPE),
        special("5.jpg", tarfile.CHRTYPE),
        ("README", b"words"),
        (".hidden", b"x"),
        ("._3.jpg", b"x"),
        ("3.jpg", b"x"),
    ]
    assert read(shards.write_tar(tmp_path / "s.tar", members)) == [("3", ["jpg"])]


def test_a_shard_without_samples_has_none(tmp_path):
    assert read(shards.write_tar(tmp_path / "s.tar", [])) == []
    (tmp_path / "nothing.tar").write_bytes(b"")
    with pytest.raises(FormatError, match=r"nothing\.tar cannot be read as a tar file \("):
        read(tmp_path / "nothing.tar")
    with pytest.raises(FormatError, match="cannot be read as a tar file"):
        read(tmp_path / "missing.tar")
    (tmp_path / "noise.tar").write_bytes(b"\x07" * 5000)
    with pytest.raises(FormatError, match="cannot be read as a tar file"):
        read(tmp_path / "noise.tar")


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_shard_that_is_cut_short_says_after_which_file(tmp_path, mode):
    generator = iter(range(10**6))
    noise = bytes((next(generator) * 7919 + (i >> 3)) % 251 for i in range(40_000))
    members = [(f"{i}.bin", noise[i * 7 : i * 7 + 30_000]) for i in range(4)]
    path = shards.write_tar(tmp_path / "s.tar", members, mode)
    whole = path.read_bytes()
    found = []
    path.write_bytes(whole[: len(whole) * 2 // 3 if mode == "w" else len(whole) - 300])
    with pytest.raises(FormatError, match=r"cannot be read as a tar file"):
        found.extend(row.key for row in read_tar(path))
    if mode == "w":
        with pytest.raises(FormatError, match=r"after 1\.bin"):
            read(path)


def test_a_file_that_comes_twice_or_is_far_too_large_is_refused(tmp_path, monkeypatch):
    path = shards.write_tar(tmp_path / "s.tar", [("1.jpg", b"a"), ("1.JPG", b"b")])
    with pytest.raises(DataError, match=r"s\.tar contains 1\.JPG twice"):
        read(path)
    monkeypatch.setattr(shard_files, "_MAX_MEMBER_BYTES", 3)
    path = shards.write_tar(tmp_path / "s.tar", [("1.jpg", b"four")])
    with pytest.raises(DataError, match=r"1\.jpg in .* has 4 bytes"):
        read(path)
