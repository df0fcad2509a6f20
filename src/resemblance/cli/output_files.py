"""Files that a command is to write: looked at before the work whose result they are to hold."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from .._atomic_files import check_writable
from ..errors import DataError

STANDARD_OUTPUT = ("-", "/dev/stdout")


def check_outputs(
    *files: str | Path | None,  # to be written, if any
    read: Iterable[str | Path | None] = (),  # what the command reads: paths, and other words
) -> None:
    """Refuse a file that could not be written, is to hold two things, or is read as well."""
    there = {_place(word) for word in read if word is not None}
    named: set[str] = set()
    for file in files:
        if file is None or str(file) in STANDARD_OUTPUT:
            continue
        check_writable(file)
        place = _place(file)
        if place in named:
            raise DataError(f"{file} is to hold two things; name another file for one of them")
        if place in there:
            raise DataError(f"{file} is read here, and would be written over; name another file")
        named.add(place)


def _place(word: str | Path) -> str:
    """Where a path leads, also that of FILE.py:FUNCTION."""
    return os.path.realpath(re.sub(r"(?<=\.py):[^/\\]*$", "", str(word)))
