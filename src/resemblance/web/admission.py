"""Admission: which requests are answered at all.

A page from elsewhere that a browser has open may send requests here, too. So a request must name
this server as its host (a foreign name that was pointed at this address does not), no page of
another origin may ask for anything (a link there may still lead here), and where there is a token
every request needs it: as `Authorization: Bearer TOKEN`, or once as `?token=TOKEN`, which a browser
then keeps as a cookie that no script can read.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, quote, urlencode

from ..errors import DataError
from .asgi import Receive, Scope, Send, Server, header, refuse

SHORTEST = 16  # characters of a token
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SAFE = ("GET", "HEAD", "OPTIONS")
_HOW = "open the address that `resemblance serve` printed, or send Authorization: Bearer TOKEN"


def checked_token(token: str) -> str:
    """A token, or an error that says what one is."""
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise DataError(
            f"a token must have at least {SHORTEST} printable ASCII characters and no spaces; "
            f"found {len(token)} characters: use --token auto for a random one"
        )
    return token


def host_of(text: str) -> str:
    """The name in a Host header, without a port; "" if it is none.

    >>> host_of("localhost:8000"), host_of("[::1]:8000"), host_of("a:b@c")
    ('localhost', '::1', '')
    """
    name, _, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not name:
        name, port = text, ""
    if port and not (port.isdecimal() and port.isascii()):
        return ""
    inner = name.removeprefix("[").removesuffix("]").lower()
    if name.startswith("[") != (":" in inner) or any(c in inner for c in "/@?#[] "):
        return ""
    return inner.removesuffix(".")


class Admission:
    """A server behind the question who asks.

    Args:
        hosts: names that requests may address. With `literal`, any address in digits as well: a
            page on a foreign name cannot have one for its own.
        token: what every request needs, or None.
    """

    def __init__(
        self,
        server: Server,
        *,
        hosts: Iterable[str] = LOOPBACK,
        literal: bool = False,
        token: str | None = None,
    ) -> None:
        self.server = server
        self.hosts = frozenset(host.lower().removesuffix(".") for host in hosts)
        self.literal = literal
        self.token = None if token is None else checked_token(token).encode()
        key = secrets.token_bytes(32)  # so that a cookie dies with the server, and is no token
        self.cookie = hmac.new(key, self.token or b"", hashlib.sha256).hexdigest()
        self.cookie_name = f"resemblance-{hashlib.sha256(key).hexdigest()[:8]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.server(scope, receive, send)
            return
        host = header(scope, "host") or ""
        if not self._known(host_of(host)):
            name = f"{host[:80]!r} is not a name of this server"
            await refuse(send, 421, f"{name}; start it with --allow-host for that name")
        elif self._foreign(scope, host):
            await refuse(send, 403, "a page of another origin may not ask for anything here")
        elif self.token is None:
            await self.server(scope, receive, send)
        elif self._is_token(self._in_address(scope)):
            await self._keep(scope, send)  # before a cookie counts: links are copied from there
        elif self._has_token(scope):
            await self.server(scope, receive, send)
        else:
            await refuse(
                send, 401, f"this needs a token: {_HOW}", [(b"www-authenticate", b"Bearer")]
            )

    def _known(self, host: str) -> bool:
        if host in self.hosts:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return self.literal

    def _foreign(self, scope: Scope, host: str) -> bool:
        if scope["method"] in _SAFE and header(scope, "sec-fetch-dest") == "document":
            return False  # somebody followed a link
        origin, site = header(scope, "origin"), header(scope, "sec-fetch-site")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return True
        return site not in (None, "same-origin", "none")

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token or b"")

    def _has_token(self, scope: Scope) -> bool:
        kind, _, given = (header(scope, "authorization") or "").partition(" ")
        if kind.lower() == "bearer":
            return self._is_token(given.strip())
        try:
            kept = SimpleCookie(header(scope, "cookie") or "").get(self.cookie_name)
        except CookieError:
            return False
        return kept is not None and hmac.compare_digest(kept.value.encode(), self.cookie.encode())

    def _in_address(self, scope: Scope) -> str:
        query = parse_qsl(scope["query_string"].decode("latin-1"))
        return dict(query).get("token", "") if scope["method"] in ("GET", "HEAD") else ""

    async def _keep(self, scope: Scope, send: Send) -> None:
        """Give the browser a cookie, and send it on to the address without the token."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        path = "/" + quote(scope["path"].lstrip("/\\"))  # of this server, whatever the path says
        kept = f"{self.cookie_name}={self.cookie}; HttpOnly; SameSite=Lax; Path=/"
        headers = [
            (b"location", f"{path}{'?' if rest else ''}{rest}".encode()),
            (b"set-cookie", kept.encode()),
            (b"content-length", b"0"),
        ]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
