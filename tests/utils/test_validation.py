"""Options that are whole numbers, and names that must not be empty."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from resemblance._utils.validation import (
    check_integer,
    check_nonempty_strings,
    check_seed,
    is_integer,
)
from resemblance.errors import DataError


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), torch.tensor(3)])
def test_an_integer_of_any_library_is_taken_as_a_plain_one(value):
    assert is_integer(value)
    found = check_integer("block", value, 1)
    assert (found, type(found)) == (3, int)


@pytest.mark.parametrize(
    "value", [True, np.True_, 3.0, np.float32(3), "3", None, [3], 0, -1, 2**63]
)
def test_anything_else_is_refused_with_what_was_found(value):
    with pytest.raises(DataError, match="`block` must be a whole number, 1 or more") as refusal:
        check_integer("block", value, 1)
    assert str(refusal.value).endswith(f"found {value!r}")


def test_what_else_an_option_may_be_is_said():
    with pytest.raises(DataError, match=', 1 or more, or "auto"; found None'):
        check_integer("batch_size", None, 1, also=', or "auto"')


def test_a_seed_has_64_bits():
    assert check_seed(2**64 - 1) == 2**64 - 1
    with pytest.raises(
        DataError, match=r"`seed` must be .*below 2\^64; found 18446744073709551616"
    ):
        check_seed(2**64)
    with pytest.raises(DataError, match="`seed` must be a whole number, 0 or more; found -1"):
        check_seed(-1)


def test_text_of_any_language_is_a_word():
    check_nonempty_strings(name="net", data_id="données", title="網 \x1b[31m 🙂")


@pytest.mark.parametrize("value", ["", None, 3, b"net", ["net"]], ids=repr)
def test_what_is_no_text_is_refused_by_name(value):
    with pytest.raises(DataError, match="`title` must be a non-empty string; found"):
        check_nonempty_strings(name="net", title=value)
