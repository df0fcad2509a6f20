"""`resemblance sweep`, with real processes: what is missing, what fails, two at once, no room."""

from __future__ import annotations

import io
import json
import resource
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout

import pytest
from test_commands import documented

import resemblance as rs
from noting_networks import in_folder, notes
from resemblance.cli import main as entry

COMMAND = [sys.executable, "-m", "resemblance", "sweep", "jobs.yaml"]


def finished(folder, *words, **how):
    return subprocess.run([*COMMAND, *words], cwd=folder, capture_output=True, text=True, **how)


def in_this_process(folder, *words):
    """The same without a process of its own, beside those of its workers."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        patch.delenv("COLUMNS", raising=False)
        with pytest.raises(SystemExit) as end:
            entry.main(["sweep", "jobs.yaml", *words])
    return subprocess.CompletedProcess(words, end.value.code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A first sweep: its folder, and what it said."""
    folder = tmp_path_factory.mktemp("swept")
    in_folder(folder, "models: [nets.py:one, nets.py:bad]\ndata: {x: nets.py:x}")
    return folder, in_this_process(folder, "--retries", "0")


@pytest.fixture
def again(swept, tmp_path):
    """A copy of what the first sweep left, without what it noted."""
    shutil.copytree(swept[0], tmp_path / "again")
    (tmp_path / "again/notes.txt").unlink()
    return tmp_path / "again"


def test_one_that_fails_does_not_stop_the_others(swept):
    folder, done = swept
    results = folder / "results"
    assert done.returncode == 1
    assert " ".join(done.stdout.split()) == (
        "failed: nets-bad--x: ValueError: no luck with this one "
        f"1 of 2 recordings are in {results}: 1 new, 0 already there. "
        "1 failed; see NAME.error.txt in that folder. Existing files were not changed. Run the "
        "sweep again to retry the missing recordings."
    )
    assert "nets-bad--x: failed: ValueError: no luck with this one (" in done.stderr
    assert "Traceback" not in done.stderr
    assert "in bad\n" in (results / "nets-bad--x.error.txt").read_text()
    found = rs.load(results / "nets-one--x.rsm")
    assert (found.name, found.settings.buckets) == ("nets-one", 16)


def test_a_second_start_does_only_what_is_missing(again):
    (again / "nets.py").write_text((again / "nets.py").read_text().replace("raise Val", "one() #"))
    done = in_this_process(again, "--json", "-")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert [pair["state"] for pair in found["pairs"]] == ["there", "failed"]
    assert found["pairs"][1]["error"].startswith("nets.py:bad returned NoneType")
    assert [what for what, _ in notes(again)] == ["x", "bad", "one"]  # a mistake is not repeated
    assert set(found) == documented("sweep")
    assert all(set(pair) == documented("sweep", "key of a pair") for pair in found["pairs"])


def test_a_dry_run_only_looks(again, monkeypatch, capsys):
    monkeypatch.chdir(again)
    with pytest.raises(SystemExit) as end:
        entry.main(["sweep", "jobs.yaml", "--dry-run"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "nets-one--x  there\n" in out
    assert "nets-bad--x  missing  ValueError: no luck with this one\n" in out
    assert out.endswith("/results.\n")
    assert "1 of 2 recordings are missing in" in out
    assert notes(again) == []


def test_two_sweeps_at_once_share_the_work(tmp_path):
    """Each network waits, once loaded, until two processes have come so far."""
    models = ", ".join(f"nets.py:net{i}" for i in range(4))
    in_folder(tmp_path, f"models: [{models}]\ndata: {{x: nets.py:x}}")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen([*COMMAND, "--json", "-"], cwd=tmp_path, **pipes) for _ in range(2)]
    told = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    found = notes(tmp_path)
    nets = [(what, pid) for what, pid in found if what.startswith("net")]
    assert Counter(what for what, _ in nets) == {f"net{i}": 1 for i in range(4)}
    assert len({pid for _, pid in nets}) == 2
    states = [{pair["name"]: pair["state"] for pair in json.loads(out)["pairs"]} for out, _ in told]
    for name in states[0]:
        assert {each[name] for each in states} == {"recorded", "there"}
    assert all(rs.load(file).samples == 96 for file in (tmp_path / "results").glob("*.rsm"))


ON_A_SMALL_DISK = """
set -e
old=$(stat -c %s results/nets-one--x.rsm)
mkdir small
mount -t tmpfs -o size=$(( old + 60000 )) tmpfs small
cp -r results/. small
status=0
"$@" || status=$?
cp -r small/. after
umount small
exit $status
"""


def is_able_to_mount():
    words = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    return shutil.which("unshare") and subprocess.run(words, capture_output=True).returncode == 0


def full_disk(again):
    """The sweep on a disk of its own that has no room for another recording."""
    (again / "after").mkdir()
    words = ["unshare", "-rm", "sh", "-c", ON_A_SMALL_DISK, "-", *COMMAND]
    return again / "after", subprocess.run(words, cwd=again, capture_output=True, text=True)


def small_files(again):
    """Where no disk can be mounted: a limit on the size of files that a process may write."""
    (again / "small").symlink_to(again / "results")

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    return again / "results", finished(again, preexec_fn=limit)


def test_without_room_old_files_stay_whole_and_it_says_so(again):
    without_room = full_disk if is_able_to_mount() else small_files
    before = (again / "results/nets-one--x.rsm").read_bytes()
    jobs = (again / "jobs.yaml").read_text().replace("nets.py:bad", "nets.py:two")
    (again / "jobs.yaml").write_text(f"out: small\n{jobs}")
    after, done = without_room(again)
    assert done.returncode == 1, done.stderr
    told = " ".join(done.stdout.split())
    why = "no space left on device" if without_room is full_disk else "file too large"
    assert f"failed: nets-two--x: cannot write {again}/small/nets-two--x.rsm: {why};" in told
    assert "1 of 2 recordings are in" in told
    assert "Existing files were not changed" in told
    assert (after / "nets-one--x.rsm").read_bytes() == before
    assert not list(after.glob("*two--x.rsm"))
    assert not list(after.glob(".*.part"))
    assert why in (after / "nets-two--x.error.txt").read_text()


def test_mistakes_end_in_a_line(folder, refused):
    assert refused("sweep", "gone.yaml").startswith("no file at gone.yaml")
    jobs = folder / "jobs.yaml"
    jobs.write_text("models: nets.py:small\ndata: digits\noptions: {betta: 1}\n")
    assert refused("sweep", "jobs.yaml") == (
        "jobs.yaml, line 3: unknown key 'betta'; nearest: beta, buckets"
    )
    jobs.write_text("models: nets.py:small\ndata: digits\n")
    assert "--engine must be local or ray" in refused("sweep", "jobs.yaml", "--engine", "dask")
    assert "Ray assigns devices" in refused(
        "sweep", "jobs.yaml", "--engine", "ray", "--devices", "cpu"
    )
    assert "device must be cpu" in refused("sweep", "jobs.yaml", "--devices", "gpu")
    (folder / "results").touch()
    assert "cannot create the folder" in refused("sweep", "jobs.yaml")
