"""Where the server listens, and the token that it then needs."""

from __future__ import annotations

import socket

import pytest

from resemblance.demo.zoo_demo import PAGE_URL
from resemblance.errors import DataError
from resemblance.web import DEFAULT_PORT
from resemblance.web.server import (
    TOKEN_VARIABLE,
    choose_token,
    listen,
    validate_host_names,
)

TOKEN = "a-token-of-enough-letters"


def test_a_token_is_given_made_or_in_the_environment(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert choose_token("") is None
    assert choose_token(TOKEN) == TOKEN
    first, second = choose_token("auto"), choose_token("auto")
    assert first != second
    assert len(first) == 32  # 24 random bytes
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN[::-1])
    assert choose_token("") == TOKEN[::-1]
    assert choose_token(TOKEN) == TOKEN


def test_tokens_that_cannot_be_are_refused(monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "short")
    for given in ("", "short"):
        with pytest.raises(DataError, match="at least 16"):
            choose_token(given)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_others_can_reach_needs_a_token(host):
    with pytest.raises(DataError, match=r"--token is required"):
        listen(host, 0, None)


def test_the_address_is_one_that_a_browser_here_can_open():
    place = listen("127.0.0.1", 0, None)
    try:
        assert place.loopback
        assert place.address() == f"http://127.0.0.1:{place.port}/"
        assert place.address("a&b=c") == f"http://127.0.0.1:{place.port}/?token=a%26b%3Dc"
    finally:
        place.socket.close()
    place = listen("0.0.0.0", 0, TOKEN)
    try:
        assert not place.loopback
        assert place.address().startswith("http://127.0.0.1:")
    finally:
        place.socket.close()


def test_a_port_that_is_taken_and_a_host_that_is_none_are_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(DataError, match="choose a different port with --port"):
            listen("127.0.0.1", taken.getsockname()[1], None)
    with pytest.raises(DataError, match="--host must be an address"):
        listen("no.such.host.invalid", 0, None)


def test_names_to_be_reached_by_are_names():
    assert validate_host_names(["Zoo.Example.org:8443", "10.0.0.1"]) == {
        "zoo.example.org",
        "10.0.0.1",
    }
    for name in ("https://zoo.example.org", "zoo.example.org/x", ""):
        with pytest.raises(DataError, match="--allow-host must be a name"):
            validate_host_names([name])


def test_the_demo_names_the_address_that_the_server_has_by_default():
    assert f"http://127.0.0.1:{DEFAULT_PORT}/" == PAGE_URL
