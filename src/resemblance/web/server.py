"""Run the server: listening socket, token and host names, and uvicorn with a header timeout.

An address that other machines can reach needs a token. A server that stops ends its workers.
uvicorn waits indefinitely for a first request, and for the rest of one whose headers have begun;
`TimeoutProtocol` closes such idle connections, because a few hundred would lock other clients out.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import secrets
import socket
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import DataError, first_line
from ..zoo.zoo import Zoo
from . import MEBIBYTE, UPLOAD_LIMIT_MIB
from .application import application
from .security import LOOPBACK_HOSTS, AccessControl, SecurityHeaders, parse_host, validate_token
from .worker_pool import WorkerPool

PATIENCE = 20.0  # seconds for the headers of a request


class TimeoutProtocol(H11Protocol):
    """uvicorn's, with an end to its patience between requests."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._timer is None and self._is_idle():
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        self._timer = self.loop.call_later(PATIENCE, self._give_up)

    def _give_up(self) -> None:
        self._timer = None
        if self._is_idle() and not self.transport.is_closing():
            self.transport.close()


TOKEN_VARIABLE = "RESEMBLANCE_TOKEN"


@dataclass(frozen=True)
class ListenAddress:
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


def choose_token(token: str) -> str | None:
    """The token as given or in the environment; "auto" stands for a random one."""
    token = token or os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        return None
    return secrets.token_urlsafe(24) if token == "auto" else validate_token(token)


def validate_host_names(names: Collection[str]) -> set[str]:
    """Names of --allow-host, without ports, or an error that says what one is."""
    for name in names:
        if not parse_host(name):
            raise DataError(
                f"--allow-host must be a name such as zoo.example.org, without http:// or a path; "
                f"found {name!r}"
            )
    return {parse_host(name) for name in names}


def listen(host: str, port: int, token: str | None) -> ListenAddress:
    """Listen on an address; on one that others can reach, only with a token."""
    try:
        first = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise DataError(
            f"--host must be an address or a name of this machine; found {host!r} "
            f"({first_line(error)})"
        ) from error
    family, *_, address = first
    loopback = ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
    if not loopback and token is None:
        raise DataError(
            f"--token is required for {host}, which other machines can reach: pass one, --token "
            f"auto for a random one, or set {TOKEN_VARIABLE}"
        )
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        found = socket.create_server(address, family=family, backlog=512, dualstack_ipv6=both)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise DataError(
            f"cannot listen on {host}, port {port} ({why}); choose a different port with --port, "
            "or 0 for any free port"
        ) from error
    return ListenAddress(found, host, found.getsockname()[1], loopback)


def serve(
    place: ListenAddress,
    zoo: str,
    *,
    token: str | None = None,
    names: Collection[str] = (),
    read_only: bool = False,
    upload_limit: int = UPLOAD_LIMIT_MIB,
    started: Callable[[], None] = lambda: None,
) -> None:
    """Answer requests until the process is interrupted.

    Args:
        names: of this machine that requests may address, besides those of its loopback.
        started: called once requests are answered.
    """
    allowed = validate_host_names(names)
    name = Path(zoo.rstrip("/")).name or "zoo"
    where = zoo if zoo.startswith("lance:") else os.path.abspath(zoo)
    if not read_only and os.path.isdir(where) and not os.listdir(where):
        with Zoo(where) as new:
            new.store.put([])  # an empty folder becomes a zoo now, and never later
    with Zoo(where, create=False) as opened, WorkerPool(where) as workers:
        inner = application(
            opened,
            workers,
            name=name,
            read_only=read_only,
            upload_limit=upload_limit * MEBIBYTE,
        )
        hosts = {*LOOPBACK_HOSTS, place.host, *allowed}
        if not place.loopback:
            hosts |= {socket.gethostname(), socket.getfqdn()}
        app = SecurityHeaders(
            AccessControl(inner, hosts=hosts, literal=not place.loopback, token=token)
        )
        config = uvicorn.Config(
            app,
            http=TimeoutProtocol,
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
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                if self.started:
                    threading.Thread(target=started, daemon=True).start()  # it may open a browser

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                workers.close()  # first, as requests that wait for them would be waited for
                await super().shutdown(sockets)

        Server(config).run(sockets=[place.socket])
