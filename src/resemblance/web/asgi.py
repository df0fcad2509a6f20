"""What a server is to those around it (ASGI), and the answers that they give in its place."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Server = Callable[[Scope, Receive, Send], Awaitable[None]]


def header(scope: Scope, name: str) -> str | None:
    """A header of a request, if it is there once; of several nothing can be said, so "" is."""
    found = [value for key, value in scope["headers"] if key == name.encode()]
    return None if not found else found[0].decode("latin-1") if len(found) == 1 else ""


async def refuse(
    send: Send, status: int, why: str, more: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Answer with an error, as JSON with a message; what else a sender has to say is not read."""
    body = json.dumps({"error": why}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
