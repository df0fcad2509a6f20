"""Results as JSON: written whole or not at all, and read only if all that they need is there.

A file's first key says what it holds, and with which number its form is known. Tables are lists of
lists, with null for what is not a number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from .._atomic_files import write_atomically
from ..errors import FormatError
from ..representation.schema import Rule, check_part

T = TypeVar("T")
FIRST_FORM = Rule("1", lambda x: type(x) is int and x == 1)


def write(path: str | os.PathLike[str], kind: str, content: Mapping[str, Any]) -> Path:
    """Write a result, which is plain, under the key that names its kind."""
    return write_atomically(path, json.dumps({kind: 1, **content}, indent=1).encode())


def read(
    path: str | os.PathLike[str],
    kind: str,
    written_by: str,
    rules: Mapping[str, Rule],
    make: Callable[[dict[str, Any]], T],
) -> T:
    """What `make` makes of a file's content, which keeps the rules, or an error that says why not.

    What `make` raises as a ValueError or TypeError is a fault of the file's, too.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if type(content) is not dict:
            raise ValueError("expected an object")
        check_part("", content, {kind: FIRST_FORM, **rules})
        return make(content)
    except (FormatError, OSError, ValueError, TypeError, RecursionError) as error:
        raise FormatError(
            f"{path} is not a {kind} written by {written_by}.save ({error}); save it again"
        ) from error


def table(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Lists of numbers and nulls as an array; -1 in the shape for what may be any number."""
    return np.array(values, dtype=float).reshape(shape)


def plain(value: Any) -> Any:
    """Arrays and tuples as lists, NaN as None: what JSON holds."""
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value.tolist()]
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and np.isnan(value) else value
