"""The tables of a zoo in Lance: rows in and out, whoever else writes at the same time.

Lance lets writers go ahead and refuses the slower of two that are in each other's way, which is
then tried again. Every addition makes a file more, so that files are joined now and then. What
Lance says is told as this package's errors.
"""

from __future__ import annotations

import contextlib
import datetime
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..errors import DataError, FormatError, ResemblanceError, first_line, optional

T = TypeVar("T")
_PATIENCE = 60.0  # seconds of trying again while others write
_FILES = 64  # of a table, beside a share of its rows, before they are joined
_OLD = datetime.timedelta(hours=1)  # what nobody reads any more: an earlier version of a table
_IN_THE_WAY = ("conflict", "concurrent", "too many", "already exists", "retry")
_NO_WRITING = ("ermission denied", "ead-only", "o space left", "ccess denied", "too large")
_OUT_OF_REACH = (
    *("NoSuchBucket", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"),
    *("CredentialsNotLoaded", "error sending request"),
)
_QUOTED = 300  # characters at most: some errors hold whole answers of a server


class Tables:
    """Tables by name, each made when something is first written to it."""

    def __init__(
        self,
        place: str,
        where: str,  # for messages
        schemas: Callable[[], Mapping[str, Any]],
        shares: Mapping[str, int],  # one file for so many rows is not too many
    ) -> None:
        lancedb = optional("lancedb", "LanceDB", "lance")
        self._place = place
        self._where = where
        self._schemas = schemas
        self._shares = shares
        self._opened: dict[str, Any] = {}
        self._until_joined = random.randrange(_FILES)
        with self.told():
            always = datetime.timedelta(0)  # every reading looks for what others wrote since
            self._database = lancedb.connect(place, read_consistency_interval=always)

    def rows(
        self, name: str, columns: Sequence[str], where: str | None = None
    ) -> list[dict[str, Any]]:
        """Some columns of the rows that meet a condition in SQL."""
        table = self.table(name)
        if table is None:
            return []
        asked = table.search() if where is None else table.search().where(where)
        with self.told():
            found: list[dict[str, Any]] = asked.select(list(columns)).to_arrow().to_pylist()
        return found

    def add(self, name: str, columns: Mapping[str, Any]) -> None:
        """Add rows, given column by column; they are there when this returns."""
        if len(next(iter(columns.values()))):
            pyarrow = optional("pyarrow", "pyarrow", "lance")
            rows = pyarrow.table(dict(columns), schema=self._schemas()[name])
            self._persist(lambda: self._made(name).add(rows))

    def delete(self, name: str, where: str) -> None:
        """Remove the rows that meet a condition."""
        table = self.table(name)
        if table is not None:
            self._persist(lambda: table.delete(where))

    def update(self, name: str, where: str, values: Mapping[str, str]) -> None:
        """Give the rows that meet a condition other values."""
        table = self.table(name)
        if table is not None:
            self._persist(lambda: table.update(where=where, values=dict(values)))

    def table(self, name: str) -> Any:
        """A table of LanceDB's, or None if nothing was ever written to it."""
        if name not in self._opened:
            with self.told():
                if name not in _names(self._database):
                    return None
                try:
                    self._opened[name] = self._database.open_table(name)
                except Exception as error:
                    if not self._unfinished(name, error):
                        raise
                    return None
        return self._opened[name]

    def close(self) -> None:
        """Let go of tables; they are opened again when they are needed."""
        self._opened.clear()

    def join_now_and_then(self) -> list[str]:
        """Join the files of tables that have many: the names of those that were written anew.

        That waits for a share of new rows. Should another process do the same at the same time, one
        of them has it for nothing.
        """
        self._until_joined -= 1
        if self._until_joined > 0:
            return []
        self._until_joined = _FILES // 2
        return [name for name in self._schemas() if self._joined(name)]

    def _joined(self, name: str) -> bool:
        table = self.table(name)
        if table is None:
            return False
        with contextlib.suppress(ResemblanceError), self.told():
            found = table.stats()
            pieces = found["fragment_stats"]["num_fragments"]
            if pieces > _FILES + found["num_rows"] // self._shares[name]:
                table.optimize(cleanup_older_than=_OLD)
                return True
        return False

    def _unfinished(self, name: str, error: Exception) -> bool:
        """Whether a table is being made at this moment, or its maker died: it has no rows yet."""
        rows = Path(self._place, f"{name}.lance", "data")
        return "not found" in str(error) and not (rows.is_dir() and any(rows.iterdir()))

    def _made(self, name: str) -> Any:
        found = self.table(name)
        if found is None:
            schema = self._schemas()[name]
            found = self._database.create_table(name, schema=schema, exist_ok=True)
            self._opened[name] = found
        return found

    def _persist(self, do: Callable[[], T]) -> T:
        """Do something, again if others were in its way."""
        end, pause = time.monotonic() + _PATIENCE, 0.01
        while True:
            with self.told():
                try:
                    return do()
                except Exception as error:
                    if not in_the_way(error) or time.monotonic() > end:
                        raise
            time.sleep(random.uniform(0, pause))
            pause = min(2 * pause, 1.0)

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """What Lance says, as an error that says what to do."""
        try:
            yield
        except ResemblanceError:
            raise
        except BaseException as error:
            # a fault in Lance's own code, met in damaged files, is no Exception
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            text = first_line(error)
            if any(words in str(error) for words in _OUT_OF_REACH):
                raise DataError(
                    f"cannot reach {self._where} ({text[:_QUOTED]}); expected a store that exists, "
                    "and that your credentials open: see where LanceDB looks for them"
                ) from error
            if any(words in text for words in _NO_WRITING):
                raise DataError(
                    f"cannot write {self._where}: {text[:_QUOTED]}; expected a place that may be "
                    "written to and has room: make one, or name another"
                ) from error
            raise FormatError(
                f"{self._where} cannot be read or written ({text[:_QUOTED]}); expected tables that "
                "Zoo made: copy them again"
            ) from error


def in_the_way(error: Exception) -> bool:
    """Whether an error of Lance says that somebody else wrote at the same time."""
    text = str(error).lower()
    return any(words in text for words in _IN_THE_WAY)


def one_of(column: str, values: Collection[str]) -> str:
    """A condition in SQL: that a column has one of some values.

    >>> one_of("tag", ["a", "it's"]), one_of("tag", [])
    ("tag IN ('a', 'it''s')", 'false')
    """
    quoted = ", ".join("'{}'".format(value.replace("'", "''")) for value in values)
    return f"{column} IN ({quoted})" if values else "false"


def _names(database: Any) -> Collection[str]:
    if not hasattr(database, "list_tables"):  # before 0.26
        return list(database.table_names(limit=1000))
    found = database.list_tables()
    return list(getattr(found, "tables", found))
