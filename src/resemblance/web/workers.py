"""Workers: processes that read recordings for the server, and are killed when they take too long.

Reading is the costly and the dangerous part, so the server itself never does it. A worker that read
what a stranger sent answers once and is not used again.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from ..errors import ResemblanceError

MEMORY = 4096  # MiB that a worker may take beyond what its libraries do
READY = b"ready\n"  # what a process writes before its first answer
_START = 120.0  # seconds that its libraries may take
_LONGEST = 256 * 2**20  # bytes of an answer
_LATER = 30  # seconds after which a process that nobody killed ends by itself
# as `python -m` it would import whatever lies in the folder that the server was started in
_CODE = (
    "import json, sys; sys.path = json.loads(sys.argv.pop(1)); "
    f"from {__package__}.worker_process import main; main()"
)


class UnansweredError(ResemblanceError):
    """A question has no answer; the message says why."""


class FaultError(UnansweredError):
    """What nobody expected went wrong in a worker."""


class BusyError(ResemblanceError):
    """All workers are busy for longer than anyone should wait."""


class Workers:
    """Some processes that answer questions about a zoo, one question at a time each.

    Args:
        place: of the zoo.
        count: how many processes, besides one that waits for what strangers send.
        memory: MiB that each may take.
        seconds: after which a process that has not answered is killed.
        patience: seconds that a question waits for a process.
    """

    def __init__(
        self,
        place: str,
        *,
        count: int = 2,
        memory: int = MEMORY,
        seconds: float = 60.0,
        patience: float = 60.0,
    ) -> None:
        threads = max(1, (os.cpu_count() or 1) // count)
        self._command = [sys.executable, "-I", "-c", _CODE, json.dumps(sys.path), place]
        self._command += [str(memory), str(threads), str(math.ceil(seconds) + _LATER)]
        self.seconds, self.patience = seconds, patience
        self._turn = threading.Condition()
        self._idle: list[_Worker] = []
        self._spare: _Worker | None = None
        self._busy: set[_Worker] = set()
        self._places, self._open = count, True
        self._once = threading.Lock()  # one stranger's file at a time

    def start(self) -> Workers:
        """Start them now, so that the first who asks does not wait for their libraries."""
        with self._turn:
            while len(self._idle) < self._places:
                self._idle.append(_Worker(self._command))
            self._spare = self._spare or _Worker(self._command)
        return self

    def ask(self, what: str, **of: Any) -> Any:
        """The answer to a question of `questions`, or an error."""
        with self._turn:
            if not self._turn.wait_for(lambda: self._idle or not self._open, self.patience):
                raise BusyError("too many others are asking; try again in a moment")
            worker = self._taken(self._idle.pop() if self._idle else None)
        try:
            return worker.ask(what, of, self.seconds)
        finally:
            with self._turn:
                self._busy.discard(worker)
                if self._open:
                    self._idle.append(worker if worker.alive else _Worker(self._command))
                else:
                    worker.kill()
                self._turn.notify()

    def ask_once(self, what: str, **of: Any) -> Any:
        """The same of what a stranger sent: by a process that does nothing else after it."""
        if not self._once.acquire(timeout=self.patience):
            raise BusyError("others are sending files; try again in a moment")
        try:
            with self._turn:
                worker, self._spare = self._taken(self._spare), None
            try:
                return worker.ask(what, of, self.seconds)
            finally:
                worker.kill()
                with self._turn:
                    self._busy.discard(worker)
                    self._spare = _Worker(self._command) if self._open else None
        finally:
            self._once.release()

    def _taken(self, worker: _Worker | None) -> _Worker:
        if not self._open or worker is None:
            raise UnansweredError("the server is about to stop")
        self._busy.add(worker)
        return worker

    def processes(self) -> Sequence[int]:
        """Ids of the processes that wait for a question."""
        with self._turn:
            return [worker.process.pid for worker in (*self._idle, self._spare) if worker]

    def close(self) -> None:
        """End them; whoever still waits for an answer gets an error."""
        with self._turn:
            self._open = False
            for worker in (*self._idle, self._spare):
                if worker is not None:
                    worker.kill()
            for worker in self._busy:
                worker.process.kill()  # whoever asked it puts the rest away
            self._idle, self._spare = [], None
            self._turn.notify_all()

    def __enter__(self) -> Workers:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Worker:
    """One process, which answers a line with a line."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.alive, self.ready = True, False

    def ask(self, what: str, of: dict[str, Any], seconds: float) -> Any:
        if not self.ready:
            self.ready = self._line(None, _START) == READY
        line = self._line(json.dumps({"ask": what, "of": of}).encode() + b"\n", seconds)
        found = json.loads(line)
        if "error" in found:
            raise (FaultError if found.get("fault") else UnansweredError)(found["error"])
        return found["answer"]

    def _line(self, question: bytes | None, seconds: float) -> bytes:
        """The next line that it writes, perhaps after one that it is sent; or it is killed."""
        late = threading.Event()

        def end() -> None:
            late.set()
            self.process.kill()

        clock = threading.Timer(seconds, end)
        clock.start()
        try:
            line = self._exchanged(question)
        finally:
            clock.cancel()
        whole = line.endswith(b"\n")
        if late.is_set() or not whole:
            self.kill()  # and it may have answered at the last moment
        if not whole:
            if late.is_set():
                raise UnansweredError(f"it takes longer than the {seconds:g} seconds given")
            raise UnansweredError("the process that was reading it died")
        return line

    def _exchanged(self, question: bytes | None) -> bytes:
        writer, reader = self.process.stdin, self.process.stdout
        assert writer is not None
        assert reader is not None
        try:
            if question is not None:
                writer.write(question)
                writer.flush()
            return reader.readline(_LONGEST)
        except OSError:  # it is no more
            return b""

    def kill(self) -> None:
        self.alive = False
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
