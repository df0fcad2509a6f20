"""Which requests are answered at all, and the headers of every answer."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resemblance.errors import DataError
from resemblance.web.security import (
    CONTENT_SECURITY_POLICY,
    SECURITY_HEADERS,
    AccessControl,
    SecurityHeaders,
    parse_host,
    refusal,
    request_header,
    validate_token,
)

TOKEN = "a-token-of-enough-letters"


async def inner(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"in"})


def asked(app, path="/", method="GET", host="localhost:8642", **headers):
    async def ask():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            names = {key.replace("_", "-"): value for key, value in headers.items()}
            return await client.request(method, path, headers={"host": host, **names})

    return asyncio.run(ask())


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8642", "[::1]:8642"])
def test_names_of_the_loopback_are_answered(host):
    assert asked(AccessControl(inner), host=host).text == "in"


@pytest.mark.parametrize(
    "host",
    [
        "evil.com",
        "evil.com:8642",
        "localhost.evil.com",
        "10.0.0.1",
        "",
        "localhost:x",
        "a@localhost",
    ],
)
def test_a_foreign_name_that_was_pointed_here_is_not(host):
    found = asked(AccessControl(inner), host=host)
    assert found.status_code == 421
    assert "not a host name of this server" in found.json()["error"]


def test_addresses_in_digits_are_answered_where_others_may_reach_the_server():
    app = AccessControl(inner, hosts=["zoo.example"], literal=True)
    assert asked(app, host="10.0.0.1:80").status_code == 200
    assert asked(app, host="Zoo.Example.").status_code == 200
    assert asked(app, host="other.example").status_code == 421


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://localhost:8642"}, 200),
        ({"origin": "http://evil.com"}, 403),
        ({"origin": "http://localhost:9"}, 403),
        ({"origin": "null"}, 403),
        ({"sec_fetch_site": "same-origin"}, 200),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
    ],
)
def test_a_page_of_another_origin_may_not_ask_but_link(headers, status):
    for method in ("POST", "GET"):
        assert asked(AccessControl(inner), method=method, **headers).status_code == status
    followed = {**headers, "sec_fetch_dest": "document"}
    assert asked(AccessControl(inner), **followed).status_code == 200
    assert asked(AccessControl(inner), method="POST", **followed).status_code == status  # a form


def test_who_is_refused_is_not_listened_to():
    found = asked(AccessControl(inner, token=TOKEN), method="POST")
    assert found.status_code == 401
    assert found.headers["connection"] == "close"


@pytest.mark.parametrize("path", ["/", "/static/zoo.js", "/api/zoo", "/api/openapi.json", "/gone"])
def test_with_a_token_every_request_needs_it(path):
    app = AccessControl(inner, token=TOKEN)
    found = asked(app, path)
    assert found.status_code == 401
    assert "access token required" in found.json()["error"]
    for wrong in (
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        "Bearer",
        f"Basic {TOKEN}",
        "Bearer é",
    ):
        assert asked(app, path, authorization=wrong.encode()).status_code == 401
    assert asked(app, path, authorization=f"Bearer {TOKEN}").status_code == 200


def test_a_browser_gets_a_cookie_for_the_token_in_an_address():
    app = AccessControl(inner, token=TOKEN)
    assert asked(app, "/?token=wrong-wrong-wrong").status_code == 401
    found = asked(app, f"/some%20where?a=1&token={TOKEN}&b=%26")
    assert found.status_code == 303
    assert found.headers["location"] == "/some%20where?a=1&b=%26"
    kept = found.headers["set-cookie"]
    assert "HttpOnly" in kept
    assert "SameSite=Lax" in kept
    assert TOKEN not in kept
    name, _, value = kept.partition(";")[0].partition("=")
    assert asked(app, cookie=f"{name}={value}").status_code == 200
    again = asked(app, f"/?token={TOKEN}", cookie=f"{name}={value}")
    assert (again.status_code, again.headers["location"]) == (303, "/")  # to be copied from there
    assert asked(app, cookie=f"{name}={value[:-1]}0x").status_code == 401
    other = AccessControl(inner, token=TOKEN)  # as after a new start
    assert asked(other, cookie=f"{name}={value}").status_code == 401
    assert asked(app, f"/?token={TOKEN}", method="POST").status_code == 401


@pytest.mark.parametrize("path", ["//evil.com/", "/\\evil.com", "///evil.com"])
def test_a_browser_is_not_sent_elsewhere(path):
    # by hand: clients tidy up such paths
    sent = []

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": f"token={TOKEN}".encode(),
        "headers": [(b"host", b"localhost")],
    }
    asyncio.run(AccessControl(inner, token=TOKEN)(scope, None, send))
    where = dict(sent[0]["headers"])[b"location"].decode()
    assert where.startswith("/")
    assert not where.startswith(("//", "/\\"))


@pytest.mark.parametrize(
    "token", ["short", "x" * 15, "spaces are not taken", "ümlaut-ümlaut-ümlaut"]
)
def test_a_poor_token_is_refused(token):
    with pytest.raises(DataError, match="at least 16 printable ASCII"):
        validate_token(token)


def test_what_is_no_request_is_passed_on_or_dropped():
    seen = []

    async def server(scope, receive, send):
        seen.append(scope["type"])

    for kind in ("lifespan", "websocket"):
        asyncio.run(AccessControl(server)({"type": kind}, None, None))
    assert seen == ["lifespan"]


@given(st.text(max_size=40))
def test_a_host_is_a_name_or_nothing(text):
    found = parse_host(text)
    assert not set(found) & set("/@?#[] ")
    assert found == found.lower()


# What other servers on the same host leave in a browser: forms of cookies that no standard allows.
FOREIGN = [
    "a=b", 'a="b', "a=b c", "a=b,c", "a", "=b", "a b=c", "a={\"x\":1}", "a=\\", "a[0]=b", "a@b=c",
    "a=b=c", "ä=ö", "a=;;",
]  # fmt: skip


@pytest.mark.parametrize("foreign", FOREIGN)
def test_a_foreign_cookie_keeps_nobody_out(foreign):
    app = AccessControl(inner, token=TOKEN)
    kept = asked(app, f"/?token={TOKEN}").headers["set-cookie"].partition(";")[0]
    for line in (f"{foreign}; {kept}", f"{kept}; {foreign}", f"{foreign};{kept};{foreign}"):
        assert asked(app, cookie=line.encode()).status_code == 200
    assert asked(app, cookie=foreign.encode()).status_code == 401


def test_a_header_that_is_there_twice_says_nothing():
    scope = {"headers": [(b"host", b"a"), (b"origin", b"x"), (b"origin", b"y")]}
    assert request_header(scope, "host") == "a"
    assert request_header(scope, "origin") == ""
    assert request_header(scope, "cookie") is None


def test_a_refusal_is_json_with_a_message():
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(refusal(421, 'not "here"', {"x": "y"})({"type": "http"}, None, send))
    assert sent[0]["status"] == 421
    assert {(b"x", b"y"), (b"connection", b"close")} <= set(sent[0]["headers"])
    assert json.loads(sent[1]["body"]) == {"error": 'not "here"'}


def sent(headers):
    out = []

    async def server(scope, receive, send):
        await send({"type": "http.response.start", "status": 500, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def send(message):
        out.append(message)

    asyncio.run(SecurityHeaders(server)({"type": "http"}, None, send))
    assert out[1] == {"type": "http.response.body", "body": b""}
    return [(key.decode().lower(), value.decode()) for key, value in out[0]["headers"]]


def test_every_answer_carries_them_once_whatever_the_server_says():
    found = sent([(b"referrer-policy", b"unsafe-url"), (b"x-own", b"1")])
    for name, value in SECURITY_HEADERS.items():
        assert [v for key, v in found if key == name] == [value]
    assert ("x-own", "1") in found


def test_nothing_is_cached_unless_it_says():
    assert ("cache-control", "no-store") in sent([])
    assert ("cache-control", "no-store") not in sent([(b"cache-control", b"no-cache")])


def test_the_policy_allows_nothing_inline_and_nothing_from_elsewhere():
    rules = dict(rule.split(" ", 1) for rule in CONTENT_SECURITY_POLICY.split("; "))
    assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert {rules[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert rules["trusted-types"] == rules["form-action"] == "'none'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "http" not in CONTENT_SECURITY_POLICY
