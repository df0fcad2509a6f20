"""The shared mechanics of results: comparison by content, JSON, tables, files and plots.

A result is a frozen dataclass. `Content` gives it `==` and `to_dict`, `Result` adds `summary`,
`to_frame`, `save` and the HTML of notebooks, `StoredResult` adds `load`, and `Plotted` adds `plot`.
Each class says only what is its own: the sentences of its summary, the columns of its table, the
shapes of its arrays.

Files are written atomically. The first key names the kind of result, with the version of its
format. Tables are lists of lists, with null for what is not finite.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .._utils.atomic_files import write_atomically
from .._utils.equality import by_content
from .._utils.notebook import HeatMap, result_html, table_text
from ..errors import FormatError, import_optional
from ..representation.notes import Note
from ..representation.schema import Rule, check_part

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from typing_extensions import Self

FORMAT_VERSION = Rule("1", lambda x: type(x) is int and x == 1)
Shape = tuple[int, ...] | list[tuple[int, ...]]  # of an array, or of a tuple of arrays


@by_content
class Content:
    """A dataclass that compares by content and can be written as plain JSON values.

    `_also` are properties that `to_dict` adds to the fields. Of what can be read again, `_rules`
    has a rule for each key of a file, and `_parts` the class of each field that is a `Content`.
    """

    _also: ClassVar[tuple[str, ...]] = ()
    _rules: ClassVar[Mapping[str, Rule]] = {}
    _parts: ClassVar[Mapping[str, type[Content]]] = {}

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; what is not finite becomes None.

        Returns:
            The fields by name, as JSON can hold them.
        """
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        return {name: plain(getattr(self, name)) for name in (*names, *self._also)}

    @classmethod
    def _from_dict(cls, content: Mapping[str, Any], where: str = "") -> Self:
        """From what `to_dict` returned, or an error that names the key which is wrong."""
        check_part(where, content, cls._rules)
        shapes, values = cls._shapes(content), {}
        for field in fields(cls):  # type: ignore[arg-type]
            if field.name not in content:
                continue
            value, blank = content[field.name], math.nan if "float" in str(field.type) else None
            if value is None:
                value = blank if field.type == "float" else None
            elif field.name in cls._parts:
                value = cls._parts[field.name]._from_dict(value, field.name)
            elif field.name in shapes:
                value = as_array(value, shapes[field.name])
            elif field.name == "notes":
                value = [Note.from_dict(note) for note in value]
            values[field.name] = _as_tuples(value, blank)
        return cls(**values)

    @classmethod
    def _shapes(cls, content: Mapping[str, Any]) -> Mapping[str, Shape]:
        """The shapes of all arrays, which sizes of the content decide; -1 for any number."""
        return {}


class Result(Content):
    """What `resemblance` returns: a summary, a table, and a file."""

    _kind: ClassVar[str]  # the first key of a file
    _note: ClassVar[str] = "Note: {}."
    _index: ClassVar[str | None] = None  # the column that names the rows of the table

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._text()})"

    def __str__(self) -> str:
        return f"{table_text(self._table())}\n\n{self.summary()}"

    def _text(self) -> str:
        """What it is, and its score, in a few words."""
        raise NotImplementedError

    def _sentences(self) -> Iterable[str]:
        """The lines of the summary, without the notes."""
        raise NotImplementedError

    def _columns(self) -> Mapping[str, Any]:
        """The columns of the table by name."""
        raise NotImplementedError

    def _maps(self) -> Iterable[HeatMap]:
        """The heat maps that a notebook shows."""
        return ()

    def _table(self) -> Mapping[str, Any]:
        """The columns that a notebook shows, if it is not the whole table."""
        return self._columns()

    def _repr_html_(self) -> str:
        title = f"{type(self).__name__}: {self._text()}"
        return result_html(title, self._maps(), self._table(), self.summary())

    def summary(self) -> str:
        """The result in a few plain sentences.

        Returns:
            One paragraph or several lines, the notes at the end.
        """
        notes = (self._note.format(note) for note in getattr(self, "notes", ()))
        return "\n".join([*self._sentences(), *notes])

    def to_frame(self) -> pandas.DataFrame:
        """The result as a pandas table, whose rows and columns the class describes.

        Returns:
            A table made anew, which may be changed.
        """
        pandas = import_optional("pandas", "pandas", "frames")
        table = pandas.DataFrame(self._columns()).infer_objects()
        return table.set_index(self._index) if self._index else table

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write `to_dict` as JSON; the file appears whole or not at all.

        Args:
            path: the file, which is replaced if it exists.

        Returns:
            The path.
        """
        content = json.dumps({self._kind: 1, **self.to_dict()}, indent=1)
        return write_atomically(path, content.encode())


class StoredResult(Result):
    """A result that can be loaded again."""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The result in a file that `save` wrote.

        Args:
            path: the file.

        Returns:
            A result equal to the one that was saved.

        Raises:
            FormatError: if the file cannot be read, or holds something else.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if type(content) is not dict:
                raise ValueError("expected an object")
            check_part("", content, {cls._kind: FORMAT_VERSION})
            return cls._from_dict(content)
        except (FormatError, OSError, ValueError, TypeError, RecursionError) as error:
            raise FormatError(
                f"{path} is not a {cls._kind} written by {cls.__name__}.save ({error}); save it "
                "again"
            ) from error


class Plotted:
    """A result that can be plotted."""

    def plot(self) -> Figure:
        """The result as a matplotlib figure, which the class describes.

        Returns:
            The figure, which is not shown yet.
        """
        from ..views import plots

        return plots.plot_result(self)


def as_array(values: Any, shape: Shape) -> np.ndarray | tuple[np.ndarray, ...]:
    """Lists of numbers and nulls as an array; -1 in the shape for what may be any number."""
    if isinstance(shape, list):
        return tuple(np.array(x, float).reshape(s) for x, s in zip(values, shape, strict=True))
    return np.array(values, dtype=float).reshape(shape)


def plain(value: Any, spell: Callable[[str], str] = str) -> Any:
    """What JSON holds: arrays and tuples as lists, results as objects, what is not finite as None.

    Texts are what `spell` makes of them.

    >>> plain({"a": (1.5, np.array([np.nan, 2.0]))})
    {'a': [1.5, [None, 2.0]]}
    """
    if isinstance(value, Content | Note):
        value = value.to_dict()
    elif is_dataclass(value):
        value = vars(value)
    elif hasattr(value, "tolist"):  # arrays and tensors
        value = value.tolist()
    if isinstance(value, str):
        return spell(value)
    if isinstance(value, tuple | list):
        return [plain(item, spell) for item in value]
    if isinstance(value, Mapping):
        return {spell(key): plain(item, spell) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def count_samples(samples: int, sequences: int | None) -> str:
    """How many samples, or tokens of how many sequences.

    >>> count_samples(4096, None), count_samples(4096, 256)
    ('4,096 samples', '4,096 tokens of 256 sequences')
    """
    of = "samples" if sequences is None else f"tokens of {sequences:,} sequences"
    return f"{samples:,} {of}"


def _as_tuples(value: Any, blank: float | None) -> Any:
    if not isinstance(value, list):
        return value
    return tuple(blank if x is None else _as_tuples(x, blank) for x in value)
