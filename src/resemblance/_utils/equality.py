"""Equality by content for result classes that hold arrays or tensors.

The `==` that dataclasses generate needs a truth value for an array, which does not exist. Here two
results are equal if all their fields are, bit for bit, and NaN equals NaN. Classes compared by
content are not hashable: use `id(result)` as a dictionary key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def by_content(kind: type[T]) -> type[T]:
    """A class decorator: `==` compares the fields of a dataclass, arrays and tensors among them.

    >>> import numpy as np
    >>> from dataclasses import dataclass
    >>> @by_content
    ... @dataclass(frozen=True, eq=False)
    ... class Pair:
    ...     x: np.ndarray
    >>> Pair(np.array([1.0, np.nan])) == Pair(np.array([1.0, np.nan])), Pair(np.ones(2)) == 1
    (True, False)
    """

    def equal(self: Any, other: Any) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = [f.name for f in fields(self)]
        return all(equal_content(getattr(self, name), getattr(other, name)) for name in names)

    kind.__eq__ = equal  # type: ignore[method-assign]
    kind.__hash__ = None  # type: ignore[assignment]
    return kind


def equal_content(a: Any, b: Any) -> bool:
    """Whether two values are of one kind and hold the same."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(equal_content(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(equal_content(x, y) for x, y in zip(a, b, strict=True))
    if hasattr(a, "dtype") and hasattr(a, "shape"):  # arrays and tensors
        alike = a.dtype == b.dtype and a.shape == b.shape
        return alike and bool(((a == b) | ((a != a) & (b != b))).all())
    return bool(a == b or (a != a and b != b))
