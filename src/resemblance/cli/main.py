"""The entry point of `resemblance`: runs a command; one line per error or warning.

Tables go to standard output; progress, warnings and errors go to standard error. A user error is
one line and exit status 2; `--debug` shows its traceback as well. Unexpected exceptions are
internal errors: a traceback, one line, and exit status 70.
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
from . import check, recommend, sensitivity, sweep, zoo  # noqa: F401 - each adds its command
from .commands import app as app
from .output import discard_stdout, print_line


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its status, which is 0 but for `check`, `sweep` and
    `zoo verify`.

    2 for a user error, 70 for an internal error, 130 when interrupted, 143 when terminated.
    """
    _replace_closed_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    warnings.showwarning = _one_line_warnings(warnings.showwarning)
    try:
        with _orderly_termination():
            status = app(words, standalone_mode=False)
    except typer.Exit as done:
        status = done.exit_code
    except (KeyboardInterrupt, typer.Abort):
        print_line("interrupted", err=True)
        status = 130
    except BrokenPipeError:
        discard_stdout()
        status = 0
    except Exception as error:
        status = _report_error(error, debug="--debug" in words)
    sys.exit(status if isinstance(status, int) else 0)


def _replace_closed_streams() -> None:
    """Open the null device for each standard stream that the caller closed, as with `>&-`.

    The exit status is then what it would be with the stream open, and no file that is opened later
    takes the stream's descriptor.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _report_error(error: Exception, *, debug: bool) -> int:
    """Say what went wrong, in a line and if need be its traceback: the exit status."""
    usage = getattr(error, "format_message", None)  # an error of the command line's own
    mistake = usage is not None or isinstance(error, ResemblanceError | OSError)
    if debug or not mistake:
        traceback.print_exception(error)
    if not mistake:
        kind = type(error).__name__
        print_line(
            f"error: internal error ({kind}); please report it with the traceback above", err=True
        )
        return 70
    text = " ".join(usage().split()) if usage else str(error)
    print_line(f"error: {text}", err=True)
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


def _one_line_warnings(show: Callable[..., None]) -> Callable[..., None]:
    """This package's warnings as one line on standard error; others as Python shows them."""

    def showwarning(message: Any, category: Any, *rest: Any, **more: Any) -> None:
        if issubclass(category, ResemblanceWarning):
            print_line(f"warning: {message}", err=True)
        else:
            show(message, category, *rest, **more)

    return showwarning
