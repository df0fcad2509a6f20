"""The folder of a sweep: what counts as there, and locks that die with their processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

import resemblance as rs
from resemblance.errors import DataError, FormatError, MismatchError
from resemblance.sweep import run_sweep
from resemblance.sweep.job_file import read_jobs
from resemblance.sweep.worker import Worker

JOBS = "models: nets.py:one\ndata: {x: nets.py:x}"


@pytest.fixture
def recorded(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # back from where a worker goes
    asked, place = made(JOBS)
    (pair,) = asked.pairs
    assert Worker(place).done(pair).state == "recorded"
    return pair, place.results


def changed(pair, **how):
    return replace(pair, **how)


def test_what_is_there(recorded):
    pair, results = recorded
    assert results.holds(pair)
    assert not results.holds(changed(pair, name="two--x"))


def test_what_was_asked_for_must_agree(recorded, tmp_path):
    _, results = recorded
    text = (tmp_path / "jobs.yaml").read_text()
    for old, new, says in [
        ("block: 16", "block: 16, seed: 5", "seed 0, and the jobs say 5"),
        ("block: 16", "block: 16, layers: ['0']", "layers 'auto', and the jobs say"),
        ("{x: nets.py:x}", "{x: {data: nets.py:x, limit: 50}}", "limit 0, and the jobs say 50"),
        ("{x: nets.py:x}", "{x: nets.py:y}", "data 'nets.py:x', and the jobs say 'nets.py:y'"),
    ]:
        (tmp_path / "jobs.yaml").write_text(text.replace(old, new))
        (other,) = read_jobs(tmp_path / "jobs.yaml").pairs
        with pytest.raises(MismatchError) as error:
            results.holds(other)
        assert says in str(error.value)
    (tmp_path / "jobs.yaml").write_text(text.replace("block: 16", "block: 16, batch_size: 9"))
    (other,) = read_jobs(tmp_path / "jobs.yaml").pairs
    assert results.holds(other)  # no number depends on it


def test_a_recording_alone_says_what_it_knows(recorded, tmp_path):
    """As when the process died between the two files, or somebody copied the recording here."""
    pair, results = recorded
    for text in ("", "{", "[]", '{"options": 3}'):
        (tmp_path / "results/.sweep/nets-one--x.json").write_text(text)
        assert results.holds(pair)
        with pytest.raises(MismatchError, match="seed 0, and the jobs say 5"):
            results.holds(changed(pair, options={**pair.options, "seed": 5}))
        with pytest.raises(MismatchError, match=r"address 'nets.py:one', and the jobs say 'o.py:f"):
            results.holds(changed(pair, wanted=type(pair.wanted)("o.py:f", "nets.py:x")))


def test_a_damaged_recording_is_not_replaced(recorded):
    pair, results = recorded
    path = results.result(pair.name)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FormatError, match="delete it, and the next sweep records it"):
        results.holds(pair)


HOLDS = """
import sys, time
from pathlib import Path
from resemblance.sweep.job_file import read_jobs
from resemblance.sweep.run_sweep import ResultFolder

asked = read_jobs(sys.argv[1])
with ResultFolder(asked.out).claimed(asked.pairs[0]) as own:
    print(own, flush=True)
    time.sleep(600)
"""


def test_a_lock_dies_with_its_process(made, tmp_path):
    asked, place = made(JOBS)
    (pair,) = asked.pairs
    words = [sys.executable, "-c", HOLDS, str(tmp_path / "jobs.yaml")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "True\n"
        with place.results.claimed(pair) as own:
            assert not own
        other.kill()
        other.wait()
        with place.results.claimed(pair, wait=True) as own:
            assert own
            with place.results.claimed(pair) as again:  # not twice in one process either
                assert not again


def test_a_system_without_locks_is_told_of(made, monkeypatch):
    asked, place = made(JOBS)
    monkeypatch.setattr(run_sweep, "fcntl", None)
    with (
        pytest.warns(
            rs.errors.ResemblanceWarning, match="does not support locks, so two concurrent sweeps"
        ),
        place.results.claimed(asked.pairs[0]) as own,
    ):
        assert own


def test_errors_are_kept_beside_the_name_and_forgotten(made):
    _, place = made(JOBS)
    results = place.results
    assert results.last_error("a") is None
    assert results.keep_error("a", "why\n\nmore\udcff\n") == results.folder / "a.error.txt"
    assert results.last_error("a") == "why"
    results.forget_error("a")
    results.forget_error("a")
    assert results.last_error("a") is None


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").touch()
    results = run_sweep.ResultFolder(tmp_path / "file")
    with pytest.raises(DataError, match="cannot create the folder"):
        results.make()
    assert results.keep_error("a", "why") is None


def test_a_place_without_room_for_a_lock(made, tmp_path):
    asked, place = made(JOBS)
    (tmp_path / "results/.sweep/nets-one--x.json").mkdir()
    with pytest.raises(DataError, match="cannot write"), place.results.claimed(asked.pairs[0]):
        pass


def test_what_was_asked_for_is_kept_as_json(recorded, tmp_path):
    pair, _ = recorded
    kept = json.loads((tmp_path / "results/.sweep/nets-one--x.json").read_text())
    assert kept == json.loads(json.dumps(pair.asked))


def test_who_holds_a_lock_is_named_while_it_is_held(made, tmp_path):
    asked, place = made(JOBS)
    (pair,) = asked.pairs
    words = [sys.executable, "-c", HOLDS, str(tmp_path / "jobs.yaml")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "True\n"
        outcome = Worker(place).done(pair)
        assert outcome.state == "busy"
        assert outcome.error.startswith(f"process {other.pid} on ")
        other.kill()
    assert Worker(place).done(pair).state == "recorded"
    assert place.results.holder(pair.name) == ""


def test_a_folder_that_may_only_be_read_is_told_so(made):
    """Not to make room in it, which would not help."""
    with tempfile.TemporaryDirectory() as name:
        hidden = Path(name, ".sweep")
        hidden.mkdir()
        asked, _ = made(JOBS)
        for path in (hidden, Path(name)):
            path.chmod(0o555)
        results = run_sweep.ResultFolder(Path(name))
        root = os.geteuid() == 0
        if root:  # who may write anywhere
            os.seteuid(65534)
        try:
            with (
                pytest.raises(DataError, match=r"ermission denied; set out: to a writable folder"),
                results.claimed(asked.pairs[0]),
            ):
                pass
        finally:
            if root:
                os.seteuid(0)
            Path(name).chmod(0o755)
            hidden.chmod(0o755)
