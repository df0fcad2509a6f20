"""A progress bar, where someone can see it."""

from __future__ import annotations

import sys

import pytest

from resemblance._utils.progress import progress_bar


def test_silent_in_a_pipe(capsys):
    with progress_bar(None, 10, "Net") as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("total", "expected"), [(10, "10/10"), (None, "10/?")])
def test_shown_when_asked_on_standard_error(capsys, total, expected):
    with progress_bar(True, total, "Net") as advance:
        advance(4)
        advance(6)
    out, err = capsys.readouterr()
    assert out == ""
    assert "Net" in err
    assert expected in err


def test_shown_on_a_terminal_unless_refused(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar(False, 10, "Net") as advance:
        advance(10)
    assert capsys.readouterr().err == ""
    with progress_bar(None, 10, "Net") as advance:
        advance(10)
    assert "Net" in capsys.readouterr().err


def test_a_name_is_shown_and_not_obeyed(capsys):
    with progress_bar(True, 10, "recording net[v2] [/x] \x1b]0;owned\x07 :smile:") as advance:
        advance(10)
    assert r"recording net[v2] [/x] \x1b]0;owned\x07 :smile:" in capsys.readouterr().err
