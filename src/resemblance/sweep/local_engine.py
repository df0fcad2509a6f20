"""Workers on this machine: a process for each device, which is replaced if it dies.

Each worker is handed one pair at a time, of the data it has open while there are any left, so that
data are read once a worker and not once a network. `concurrent.futures` gives a pool up when one of
its processes is killed; here that costs the pair which it was at one of its attempts.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import Counter, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection as pipes
from typing import Any

from .outcomes import Began, Event, Outcome, lost
from .pairs import Pair
from .worker import Place

_PATIENCE = 5.0  # seconds that a process is given to end


def devices_for(named: Sequence[str], workers: int | None) -> list[str]:
    """The device of each worker: those that are named, or all GPUs, or else the CPU, in turn.

    >>> devices_for(["cpu"], 2)
    ['cpu', 'cpu']
    """
    import torch

    from .._ops.device_choice import usable

    there = torch.cuda.device_count()  # a GPU is touched by its workers alone
    found = [each.strip() for each in named] or [f"cuda:{i}" for i in range(there)] or ["cpu"]
    for each in found:
        if each not in (f"cuda:{i}" for i in range(there)):
            usable(each)
    return [found[i % len(found)] for i in range(workers or len(found))]


def run(
    pairs: Sequence[Pair], place: Place, *, devices: Sequence[str], retries: int
) -> Generator[Event, None, None]:
    """Record pairs with a worker for each device named (one may be named several times)."""
    queue = _Queue(pairs, retries)
    workers: list[_Process] = []
    try:
        workers += [_Process(place, device, len(devices)) for device in devices[: len(pairs)]]
        while queue.left or any(worker.pair for worker in workers):
            for i, worker in enumerate(workers):
                others = [other.opens for other in workers if other is not worker]
                task = None if worker.pair else queue.next(worker.opens, others)
                if task is not None:
                    if not worker.alive:
                        workers[i] = worker = worker.again()
                    worker.take(*task)
                    yield Began(task[0].name, worker.where)
            busy = [worker for worker in workers if worker.pair]
            pipes.wait(
                [end for worker in busy for end in (worker.connection, worker.process.sentinel)]
            )
            for worker in busy:
                outcome = worker.outcome()
                if outcome is not None:
                    yield queue.told(*outcome)
    finally:
        for worker in workers:
            worker.end()


class _Queue:
    """Pairs that no worker has yet, and how often each was tried."""

    def __init__(self, pairs: Sequence[Pair], retries: int) -> None:
        self._new: dict[Any, deque[Pair]] = {}  # by the data that they open
        self._retries = retries
        self._elsewhere: deque[Pair] = deque()  # that another sweep was at
        self._failures: Counter[str] = Counter()
        for pair in pairs:
            self._add(pair)

    def _add(self, pair: Pair) -> None:
        self._new.setdefault(pair.opens, deque()).append(pair)

    @property
    def left(self) -> bool:
        return bool(self._new or self._elsewhere)

    def next(self, opens: Any, others: Sequence[Any]) -> tuple[Pair, bool] | None:
        """A pair, and whether to wait for it: of data that the worker has open, or else of such as
        no other worker has, or else the first."""
        if self._new:
            choice = [opens, *(data for data in self._new if data not in others), *self._new]
            data = next(data for data in choice if data in self._new)
            pair = self._new[data].popleft()
            if not self._new[data]:
                del self._new[data]
            return pair, False
        return (self._elsewhere.popleft(), True) if self._elsewhere else None

    def told(self, pair: Pair, outcome: Outcome) -> Outcome:
        """What to report, once a pair that gets another attempt is back in line."""
        if outcome.state == "busy":
            self._elsewhere.append(pair)
        if outcome.state == "failed":
            self._failures[pair.name] += 1
            if outcome.again and self._failures[pair.name] <= self._retries:
                self._add(pair)
                outcome = replace(outcome, state="again")
        return outcome


@dataclass
class _Process:
    """A worker, seen from the process that hands out pairs."""

    place: Place
    device: str
    count: int  # of workers on this machine
    pair: Pair | None = None  # that it is at
    opens: Any = None  # the data it has open

    def __post_init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a GPU cannot be used after a fork
        self.connection, theirs = context.Pipe()
        words = (theirs, self.place, self.device, self.count)
        self.process = context.Process(target=_serve, args=words)
        self.process.start()
        theirs.close()  # so that its end is seen here when it dies

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    @property
    def where(self) -> str:
        return f"{self.device or 'cpu'}, process {self.process.pid}"

    def again(self) -> _Process:
        """A new one in place of one that died."""
        self.end()
        return _Process(self.place, self.device, self.count)

    def take(self, pair: Pair, wait: bool) -> None:
        self.pair, self.opens = pair, pair.opens
        with contextlib.suppress(OSError):  # it died just now, which its sentinel will tell
            self.connection.send((pair, wait))

    def outcome(self) -> tuple[Pair, Outcome] | None:
        """What became of its pair, if that is known by now."""
        pair = self.pair
        assert pair is not None
        try:
            if self.connection.poll():
                found = self.connection.recv()
            elif not self.alive:
                raise EOFError
            else:
                return None
        except (EOFError, OSError):
            self.process.join(_PATIENCE)
            found, self.opens = lost(pair.name, _ending(self.process.exitcode)), None
        self.pair = None
        return pair, found

    def end(self) -> None:
        """End the process, whatever it is at: files appear whole or not at all."""
        self.connection.close()  # which ends one that is idle
        if self.pair is not None:
            self.process.terminate()
        self.process.join(_PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


def _ending(code: int | None) -> str:
    """Why a process is no more.

    >>> _ending(-9), _ending(3)
    ('SIGKILL, as when memory ends', 'exit status 3')
    """
    if code is None or code >= 0:
        return f"exit status {code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
        return f"{name}, as when memory ends" if name == "SIGKILL" else name
    return f"signal {-code}"


def _serve(connection: pipes.Connection[Any, Any], place: Place, device: str, count: int) -> None:
    """The life of a worker: pairs come in, outcomes go out, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the sweep hears it too, and ends its workers
    os.dup2(2, 1)  # what networks print is no part of the command's output
    import torch

    from .worker import Worker

    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    elif count > 1:
        torch.set_num_threads(max(1, torch.get_num_threads() // count))
    worker = Worker(place, device)
    with contextlib.suppress(EOFError, OSError):  # the sweep is over, or dead
        while True:
            pair, wait = connection.recv()
            connection.send(worker.done(pair, wait=wait))
