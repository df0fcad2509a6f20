"""Text from elsewhere, with nothing in it that a terminal obeys."""

from __future__ import annotations

import pytest

from resemblance._shown_text import shown


@pytest.mark.parametrize(
    ("character", "spelt"),
    [
        ("\x1b", r"\x1b"),
        ("\x00", r"\x00"),
        ("\n", r"\n"),
        ("\r", r"\r"),
        ("\t", r"\t"),
        ("\x7f", r"\x7f"),
        ("\x9b", r"\x9b"),  # a C1 control: begins a sequence as ESC [ does
        ("\u202e", r"\u202e"),
        ("\u2066", r"\u2066"),
        ("\u200f", r"\u200f"),
        ("\u2028", r"\u2028"),
        ("\udc80", r"\udc80"),  # a byte of a file name that is not UTF-8
    ],
)
def test_a_character_that_would_be_obeyed_is_spelt_out(character, spelt):
    assert shown(f"a{character}b") == f"a{spelt}b"


def test_every_other_character_stays():
    for text in ("net[v2]", "[/x] :smile:", "naïve 网络 ‖μ‖ ± 0", r"C:\nets\x1b", "a$b$"):
        assert shown(text) == text
