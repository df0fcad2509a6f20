"""Signatures in a zoo's Lance tables: read one after the other, or found by an index.

An index approximates, and is made and asked only where entries are very many.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import optional
from .kernel_signature import DEPTHS, SEARCHED, WIDTH
from .lance_rows import signature_column
from .lance_tables import Tables, one_of
from .store import AT_ONCE, exactly_nearest

_LARGE = 100_000  # entries, from which on there is an index


class Signatures:
    """Those of the entries in tables."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def of(
        self, group: str, kernel: str, *, among: Sequence[str] | None = None
    ) -> Iterator[tuple[list[str], np.ndarray]]:
        """Ids and signatures of a group, many at a time, each entry once."""
        table = self._tables.table("entries")
        if table is None or kernel not in SEARCHED:
            return
        wanted = None if among is None else set(among)
        seen: set[str] = set()
        column = signature_column(kernel)
        asked = table.search().where(f"{one_of('grp', [group])} AND {column} IS NOT NULL")
        with self._tables.told():
            batches = asked.select(["id", column]).to_batches(AT_ONCE)
            for batch in batches:
                ids = batch.column("id").to_pylist()
                flat = batch.column(column).flatten().to_numpy(zero_copy_only=False)
                first = {id: i for i, id in reversed(list(enumerate(ids))) if id not in seen}
                seen.update(first)
                keep = sorted(i for id, i in first.items() if wanted is None or id in wanted)
                if keep:
                    yield [ids[i] for i in keep], flat.reshape(len(ids), -1)[keep]

    def nearest(
        self,
        group: str,
        kernel: str,
        signature: np.ndarray,
        limit: int,
        *,
        among: Sequence[str] | None = None,
    ) -> list[tuple[str, float]]:
        if among is None and self.indexed(kernel):
            return self._nearly_nearest(group, kernel, signature, limit)
        return exactly_nearest(self.of(group, kernel, among=among), signature, limit)

    def indexed(self, kernel: str) -> bool:
        """Whether there are so many signatures that an index was made of them."""
        table = self._tables.table("entries")
        if table is None or kernel not in SEARCHED:
            return False
        with self._tables.told():
            return any(signature_column(kernel) in x.columns for x in table.list_indices())

    def _nearly_nearest(
        self, group: str, kernel: str, signature: np.ndarray, limit: int
    ) -> list[tuple[str, float]]:
        """What the index finds, told by exact cosines."""
        column = signature_column(kernel)
        asked = np.asarray(signature, np.float16).ravel()
        with self._tables.told():
            found = (
                self._tables.table("entries")
                .search(asked, vector_column_name=column)
                .distance_type("cosine")
                .where(one_of("grp", [group]), prefilter=True)
                .nprobes(64)
                .refine_factor(4)
                .limit(2 * limit)
                .select(["id", column])
                .to_arrow()
            )
        ids = found.column("id").to_pylist()
        flat = found.column(column).combine_chunks().flatten().to_numpy(zero_copy_only=False)
        first = [i for i, id in enumerate(ids) if ids.index(id) == i]
        rows = flat.reshape(len(ids), -1)[first] if ids else np.zeros((0, len(asked)), np.float16)
        return exactly_nearest([([ids[i] for i in first], rows)], asked, limit)

    def index(self, *, at_least: int = _LARGE) -> None:
        """Make an index of the signatures of each kernel that so many entries have.

        Joining the files of the table brings it up to date, and until then what is not in it is
        looked at as well.
        """
        table = self._tables.table("entries")
        for kernel in SEARCHED if table is not None else ():
            column = signature_column(kernel)
            with self._tables.told():
                if table.count_rows(f"{column} IS NOT NULL") >= at_least:
                    _make_index(table, column)


def _make_index(table: Any, column: str) -> None:
    parts = DEPTHS * WIDTH // 16  # of which each is coded in a byte
    if "config" not in inspect.signature(table.create_index).parameters:  # an older LanceDB
        table.create_index("cosine", num_sub_vectors=parts, vector_column_name=column)
        return
    made = optional("lancedb.index", "LanceDB", "lance").IvfPq
    table.create_index(column, config=made(distance_type="cosine", num_sub_vectors=parts))
