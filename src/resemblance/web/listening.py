"""Listening: on which address the server is reached, and who may reach it there.

An address that other machines can reach needs a token. A server that stops ends its workers.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ..errors import DataError, first_line
from ..zoo.collection import Zoo
from .admission import LOOPBACK, Admission, checked_token, host_of
from .response_headers import ResponseHeaders
from .workers import Workers

PORT = 8642
VARIABLE = "RESEMBLANCE_TOKEN"
_MEBIBYTE = 2**20


@dataclass(frozen=True)
class Place:
    """Where a server listens."""

    socket: socket.socket
    host: str  # as it was asked for
    port: int
    loopback: bool

    def address(self, token: str | None = None) -> str:
        """What a browser on this machine opens."""
        name = self.socket.getsockname()[0]
        if ipaddress.ip_address(name).is_unspecified:
            name = "::1" if ":" in name else "127.0.0.1"
        name = f"[{name}]" if ":" in name else name
        return f"http://{name}:{self.port}/{'' if token is None else f'?token={quote(token)}'}"


def chosen_token(token: str, file: Path | None) -> str | None:
    """The token as given, "auto" for a random one, from a file or from the environment."""
    if token and file is not None:
        raise DataError("expected --token or --token-file, found both; leave one away")
    if file is not None:
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise DataError(f"cannot read the token in {file}: {first_line(error)}") from error
    elif not token:
        token = os.environ.get(VARIABLE, "")
        if not token:
            return None
    return secrets.token_urlsafe(24) if token == "auto" else checked_token(token)


def checked_names(names: Collection[str]) -> set[str]:
    """Names of --allow-host, without ports, or an error that says what one is."""
    for name in names:
        if not host_of(name):
            raise DataError(
                f"--allow-host must be a name such as zoo.example.org, without http:// or a path; "
                f"found {name!r}"
            )
    return {host_of(name) for name in names}


def listening(host: str, port: int, token: str | None) -> Place:
    """Listen on an address; on one that others can reach, only with a token."""
    try:
        first = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise DataError(
            f"--host must be an address or a name of this machine; found {host!r} "
            f"({first_line(error)})"
        ) from error
    family, kind, number, _, address = first
    loopback = ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
    if not loopback and token is None:
        raise DataError(
            f"others can reach {host}, so --token is needed there: give one, --token auto for a "
            f"random one, --token-file or the variable {VARIABLE}"
        )
    found = socket.socket(family, kind, number)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(512)
    except OSError as error:
        found.close()
        raise DataError(
            f"cannot listen on {host}, port {port} ({error.strerror}); expected a free one: choose "
            "another with --port, or 0 for any"
        ) from error
    return Place(found, host, found.getsockname()[1], loopback)


def serve(
    place: Place,
    zoo: str,
    *,
    token: str | None = None,
    names: Collection[str] = (),
    read_only: bool = False,
    upload_limit: int = 256,  # MiB
    started: Callable[[], None] = lambda: None,
) -> None:
    """Answer requests until the process is interrupted.

    Args:
        names: of this machine that requests may address, besides those of its loopback.
        started: called once requests are answered.
    """
    import uvicorn

    from .application import application
    from .silent_connections import PromptProtocol

    allowed = checked_names(names)
    name = Path(zoo.rstrip("/")).name or "zoo"
    where = zoo if zoo.startswith("lance:") else os.path.abspath(zoo)
    with Zoo(where) as opened, Workers(where) as workers:
        inner = application(
            opened,
            workers,
            name=name,
            read_only=read_only,
            upload_limit=upload_limit * _MEBIBYTE,
        )
        hosts = {*LOOPBACK, place.host, *allowed}
        if not place.loopback:
            hosts |= {socket.gethostname(), socket.getfqdn()}
        app = ResponseHeaders(
            Admission(inner, hosts=hosts, literal=not place.loopback, token=token)
        )
        config = uvicorn.Config(
            app,
            http=PromptProtocol,
            log_level="warning",
            access_log=False,  # addresses may hold the token
            server_header=False,
            proxy_headers=False,
            ws="none",
            limit_concurrency=512,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=2,
        )

        class Server(uvicorn.Server):
            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                workers.close()  # first, as requests that wait for them would be waited for
                await super().shutdown(sockets)

        server = Server(config)
        threading.Thread(target=_when_started, args=(server, started), daemon=True).start()
        server.run(sockets=[place.socket])


def _when_started(server: object, act: Callable[[], None]) -> None:
    while not getattr(server, "started", False):
        if getattr(server, "should_exit", False):
            return
        time.sleep(0.02)
    act()
