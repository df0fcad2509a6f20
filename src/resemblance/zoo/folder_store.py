"""A zoo in a folder (`FolderStore`): content-addressed files and a SQLite index.

    objects/ab/abcdef….rsm   a recording; its name is the SHA-256 of its bytes
    index.sqlite             entries, tags, signatures

A file never changes once it has its name, so readers need no lock. A file is on the disk before
its entry is, and an entry is removed before its file is: whenever a writer dies, every entry still
has its file, and the only leftovers are files without an entry. Such files are removed under the
same lock that entries are written under, where each writer checks that its file still exists.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._utils.atomic_files import PART_NAME, check_writable, make_folder, write_atomically
from ..errors import DataError, FormatError
from . import sqlite_index
from .entry import (
    Damage,
    DamageState,
    Entry,
    LayerSelection,
    NewRecording,
    Store,
    describe_mismatch,
    is_digest,
)
from .sqlite_index import INDEX_FILE, EntryRow, SqliteIndex, StoredFile

if TYPE_CHECKING:
    from ..representation.representation import Representation

_OBJECTS_FOLDER = "objects"
_FILE_NAME = re.compile(r"[0-9a-f]{64}\.rsm")
_CHUNK_BYTES = 1 << 20  # bytes read at a time
_HEADER_LENGTH_BYTES = 8  # bytes that say how long a file's header is


class FolderStore(Store):
    """Recordings in a folder, for any number of processes and threads of one machine."""

    def __init__(self, folder: Path, *, create: bool = True) -> None:
        self.folder = folder
        self.where = str(folder)
        self._create = create
        self._index = SqliteIndex(folder / INDEX_FILE)
        self._files = HashedFiles(folder / _OBJECTS_FOLDER)
        self._check_place()

    # -- writing --------------------------------------------------------------------------------

    def put(self, several: Sequence[NewRecording]) -> list[Entry]:
        self._begin()
        files: list[StoredFile | None] = []
        for new in several:
            row = self._found(new.entry.id)
            whole = row is not None and self._files.intact(row.file)
            files.append(None if whole else self._write(new))
        unused: list[str] = []
        with self._index.writing() as db:
            pairs = zip(several, files, strict=True)
            out = [self._enter(db, new, file, unused) for new, file in pairs]
        self._remove_unused(unused)
        return out

    def retag(self, id: str, add: Iterable[str], remove: Iterable[str]) -> Entry | None:
        with self._index.writing() as db:
            row = sqlite_index.find_row(db, id)
            if row is None:
                return None
            tags = {*row.entry.tags}.difference(remove).union(add)
            entry = replace(row.entry, tags=tuple(tags))
            return sqlite_index.write_row(db, replace(row, entry=entry))

    def drop(self, id: str) -> Entry | None:
        with self._index.writing() as db:
            row = sqlite_index.find_row(db, id)
            if row is None:
                return None
            sqlite_index.delete_row(db, row.number)
        self._remove_unused([row.file.digest])
        return row.entry

    def close(self) -> None:
        self._index.close()

    def _enter(
        self, db: sqlite3.Connection, new: NewRecording, file: StoredFile | None, unused: list[str]
    ) -> Entry:
        """The entry of a recording, made or brought up to date, and files nobody needs any more.

        Nobody else writes meanwhile. A file that was written or seen before may be gone: then its
        entry was removed since.
        """
        digest = "" if file is None else file.digest
        unused += sqlite_index.delete_damaged_rows(db, new.entry.id, digest)
        row = sqlite_index.find_row(db, new.entry.id)
        entry, number = (new.entry, None) if row is None else (row.entry, row.number)
        if row is not None and self._files.intact(row.file):
            kept = row.file  # somebody else may have been faster
        elif file is not None and self._files.path(file.digest).exists():
            kept = file
        else:
            kept = self._write(new)
        before = () if row is None else (row.file.digest,)
        unused += {digest, *before} - {"", kept.digest}
        entry = replace(
            entry,
            tags=tuple({*entry.tags, *new.entry.tags}),
            trained_on=new.entry.trained_on or entry.trained_on,
        )
        from .signature import signature_checksums

        row = EntryRow(number, kept, entry, signature_checksums(new.signatures))
        return sqlite_index.write_row(db, row, new.signatures)

    def _write(self, new: NewRecording) -> StoredFile:
        from ..representation.file_format import representation_bytes

        return self._files.write(representation_bytes(new.rep))

    def _remove_unused(self, digests: Sequence[str]) -> None:
        """Remove files that no entry has.

        A writer that has written one of them, and has yet to enter it, looks again.
        """
        if not digests:
            return
        with self._index.writing() as db:
            for digest in digests:
                if not db.execute("SELECT 1 FROM entries WHERE digest = ?", (digest,)).fetchone():
                    with contextlib.suppress(OSError):  # it stays as a leftover, and no harm
                        self._files.path(digest).unlink()

    def _begin(self) -> None:
        """The folder, then its index, then the folder of recordings."""
        self._check_place()
        if self._files.top.is_dir():
            return
        make_folder(self.folder)
        with self._index.writing():
            pass
        make_folder(self._files.top)
        sync_folder(self.folder)
        sync_folder(self.folder.resolve().parent)

    # -- reading --------------------------------------------------------------------------------

    def listed(
        self,
        *,
        id: str | None = None,
        key: str | None = None,
        tag: str | None = None,
        group: str | None = None,
    ) -> tuple[list[Entry], list[Damage]]:
        conditions = {
            "id = ?": [id],
            # all ids that begin so come before those that go on with what is above every digit
            "(name = ? OR id >= ? AND id < ?)": [key, key, f"{key}g"],
            "number IN (SELECT number FROM tags WHERE tag = ?)": [tag],
            "grp = ?": [group],
        }
        asked = {text: values for text, values in conditions.items() if values[0] is not None}
        values = [x for several in asked.values() for x in several if x is not None]
        rows, damaged = self._rows(" AND ".join(asked) or "1", values)
        return [row.entry for row in rows], damaged

    def count(self) -> int:
        rows = self._fetched("SELECT count(*) FROM entries")
        return rows[0][0] if rows else 0

    def read(self, id: str, layers: LayerSelection = None) -> Representation | None:
        row = self._found(id)
        while row is not None:
            try:
                return self._loaded(row, layers)
            except FormatError:  # or it was removed or put right meanwhile
                again = self._found(id)
                if again is not None and again.file == row.file:
                    raise
                row = again
        return None

    def signatures(
        self, group: str, kernel: str, *, among: Sequence[str] | None = None
    ) -> Iterator[tuple[list[str], np.ndarray]]:
        from .signature import AT_ONCE, verified_signatures

        if among is None:
            every = self._fetched("SELECT id FROM entries WHERE grp = ? ORDER BY number", [group])
            among = [id for (id,) in every]
        for start in range(0, len(among), AT_ONCE):
            ids = among[start : start + AT_ONCE]
            query = (
                "SELECT id, facts, vector FROM entries LEFT JOIN signatures ON signatures.number = "
                "entries.number AND signatures.grp = entries.grp AND kernel = ? WHERE "
                f"entries.grp = ? AND id IN ({', '.join('?' * len(ids))}) ORDER BY entries.number"
            )
            found = verified_signatures(self._fetched(query, [kernel, group, *ids]), kernel)
            if found[0]:
                yield found

    def _fetched(self, query: str, values: Sequence[str | int | None] = ()) -> list[Any]:
        """The rows of a query; none where nothing was ever written."""
        self._check_place()
        with self._index.reading() as db:
            return [] if db is None else db.execute(query, values).fetchall()

    def _rows(
        self, condition: str, values: Sequence[str] = ()
    ) -> tuple[list[EntryRow], list[Damage]]:
        """Rows of the index that meet a condition, and damage to others."""
        self._check_place()
        with self._index.reading() as db:
            return ([], []) if db is None else sqlite_index.read_rows(db, condition, values)

    def _found(self, id: str) -> EntryRow | None:
        rows, _ = self._rows("id = ?", [id])
        return rows[0] if rows else None

    def _loaded(self, row: EntryRow, layers: LayerSelection) -> Representation:
        """A recording, once its file, or its header if only some layers are read, is what it was.

        The header holds a checksum of each layer, which reading a layer compares.
        """
        from ..representation.file_format import load

        path = self._files.path(row.file.digest)
        try:
            if not self._files.is_whole(row.file, header_only=layers is not None):
                raise FormatError("its bytes differ from those that were added")
            return load(path, layers=layers)
        except (FormatError, OSError) as error:
            missing = isinstance(error, FileNotFoundError)
            why = f"{path} is missing" if missing else f"{path}: {error}"
            raise self.damaged_error(row.entry, why) from error

    def _check_place(self) -> None:
        """An error if the folder is none, or is no zoo and cannot become one."""
        index = self.folder / INDEX_FILE
        if index.exists():
            return
        try:
            there = os.listdir(self.folder)
        except FileNotFoundError:
            there = []
        except NotADirectoryError:
            raise DataError(
                f"expected a folder for a zoo, found a file at {self.folder}, or above it; name "
                "the folder first"
            ) from None
        if index.exists():  # somebody has just made it
            return
        if _OBJECTS_FOLDER in there:
            raise FormatError(
                f"{self.folder} has recordings but no {INDEX_FILE}: the index was removed; add the "
                "recordings to a new zoo (resemblance zoo add NEW OLD/objects/*/*.rsm), or put "
                "the index back"
            )
        if not self._create:
            raise self.missing_error()
        if there:
            raise DataError(
                f"{self.folder} is neither a zoo nor empty; expected a zoo, an empty folder or a "
                "new name"
            )

    # -- damage ---------------------------------------------------------------------------------

    def damage(self, *, sweep: bool = False) -> list[Damage]:
        self._check_place()
        found = self._damage_of_index()
        there = self._files.listed()  # first: what is entered after this is no leftover
        rows, damaged = self._rows("1")
        found += damaged
        for row in rows:
            found += self._damage_of_entry(row)
        digests = (digest for (digest,) in self._fetched("SELECT digest FROM entries"))
        entered = {self._files.path(digest) for digest in digests if is_digest(digest)}
        others = [path for path in there if path not in entered]
        found += [self._damage_of_file(path, nameless=bool(damaged)) for path in others]
        if sweep:
            for folder in {path.parent for path in others if self._files.is_half_written(path)}:
                check_writable(folder / "any")  # which removes what no live writer holds
            if not damaged:  # a damaged row may have named one of them
                self._remove_unused([path.stem for path in others if self._files.is_one(path)])
        return found

    def _damage_of_index(self) -> list[Damage]:
        reasons = [text for (text,) in self._fetched("PRAGMA quick_check") if text != "ok"]
        for table in ("tags", "signatures"):
            query = f"SELECT number FROM {table} WHERE number NOT IN (SELECT number FROM entries)"
            if lost := self._fetched(query):
                reasons.append(f"{len(lost)} of its {table} belong to no entry")
        return [Damage("index", INDEX_FILE, reason) for reason in reasons]

    def _damage_of_entry(self, row: EntryRow) -> list[Damage]:
        """What is wrong with an entry, unless it was removed or put right meanwhile."""
        path, why = self._files.path(row.file.digest), ""
        try:
            query = "SELECT kernel, vector FROM signatures WHERE number = ? AND grp = ?"
            stored = dict(self._fetched(query, (row.number, row.entry.group)))
            why = describe_mismatch(row.entry, self._loaded(row, None), stored)
        except FormatError:
            why = "its bytes differ from those that were added"
        again = self._found(row.entry.id) if why else None
        if again is None or (again.file, again.entry.added) != (row.file, row.entry.added):
            return []  # also if it was removed and added anew, to the same file
        where = str(path.relative_to(self.folder))
        if not path.exists():
            return [Damage("missing", where, "its file is missing", again.entry)]
        return [Damage("damaged", where, why, again.entry)]

    def _damage_of_file(self, path: Path, *, nameless: bool) -> Damage:
        """What a file is that no entry has; nameless: damaged rows may have had it."""
        state: DamageState = "leftover"
        if self._files.is_half_written(path):
            why = "incomplete: being written now, or left by a writer that crashed"
        elif not self._files.is_one(path):
            state, why = "foreign", "not a file of this zoo"
        elif nameless:
            why = "a recording without a readable row in the index; add it again to repair it"
        else:
            why = "a recording that is not in the index"
        return Damage(state, str(path.relative_to(self.folder)), why)


class HashedFiles:
    """Files named by the SHA-256 of their bytes, written once and read without a lock."""

    def __init__(self, top: Path) -> None:
        self.top = top

    def path(self, digest: str) -> Path:
        """Where the file of a digest is; every path that comes from an index is built here.

        Raises:
            FormatError: if it is no digest, such as one that leads out of the folder.
        """
        if not is_digest(digest):
            raise FormatError(f"expected a digest of 64 hexadecimal digits, found {digest!r:.80}")
        return self.top / digest[:2] / f"{digest}.rsm"

    def write(self, content: bytes) -> StoredFile:
        """Write a file, which is on the disk with its name when this returns."""
        file = StoredFile(hashlib.sha256(content).hexdigest(), _header_hash(content), len(content))
        path = self.path(file.digest)
        if not path.parent.exists():
            make_folder(path.parent)
            sync_folder(self.top)
        write_atomically(path, content)
        sync_folder(path.parent)
        return file

    def intact(self, file: StoredFile) -> bool:
        """Whether it is there, with all its bytes."""
        try:
            return self.is_whole(file)
        except OSError:
            return False

    def is_whole(self, file: StoredFile, *, header_only: bool = False) -> bool:
        """Whether its bytes, or only its length and its header, are those that were written."""
        digest = hashlib.sha256()
        with open(self.path(file.digest), "rb") as opened:
            if header_only:
                start = opened.read(_HEADER_LENGTH_BYTES)
                start += opened.read(min(_header_length(start), file.size))
                size = os.fstat(opened.fileno()).st_size
                return size == file.size and _header_hash(start) == file.head
            while chunk := opened.read(_CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest() == file.digest

    def listed(self) -> list[Path]:
        """Whatever lies there, also what is none of these files."""
        return sorted(path for path in self.top.rglob("*") if not path.is_dir())

    def is_half_written(self, path: Path) -> bool:
        return path.parent.parent == self.top and bool(PART_NAME.fullmatch(path.name))

    def is_one(self, path: Path) -> bool:
        """Whether a path is that of a recording, by its name."""
        return bool(_FILE_NAME.fullmatch(path.name)) and path == self.path(path.stem)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the system has a call for it."""
    try:
        opened = os.open(folder, os.O_RDONLY)
    except PermissionError:  # it may be entered but not read, or the system opens no folders
        return
    try:
        os.fsync(opened)
    except OSError as error:
        raise DataError(
            f"cannot write {folder}: {error.strerror}; expected a disk that works"
        ) from None
    finally:
        os.close(opened)


def _header_hash(content: bytes) -> str:
    """The hash of the header that a file begins with."""
    return hashlib.sha256(content[: _HEADER_LENGTH_BYTES + _header_length(content)]).hexdigest()


def _header_length(content: bytes) -> int:
    return int.from_bytes(content[:_HEADER_LENGTH_BYTES], "little")
