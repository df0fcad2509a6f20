"""A buffer moves samples, and does nothing else to them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resemblance._data.shuffle_buffer import shuffled_in_buffer


@given(st.lists(st.integers()), st.integers(0, 2**64 - 1), st.integers(1, 60))
def test_every_item_comes_once_in_an_order_of_the_seed(items, seed, size):
    found = list(shuffled_in_buffer(items, seed, size))
    assert sorted(found) == sorted(items)
    assert found == list(shuffled_in_buffer(iter(items), seed, size))


@given(st.integers(0, 300), st.integers(1, 60))
def test_no_more_wait_than_the_buffer_holds(count, size):
    taken = 0

    def items():
        nonlocal taken
        for i in range(count):
            taken += 1
            yield i

    for given_on, _ in enumerate(shuffled_in_buffer(items(), 0, size)):
        assert taken - given_on <= size


@given(st.integers(0, 200), st.integers(1, 60), st.integers(0, 200))
def test_what_comes_first_does_not_depend_on_how_much_is_taken(count, size, some):
    whole = list(shuffled_in_buffer(range(count), 7, size))
    assert list(itertools.islice(shuffled_in_buffer(range(count), 7, size), some)) == whole[:some]


def test_a_buffer_of_one_leaves_the_order_and_seeds_differ():
    assert list(shuffled_in_buffer(range(50), 3, 1)) == list(range(50))
    assert list(shuffled_in_buffer(range(50), 3, 9)) != list(shuffled_in_buffer(range(50), 4, 9))


def test_a_buffer_of_all_is_as_random_as_can_be():
    places = np.array([list(shuffled_in_buffer(range(20), seed, 20)) for seed in range(2000)])
    share = np.array([(places == i).mean(0) for i in range(20)])
    # of 2,000 draws with chance 1/20, whose standard deviation is 0.005, 400 of them
    assert np.abs(share - 1 / 20).max() < 5 * 0.005


def test_bytes_that_wait_are_few():
    weights = [10, 10, 10, 1000, 10, 10]
    found = list(shuffled_in_buffer(weights, 0, 100, weight=lambda w: w, room=25))
    assert sorted(found) == sorted(weights)
    waiting = []
    for item in shuffled_in_buffer(
        (waiting.append(w) or w for w in weights), 0, 100, weight=lambda w: w, room=25
    ):
        waiting.remove(item)
        assert sum(waiting) <= 1010  # the newcomer, and what fitted


@pytest.mark.parametrize("size", [1, 5, 100])
def test_nothing_comes_of_nothing(size):
    assert list(shuffled_in_buffer([], 0, size)) == []
