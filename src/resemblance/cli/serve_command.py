"""`resemblance serve`: a zoo as a page in a browser, on this machine unless told otherwise."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, Optional

from typer import Argument, Option

from ..errors import DataError, optional
from . import tables
from .commands import app


@app.command()
def serve(
    zoo: Annotated[str, Argument(help="Folder of a zoo, or lance: and one.")],
    host: Annotated[
        str, Option(help="Address to listen on; one that others can reach needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="0 takes any that is free.")] = 8642,
    token: Annotated[
        str,
        Option(
            help="What every request needs; auto makes one. Default: the variable "
            "RESEMBLANCE_TOKEN, else none."
        ),
    ] = "",
    token_file: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads it at run time on Python 3.10
        Option(help="File that holds the token, so that it is in no list of processes."),
    ] = None,
    allow_host: Annotated[
        Optional[list[str]],  # noqa: UP045
        Option(help="Name under which browsers reach the server; repeat for more."),
    ] = None,
    upload_limit: Annotated[int, Option(min=1, help="MiB of a file that is sent, at most.")] = 256,
    read_only: Annotated[bool, Option("--read-only", help="Take no files.")] = False,
    open_page: Annotated[bool, Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show a zoo in a browser: a map, search, pairs, families and recommendations."""
    for module, package in (("fastapi", "FastAPI"), ("uvicorn", "uvicorn")):
        optional(module, package, "web")
    from ..web import listening

    _check(zoo)
    secret = listening.chosen_token(token, token_file)
    place = listening.listening(host, port, secret)

    def started() -> None:
        tables.say(f"{zoo} is at {place.address(secret)} (Ctrl-C stops it)")
        if open_page:
            webbrowser.open(place.address(secret))

    try:
        listening.serve(
            place,
            zoo,
            token=secret,
            names=allow_host or (),
            read_only=read_only,
            upload_limit=upload_limit,
            started=started,
        )
    except KeyboardInterrupt:  # the usual end
        pass
    finally:
        place.socket.close()
    tables.say("stopped", err=True)


def _check(zoo: str) -> None:
    """Refuse what is no zoo, rather than to show an empty one."""
    if not zoo.startswith("lance:") and not Path(zoo).is_dir():
        raise DataError(f"no zoo at {zoo}; expected a folder: make one with `resemblance zoo add`")
