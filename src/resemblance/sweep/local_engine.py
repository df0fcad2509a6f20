"""Sweep workers on this machine: one process per device, replaced if it dies.

Each worker is given one pair at a time, preferably one on the data it already has open, so that
data are read once per worker and not once per network. `concurrent.futures` abandons a whole pool
when one of its processes is killed; here that costs only one attempt at the pair being recorded.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from multiprocessing import connection as pipes
from typing import Any

from .job_file import Pair
from .progress import Attempts, Event, Outcome, PairStarted
from .run_sweep import SweepLocation

_Task = tuple[Pair, bool]  # and whether to wait for a process that is recording it
_EXIT_SECONDS = 5.0  # seconds that a process is given to end
_PR_SET_PDEATHSIG = 1  # of prctl(2): the signal that a process gets when its parent dies


def devices_for(named: Sequence[str], workers: int | None) -> list[str]:
    """The device of each worker: those that are named, or all GPUs, or else the CPU, in turn.

    >>> devices_for(["cpu"], 2)
    ['cpu', 'cpu']
    """
    import torch

    from .._ops.devices import check_device

    there = torch.cuda.device_count()  # a GPU is touched by its workers alone
    found = [each.strip() for each in named] or [f"cuda:{i}" for i in range(there)] or ["cpu"]
    for each in found:
        if each not in (f"cuda:{i}" for i in range(there)):
            check_device(each)
    return [found[i % len(found)] for i in range(workers or len(found))]


def run_local(
    pairs: Sequence[Pair],
    place: SweepLocation,
    *,
    devices: Sequence[str],
    retries: int,
    seconds: float | None = None,
) -> Generator[Event, None, None]:
    """Record pairs with a worker for each device.

    Args:
        pairs: what to record.
        place: where the sweep happens.
        devices: one for each worker; a device may be named several times.
        retries: how often a pair is tried again whose worker died or whose error may pass.
        seconds: after which a pair is given up and its worker is ended; None sets no limit.
    """
    queue, attempts = [(pair, False) for pair in pairs], Attempts(retries)
    workers: list[_WorkerProcess] = []
    try:
        for device in devices[: len(pairs)]:
            workers.append(_WorkerProcess(place, device, len(devices), seconds))
        while queue or any(worker.pair for worker in workers):
            for worker in workers:
                if queue and worker.pair is None:
                    others = [other.opens for other in workers if other is not worker]
                    pair, wait = _next_task(queue, worker.opens, others)
                    worker.take(pair, wait)
                    yield PairStarted(pair.name, worker.where)
            busy = [worker for worker in workers if worker.pair]
            pipes.wait(
                [end for worker in busy for end in (worker.connection, worker.process.sentinel)]
            )
            for worker in busy:
                task, ended = worker.pair, worker.outcome()
                if task is not None and ended is not None:
                    outcome = attempts.judged(ended)
                    if outcome.state in ("busy", "again"):
                        queue.append((task, outcome.state == "busy"))
                    yield outcome
    finally:
        for worker in workers:
            worker.end()


def _next_task(queue: list[_Task], opens: Any, others: Sequence[Any]) -> _Task:
    """Take a pair from the queue: of data that the worker has open, or else of such as no other
    worker has, or else the first. Those that another sweep is recording come last."""

    def preference(task: _Task) -> tuple[bool, bool, bool]:
        pair, wait = task
        return not wait, pair.opens == opens, pair.opens not in others

    best = max(queue, key=preference)
    queue.remove(best)
    return best


class _WorkerProcess:
    """A worker, seen from the process that hands out pairs."""

    def __init__(
        self, place: SweepLocation, device: str, count: int, seconds: float | None
    ) -> None:
        self.place, self.device, self.count, self.seconds = place, device, count, seconds
        self.pair: Pair | None = None  # that it is at
        self.opens: Any = None  # the data it has open
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # a GPU cannot be used after a fork
        self.connection, theirs = context.Pipe()
        words = (theirs, self.place, self.device, self.count, self.seconds)
        self.process = context.Process(target=_worker_main, args=words)
        self.process.start()
        theirs.close()  # so that its end is seen here when it dies

    @property
    def where(self) -> str:
        return f"{self.device or 'cpu'}, process {self.process.pid}"

    def take(self, pair: Pair, wait: bool) -> None:
        """Let it record a pair, in a new process if it died."""
        if not self.process.is_alive():
            self.end()
            self._start()
        self.pair, self.opens = pair, pair.opens
        with contextlib.suppress(OSError):  # it died just now, which its sentinel will tell
            self.connection.send((pair, wait))

    def outcome(self) -> Outcome | None:
        """What became of its pair, if that is known by now."""
        assert self.pair is not None
        try:
            if not self.connection.poll() and self.process.is_alive():
                return None
            found: Outcome = self.connection.recv()
        except (EOFError, OSError):
            self.process.join(_EXIT_SECONDS)
            code, self.opens = self.process.exitcode, None
            why = f"its worker died: {_exit_reason(code)}"
            found = Outcome(self.pair.name, "again", error=why)
            if self.seconds is not None and code == -signal.SIGALRM:
                why = f"it took longer than the time limit of {self.seconds:g} seconds"
                found = Outcome(self.pair.name, "failed", self.seconds, why)
        self.pair = None
        return found

    def end(self) -> None:
        """End the process, whatever it is at: files appear whole or not at all."""
        self.connection.close()  # which ends one that is idle
        if self.pair is not None:
            self.process.terminate()
        self.process.join(_EXIT_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


def _exit_reason(code: int | None) -> str:
    """Why a process ended.

    >>> _exit_reason(-9), _exit_reason(3)
    ('SIGKILL, possibly out of memory', 'exit status 3')
    """
    if code is None or code >= 0:
        return f"exit status {code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
        return f"{name}, possibly out of memory" if name == "SIGKILL" else name
    return f"signal {-code}"


def _worker_main(
    connection: pipes.Connection[Any, Any],
    place: SweepLocation,
    device: str,
    count: int,
    seconds: float | None,
) -> None:
    """The life of a worker: pairs come in, outcomes go out, until the other end is closed."""
    _exit_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the sweep hears it too, and ends its workers
    os.dup2(2, 1)  # what networks print is no part of the command's output
    import torch

    from .worker import Worker

    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    elif count > 1:
        torch.set_num_threads(max(1, torch.get_num_threads() // count))
    worker = Worker(place, device, seconds)
    with contextlib.suppress(EOFError, OSError):  # the sweep is over, or dead
        while True:
            pair, wait = connection.recv()
            connection.send(worker.done(pair, wait=wait))


def _exit_with_parent() -> None:
    """End this process when the sweep dies, also while a pass hangs, so that no lock outlives it.

    A thread waits for the parent's end, on every system. On Linux the kernel does it as well, since
    no thread runs while compiled code keeps the interpreter's lock.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent.pid:  # it died before the kernel was told
            os._exit(1)
