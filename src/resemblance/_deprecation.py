"""What is on its way out still works for one minor release, and says what to use instead."""

from __future__ import annotations

import warnings

from . import __version__


def deprecated(what: str, instead: str, *, since: str, stacklevel: int = 3) -> None:
    """Warn that `what` will go; by default at the line that called the public function.

    A name deprecated in version X.Y works until X.(Y+1) is out. Once a version is reached in which
    it should be gone, this raises, so that the code behind it cannot be forgotten.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     deprecated("sketch='data'", "sketch='both'", since=__version__)
    >>> str(caught[0].message).split(";")[1]
    " use sketch='both' instead"
    """
    major, minor = _numbers(since)
    if _numbers(__version__) > (major, minor + 1):
        raise AssertionError(f"{what} was deprecated in {since} and must be removed by now")
    message = f"{what} is deprecated since {since} and goes after {major}.{minor + 1}"
    warnings.warn(f"{message}; use {instead} instead", DeprecationWarning, stacklevel=stacklevel)


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
