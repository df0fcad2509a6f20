"""The entry point of `resemblance`: mistakes as one line and an exit status, warnings as one line.

Tables go to standard output, progress, warnings and errors to standard error. A mistake is one line
and exit status 2; `--debug` shows its traceback as well. What nobody expected is a fault of the
program: its traceback, one line, and exit status 70.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import typer

from ..errors import ResemblanceError, ResemblanceWarning
from . import (  # noqa: F401 - each adds its command
    check_command,
    recommend_command,
    serve_command,
    sweep_command,
    zoo_command,
)
from .commands import app
from .tables import say


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its status, which is 0 but for `check`, `sweep` and
    `zoo verify`.

    2 for a mistake, 70 for a fault of the program, 130 when interrupted, 143 when terminated.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    warnings.showwarning = _quiet(warnings.showwarning)
    try:
        with _orderly_termination():
            status = app(words, standalone_mode=False)
    except typer.Exit as done:
        status = done.exit_code
    except (KeyboardInterrupt, typer.Abort):
        say("interrupted", err=True)
        status = 130
    except BrokenPipeError:  # the reader, such as head, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except Exception as error:
        status = _told(error, debug="--debug" in words)
    sys.exit(status if isinstance(status, int) else 0)


def _told(error: Exception, *, debug: bool) -> int:
    """Say what went wrong, in a line and if need be its traceback: the exit status."""
    usage = getattr(error, "format_message", None)  # an error of the command line's own
    mistake = usage is not None or isinstance(error, ResemblanceError | OSError)
    if debug or not mistake:
        traceback.print_exception(error)
    if not mistake:
        kind = type(error).__name__
        say(f"error: a fault of resemblance itself ({kind}); please report the above", err=True)
        return 70
    text = " ".join(usage().split()) if usage else str(error)
    say(f"error: {text}", err=True)
    return 2


@contextlib.contextmanager
def _orderly_termination() -> Iterator[None]:
    """SIGTERM as an exit that cleans up on its way, with the status that shells give it."""
    status = 128 + signal.SIGTERM

    def terminate(_: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                # an import may lose an exception or abort on it, and has nothing to clean up
                os._exit(status)
            frame = frame.f_back
        sys.exit(status)

    alone = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # nobody ignores or catches it
    if not alone or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _quiet(show: Callable[..., None]) -> Callable[..., None]:
    """This package's warnings as one line on standard error; others as Python shows them."""

    def showwarning(message: Any, category: Any, *rest: Any, **more: Any) -> None:
        if issubclass(category, ResemblanceWarning):
            say(f"warning: {message}", err=True)
        else:
            show(message, category, *rest, **more)

    return showwarning
