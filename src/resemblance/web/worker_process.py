"""A process that reads recordings for the server: one question a line, one answer a line.

It speaks JSON over its standard input and output, so nothing that either side sends is executed.
It limits its own memory, and whoever started it may kill it at any moment: what a zoo holds is
whole then, too. If nobody does, since the server itself was killed, an alarm ends it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Mapping
from typing import Any, BinaryIO

from ..errors import ResemblanceError, ResemblanceWarning
from ..zoo.collection import Zoo
from .questions import QUESTIONS
from .shelf import without_place
from .workers import READY

_MEBIBYTE = 2**20
_TOO_LARGE = "it takes more memory than a reader of recordings is given here"


def main(arguments: list[str] | None = None) -> None:
    """Answer while questions come. Arguments: a zoo, MiB of memory, threads, seconds."""
    place, memory, threads, seconds = sys.argv[1:] if arguments is None else arguments
    answers = _own_output()
    import torch

    torch.set_num_threads(int(threads))
    limit_memory(int(memory))
    warnings.simplefilter("ignore", ResemblanceWarning)  # the page says what they say
    answers.write(READY)
    answers.flush()
    serve(Zoo(place), sys.stdin.buffer, answers, int(seconds))


def serve(zoo: Zoo, questions: BinaryIO, answers: BinaryIO, seconds: int) -> None:
    """A line for each line, within so many seconds each or never."""
    for line in questions:
        _alarm(seconds)
        answers.write(json.dumps(answered(zoo, json.loads(line))).encode() + b"\n")
        answers.flush()
        _alarm(0)


def _alarm(seconds: int) -> None:
    """Let the system end this process then, whatever it is at; 0 calls it off."""
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)


def answered(zoo: Zoo, question: Mapping[str, Any]) -> dict[str, Any]:
    """`{"answer": ...}`, or `{"error": ...}` with a line that says why there is none.

    What nobody expected is a "fault": its traceback goes to whoever runs the server.
    """
    try:
        return {"answer": QUESTIONS[question["ask"]](zoo, **question["of"])}
    except ResemblanceError as error:
        return {"error": without_place(error, zoo)}
    except MemoryError:
        return {"error": _TOO_LARGE}
    except Exception as error:
        if isinstance(error, RuntimeError) and "memory" in str(error):  # as torch says it
            return {"error": _TOO_LARGE}
        traceback.print_exception(error)
        why = f"this could not be read ({type(error).__name__}); the server's log has more"
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
    wanted = taken + mebibytes * _MEBIBYTE
    if hardest == resource.RLIM_INFINITY or wanted < hardest:
        resource.setrlimit(resource.RLIMIT_AS, (wanted, wanted))


def _own_output() -> BinaryIO:
    """Standard output for answers alone: what else is printed goes to standard error."""
    own = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return own


if __name__ == "__main__":
    main()
