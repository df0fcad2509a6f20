"""Files to write are looked at first: nothing that is read, or written twice, is written over."""

from __future__ import annotations

from pathlib import Path

import pytest

from resemblance.cli.output_files import check_outputs
from resemblance.errors import DataError


def test_what_can_be_written_may_be(tmp_path):
    check_outputs(
        None, "-", "/dev/stdout", tmp_path / "a", str(tmp_path / "b"), read=[None, "hf:x"]
    )
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="its folder does not exist"):
        check_outputs(tmp_path / "gone" / "a")
    with pytest.raises(DataError, match="found an empty one"):
        check_outputs("")


@pytest.mark.parametrize("second", ["a", "./a", "sub/../a", "link"])
def test_a_file_for_two_things_is_refused(tmp_path, monkeypatch, second):
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    Path("link").symlink_to("a")
    with pytest.raises(DataError, match=f"{second} is to hold two things; name another file"):
        check_outputs("a", None, Path(second) if second == "a" else second)


@pytest.mark.parametrize("read", ["a.py", "a.py:net", "./a.py:net", "link.py:net"])
def test_a_file_that_is_read_is_refused(tmp_path, monkeypatch, read):
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("net = None")
    Path("link.py").symlink_to("a.py")
    with pytest.raises(DataError, match=r"a.py is read here, and would be written over"):
        check_outputs("a.py", read=[read])
    assert Path("a.py").read_text() == "net = None"


RECORD = ("record", "--model", "nets.py:small", "--data", "digits")


@pytest.mark.parametrize(
    "words",
    [
        (*RECORD, "-o", "nets.py"),
        (*RECORD, "-o", "x.rsm", "--json", "x.rsm"),
        (*RECORD, "-o", "x.rsm", "--checkpoint", "x.rsm"),
        ("merge", "a.rsm", "b.rsm", "-o", "a.rsm"),
        ("compare", "a.rsm", "b.rsm", "--json", "b.rsm"),
        ("compare", "a.rsm", "b.rsm", "--json", "x.png", "--png", "x.png"),
        ("adaptation", "a.rsm", "--json", "a.rsm"),
        ("report", "a.rsm", "b.rsm", "-o", "a.rsm"),
        ("info", "a.rsm", "--json", "a.rsm"),
        ("check", "a.rsm", "b.rsm", "--json", "b.rsm", "--max-kl", "1"),
        ("check", "a.rsm", "b.rsm", "--json", "v", "--junit", "v", "--max-kl", "1"),
        ("zoo", "add", "zoo", "a.rsm", "--json", "a.rsm"),
        ("recommend", "--data", "digits", "--models", "nets.py:all", "-o", "nets.py"),
    ],
    ids=lambda words: " ".join(words),
)
def test_no_command_writes_over_what_it_reads_or_writes(recorded, words):
    before = {file: file.read_bytes() for file in Path().iterdir() if file.is_file()}
    status, out, err = recorded(*words)
    assert (status, out) == (2, "")
    assert "two things" in err or "read here" in err
    assert {file: file.read_bytes() for file in Path().iterdir() if file.is_file()} == before


@pytest.mark.parametrize("there", ["c", "c.1"])
def test_what_is_no_checkpoint_is_not_taken_for_one(recorded, there):
    """Also where data are few, and no checkpoint is made."""
    Path(there).write_text("precious")
    words = ("record", "--model", "nets.py:small", "--data", "digits", "--limit", "64")
    status, _, err = recorded(*words, "-o", "x.rsm", "--checkpoint", "c")
    assert status == 2
    assert f"{there} is damaged, truncated or not a Representation" in err
    assert Path(there).read_text() == "precious"


def test_a_recording_is_not_removed_with_checkpoints_of_its_name(recorded):
    words = ("record", "--model", "nets.py:small", "--data", "digits", "-o", "c.1")
    assert recorded(*words, "--checkpoint", "c", "--every", "0")[0] == 0
    assert recorded("info", "c.1")[0] == 0
