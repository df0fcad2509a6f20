"""Connections that ask nothing are hung up; those that ask are answered, however long it takes."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest

from optional_libraries import needs

pytestmark = needs("uvicorn")
REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


async def app(scope, receive, send):
    await asyncio.sleep(1.0)  # longer than the patience for a request
    headers = [(b"content-length", b"5")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hello"})


@pytest.fixture
def address(monkeypatch):
    import uvicorn

    from resemblance.web import server as server_module

    monkeypatch.setattr(server_module, "PATIENCE", 0.4)
    config = uvicorn.Config(
        app, http=server_module.TimeoutProtocol, lifespan="off", log_level="error", port=0
    )
    server = uvicorn.Server(config)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        yield listening.getsockname()
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


def closed(connection):
    """Whether the other side hangs up, rather than say anything."""
    connection.settimeout(10)
    return connection.recv(100) == b""


def answer(connection):
    """All of it, which may come in parts; an error if it ends before."""
    found = b""
    while not found.endswith(b"hello"):
        part = connection.recv(1000)
        assert part, found
        found += part
    return found


def test_who_asks_nothing_or_never_ends_asking_is_hung_up(address):
    with socket.create_connection(address) as silent, socket.create_connection(address) as half:
        half.sendall(REQUEST[:10])
        assert closed(silent)
        assert closed(half)


def test_who_begins_a_second_request_and_stops_is_hung_up(address):
    with socket.create_connection(address) as connection:
        connection.settimeout(10)
        connection.sendall(REQUEST)
        assert answer(connection).startswith(b"HTTP/1.1 200")
        connection.sendall(REQUEST[:10])
        assert closed(connection)


def test_an_answer_may_take_longer_and_a_connection_be_used_again(address):
    with socket.create_connection(address) as connection:
        connection.settimeout(10)
        for _ in range(2):
            connection.sendall(REQUEST)
            began = time.monotonic()
            answer(connection)
            assert time.monotonic() - began > 0.9
