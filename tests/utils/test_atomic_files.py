"""Files that appear whole or not at all, in place of files alone, with nothing left beside them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import pytest

from resemblance._utils.atomic_files import check_writable, write_atomically
from resemblance.errors import DataError

LEFT = ".resemblance-0123456789abcdef.part"


def mode(path):
    return path.stat().st_mode & 0o777


IMPORTS = "import sys\nfrom resemblance._utils.atomic_files import *\n"


def python(code, *words, **options):
    """Run code in a process of its own: what it printed."""
    words = [sys.executable, "-c", IMPORTS + code, *words]
    done = subprocess.run(words, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(path):
    """What the check and the writer say alike of a path that cannot be written."""
    messages = []
    for attempt in (check_writable, lambda path: write_atomically(path, b"new")):
        with pytest.raises(DataError) as caught:
            attempt(path)
        messages.append(str(caught.value))
        shown = traceback.format_exception(caught.value)
        assert ".part" not in "".join(shown).replace('}.part"', "")  # but for the line of code
    assert messages[0] == messages[1]
    assert str(path) in messages[0]
    assert "\n" not in messages[0]
    return messages[0]


@contextlib.contextmanager
def ordinary_user():
    """Root may write anywhere, so be somebody else for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def open_folder():
    """A folder with a short name that any user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)
        os.chmod(name, 0o777)


# -- what is written ----------------------------------------------------------------------------


def test_content_arrives_and_replaces_what_was_there(tmp_path):
    path = tmp_path / "a.json"
    assert write_atomically(path, b"one") == path
    write_atomically(str(path), b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_check_that_passes_changes_nothing(tmp_path):
    old = tmp_path / "old.json"
    old.write_bytes(b"old")
    before = old.stat()
    for path in (old, tmp_path / "new.json"):
        check_writable(path)
    assert os.listdir(tmp_path) == ["old.json"]
    assert (old.read_bytes(), old.stat().st_mtime_ns) == (b"old", before.st_mtime_ns)


def test_the_umask_decides_who_may_read_a_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        path = write_atomically(tmp_path / "a.json", b"x")
    finally:
        os.umask(before)
    assert mode(path) == 0o640


@pytest.mark.parametrize("kept", [0o600, 0o664, 0o755])
def test_a_file_that_was_there_keeps_its_mode(tmp_path, kept):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    path.chmod(kept)
    write_atomically(path, b"new")
    assert (path.read_bytes(), mode(path)) == (b"new", kept)


def test_a_secret_is_never_readable_by_others_while_it_is_written(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    path.chmod(0o600)
    seen = []

    def look(file, *_):  # at its birth, and when all is written
        seen.append(os.fstat(file if isinstance(file, int) else file.fileno()).st_mode & 0o777)

    monkeypatch.setattr(fcntl, "flock", look)
    monkeypatch.setattr(os, "fsync", look)
    write_atomically(path, b"new")
    assert seen == [0o600, 0o600]


# -- links --------------------------------------------------------------------------------------


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    target, link, further = tmp_path / "there/a.json", tmp_path / "link", tmp_path / "further"
    target.write_bytes(b"old")
    target.chmod(0o600)
    link.symlink_to("there/a.json")
    further.symlink_to("link")
    assert write_atomically(further, b"new") == further
    assert (link.is_symlink(), further.is_symlink()) == (True, True)
    assert (target.read_bytes(), mode(target)) == (b"new", 0o600)
    assert sorted(os.listdir(tmp_path)) == ["further", "link", "there"]
    assert os.listdir(tmp_path / "there") == ["a.json"]


def test_a_link_to_nothing_makes_its_target(tmp_path):
    link = tmp_path / "link"
    link.symlink_to("new.json")
    write_atomically(link, b"new")
    assert (link.is_symlink(), (tmp_path / "new.json").read_bytes()) == (True, b"new")


def test_links_that_lead_nowhere_are_refused(tmp_path):
    (tmp_path / "round").symlink_to("round")
    assert "symbolic links" in refused(tmp_path / "round")
    (tmp_path / "away").symlink_to("gone/new.json")
    assert "its folder does not exist" in refused(tmp_path / "away")


# -- what is refused ----------------------------------------------------------------------------


def test_a_folder_is_refused(tmp_path):
    (tmp_path / "out").mkdir()
    assert refused(tmp_path / "out") == (
        f"cannot write {tmp_path}/out: expected a file or a new name, found a folder; name a file "
        "in it instead"
    )


def test_a_device_is_refused_and_still_one():
    assert refused("/dev/null") == (
        "cannot write /dev/null: expected a file or a new name, found a device; name a file instead"
    )
    assert Path("/dev/null").is_char_device()


def test_a_pipe_a_socket_and_links_to_them_are_refused(open_folder):
    pipe, link, listening = (open_folder / name for name in ("pipe", "link", "socket"))
    os.mkfifo(pipe)
    link.symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(listening))
        assert "found a pipe" in refused(pipe)
        assert "found a pipe" in refused(link)
        assert "found a socket" in refused(listening)
    assert (pipe.is_fifo(), link.is_symlink(), listening.is_socket()) == (True, True, True)
    assert len(os.listdir(open_folder)) == 3


def test_a_missing_folder_is_named_as_such(tmp_path):
    assert refused(tmp_path / "no/a.json") == (
        f"cannot write {tmp_path}/no/a.json: its folder does not exist; expected a place that "
        "exists, may be written to and has room: make one, or name another"
    )


def test_a_file_in_the_place_of_a_folder(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    assert "not a directory" in refused(tmp_path / "a/b.json")


def test_a_name_that_is_too_long(tmp_path):
    assert "name too long" in refused(tmp_path / ("a" * 300))


def test_a_folder_that_may_not_be_written_to(open_folder):
    (open_folder / "old.json").write_bytes(b"old")
    (open_folder / "old.json").chmod(0o666)
    open_folder.chmod(0o555)
    with ordinary_user():
        for name in ("old.json", "new.json"):
            assert "permission denied" in refused(open_folder / name)


def test_a_file_that_may_not_be_written_to(open_folder):
    path = open_folder / "old.json"
    with ordinary_user():
        path.write_bytes(b"old")
        path.chmod(0o444)
        assert "permission denied" in refused(path)
    assert path.read_bytes() == b"old"


# -- what goes wrong on the way -----------------------------------------------------------------


def test_a_disk_without_room_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))  # noqa: E731
    code = (
        "check_writable(sys.argv[1])\n"
        "try: write_atomically(sys.argv[1], bytes(100_000))\n"
        "except DataError as error: print(error)"
    )
    said = python(code, str(path), preexec_fn=limit)
    assert said.startswith(f"cannot write {path}: file too large; expected a place that")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_an_interruption_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]


def remove_hidden(folder):
    for path in folder.glob(".*.part"):
        path.unlink()


def test_a_writer_whose_hidden_file_is_swept_begins_again(tmp_path, monkeypatch):
    """By a process that came before the lock, or by one that sees no locks of this machine."""
    swept, fsync = [], os.fsync

    def sweep_once(file):
        fsync(file)
        if not swept:
            swept.append(remove_hidden(tmp_path))

    monkeypatch.setattr(os, "fsync", sweep_once)
    write_atomically(tmp_path / "a.json", b"new")
    assert swept
    assert (tmp_path / "a.json").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_writer_whose_hidden_file_is_always_swept_gives_up(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: remove_hidden(tmp_path))
    with pytest.raises(DataError, match=r"a\.json: it was removed again and again"):
        write_atomically(tmp_path / "a.json", b"new")
    assert os.listdir(tmp_path) == []


# -- what dead writers left ---------------------------------------------------------------------


@pytest.mark.parametrize("attempt", [check_writable, lambda path: write_atomically(path, b"new")])
def test_what_a_dead_writer_left_is_removed(tmp_path, attempt):
    (tmp_path / LEFT).write_bytes(b"half")
    attempt(tmp_path / "a.json")
    assert not (tmp_path / LEFT).exists()


def test_what_a_live_writer_is_at_stays(tmp_path):
    with open(tmp_path / LEFT, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_atomically(tmp_path / "a.json", b"new")
        assert (tmp_path / LEFT).exists()
    write_atomically(tmp_path / "a.json", b"new")
    assert not (tmp_path / LEFT).exists()


def test_a_writer_holds_the_lock_until_its_file_has_its_name(tmp_path, monkeypatch):
    """Another write in the same folder, at the last moment of this one, leaves it alone."""
    fsync, hidden = os.fsync, []

    def another(file):
        fsync(file)
        monkeypatch.setattr(os, "fsync", fsync)
        before = os.listdir(tmp_path)
        python("write_atomically(sys.argv[1], b'other')", str(tmp_path / "b.json"))
        hidden.extend(set(before) & set(os.listdir(tmp_path)))

    monkeypatch.setattr(os, "fsync", another)
    write_atomically(tmp_path / "a.json", b"new")
    assert len(hidden) == 1
    assert sorted(os.listdir(tmp_path)) == ["a.json", "b.json"]


def test_nothing_else_is_swept(tmp_path):
    others = {".0123456789abcdef.part", f"{LEFT}.gz", LEFT[1:], LEFT.upper(), f"x{LEFT}"}
    others.add(".resemblance-0123456789abcdeg.part")
    for name in others:
        (tmp_path / name).write_bytes(b"")
    digits = iter("0123456789")

    def one_more():
        name = LEFT[:-6] + next(digits) + LEFT[-5:]
        others.add(name)
        return tmp_path / name

    one_more().mkdir()
    os.mkfifo(one_more())
    (tmp_path / "kept").write_bytes(b"")
    one_more().symlink_to("kept")
    write_atomically(tmp_path / "a.json", b"new")
    assert set(os.listdir(tmp_path)) == others | {"a.json", "kept"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file somebody else's")
def test_what_another_user_left_is_not_swept(tmp_path):
    (tmp_path / LEFT).write_bytes(b"half")
    os.chown(tmp_path / LEFT, 65534, -1)
    write_atomically(tmp_path / "a.json", b"new")
    assert (tmp_path / LEFT).exists()


def test_a_file_system_without_locks_is_written_and_not_swept(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(37, "No locks available")

    (tmp_path / LEFT).write_bytes(b"perhaps somebody is at it")
    monkeypatch.setattr(fcntl, "flock", no_locks)
    write_atomically(tmp_path / "a.json", b"new")
    assert sorted(os.listdir(tmp_path)) == [LEFT, "a.json"]


def test_a_system_without_locks_writes_and_does_not_sweep(tmp_path):
    (tmp_path / LEFT).write_bytes(b"perhaps somebody is at it")
    (tmp_path / "a.json").write_bytes(b"old")
    code = (
        "import sys\nsys.modules['fcntl'] = None\n"
        "from resemblance._utils.atomic_files import write_atomically\n"
        "write_atomically(sys.argv[1], b'new')"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.json")], check=True)
    assert (tmp_path / "a.json").read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == [LEFT, "a.json"]


# -- at any moment ------------------------------------------------------------------------------

AGAIN_AND_AGAIN = """
print("begun", flush=True)
for i in range(10**9):
    write_atomically(sys.argv[1], bytes([97 + i % 26]) * 2_000_000)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_writer_killed_at_any_moment_leaves_a_whole_file_and_nothing_after_the_next(
    tmp_path, how
):
    path, other, left = tmp_path / "a.bin", tmp_path / "b.bin", 0
    path.write_bytes(b"a" * 2_000_000)
    moments = random.Random(0)
    words = [sys.executable, "-c", IMPORTS + AGAIN_AND_AGAIN, str(path)]
    for _ in range(50):
        with subprocess.Popen(words, stdout=subprocess.PIPE) as writer:
            assert writer.stdout.readline() == b"begun\n"
            time.sleep(moments.uniform(0, 0.02))
            writer.send_signal(how)
            assert writer.wait() == -how  # the package catches no signals
        content = path.read_bytes()
        assert content == content[:1] * 2_000_000
        left += len(set(os.listdir(tmp_path)) - {"a.bin", "b.bin"})
        write_atomically(other, b"next")
        assert sorted(os.listdir(tmp_path)) == ["a.bin", "b.bin"]
    assert left > 5  # most moments are inside a write


def test_writers_of_one_folder_do_not_disturb_each_other(tmp_path):
    code = (
        "for i in range(200):\n"
        "    write_atomically(sys.argv[1], bytes([97 + i % 26]) * 10_000)\n"
        "    content = open(sys.argv[1], 'rb').read()\n"
        "    assert content == content[:1] * 10_000"
    )
    names = [tmp_path / name for name in ("a", "a", "b", "b")]
    words = [sys.executable, "-c", IMPORTS + code]
    writers = [subprocess.Popen([*words, str(name)]) for name in names]
    assert [writer.wait() for writer in writers] == [0] * 4
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_the_hidden_name_says_whose_it_is(tmp_path, monkeypatch):
    seen, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda f: seen.extend(os.listdir(tmp_path)) or fsync(f))
    write_atomically(tmp_path / "a.json", b"new")
    assert len(seen) == 1
    assert re.fullmatch(r"\.resemblance-[0-9a-f]{16}\.part", seen[0])
