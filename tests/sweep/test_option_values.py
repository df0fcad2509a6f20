"""Values from a file are checked by the annotations of `record`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from resemblance.sweep.option_values import defaults_of_record, fits, in_words, of_record


@pytest.mark.parametrize(
    ("option", "good", "wrong"),
    [
        ("layers", ["auto", ["1", "2"]], [3, [], [1]]),
        ("beta", [0.5, 1], ["0.5", True, None]),
        ("gradients", [True], [1, "yes"]),
        ("block", [64, "auto"], ["automatic", 1.5, None]),
        ("max_dim", [64, "auto", None], ["none"]),
        ("pool", ["mean", "last"], ["men", 1]),
        ("target", ["labels"], ["label"]),
        ("outputs_of", ["base.rsm", None], [1]),
    ],
)
def test_what_fits(option, good, wrong):
    hint = of_record()[option]
    assert [fits(value, hint) for value in good] == [True] * len(good)
    assert [fits(value, hint) for value in wrong] == [False] * len(wrong)
    assert in_words(hint)


def test_what_only_python_can_give_fits_nothing():
    assert not fits("f", Callable[[Any], Any])
    assert not {"call", "logits", "tokenizer", "checkpoint", "shard"}.intersection(of_record())


def test_defaults_fit_what_they_are_defaults_of():
    hints = of_record()
    assert all(fits(value, hints[name]) for name, value in defaults_of_record().items())


def test_words():
    assert in_words(of_record()["pool"]) == "flatten, mean, first or last"
    assert in_words(str | Sequence[str]) == "a text or a list of texts"
