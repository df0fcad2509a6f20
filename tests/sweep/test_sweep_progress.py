"""Progress of a sweep: remaining time on a clock the test sets, and outcomes in words."""

from __future__ import annotations

from resemblance.errors import DataError
from resemblance.sweep.progress import (
    Outcome,
    PairStarted,
    SweepProgress,
    failed_outcome,
    format_duration,
)


def test_time_left_goes_by_pairs_on_the_same_data():
    course = SweepProgress({"a--x": "x", "b--x": "x", "c--x": "x", "a--y": "y"})
    assert course.left(0.0) is None  # nothing is known
    course.told(PairStarted("a--x", "w0"), 0.0)
    course.told(PairStarted("a--y", "w1"), 0.0)
    assert course.waiting == ["b--x", "c--x"]
    assert course.left_of("a--x", 5.0) is None
    course.told(Outcome("a--x", "recorded", 10.0), 10.0)
    assert course.left_of("a--y", 10.0) == 0.0  # as long as the other took, for want of better
    course.told(PairStarted("b--x", "w0"), 10.0)
    assert course.left_of("b--x", 14.0) == 6.0
    assert course.left(14.0) == (6.0 + 0.0 + 10.0) / 2  # two workers share what is left
    course.told(Outcome("a--y", "recorded", 100.0), 100.0)
    assert course.left_of("b--x", 14.0) == 6.0  # other data do not count
    course.told(PairStarted("c--x", "w1"), 100.0)
    assert course.left(100.0) == 10.0  # the longest that is under way


def test_what_ended_and_what_did_not():
    course = SweepProgress({"a": "x", "b": "x"})
    for state in ("busy", "again"):
        course.told(PairStarted("a", "w"), 0.0)
        course.told(Outcome("a", state), 1.0)
        assert course.waiting == ["a", "b"]
    course.told(Outcome("a", "failed", 3.0), 2.0)
    course.told(PairStarted("a", "w"), 2.0)  # told late
    assert course.running == {}
    assert course.left(2.0) is None  # a failure says nothing of the others
    course.told(Outcome("b", "there"), 3.0)
    assert course.left(3.0) == 0.0


def test_times_in_words():
    assert [format_duration(x) for x in (9.96, 59.7, 3599.6)] == [
        "10.0 s",
        "1 min 0 s",
        "1 h 0 min",
    ]


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return failed_outcome("a--x", caught)


def test_what_this_package_refuses_is_not_tried_again():
    found = raised(DataError("no data;\nbring some"))
    assert (found.error, found.state) == ("no data; bring some", "failed")


def test_what_others_raise_may_pass():
    found = raised(ValueError("bad\nluck"))
    assert (found.error, found.state) == ("ValueError: bad luck", "again")
    assert raised(KeyError()).error == "KeyError"
    first, blank, *trace = found.text.splitlines()
    assert (first, blank, trace[0]) == (found.error, "", "Traceback (most recent call last):")


def test_the_text_of_an_error_without_a_traceback_is_its_line():
    found = Outcome("a--x", "failed", error="its worker died: SIGKILL")
    assert found.text == "its worker died: SIGKILL\n"
