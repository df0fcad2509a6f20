"""Options: validation of integers, seeds and strings, and warnings about deprecated ones.

Each check returns the value or raises a `DataError` that names the option. A deprecated option
works for one more minor release, and its warning names its heir.
"""

from __future__ import annotations

import operator
import warnings
from typing import Any

from .. import __version__
from ..errors import DataError


def is_integer(value: Any) -> bool:
    """Whether it is an integer of Python's, NumPy's or torch's; True and 1.0 are not.

    >>> is_integer(3), is_integer(3.0), is_integer(True), is_integer("3")
    (True, False, False, False)
    """
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def check_integer(
    name: str, value: Any, least: int = 0, *, below: int = 2**63, also: str = ""
) -> int:
    """The option as an int, or an error; `also` says what else it may be.

    >>> check_integer("block", 128, 1)
    128
    """
    if is_integer(value) and least <= (found := operator.index(value)) < below:
        return found
    end = f" and below 2^{below.bit_length() - 1}" if is_integer(value) and value >= below else ""
    raise DataError(f"`{name}` must be a whole number, {least} or more{end}{also}; found {value!r}")


def check_seed(value: Any) -> int:
    """A seed, which is any number of 64 bits."""
    return check_integer("seed", value, below=2**64)


def check_nonempty_strings(**options: Any) -> None:
    """An error unless each is a text that is not empty."""
    for name, value in options.items():
        if not isinstance(value, str) or not value:
            raise DataError(f"`{name}` must be a non-empty string; found {value!r}")


def warn_deprecated(what: str, instead: str, *, since: str, stacklevel: int = 3) -> None:
    """Warn that `what` will go; by default at the line that called the public function.

    A name deprecated in version X.Y works until X.(Y+1) is out. Once a version is reached in which
    it should be gone, this raises, so that the code behind it cannot be forgotten.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_deprecated("sketch='data'", "sketch='both'", since=__version__)
    >>> str(caught[0].message).split(";")[1]
    " use sketch='both' instead"
    """
    major, minor = _major_minor(since)
    if _major_minor(__version__) > [major, minor + 1]:
        raise AssertionError(f"{what} was deprecated in {since} and must be removed by now")
    message = f"{what} is deprecated since {since} and will be removed after {major}.{minor + 1}"
    warnings.warn(f"{message}; use {instead} instead", DeprecationWarning, stacklevel=stacklevel)


def _major_minor(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:2]]
