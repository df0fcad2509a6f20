"""Processes that are killed when they take too long."""

from __future__ import annotations

import os
import signal

import pytest

from resemblance.web.workers import BusyError, UnansweredError, Workers, _Worker


@pytest.fixture(scope="module")
def workers(little):
    with Workers(str(little.place), count=1) as started:
        yield started


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def ask(workers, little, how="ask"):
    return getattr(workers, how)("zoo_map", group=little.group, kernel="features")


def test_a_worker_answers_again_and_one_that_read_a_strangers_file_does_not(workers, little):
    first, spare = workers.processes()
    assert len(ask(workers, little)["points"]) == 7
    assert len(ask(workers, little)["points"]) == 7
    assert workers.processes() == [first, spare]
    assert len(ask(workers, little, "ask_once")["points"]) == 7
    assert not alive(spare)
    assert workers.processes()[0] == first
    assert workers.processes()[1] != spare


def test_one_that_takes_too_long_is_killed_and_another_takes_its_place(
    workers, little, monkeypatch
):
    (first, _) = workers.processes()
    with monkeypatch.context() as now:
        now.setattr(workers, "seconds", 0.01)  # in which no pair is compared
        with pytest.raises(UnansweredError, match=r"takes longer than the 0\.01 seconds"):
            workers.ask("pair", a=little.id("base"), b=little.id("stranger"))
    assert not alive(first)
    assert len(ask(workers, little)["points"]) == 7


def test_one_that_dies_is_told_and_replaced(workers, little):
    (first, _) = workers.processes()
    os.kill(first, signal.SIGKILL)
    with pytest.raises(UnansweredError, match="died"):
        ask(workers, little)
    assert len(ask(workers, little)["points"]) == 7


def test_an_error_is_told(workers):
    with pytest.raises(UnansweredError, match="no entry"):
        workers.ask("pair", a="0" * 64, b="0" * 64)


def test_nobody_waits_for_ever():
    none = Workers("nowhere", count=1, patience=0.05)  # not started: no worker is ever idle
    with pytest.raises(BusyError, match="too many others"):
        none.ask("zoo_map")
    with none._once, pytest.raises(BusyError, match="others are sending"):
        none.ask_once("add")
    none.close()
    with pytest.raises(UnansweredError, match="about to stop"):
        none.ask("zoo_map")


def test_a_process_that_cannot_start_is_told():
    worker = _Worker(["false"])
    with pytest.raises(UnansweredError, match="died"):
        worker.ask("pair", {}, 5)
    assert not worker.alive


def test_what_lies_in_the_folder_that_it_starts_in_is_not_imported(little, tmp_path, monkeypatch):
    for name in ("json", "resource", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    with Workers(str(little.place), count=1) as own:
        assert len(ask(own, little)["points"]) == 7
