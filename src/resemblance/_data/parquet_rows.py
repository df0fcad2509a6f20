"""Rows of Parquet files, read a few at a time.

A column of bytes, or of the structs that the library datasets writes, holds images; one of lists
holds numbers; one of strings holds text, labels or keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FormatError, first_line, optional
from .sample_keys import KEY
from .stream_rows import LABELS, Kind, Row

_ROWS = 256  # that are read at a time


def rows_of_parquet(path: Path) -> Iterator[Row]:
    """The rows of a file in its order; their keys are in a column `__key__`, or file and number."""
    arrow = optional("pyarrow", "pyarrow", "text")
    parquet = optional("pyarrow.parquet", "pyarrow", "text")
    number = 0
    batches = _batches(parquet, path)
    for batch in batches:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        kinds = {name: _kind(arrow, name, column.type) for name, column in columns.items()}
        for i in range(batch.num_rows):
            fields = {
                name: (kinds[name], _value(kinds[name], column[i]))
                for name, column in columns.items()
            }
            given = fields.get(KEY, ("", None))[1]
            key = given if isinstance(given, str) else f"{path.name}:{number}"
            yield Row(key, f"{number} in {path}", fields)
            number += 1


def _batches(parquet: Any, path: Path) -> Iterator[Any]:
    try:
        with parquet.ParquetFile(path) as file:
            yield from file.iter_batches(_ROWS)
    except Exception as error:  # as the damage has it
        raise FormatError(
            f"{path} is not a readable .parquet file ({first_line(error)}); write it again"
        ) from error


def _kind(arrow: Any, name: str, of: Any) -> Kind:
    types = arrow.types
    if name in LABELS and not types.is_nested(of):
        return "label"
    if types.is_struct(of):
        names = [of.field(i).name for i in range(of.num_fields)]
        return "image" if "bytes" in names else "other"
    if types.is_binary(of) or types.is_large_binary(of):
        return "image"
    inner = of
    while types.is_list(inner) or types.is_large_list(inner) or types.is_fixed_size_list(inner):
        inner = inner.value_type
    if inner is not of:
        numbers = (types.is_integer, types.is_floating, types.is_boolean)
        return "array" if any(test(inner) for test in numbers) else "other"
    return "text" if types.is_string(of) or types.is_large_string(of) else "other"


def _value(kind: Kind, scalar: Any) -> Any:
    """A copy, so that a row that waits does not hold on to all that were read with it."""
    values = scalar.values if kind == "array" else None
    if values is not None and not hasattr(values.type, "value_type"):  # plain numbers
        return np.array(values)
    found = scalar.as_py()
    try:
        return np.array(found) if kind == "array" else found
    except ValueError:  # lists of several lengths: whoever asks for them is told
        return found
