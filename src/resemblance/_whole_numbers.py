"""Whole numbers that a caller gives as options: in range, of any integer type, or an error."""

from __future__ import annotations

import operator
from typing import Any

from .errors import DataError


def is_whole(value: Any) -> bool:
    """Whether it is an integer of Python's, NumPy's or torch's; True and 1.0 are not.

    >>> is_whole(3), is_whole(3.0), is_whole(True), is_whole("3")
    (True, False, False, False)
    """
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def whole_number(
    name: str, value: Any, least: int = 0, *, below: int = 2**63, also: str = ""
) -> int:
    """The option as an int, or an error; `also` says what else it may be.

    >>> whole_number("block", 128, 1)
    128
    """
    if is_whole(value) and least <= (found := operator.index(value)) < below:
        return found
    end = f" and below 2^{below.bit_length() - 1}" if is_whole(value) and value >= below else ""
    raise DataError(f"{name} must be a whole number, {least} or more{end}{also}; found {value!r}")


def checked_seed(value: Any) -> int:
    """A seed, which is any number of 64 bits."""
    return whole_number("seed", value, below=2**64)
