"""A pool of worker processes that read recordings for the server, with time and memory limits.

Reading is the slow and the risky part, so the server itself never does it. The server's end of a
worker is `WorkerPool`, the process itself runs `main`. They exchange lines of JSON over the
process's standard input and output, so nothing that either side sends is executed. A worker limits
its own memory, and may be killed at any moment: the zoo stays intact. A worker that read an
untrusted upload answers once and is not used again.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from queue import Empty, LifoQueue
from typing import Any, BinaryIO

from starlette.exceptions import HTTPException

from ..errors import ResemblanceError, ResemblanceWarning
from ..zoo.zoo import Zoo
from . import MEBIBYTE
from .cache import hide_zoo_path
from .queries import QUESTIONS

DEFAULT_MEMORY_MIB = 4096  # MiB that a worker may take beyond what its libraries do
_START_SECONDS = 120.0  # seconds that its libraries may take
_MAX_ANSWER_BYTES = 256 * MEBIBYTE  # bytes of an answer
_ALARM_MARGIN = 30  # seconds after which a process that nobody killed ends by itself
_MSG_OUT_OF_MEMORY = "it takes more memory than the server allows for one request"
# as `python -m` it would import whatever lies in the folder that the server was started in
_WORKER_CODE = (
    f"import json, sys; sys.path = json.loads(sys.argv.pop(1)); from {__name__} import main; main()"
)


def busy_error(why: str) -> HTTPException:
    """The error for a client that should try again later."""
    return HTTPException(503, f"{why}; try again in a moment", {"retry-after": "5"})


# -- the server's end -----------------------------------------------------------------------------


class WorkerPool:
    """Some processes that answer questions about a zoo, one question at a time each.

    Args:
        place: of the zoo.
        count: how many processes, besides one that waits for uploads.
        memory: MiB that each may take.
        seconds: after which a process that has not answered is killed.
        patience: seconds that a question waits for a process.
    """

    def __init__(
        self,
        place: str,
        *,
        count: int = 2,
        memory: int = DEFAULT_MEMORY_MIB,
        seconds: float = 60.0,
        patience: float = 60.0,
    ) -> None:
        threads = max(1, (os.cpu_count() or 1) // count)
        self._command = [sys.executable, "-I", "-c", _WORKER_CODE, json.dumps(sys.path), place]
        self._command += [str(memory), str(threads), str(math.ceil(seconds) + _ALARM_MARGIN)]
        self.count, self.seconds, self.patience = count, seconds, patience
        # None, on top once the pool is closed, tells whoever waits
        self._idle: LifoQueue[_Worker | None] = LifoQueue()
        self._for_uploads: LifoQueue[_Worker | None] = LifoQueue()
        self._turn = threading.Lock()  # held while workers start and end
        self._workers: list[_Worker] = []
        self._open = True

    def __enter__(self) -> WorkerPool:
        for queue in [self._idle] * self.count + [self._for_uploads]:
            queue.put(self._started())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, what: str, *, upload: bool = False, **of: Any) -> Any:
        """The answer to a question of `QUESTIONS`, or an error.

        Args:
            what: the name of the question.
            upload: whether it is about an upload, whose worker is not used again.
            of: the arguments of the question.
        """
        queue = self._for_uploads if upload else self._idle
        try:
            worker = queue.get(timeout=self.patience)
        except Empty:
            why = "the server is busy with other uploads" if upload else "the server is busy"
            raise busy_error(why) from None
        if worker is None:
            queue.put(None)  # for the next that waits
            raise HTTPException(422, "the server is about to stop")
        try:
            return worker.ask(what, of, self.seconds)
        finally:
            with self._turn:
                if upload or not (worker.alive and self._open):
                    worker.end()
                    queue.put(self._started())
                else:
                    queue.put(worker)

    def _started(self) -> _Worker | None:
        """A new worker; None once the pool is closed."""
        if not self._open:
            return None
        worker = _Worker(self._command)
        self._workers = [*(each for each in self._workers if each.alive), worker]
        return worker

    def close(self) -> None:
        """End them; whoever still waits for an answer gets an error."""
        with self._turn:
            self._open = False
            for worker in self._workers:
                worker.process.kill()
            for queue in (self._idle, self._for_uploads):
                while not queue.empty():  # others are ended by whoever asked them
                    if (idle := queue.get()) is not None:
                        idle.end()
                queue.put(None)


class _Worker:
    """One process, which answers a line with a line."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.alive, self.start_seconds = True, _START_SECONDS

    def ask(self, what: str, of: Mapping[str, Any], seconds: float) -> Any:
        question = json.dumps({"ask": what, "of": of}).encode() + b"\n"
        found = json.loads(self._exchange(question, seconds))
        if "error" in found:
            raise HTTPException(500 if found.get("fault") else 422, found["error"])
        return found["answer"]

    def _exchange(self, question: bytes, seconds: float) -> bytes:
        """Write a line and read the next one; a process that takes longer is killed."""
        writer, reader = self.process.stdin, self.process.stdout
        assert writer is not None
        assert reader is not None
        line = b""
        clock = threading.Timer(seconds + self.start_seconds, self._expire)
        clock.start()
        with suppress(OSError):  # the process is no more
            writer.write(question)
            writer.flush()
            line = reader.readline(_MAX_ANSWER_BYTES)
        clock.cancel()
        clock.join()  # it may have been killed at the last moment
        if line.endswith(b"\n"):
            self.start_seconds = 0.0
            return line
        late, self.alive = not self.alive, False
        raise HTTPException(
            422,
            f"it took longer than the limit of {seconds:g} seconds"
            if late
            else "the worker process died",
        )

    def _expire(self) -> None:
        self.alive = False
        self.process.kill()

    def end(self) -> None:
        """Kill the process, and put away what is left of it."""
        self._expire()
        self.process.communicate()


