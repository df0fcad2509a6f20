"""Processes that are killed when they take too long."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.exceptions import HTTPException

from resemblance.web.worker_pool import WorkerPool, _Worker


@pytest.fixture(scope="module")
def workers(little):
    with WorkerPool(str(little.place), count=1) as started:
        yield started


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def processes(workers) -> list[int]:
    """Those that wait: for a question, and for an upload."""
    return [x.process.pid for x in (*workers._idle.queue, *workers._for_uploads.queue)]


def ask(workers, little, **how):
    return workers.ask("zoo_map", group=little.group, kernel="features", **how)


def test_a_worker_answers_again_and_one_that_read_a_strangers_file_does_not(workers, little):
    first, spare = processes(workers)
    assert len(ask(workers, little)["points"]) == 7
    assert len(ask(workers, little)["points"]) == 7
    assert processes(workers) == [first, spare]
    assert len(ask(workers, little, upload=True)["points"]) == 7
    assert not alive(spare)
    assert processes(workers)[0] == first
    assert processes(workers)[1] != spare


def test_one_that_takes_too_long_is_killed_and_another_takes_its_place(
    workers, little, monkeypatch
):
    ask(workers, little)  # the first question may take as long as the libraries need
    (first, _) = processes(workers)
    with monkeypatch.context() as now:
        now.setattr(workers, "seconds", 0.01)  # in which no pair is compared
        with pytest.raises(
            HTTPException, match=r"422: it took longer than the limit of 0\.01 seconds"
        ):
            workers.ask("pair", a=little.id("base"), b=little.id("stranger"))
    assert not alive(first)
    assert len(ask(workers, little)["points"]) == 7


def test_one_that_dies_is_told_and_replaced(workers, little):
    (first, _) = processes(workers)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(HTTPException, match=r"422: .*died"):
        ask(workers, little)
    assert len(ask(workers, little)["points"]) == 7


def test_an_error_is_told(workers):
    with pytest.raises(HTTPException, match="422: no entry"):
        workers.ask("pair", a="0" * 64, b="0" * 64)


def test_nobody_waits_for_ever():
    none = WorkerPool("nowhere", count=1, patience=0.05)  # not started: no worker is ever idle
    with pytest.raises(HTTPException, match="503: the server is busy"):
        none.ask("zoo_map")
    with pytest.raises(HTTPException, match="503: the server is busy with other uploads"):
        none.ask("add", upload=True)
    none.close()
    for upload in (False, False, True):
        with pytest.raises(HTTPException, match=r"422: .*about to stop"):
            none.ask("zoo_map", upload=upload)


def test_a_process_that_cannot_start_is_told():
    worker = _Worker(["false"])
    with pytest.raises(HTTPException, match=r"422: .*died"):
        worker.ask("pair", {}, 5)
    assert not worker.alive
    worker.end()


def test_whoever_waits_while_it_is_closed_gets_an_error(little):
    with WorkerPool(str(little.place), count=1) as own, ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, own, little) for _ in range(4)]
        first, spare = own._workers
        own.close()
        for one in asked:
            assert isinstance(one.exception(20), HTTPException | None)
        assert isinstance(asked[-1].exception(), HTTPException)
    assert not alive(first.process.pid)
    assert not alive(spare.process.pid)


def test_what_lies_in_the_folder_that_it_starts_in_is_not_imported(little, tmp_path, monkeypatch):
    for name in ("json", "resource", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    with WorkerPool(str(little.place), count=1) as own:
        assert len(ask(own, little)["points"]) == 7
