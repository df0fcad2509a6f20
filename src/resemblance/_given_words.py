"""Words that a caller gives as options: text that can be written into a file, or an error."""

from __future__ import annotations

from typing import Any

from .errors import DataError


def check_words(**options: Any) -> None:
    """An error unless each is a text that is not empty and has no half of a character in it."""
    for name, value in options.items():
        if not isinstance(value, str) or not value:
            raise DataError(f"{name} must be a text that is not empty; found {value!r}")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{name} must be text of whole characters; found {value!r}") from error
