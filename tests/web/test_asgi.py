"""What stands around a server: headers, and answers in its place."""

from __future__ import annotations

import asyncio
import json

from resemblance.web.asgi import header, refuse


def test_a_header_that_is_there_twice_says_nothing():
    scope = {"headers": [(b"host", b"a"), (b"origin", b"x"), (b"origin", b"y")]}
    assert header(scope, "host") == "a"
    assert header(scope, "origin") == ""
    assert header(scope, "cookie") is None


def test_a_refusal_is_json_with_a_message():
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(refuse(send, 421, 'not "here"', [(b"x", b"y")]))
    assert sent[0]["status"] == 421
    assert (b"x", b"y") in sent[0]["headers"]
    assert json.loads(sent[1]["body"]) == {"error": 'not "here"'}
