"""ASGI middleware: host check, same-origin check, access token, and security headers.

A page from elsewhere that is open in a browser can send requests here, too. So a request must name
this server as its host (a foreign name that resolves to this address is refused: DNS rebinding), no
page of another origin may request anything (a link there may still lead here), and if there is a
token every request needs it: as `Authorization: Bearer TOKEN`, or once as `?token=TOKEN`, which the
browser then keeps as an HttpOnly cookie.

Every response carries a content security policy that allows the server's own scripts and style
sheets, no inline ones, no frames and no other destination; scripts may not turn text into markup.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import DataError


def request_header(scope: Scope, name: str) -> str | None:
    """A request header; None if it is absent, and "" if it is repeated and therefore ambiguous."""
    values = Headers(scope=scope).getlist(name)
    return None if not values else values[0] if len(values) == 1 else ""


def refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """A JSON error response that closes the connection, so that no body is read."""
    return JSONResponse({"error": message}, status, {"connection": "close", **(headers or {})})


CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class SecurityHeaders:
    """Adds `SECURITY_HEADERS` to all responses, errors as well, and forbids caching by default."""

    def __init__(self, server: ASGIApp) -> None:
        self.server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self.server(scope, receive, send_with_headers)


MIN_TOKEN_LENGTH = 16  # characters of a token
_HOST_PATTERN = re.compile(r"(?:\[([^/@?#\[\] ]*:[^/@?#\[\] ]*)\]|([^:/@?#\[\] ]*))(?::[0-9]*)?")
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_MSG_TOKEN = (
    "open the address that `resemblance serve` printed, or send Authorization: Bearer TOKEN"
)


def validate_token(token: str) -> str:
    """A token, or an error that says what one is."""
    if (
        len(token) < MIN_TOKEN_LENGTH
        or not token.isascii()
        or not token.isprintable()
        or " " in token
    ):
        raise DataError(
            f"a token must have at least {MIN_TOKEN_LENGTH} printable ASCII characters and no "
            f"spaces; found {len(token)} characters: use --token auto for a random one"
        )
    return token


def parse_host(text: str) -> str:
    """The name in a Host header, without a port; "" if it is none.

    >>> parse_host("localhost:8000"), parse_host("[::1]:8000"), parse_host("a:b@c")
    ('localhost', '::1', '')
    """
    found = _HOST_PATTERN.fullmatch(text.lower())
    return "" if found is None else (found[1] or found[2]).removesuffix(".")


class AccessControl:
    """Middleware that decides which requests reach the server.

    Args:
        hosts: names that requests may address. With `literal`, any IP address as well: a page on a
            foreign name cannot use one as its own.
        token: what every request needs, or None.
    """

    def __init__(
        self,
        server: ASGIApp,
        *,
        hosts: Iterable[str] = LOOPBACK_HOSTS,
        literal: bool = False,
        token: str | None = None,
    ) -> None:
        self.server = server
        self.hosts = frozenset(host.lower().removesuffix(".") for host in hosts)
        self.literal = literal
        self.token = None if token is None else validate_token(token).encode()
        key = secrets.token_bytes(32)  # so that a cookie dies with the server, and is no token
        self.cookie = hmac.new(key, self.token or b"", hashlib.sha256).hexdigest()
        self.cookie_name = f"resemblance-{hashlib.sha256(key).hexdigest()[:8]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = self.server
        if scope["type"] == "http":
            response = self._check(scope) or self.server
        elif scope["type"] != "lifespan":
            return
        await response(scope, receive, send)

    def _check(self, scope: Scope) -> ASGIApp | None:
        """The response to a request that the server must not see; None if it may."""
        host = request_header(scope, "host") or ""
        if not self._is_own_host(parse_host(host)):
            name = f"{host[:80]!r} is not a host name of this server"
            return refusal(421, f"{name}; start the server with --allow-host for this name")
        if self._is_cross_origin(scope, host):
            return refusal(403, "requests from pages of a different origin are not allowed")
        if self.token is None:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if scope["method"] in ("GET", "HEAD") and self._is_token(dict(query).get("token", "")):
            return self._redirect_with_cookie(scope["path"], query)  # links are copied from there
        if self._is_authorised(scope):
            return None
        return refusal(401, f"access token required: {_MSG_TOKEN}", {"www-authenticate": "Bearer"})

    def _is_own_host(self, host: str) -> bool:
        if host in self.hosts:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return self.literal

    def _is_cross_origin(self, scope: Scope, host: str) -> bool:
        destination = request_header(scope, "sec-fetch-dest")
        if scope["method"] in _SAFE_METHODS and destination == "document":
            return False  # somebody followed a link
        origin, site = request_header(scope, "origin"), request_header(scope, "sec-fetch-site")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return True
        return site not in (None, "same-origin", "none")

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self.token or b"")

    def _is_authorised(self, scope: Scope) -> bool:
        kind, _, token = (request_header(scope, "authorization") or "").partition(" ")
        if kind.lower() == "bearer":
            return self._is_token(token.strip())
        own = f"{self.cookie_name}={self.cookie}".encode()  # beside those of others on this host
        cookies = ";".join(Headers(scope=scope).getlist("cookie")).split(";")
        return any(hmac.compare_digest(x.strip().encode(), own) for x in cookies)

    def _redirect_with_cookie(self, path: str, query: list[tuple[str, str]]) -> RedirectResponse:
        """Give the browser a cookie, and redirect it to the same address without the token."""
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        own = "/" + quote(path.lstrip("/\\"))  # on this server, whatever the path says
        cookie = f"{self.cookie_name}={self.cookie}; HttpOnly; SameSite=Lax; Path=/"
        return RedirectResponse(
            f"{own}{'?' if rest else ''}{rest}", 303, headers={"set-cookie": cookie}
        )
