"""Where the server listens, and the token that it then needs."""

from __future__ import annotations

import socket

import pytest

from resemblance.demo.zoo_story import PAGE
from resemblance.errors import DataError
from resemblance.web.listening import PORT, VARIABLE, checked_names, chosen_token, listening

TOKEN = "a-token-of-enough-letters"


def test_a_token_is_given_made_read_or_in_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert chosen_token("", None) is None
    assert chosen_token(TOKEN, None) == TOKEN
    first, second = chosen_token("auto", None), chosen_token("auto", None)
    assert first != second
    assert len(first) == 32  # 24 random bytes
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert chosen_token("", file) == TOKEN
    monkeypatch.setenv(VARIABLE, TOKEN[::-1])
    assert chosen_token("", None) == TOKEN[::-1]
    assert chosen_token("", file) == TOKEN


def test_tokens_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(DataError, match="found both"):
        chosen_token(TOKEN, tmp_path / "x")
    with pytest.raises(DataError, match="cannot read the token"):
        chosen_token("", tmp_path / "x")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(DataError, match="at least 16"):
        chosen_token("", tmp_path / "empty")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_others_can_reach_needs_a_token(host):
    with pytest.raises(DataError, match=r"others can reach .*--token is needed"):
        listening(host, 0, None)


def test_the_address_is_one_that_a_browser_here_can_open():
    place = listening("127.0.0.1", 0, None)
    try:
        assert place.loopback
        assert place.address() == f"http://127.0.0.1:{place.port}/"
        assert place.address("a&b=c") == f"http://127.0.0.1:{place.port}/?token=a%26b%3Dc"
    finally:
        place.socket.close()
    place = listening("0.0.0.0", 0, TOKEN)
    try:
        assert not place.loopback
        assert place.address().startswith("http://127.0.0.1:")
    finally:
        place.socket.close()


def test_a_port_that_is_taken_and_a_host_that_is_none_are_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(DataError, match="choose another with --port"):
            listening("127.0.0.1", taken.getsockname()[1], None)
    with pytest.raises(DataError, match="--host must be an address"):
        listening("no.such.host.invalid", 0, None)


def test_names_to_be_reached_by_are_names():
    assert checked_names(["Zoo.Example.org:8443", "10.0.0.1"]) == {"zoo.example.org", "10.0.0.1"}
    for name in ("https://zoo.example.org", "zoo.example.org/x", ""):
        with pytest.raises(DataError, match="--allow-host must be a name"):
            checked_names([name])


def test_the_demo_names_the_address_that_the_server_has_by_default():
    assert f"http://127.0.0.1:{PORT}/" == PAGE
