"""Files that appear whole or not at all."""

import os

import pytest

from resemblance._atomic_files import write_atomically


def test_content_arrives_and_replaces_what_was_there(tmp_path):
    path = tmp_path / "a.json"
    assert write_atomically(path, b"one") == path
    write_atomically(str(path), b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")

    def full(_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_missing_folder_is_an_ordinary_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "no" / "a.json", b"x")


def test_the_umask_decides_who_may_read(tmp_path):
    before = os.umask(0o077)
    try:
        path = write_atomically(tmp_path / "secret.json", b"x")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
