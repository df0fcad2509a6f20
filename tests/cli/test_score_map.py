"""All pairs of layers: in digits where they fit, in shades where only those do."""

from __future__ import annotations

import io
import sys

import numpy as np

from made_up import comparison
from resemblance.cli.score_map import needs, score_map


def many(n):
    """Scores that fall with the distance of layers."""
    far = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    return comparison(
        1 - far / n,
        rows=tuple(f"model.layers.{i}" for i in range(n)),
        columns=tuple(f"model.layers.{i}" for i in range(n)),
    )


def test_two_digits_a_pair_under_the_numbers_of_columns():
    found = comparison([[0.256, 1.0], [float("nan"), 0.999]])
    assert list(score_map(found, 80)) == [
        "features: rows one, columns two",
        "       1   2",
        "1 r0 .26   1",
        "2 r1   – .99",
        "columns: 1 c0, 2 c1",
    ]


def test_what_does_not_fit_in_digits_is_shaded():
    assert list(score_map(many(6), 13))[1:] == [
        "1 0 █▇▆▅▃▂",
        "2 1 ▇█▇▆▅▃",
        "3 2 ▆▇█▇▆▅",
        "4 3 ▅▆▇█▇▆",
        "5 4 ▃▅▆▇█▇",
        "6 5 ▂▃▅▆▇█",
        "columns 1 to 6, from ▁ (0) to █ (1)",
    ]


def test_a_map_is_no_wider_than_it_may_be():
    for n in (5, 19, 60, 100):
        found = many(n)
        for room in {needs(found), max(80, needs(found)), 120}:
            lines = list(score_map(found, room))
            assert max(map(len, lines[1:-1])) <= room
            assert len(lines) >= n + 2
    assert needs(many(100)) == 107


def test_plain_characters_where_the_output_has_no_others(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    lines = list(score_map(many(6), 13))
    assert lines[1] == "1 0 986531"
    assert all(line.isascii() for line in lines)
