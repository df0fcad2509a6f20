"""The entry point of `resemblance`: mistakes as one line and an exit status, warnings as one line.

Tables go to standard output, progress, warnings and errors to standard error. A mistake is one line
and exit status 2; `--debug` shows its traceback.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import typer

from ..errors import ResemblanceError, ResemblanceWarning
from .commands import app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit: 2 for a mistake, 130 when interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    warnings.showwarning = _quiet(warnings.showwarning)
    try:
        status = app(words, standalone_mode=False)
    except typer.Exit as done:
        status = done.exit_code
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("interrupted", err=True)
        status = 130
    except BrokenPipeError:  # the reader, such as head, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except Exception as error:
        usage = getattr(error, "format_message", None)  # an error of the command line's own
        if "--debug" in words or not (usage or isinstance(error, ResemblanceError | OSError)):
            raise
        text = usage() if usage else str(error)
        typer.echo(f"error: {' '.join(text.split())}", err=True)
        status = 2
    sys.exit(status if isinstance(status, int) else 0)


def _quiet(show: Callable[..., None]) -> Callable[..., None]:
    """This package's warnings as one line on standard error; others as Python shows them."""

    def showwarning(message: Any, category: Any, *rest: Any, **more: Any) -> None:
        if issubclass(category, ResemblanceWarning):
            typer.echo(f"warning: {message}", err=True)
        else:
            show(message, category, *rest, **more)

    return showwarning
