"""A zoo in Lance tables (`LanceStore`), in a folder or an object store shared by many machines.

What one `put` writes is a *copy* with a name of its own, and its row in `entries` is written last:
rows of other tables whose copy has no entry are leftovers of a writer that died. Lance has no
atomic "insert if absent", so two writers may add the same recording at once: there are then two
copies, which are reported as one entry.

Signatures are read in batches, or found by an approximate index (IVF-PQ), which is built only for
100,000 entries or more; its candidates are ranked by exact cosines.
"""

from __future__ import annotations

import inspect
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError, FormatError, first_line, import_optional
from ..representation.file_format import layer_positions
from ..representation.representation import Representation
from . import lance_tables
from .entry import (
    Damage,
    DamageState,
    Entry,
    LayerSelection,
    NewRecording,
    Store,
    describe_mismatch,
    is_id_prefix,
)
from .lance_tables import (
    SIGNATURE_COLUMNS,
    Copy,
    CopyContent,
    LanceTables,
    MissingPartError,
    column_values,
    join_recording,
    sql_in,
    verified_layers,
)
from .signature import (
    AT_ONCE,
    DEPTHS,
    WIDTH,
    exact_nearest,
    signature_checksums,
    verified_signatures,
)

_INDEX_FROM = 100_000  # entries, from which on signatures have an approximate index
_YOUNG = 3600.0  # seconds within which a copy without an entry may be on its way
_MAX_NAMES = 500  # names in one condition
_MAX_BYTES = 64_000_000  # bytes of recordings in memory at a time, unless one is larger
Copies = dict[str, list[Copy]]  # by the id of their entry, the first to come first


