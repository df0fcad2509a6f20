"""Headers of every answer."""

from __future__ import annotations

import asyncio

from resemblance.web.response_headers import HEADERS, POLICY, ResponseHeaders


def sent(headers):
    out = []

    async def server(scope, receive, send):
        await send({"type": "http.response.start", "status": 500, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def send(message):
        out.append(message)

    asyncio.run(ResponseHeaders(server)({"type": "http"}, None, send))
    assert out[1] == {"type": "http.response.body", "body": b""}
    return [(key.decode().lower(), value.decode()) for key, value in out[0]["headers"]]


def test_every_answer_carries_them_once_whatever_the_server_says():
    found = sent([(b"Referrer-Policy", b"unsafe-url"), (b"x-own", b"1")])
    for name, value in HEADERS.items():
        assert [v for key, v in found if key == name] == [value]
    assert ("x-own", "1") in found


def test_nothing_is_cached_unless_it_says():
    assert ("cache-control", "no-store") in sent([])
    assert ("cache-control", "no-store") not in sent([(b"cache-control", b"no-cache")])


def test_the_policy_allows_nothing_inline_and_nothing_from_elsewhere():
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert {rules[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert rules["trusted-types"] == rules["form-action"] == "'none'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in POLICY
    assert "http" not in POLICY
