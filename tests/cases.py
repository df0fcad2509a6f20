"""Loops inside a test that name the case which failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def named(**values: Any) -> Iterator[None]:
    """Puts these values in front of the message of a failure."""
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        raise AssertionError(f"{values}: {error}") from error