class LanceStore(Store):
    """Recordings in Lance tables, for processes of any number of machines."""

    def __init__(self, place: str, *, create: bool = True) -> None:
        if not place:
            raise DataError("expected a folder or a URL after lance:, found nothing")
        self.where = f"lance:{place}"
        local = "://" not in place
        if local and Path(place, "index.sqlite").exists():
            raise DataError(f"{place} is a folder zoo; open it without lance:")
        if local and Path(place).exists() and not Path(place).is_dir():
            raise DataError(f"expected a folder for a zoo, found a file at {place}; name another")
        self._must_be = Path(place, "entries.lance") if local and not create else None
        self._check_place()  # before a folder is made
        self._tables = LanceTables(place, self.where)
        if not create and self._tables.table("entries") is None:
            raise self.missing_error()

    def _check_place(self) -> None:
        """An error if a zoo in a folder, which was to be there, is not."""
        if self._must_be is not None and not self._must_be.exists():
            raise self.missing_error()

    # -- writing --------------------------------------------------------------------------------

    def put(self, several: Sequence[NewRecording]) -> list[Entry]:
        self._check_place()
        ids = sql_in("id", sorted({new.entry.id for new in several}))
        there, damaged = self._read(ids)
        whole = {id: [x for x in copies if self._intact(x)] for id, copies in there.items()}
        fresh: dict[str, tuple[str, NewRecording]] = {}
        tags: list[tuple[str, str]] = []
        for new in several:
            known = whole.get(new.entry.id) or []
            if not known:
                fresh.setdefault(new.entry.id, (lance_tables.new_copy_name(), new))
            name = known[-1].name if known else fresh[new.entry.id][0]
            tags += [(name, tag) for tag in new.entry.tags]
            for copy in known:
                self._link(copy, new.entry.trained_on)
        for id in fresh.keys() & there.keys():  # a whole copy gets the tags of damaged ones
            before = self._tags([copy.name for copy in there[id]])
            tags += [(fresh[id][0], tag) for tag in sorted(set().union(*before.values()))]
        self._add_tags(tags)
        self._write(dict(fresh.values()))
        self._forget([copy.name for id in fresh for copy in there.get(id, [])])
        self._forget([name for name, id, _ in damaged if name and id in fresh])
        joined = self._tables.join_now_and_then()
        if "entries" in joined and not self.has_signature_index("features"):
            self.index_signatures()
        found = {entry.id: entry for entry in self._with_tags(self._read(ids)[0])}
        return [found.get(new.entry.id, new.entry) for new in several]

    def retag(self, id: str, add: Iterable[str], remove: Iterable[str]) -> Entry | None:
        copies = [copy.name for copy in self._copies([id])]
        if not copies:
            return None
        if removed := list(remove):
            self._tables.delete("tags", f"{sql_in('copy', copies)} AND {sql_in('tag', removed)}")
        self._add_tags([(copies[-1], tag) for tag in add])
        return next(iter(self.listed(id=id)[0]), None)

    def drop(self, id: str) -> Entry | None:
        found, _ = self.listed(id=id)
        self._forget([copy.name for copy in self._copies([id])])
        return found[0] if found else None

    def close(self) -> None:
        self._tables.close()

    def _write(self, fresh: Mapping[str, NewRecording]) -> None:
        """Write copies of recordings by their names, entries last."""
        rows = [lance_tables.copy_rows(name, new) for name, new in fresh.items()]
        self._tables.add("layers", [layer for layers, _ in rows for layer in layers])
        self._tables.add("entries", [entry for _, entry in rows])

    def _forget(self, copies: Sequence[str]) -> None:
        """Remove copies: their entries first, so that nobody is led to what is being removed."""
        for i in range(0, len(copies), _MAX_NAMES):
            for table in ("entries", "tags", "layers"):
                self._tables.delete(table, sql_in("copy", copies[i : i + _MAX_NAMES]))

    def _add_tags(self, tags: Sequence[tuple[str, str]]) -> None:  # (copy, tag) each
        self._tables.add("tags", [{"copy": copy, "tag": tag} for copy, tag in tags])

    def _link(self, copy: Copy, trained_on: str | None) -> None:
        """Write down what an entry's network was trained on, if that is news."""
        if trained_on not in (None, copy.entry.trained_on):
            entry = replace(copy.entry, trained_on=trained_on)
            known = lance_tables.copy_facts(replace(copy, entry=entry))
            self._tables.update("entries", sql_in("copy", [copy.name]), {"facts": known})

    # -- signatures -----------------------------------------------------------------------------

    def signatures(
        self, group: str, kernel: str, *, among: Sequence[str] | None = None
    ) -> Iterator[tuple[list[str], np.ndarray]]:
        table = self._tables.table("entries")
        if table is None or kernel not in SIGNATURE_COLUMNS:
            return
        wanted = None if among is None else set(among)
        seen: set[str] = set()  # of several copies, one counts
        with self._tables.translated_errors():
            query = table.search().where(sql_in("grp", [group]))
            columns = ["id", "facts", SIGNATURE_COLUMNS[kernel]]
            for batch in query.select(columns).to_batches(AT_ONCE):
                rows = [
                    row
                    for row in zip(*(column_values(batch, x) for x in columns), strict=True)
                    if row[0] not in seen and (wanted is None or row[0] in wanted)
                ]
                found = verified_signatures(rows, kernel)
                seen.update(found[0])
                if found[0]:
                    yield found

    def nearest(
        self,
        group: str,
        kernel: str,
        signature: np.ndarray,
        limit: int,
        *,
        among: Sequence[str] | None = None,
    ) -> list[tuple[str, float]]:
        if among is not None or not self.has_signature_index(kernel):
            return super().nearest(group, kernel, signature, limit, among=among)
        columns = ["id", "facts", SIGNATURE_COLUMNS[kernel]]
        query = np.asarray(signature, np.float16).ravel()
        with self._tables.translated_errors():
            table = (
                self._tables.table("entries")
                .search(query, vector_column_name=columns[-1])
                .distance_type("cosine")
                .where(sql_in("grp", [group]), prefilter=True)
                .nprobes(64)
                .refine_factor(4)
                .limit(2 * limit)
                .select(columns)
                .to_arrow()
            )
        rows = zip(*(column_values(table, x) for x in columns), strict=True)
        return exact_nearest([verified_signatures(rows, kernel)], query, limit)

    def has_signature_index(self, kernel: str) -> bool:
        """Whether there are so many signatures that an approximate index was made of them."""
        table = self._tables.table("entries")
        if table is None:
            return False
        with self._tables.translated_errors():
            return any(SIGNATURE_COLUMNS.get(kernel) in x.columns for x in table.list_indices())

    def index_signatures(self, *, at_least: int = _INDEX_FROM) -> None:
        """Make an approximate index of the signatures of each kernel that so many entries have.

        Joining the files of the table brings it up to date, and until then rows that are not in it
        are compared as well.
        """
        table = self._tables.table("entries")
        for column in SIGNATURE_COLUMNS.values():
            with self._tables.translated_errors():
                if table is not None and table.count_rows(f"{column} IS NOT NULL") >= at_least:
                    _make_index(table, column)

    # -- reading --------------------------------------------------------------------------------

    def listed(
        self,
        *,
        id: str | None = None,
        key: str | None = None,
        tag: str | None = None,
        group: str | None = None,
    ) -> tuple[list[Entry], list[Damage]]:
        conditions = [sql_in(x, [y]) for x, y in (("id", id), ("grp", group)) if y is not None]
        if key is not None:
            begun = f" OR (id >= '{key}' AND id < '{key}g')" if is_id_prefix(key) else ""
            conditions.append(f"({sql_in('name', [key])}{begun})")
        copies, damaged = self._read(" AND ".join(conditions) or None)
        found = [x for x in self._with_tags(copies) if tag is None or tag in x.tags]
        return found, [damage for *_, damage in damaged]

    def count(self) -> int:
        return len({row["id"] for row in self._tables.rows("entries", ["id"])})

    def read(self, id: str, layers: LayerSelection = None) -> Representation | None:
        copies = self._copies([id])
        failed: FormatError | None = None
        for copy in reversed(copies):  # the latest was written because an earlier one was damaged
            wanted = layer_positions(copy.entry.layers, layers)
            try:
                return _restored(copy, self._contents([copy], wanted)[copy.name], wanted)
            except Exception as error:  # whatever bytes that are not what was added lead to
                failed = self.damaged_error(copy.entry, first_line(error.__cause__ or error))
                failed.__cause__ = error
        still = {copy.name for copy in self._copies([id])}
        if failed is None or still.isdisjoint(copy.name for copy in copies):
            return self.read(id, layers) if still else None
        raise failed

    def _contents(
        self, copies: Sequence[Copy], wanted: Sequence[int] | None = None
    ) -> dict[str, CopyContent]:
        """What the tables hold of copies, by name: all, or some layers and what they share."""
        out = {copy.name: CopyContent() for copy in copies}
        where = which = sql_in("copy", list(out))
        if wanted is not None:
            which += f" AND position IN ({', '.join(map(str, wanted))})"
        for row in self._tables.rows("layers", ["copy", "position", "content"], which):
            out[row["copy"]].layers[row["position"]] = row["content"]
        kernels = SIGNATURE_COLUMNS if wanted is None else {}
        for row in self._tables.rows("entries", ["copy", "shared", *kernels.values()], where):
            vectors = {kernel: row[column] for kernel, column in kernels.items()}
            out[row["copy"]].shared = row["shared"]
            out[row["copy"]].signatures = {k: x for k, x in vectors.items() if x is not None}
        return out

    def _intact(self, copy: Copy) -> bool:
        try:
            content = self._contents([copy])[copy.name]
            verified_layers(copy, content, range(len(copy.parts)))
        except FormatError:
            return False
        return copy.signatures == signature_checksums(content.signatures)

    def _with_tags(self, copies: Copies) -> list[Entry]:
        """Entries with their tags, each once, in the order in which they came."""
        names = [copy.name for several in copies.values() for copy in several]
        tags = self._tags(names if len(names) <= _MAX_NAMES else None)
        out = []
        for several in copies.values():
            every = set().union(*(tags.get(copy.name, set()) for copy in several))
            first, last = several[0].entry, several[-1].entry
            out.append(replace(last, tags=tuple(sorted(every)), added=first.added))
        return out

    def _copies(self, ids: Iterable[str]) -> list[Copy]:
        copies, _ = self._read(sql_in("id", list(ids)))
        return [copy for several in copies.values() for copy in several]

    def _read(self, where: str | None = None) -> tuple[Copies, list[tuple[str, str, Damage]]]:
        """Copies, and damaged rows, each after its copy and its id."""
        self._check_place()
        rows = self._tables.rows("entries", ["facts", *lance_tables.CHECKSUM_COLUMNS], where)
        out, damaged = Copies(), list[tuple[str, str, Damage]]()
        for row in sorted(rows, key=lambda row: str(row["copy"])):
            try:
                copy = lance_tables.parse_copy(row)
            except FormatError as error:
                damage = Damage("damaged", f"entries, copy {row['copy']}", str(error))
                damaged.append((row["copy"], row["id"], damage))
                continue
            out.setdefault(copy.entry.id, []).append(copy)
        return out, damaged

    def _tags(self, copies: Sequence[str] | None) -> dict[str, set[str]]:
        out: dict[str, set[str]] = {}
        where = None if copies is None else sql_in("copy", copies)
        for row in self._tables.rows("tags", ["copy", "tag"], where):
            out.setdefault(row["copy"], set()).add(row["tag"])
        return out

    # -- damage ---------------------------------------------------------------------------------

    def damage(self, *, sweep: bool = False) -> list[Damage]:
        found: list[Damage] = []
        names: set[str] = set()  # first: what is entered after this is no leftover
        for table in ("layers", "tags"):
            try:
                names.update(row["copy"] for row in self._tables.rows(table, ["copy"]))
            except FormatError as error:
                found.append(Damage("index", table, first_line(error.__cause__ or error)))
        known, damaged = self._read()
        found += [damage for *_, damage in damaged]
        copies = [copy for several in known.values() for copy in several]
        for some in _in_batches(copies):
            found += self._damage_of(some)
        dead = sorted(
            names.difference(copy.name for copy in copies).difference(x[0] for x in damaged)
        )
        why = "rows that are not in the index"
        found += [Damage("leftover", f"copy {name}", why) for name in dead]
        if sweep and not damaged:  # whose rows may be those of a damaged copy
            old = f"{time.time_ns() - int(_YOUNG * 1e9):016x}"
            self._forget([name for name in dead if name < old])
        return found

    def _damage_of(self, copies: Sequence[Copy]) -> list[Damage]:
        """What is wrong with copies, unless they were removed meanwhile."""
        contents: dict[str, CopyContent] = {}
        unreadable = ""
        try:
            contents = self._contents(copies)
        except FormatError as error:
            unreadable = first_line(error.__cause__ or error)
        found = []
        for copy in copies:
            state: DamageState = "damaged"
            reason = unreadable
            try:
                if not reason:
                    content = contents[copy.name]
                    rep = _restored(copy, content, range(len(copy.parts)))
                    reason = describe_mismatch(copy.entry, rep, content.signatures)
            except MissingPartError as error:
                state, reason = "missing", str(error)
            except Exception as error:  # whatever bytes that are not what was added lead to
                reason = first_line(error)
            if reason:
                found.append((copy.name, Damage(state, f"copy {copy.name}", reason, copy.entry)))
        still = self._copies({x.entry.id for _, x in found if x.entry}) if found else []
        names = {copy.name for copy in still}
        return [damage for name, damage in found if name in names]


def _restored(copy: Copy, content: CopyContent, wanted: Sequence[int]) -> Representation:
    """Some layers of a recording, whose bytes are those that were added."""
    files = verified_layers(copy, content, wanted)
    return join_recording(files, content.shared or b"", copy.entry.classes)


def _make_index(table: Any, column: str) -> None:
    parts = DEPTHS * WIDTH // 16  # of which each is coded in a byte
    if "config" not in inspect.signature(table.create_index).parameters:  # an older LanceDB
        table.create_index("cosine", num_sub_vectors=parts, vector_column_name=column)
        return
    config = import_optional("lancedb.index", "LanceDB", "lance").IvfPq
    table.create_index(column, config=config(distance_type="cosine", num_sub_vectors=parts))


def _in_batches(copies: Sequence[Copy]) -> Iterator[list[Copy]]:
    """Copies in runs that fit into memory, and into a condition."""
    sizes = itertools.accumulate(copy.entry.size for copy in copies)
    runs = [(i // _MAX_NAMES, size // _MAX_BYTES) for i, size in enumerate(sizes)]
    for _, run in itertools.groupby(zip(copies, runs, strict=True), key=lambda x: x[1]):
        yield [copy for copy, _ in run]
