"""Failures in words: a line, a traceback, and whether another attempt makes sense."""

from __future__ import annotations

from resemblance.errors import DataError
from resemblance.sweep.outcomes import failed, lost


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return failed("a--x", caught, 2.0)


def test_what_this_package_refuses_is_not_tried_again():
    found = raised(DataError("no data;\nbring some"))
    assert (found.error, found.again, found.seconds) == ("no data; bring some", False, 2.0)


def test_what_others_raise_may_pass():
    found = raised(ValueError("bad\nluck"))
    assert (found.error, found.again) == ("ValueError: bad luck", True)
    assert raised(KeyError()).error == "KeyError"
    first, blank, *trace = found.text.splitlines()
    assert (first, blank, trace[0]) == (found.error, "", "Traceback (most recent call last):")


def test_a_worker_that_died():
    found = lost("a--x", "SIGKILL")
    assert (found.state, found.error, found.again) == ("failed", "its worker died: SIGKILL", True)
    assert found.text == "its worker died: SIGKILL\n"
