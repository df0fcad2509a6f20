"""Numbers with as many digits as they need, and text that no terminal obeys."""

from __future__ import annotations

import math

import pytest

from resemblance._utils import formatting as digits
from resemblance._utils.formatting import printable


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (0.8741, 0.0123, "0.874 ± 0.012"),
        (0.5, 0.0996, "0.50 ± 0.10"),
        (0.5, 0.3, "0.50 ± 0.30"),
        (0.99996, 0.0000124, "0.999960 ± 0.000012"),
        (0.9996, 0.012, "0.9996 ± 0.0120"),  # not 1.000
        (0.99999993, 2e-8, "1−7e-8 ± 2e-8"),
        (0.999998, 1e-7, "0.999998 ± 1e-7"),
        (1.0, 0.0, "1"),
        (1 - 1e-12, 1e-11, "1"),  # what round-off leaves of a layer and itself
        (1 - 7e-16, 9e-9, "1"),  # and packing, of kernels in blocks
        (1.0, 1e-5, "1.000000 ± 0.000010"),
        (-0.0123, 0.002, "-0.0123 ± 0.0020"),
        (0.5, math.nan, "0.500"),
        (0.99996, math.nan, "0.99996"),
        (0.5, 0.0, "0.500 ± 0.000"),
        (math.nan, 0.1, "–"),
    ],
)
def test_a_score_has_two_digits_of_its_error_and_is_never_rounded_to_one(value, error, shown):
    assert digits.join_error(digits.format_score(value, error)) == shown


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (0.0193, 0.00027, "0.01930 ± 0.00027"),
        (1.69e-4, 1.6e-5, "1.69e-4 ± 1.6e-5"),
        (-1.2e-9, 3.4e-8, "-1e-9 ± 3.4e-8"),
        (0.0, 3e-8, "0 ± 3.0e-8"),
        (9.5361, 0.0152, "9.536 ± 0.015"),
        (12345.6, 234.0, "12,346 ± 234"),
        (2.5e-7, None, "2.50e-7"),
        (2.5, math.nan, "2.5"),
        (None, None, "–"),
        (math.nan, 0.1, "–"),
    ],
)
def test_a_quantity_of_any_size_has_digits_that_show_it(value, error, shown):
    assert digits.join_error(digits.format_quantity(value, error)) == shown


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
    assert printable(f"a{character}b") == f"a{spelt}b"


def test_every_other_character_stays():
    for text in ("net[v2]", "[/x] :smile:", "naïve 网络 ‖μ‖ ± 0", r"C:\nets\x1b", "a$b$"):
        assert printable(text) == text
