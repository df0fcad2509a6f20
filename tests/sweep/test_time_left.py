"""How far a sweep is, on a clock that the test sets."""

from __future__ import annotations

from resemblance.sweep.outcomes import Began, Outcome
from resemblance.sweep.time_left import Course, in_words


def test_time_left_goes_by_pairs_on_the_same_data():
    course = Course({"a--x": "x", "b--x": "x", "c--x": "x", "a--y": "y"})
    assert course.left(0.0) is None  # nothing is known
    course.told(Began("a--x", "w0"), 0.0)
    course.told(Began("a--y", "w1"), 0.0)
    assert course.waiting == ["b--x", "c--x"]
    assert course.left_of("a--x", 5.0) is None
    course.told(Outcome("a--x", "recorded", 10.0), 10.0)
    assert course.left_of("a--y", 10.0) == 0.0  # as long as the other took, for want of better
    course.told(Began("b--x", "w0"), 10.0)
    assert course.left_of("b--x", 14.0) == 6.0
    assert course.left(14.0) == (6.0 + 0.0 + 10.0) / 2  # two workers share what is left
    course.told(Outcome("a--y", "recorded", 100.0), 100.0)
    assert course.left_of("b--x", 14.0) == 6.0  # other data do not count
    course.told(Began("c--x", "w1"), 100.0)
    assert course.left(100.0) == 10.0  # the longest that is under way


def test_what_ended_and_what_did_not():
    course = Course({"a": "x", "b": "x"})
    for state in ("busy", "again"):
        course.told(Began("a", "w"), 0.0)
        course.told(Outcome("a", state), 1.0)
        assert course.waiting == ["a", "b"]
    course.told(Outcome("a", "failed", 3.0), 2.0)
    course.told(Began("a", "w"), 2.0)  # told late
    assert course.running == {}
    assert course.left(2.0) is None  # a failure says nothing of the others
    course.told(Outcome("b", "there"), 3.0)
    assert course.left(3.0) == 0.0


def test_times_in_words():
    assert [in_words(x) for x in (9.96, 59.7, 3599.6)] == ["10.0 s", "1 min 0 s", "1 h 0 min"]
