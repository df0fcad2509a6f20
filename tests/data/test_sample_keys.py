"""Indices that are samples' own."""

from __future__ import annotations

import pytest

from resemblance._data import sample_keys
from resemblance._data.sample_keys import Distinct, index_of
from resemblance.errors import DataError


def test_an_index_is_a_function_of_the_key_for_ever():
    assert index_of("cats/0001") == 4962744157676639374
    many = {index_of(str(i)) for i in range(10_000)}
    assert len(many) == 10_000
    assert min(many) >= 0
    assert 2**62 < max(many) < 2**63


def test_names_that_are_no_text_have_an_index():
    assert index_of("\udcff") != index_of("\udcfe")


def test_a_key_that_comes_twice_is_refused(monkeypatch):
    monkeypatch.setattr(sample_keys, "_REMEMBERED", 2)
    distinct = Distinct()
    for index in (1, 2, 3, 3):  # the third is not remembered any more
        distinct.check(index, "x")
    with pytest.raises(DataError, match=r"the key of 0001 in b\\x1b came twice"):
        distinct.check(2, "0001 in b\x1b")
