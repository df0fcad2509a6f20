"""What a caller hands over as recordings: Representations, or paths of files that hold them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from .._ops.device_choice import refuse_other_default
from ..errors import DataError
from .file_format import load
from .representation import Representation

Given = Representation | str | os.PathLike[str]


def recording(given: Given) -> Representation:
    """The Representation itself, or the one in the file at a path."""
    refuse_other_default()
    if isinstance(given, Representation):
        return given
    if isinstance(given, str | os.PathLike):
        return load(given)
    raise DataError(
        f"expected a Representation or the path of one, found {_kind(given)}; make one with record"
    )


def recordings(given: Iterable[Given]) -> list[Representation]:
    """The same for several, in a list or any other iterable."""
    if isinstance(given, Representation | str | os.PathLike | Mapping) or not isinstance(
        given, Iterable
    ):
        raise DataError(
            f"expected a list of Representations or of paths, found {_kind(given)}; write [a, b]"
        )
    return [recording(each) for each in given]


def _kind(given: Any) -> str:
    if isinstance(given, str | os.PathLike):
        return f"the path {os.fspath(given)!r}"
    name = type(given).__name__
    return f"one {name}" if isinstance(given, Representation) else name
