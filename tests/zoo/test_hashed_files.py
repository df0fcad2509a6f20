"""Files by their hash: what is written is known by its name, and every change to it is noticed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from resemblance._utils.atomic_files import make_folder
from resemblance.errors import DataError
from resemblance.representation.file_format import representation_bytes
from resemblance.zoo.folder_store import HashedFiles, sync_folder
from zoo_workers import tiny

TEXT = representation_bytes(tiny(0))


@pytest.fixture
def files(tmp_path):
    return HashedFiles(tmp_path / "objects")


def test_a_file_is_written_once_and_goes_by_its_hash(files):
    file = files.write(TEXT)
    assert file.digest == hashlib.sha256(TEXT).hexdigest()
    assert file.size == len(TEXT)
    assert files.path(file.digest).read_bytes() == TEXT
    assert files.write(TEXT) == file
    assert files.listed() == [files.path(file.digest)]
    assert files.intact(file)
    assert files.is_whole(file, header_only=True)


def test_a_changed_header_a_changed_body_and_a_cut_are_noticed(files):
    file = files.write(TEXT)
    path, head = files.path(file.digest), 8 + int.from_bytes(TEXT[:8], "little")
    for at, head_too in ((3, True), (head - 1, True), (head, False), (len(TEXT) - 1, False)):
        changed = bytearray(TEXT)
        changed[at] ^= 1
        path.write_bytes(bytes(changed))
        assert not files.is_whole(file)
        assert files.is_whole(file, header_only=True) != head_too
    path.write_bytes(TEXT[:-1])
    assert not files.intact(file)
    assert not files.is_whole(file, header_only=True)
    path.write_bytes(b"")
    assert not files.is_whole(file, header_only=True)
    path.unlink()
    assert not files.intact(file)
    with pytest.raises(FileNotFoundError):
        files.is_whole(file)


def test_what_else_lies_there_is_told_apart(files):
    file = files.write(TEXT)
    path = files.path(file.digest)
    half = path.with_name(f".resemblance-{'0' * 16}.part")
    elsewhere = files.top / "zz" / path.name  # in the wrong folder
    elsewhere.parent.mkdir()
    for other in (half, elsewhere):
        other.write_bytes(b"")
    assert files.listed() == sorted([path, half, elsewhere])
    assert [files.is_one(x) for x in (path, half, elsewhere)] == [True, False, False]
    assert [files.is_half_written(x) for x in (path, half, elsewhere)] == [False, True, False]
    assert not files.is_half_written(files.top / half.name)
    assert HashedFiles(files.top / "none").listed() == []


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot create the folder .*choose"):
        make_folder(tmp_path / "file" / "zoo")


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs a folder that cannot be synced")
def test_a_folder_that_cannot_be_brought_to_the_disk_is_told():
    with pytest.raises(DataError, match=r"cannot write /proc: .*a disk that works"):
        sync_folder(Path("/proc"))
