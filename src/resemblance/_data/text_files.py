"""Texts in files and tables, read a little at a time.

A .txt file is one running text, or with `lines` a text a line. A .jsonl or .parquet file and a
Hugging Face data set hold a text in each row, in the field asked for, or else in `text`, `sentence`
or `content`, or else in their only field of text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError, FormatError, first_line, nearest, optional

SUFFIXES = (".txt", ".jsonl", ".parquet")
_USUAL = ("text", "sentence", "content")
_STRETCH = 2**16  # characters of a running text that are read at a time, to the end of a line
_ROWS = 1000  # of a table that are read at a time


@dataclass(frozen=True)
class Texts:
    """Texts and where they are from."""

    name: str  # for people
    pieces: Iterable[str]
    running: bool = False  # pieces follow one another in one text


def texts_in(path: Path, field: str | None = None, *, lines: bool = False) -> Texts:
    """The texts of a .txt, .jsonl or .parquet file."""
    if path.suffix == ".jsonl":
        return _json_lines(path, field)
    if path.suffix == ".parquet":
        return _parquet(path, field)
    if field is not None:
        raise DataError(f"{path} has no field {field!r}: it is one text; leave --text-field out")
    return Texts(str(path), _read(path, lines), running=not lines)


def texts_of(table: Any, name: str, field: str | None = None) -> Texts:
    """The texts of a table of the library datasets."""
    kinds = {column: getattr(kind, "dtype", None) for column, kind in table.features.items()}
    of_text = [column for column, kind in kinds.items() if kind in ("string", "large_string")]
    chosen = field_of_text(field, of_text, list(kinds), name)

    def rows() -> Iterator[str]:
        for batch in table.select_columns([chosen]).iter(batch_size=_ROWS):
            yield from (text or "" for text in batch[chosen])

    return Texts(f"{name} ({chosen})", rows())


def field_of_text(
    wanted: str | None, of_text: Sequence[str], every: Sequence[str], name: str
) -> str:
    """The field that holds the text, or an error that says which there are."""
    if wanted is not None and wanted not in every:
        raise DataError(f"{name} has no field {wanted!r}; nearest: {nearest(wanted, every)}")
    if wanted is not None and wanted not in of_text:
        raise DataError(f"field {wanted!r} of {name} holds no text; {_choice(of_text)}")
    found = wanted or next((usual for usual in _USUAL if usual in of_text), None)
    if found is None and len(of_text) == 1:
        (found,) = of_text
    if found is None:
        raise DataError(f"found the fields {', '.join(every)} in {name}; {_choice(of_text)}")
    return found


def _choice(of_text: Sequence[str]) -> str:
    if not of_text:
        return "expected one of text"
    return f"say which holds the text with --text-field: {', '.join(of_text)}"


def _read(path: Path, lines: bool) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8-sig") as file:
            if lines:
                yield from (line.rstrip("\n") for line in file)
                return
            while stretch := file.readlines(_STRETCH):
                yield "".join(stretch)
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{path} is not text in UTF-8 ({first_line(error)}); convert it, such as with iconv"
        ) from error


def _json_lines(path: Path, field: str | None) -> Texts:
    first = next(_objects(path), None)
    if first is None:
        raise DataError(f"{path} is empty: expected an object with a text in each line")
    of_text = [key for key, value in first[1].items() if isinstance(value, str)]
    chosen = field_of_text(field, of_text, list(first[1]), str(path))

    def rows() -> Iterator[str]:
        for number, row in _objects(path):
            text = row.get(chosen, ...)
            if text is not None and not isinstance(text, str):
                what = "no such field" if text is ... else type(text).__name__
                raise DataError(
                    f"expected text as {chosen!r} in line {number} of {path}, found {what}; repair "
                    "or remove the line, or name another field with --text-field"
                )
            yield text or ""

    return Texts(f"{path} ({chosen})", rows())


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line that is not blank."""
    for number, line in enumerate(_read(path, lines=True), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FormatError(
                f"line {number} of {path} is not JSON ({first_line(error)}); write one object a "
                "line"
            ) from error
        if not isinstance(row, dict):
            raise FormatError(
                f"expected an object in line {number} of {path}, found {type(row).__name__}; write "
                'such as {"text": "..."}'
            )
        yield number, row


def _parquet(path: Path, field: str | None) -> Texts:
    arrow = optional("pyarrow", "pyarrow", "text")
    parquet = optional("pyarrow.parquet", "pyarrow", "text")

    def unreadable(error: Exception) -> FormatError:
        return FormatError(
            f"{path} is not a readable .parquet file ({first_line(error)}); write it again"
        )

    try:
        schema = parquet.read_schema(path)
    except Exception as error:  # as the damage has it
        raise unreadable(error) from error
    is_text = (arrow.types.is_string, arrow.types.is_large_string)
    of_text = [column.name for column in schema if any(test(column.type) for test in is_text)]
    chosen = field_of_text(field, of_text, schema.names, str(path))

    def rows() -> Iterator[str]:
        try:
            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(_ROWS, columns=[chosen]):
                    yield from (text or "" for text in batch.column(0).to_pylist())
        except Exception as error:
            raise unreadable(error) from error

    return Texts(f"{path} ({chosen})", rows())
