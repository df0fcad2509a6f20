"""Words that a caller gives as options: text, or an error."""

from __future__ import annotations

from typing import Any

from .errors import DataError


def check_words(**options: Any) -> None:
    """An error unless each is a text that is not empty."""
    for name, value in options.items():
        if not isinstance(value, str) or not value:
            raise DataError(f"{name} must be a text that is not empty; found {value!r}")
