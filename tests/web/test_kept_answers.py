"""Answers that are kept."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from resemblance.web.kept_answers import OWN, KeptAnswers


def test_those_who_ask_the_same_at_once_share_one_answer():
    kept, made = KeptAnswers(), []
    begun, go = threading.Event(), threading.Event()

    def make():
        made.append(1)
        begun.set()
        assert go.wait(10)
        return b"x"

    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(kept.of, "a", make)
        assert begun.wait(10)
        others = [pool.submit(kept.of, "a", make) for _ in range(7)]
        go.set()
        assert {x.result(10) for x in (first, *others)} == {b"x"}
    assert len(made) == 1


def test_an_error_is_not_kept():
    kept = KeptAnswers()

    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        kept.of("a", fail)
    assert kept.of("a", lambda: b"yes") == b"yes"


def test_those_not_asked_for_the_longest_give_way():
    kept = KeptAnswers(room=4 * (OWN + 10))
    for key in "abcd":
        kept.of(key, lambda: b"0" * 10)
    assert len(kept) == 4
    kept.of("a", lambda: b"!")
    kept.of("e", lambda: b"0" * 10)
    assert kept.of("a", lambda: b"new") == b"0" * 10
    assert kept.of("b", lambda: b"new") == b"new"


def test_one_that_would_take_most_of_the_room_is_not_kept():
    kept = KeptAnswers(room=4 * (OWN + 10))
    assert kept.of("a", lambda: b"0" * 11) == b"0" * 11
    assert len(kept) == 0


def test_questions_take_room_even_if_their_answers_are_empty():
    kept = KeptAnswers(room=100 * OWN)
    for word in range(1000):  # as somebody who searches for ever other words
        kept.of(word, lambda: b"")
    assert len(kept) == 100