# -- the process ----------------------------------------------------------------------------------


def main() -> None:
    """Answer while questions come. Arguments: a zoo, MiB of memory, threads, seconds."""
    place, memory, threads, seconds = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "wb")  # for answers alone: what else is printed goes to stderr
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(int(threads))
    limit_memory(int(memory))
    warnings.simplefilter("ignore", ResemblanceWarning)  # the page says what they say
    serve(place, sys.stdin.buffer, answers, int(seconds))


def serve(place: str, questions: BinaryIO, answers: BinaryIO, seconds: int) -> None:
    """Write a line for each line that comes, within so many seconds each or never.

    Args:
        place: where the zoo is. It is opened at the first question at which it is there.
        questions: what to answer.
        answers: where answers go.
        seconds: that an answer may take.
    """
    zoo: Zoo | None = None
    for line in questions:
        _set_alarm(seconds)
        try:
            zoo = Zoo(place, create=False) if zoo is None else zoo
            found = answer_query(zoo, json.loads(line))
        except ResemblanceError as error:
            found = {"error": hide_zoo_path(error, place)}
        answers.write(json.dumps(found).encode() + b"\n")
        answers.flush()
        _set_alarm(0)


def _set_alarm(seconds: int) -> None:
    """Let the system end this process then, also if its parent was killed; 0 calls it off."""
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)


def answer_query(zoo: Zoo, question: Mapping[str, Any]) -> dict[str, Any]:
    """`{"answer": ...}`, or `{"error": ...}` with a line that says why there is none.

    What nobody expected is a "fault": its traceback goes to whoever runs the server.
    """
    try:
        return {"answer": QUESTIONS[question["ask"]](zoo, **question["of"])}
    except ResemblanceError as error:
        return {"error": hide_zoo_path(error, zoo.store.where)}
    except Exception as error:
        if isinstance(error, MemoryError) or (
            isinstance(error, RuntimeError) and "memory" in str(error)  # as torch says it
        ):
            return {"error": _MSG_OUT_OF_MEMORY}
        traceback.print_exception(error)
        why = f"this could not be read ({type(error).__name__}); see the server's log"
        return {"error": why, "fault": True}


def limit_memory(mebibytes: int) -> None:
    """Allow so much beyond what the libraries take; where the system cannot, nothing is limited."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError):
        return
    hardest = resource.getrlimit(resource.RLIMIT_AS)[1]
    wanted = taken + mebibytes * MEBIBYTE
    if hardest == resource.RLIM_INFINITY or wanted < hardest:
        resource.setrlimit(resource.RLIMIT_AS, (wanted, wanted))
