"""Headers that every answer of the server carries: a browser may load nothing from elsewhere.

The policy allows the server's own scripts and style sheets, no inline ones, no frames and no other
place to send anything to; scripts may not turn text into markup.
"""

from __future__ import annotations

from .asgi import Message, Receive, Scope, Send, Server

POLICY = "; ".join(
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
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_CACHED = "cache-control"


class ResponseHeaders:
    """A server whose answers carry `HEADERS`, errors as well; nothing is cached unless it says."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                there = {name.decode("latin-1").lower() for name, _ in headers}
                own = HEADERS if _CACHED in there else {**HEADERS, _CACHED: "no-store"}
                headers = [(k, v) for k, v in headers if k.decode("latin-1").lower() not in HEADERS]
                headers += [(k.encode(), v.encode()) for k, v in own.items()]
                message = {**message, "headers": headers}
            await send(message)

        await self.server(scope, receive, sending)
