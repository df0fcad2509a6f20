"""Lance tables of a zoo: reading and writing rows with concurrent writers, and the row schemas.

    layers     one row per layer of a recording, stored as a file of its own
    tags       one row per tag of an entry
    entries    one row per entry: its facts, hashes of its layers, its signatures

What one `put` writes is called a *copy* and has a random name of its own. Lance lets writers
proceed and rejects the slower of two conflicting ones, which then retries. Every addition creates
one more file, so files are compacted from time to time. A recording is split into parts that can
be stored and read separately: one file per layer, and the tensors that all layers share. Lance's
errors are raised as this package's errors.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import random
import secrets
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

from ..errors import DataError, FormatError, ResemblanceError, first_line, import_optional
from ..representation.embeddings import Embeddings
from ..representation.file_format import load, representation_bytes
from ..representation.outputs import Outputs
from ..representation.representation import Representation, TokenRows
from .entry import Entry, NewRecording, from_facts, to_facts
from .signature import DEPTHS, SEARCH_KERNELS, WIDTH, signature_checksums

T = TypeVar("T")
_PATIENCE = 60.0  # seconds of trying again while others write
_FILES = 64  # of a table, beside a share of its rows, before they are joined
_MAX_VERSION_AGE = datetime.timedelta(
    hours=1
)  # what nobody reads any more: an earlier version of a table
_CONFLICT_WORDS = ("conflict", "concurrent", "too many", "already exists", "retry")
_NOT_WRITABLE_WORDS = ("ermission denied", "ead-only", "o space left", "ccess denied", "too large")
_UNREACHABLE_WORDS = (
    *("NoSuchBucket", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"),
    *("CredentialsNotLoaded", "error sending request"),
)
_MAX_QUOTED = 300  # characters at most: some errors hold whole answers of a server


class LanceTables:
    """Tables by name, each made when something is first written to it."""

    def __init__(self, place: str, where: str) -> None:  # where: for messages
        lancedb = import_optional("lancedb", "LanceDB", "lance")
        self._place = place
        self._where = where
        self._opened: dict[str, Any] = {}
        self._until_joined = random.randrange(_FILES)
        with self.translated_errors():
            always = datetime.timedelta(0)  # every reading looks for what others wrote since
            self._database = lancedb.connect(place, read_consistency_interval=always)

    def rows(
        self, name: str, columns: Sequence[str], where: str | None = None
    ) -> list[dict[str, Any]]:
        """Some columns of the rows that meet a condition in SQL; signatures are bytes."""
        table = self.table(name)
        if table is None:
            return []
        with self.translated_errors():
            asked = table.search() if where is None else table.search().where(where)
            found = asked.select(list(columns)).to_arrow()
            values = [column_values(found, column) for column in columns]
        return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]

    def add(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows; they are there when this returns."""
        if rows:
            pyarrow = import_optional("pyarrow", "pyarrow", "lance")
            made = pyarrow.Table.from_pylist(list(rows), schema=table_schemas()[name])
            self._persist(lambda: self._made(name).add(made))

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
            with self.translated_errors():
                try:
                    self._opened[name] = self._database.open_table(name)
                except Exception as error:
                    rows = Path(self._place, f"{name}.lance", "data")  # of a table in a folder
                    if "not found" not in str(error):
                        raise
                    if not any(rows.glob("*")):
                        return None  # nor if it is being made at this moment, or its maker died
                    # it was made just now; or it is damaged, and this is an error again
                    self._opened[name] = self._database.open_table(name)
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
        joined = []
        for name, share in _ROWS_PER_FILE.items():
            table = self.table(name)
            if table is None:
                continue
            with contextlib.suppress(ResemblanceError), self.translated_errors():
                found = table.stats()
                if found["fragment_stats"]["num_fragments"] > _FILES + found["num_rows"] // share:
                    table.optimize(cleanup_older_than=_MAX_VERSION_AGE)
                    joined.append(name)
        return joined

    def _made(self, name: str) -> Any:
        found = self.table(name)
        if found is None:
            found = self._database.create_table(name, schema=table_schemas()[name], exist_ok=True)
            self._opened[name] = found
        return found

    def _persist(self, do: Callable[[], T]) -> T:
        """Do something, again if others were in its way."""
        end, pause = time.monotonic() + _PATIENCE, 0.01
        while True:
            with self.translated_errors():
                try:
                    return do()
                except Exception as error:
                    conflict = any(words in str(error).lower() for words in _CONFLICT_WORDS)
                    if not conflict or time.monotonic() > end:
                        raise
            time.sleep(random.uniform(0, pause))
            pause = min(2 * pause, 1.0)

    @contextlib.contextmanager
    def translated_errors(self) -> Iterator[None]:
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
            if any(words in str(error) for words in _UNREACHABLE_WORDS):
                raise DataError(
                    f"cannot reach {self._where} ({text[:_MAX_QUOTED]}); expected a store that "
                    "exists, and that your credentials open: see where LanceDB looks for them"
                ) from error
            if any(words in text for words in _NOT_WRITABLE_WORDS):
                raise DataError(
                    f"cannot write {self._where}: {text[:_MAX_QUOTED]}; expected a place that may "
                    "be written to and has room: make one, or name another"
                ) from error
            raise FormatError(
                f"{self._where} cannot be read or written ({text[:_MAX_QUOTED]}); expected tables "
                "that Zoo made: copy them again"
            ) from error


def sql_in(column: str, values: Collection[str]) -> str:
    """A condition in SQL: that a column has one of some values.

    >>> sql_in("tag", ["a", "it's"]), sql_in("tag", [])
    ("tag IN ('a', 'it''s')", 'false')
    """
    quoted = ", ".join("'{}'".format(value.replace("'", "''")) for value in values)
    return f"{column} IN ({quoted})" if values else "false"


def split_recording(rep: Representation) -> tuple[list[bytes], bytes]:
    """A file for each layer, and what they share: predictions, and which tokens are rows."""
    bare = replace(rep, outputs=None, rows=None)
    files = [representation_bytes(replace(bare, layers=(layer,))) for layer in rep]
    tensors: dict[str, Tensor] = {}
    if rep.rows is not None:
        tensors |= {"rows.sequence": rep.rows.sequence, "rows.position": rep.rows.position}
    if rep.outputs is not None:
        tensors |= {f"outputs.{name}": x for name, x in rep.outputs.tensors().items()}
    made = {name: x.contiguous() for name, x in tensors.items()}
    return files, to_safetensors(made) if made else b""


def join_recording(files: Sequence[bytes], shared: bytes, classes: int | None) -> Representation:
    """A recording with the layers that files are of."""
    reps = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for i, content in enumerate(files):
            path = Path(folder, f"{i}.rsm")
            path.write_bytes(content)
            reps.append(load(path))
    found: dict[str, dict[str, Any]] = {"outputs": {}, "rows": {}}
    for key, value in (from_safetensors(shared) if shared else {}).items():
        kind, _, name = key.partition(".")
        found[kind][name] = value
    first = reps[0][0]  # whose signs are those of all
    return replace(
        reps[0],
        layers=tuple(
            replace(rep[0], signs=first.signs, sketch_signs=first.sketch_signs) for rep in reps
        ),
        outputs=_joined_outputs(classes, found["outputs"]),
        rows=TokenRows(**found["rows"]) if found["rows"] else None,
    )


def _joined_outputs(classes: int | None, tensors: Mapping[str, Any]) -> Outputs | Embeddings | None:
    if classes is not None:
        return Outputs(classes, **tensors)
    return Embeddings(**tensors) if tensors else None


CHECKSUM_COLUMNS = ("copy", "id", "name", "grp", "parts", "shared_hash")  # columns, by the checksum
SIGNATURE_COLUMNS: dict[str, str] = {kernel: f"signature_{kernel}" for kernel in SEARCH_KERNELS}
_ROWS_PER_FILE = {"layers": 16, "tags": 256, "entries": 64}  # joining writes a table anew


@dataclass(frozen=True)
class Copy:
    """What one `put` wrote of a recording."""

    name: str
    entry: Entry  # without its tags, which are in a table of their own
    parts: tuple[str, ...]  # hashes of its layers
    shared: str  # hash of what layers share
    signatures: Mapping[str, int]  # checksums, by kernel


@dataclass
class CopyContent:
    """What the tables hold of a copy."""

    layers: dict[int, bytes] = field(default_factory=dict)  # by position
    shared: bytes | None = None  # None: its own row is not there
    signatures: dict[str, bytes] = field(default_factory=dict)  # by kernel


class MissingPartError(FormatError):
    """A layer of a copy, or its own row, is not in the tables."""


def verified_layers(copy: Copy, content: CopyContent, wanted: Sequence[int]) -> list[bytes]:
    """Some layers of a copy, or an error if they or what they share are not what was added."""
    missing = [copy.entry.layers[i] for i in wanted if i not in content.layers]
    if missing or content.shared is None:
        raise MissingPartError(f"{', '.join(missing[:3]) or 'its own row'} is missing")
    files = [content.layers[i] for i in wanted]
    hashes = [*(copy.parts[i] for i in wanted), copy.shared]
    if list(map(_sha256, [*files, content.shared])) != hashes:
        raise FormatError("its bytes differ from those that were added")
    return files


def table_schemas() -> dict[str, Any]:
    """Of the tables by name, once pyarrow is needed."""
    pa = import_optional("pyarrow", "pyarrow", "lance")
    text, blob = pa.string(), pa.large_binary()
    vector = pa.list_(pa.float16(), DEPTHS * WIDTH)
    words = ("copy", "id", "name", "grp", "facts", "parts", "shared_hash")
    entries = dict.fromkeys(words, text) | {"shared": blob}
    return {
        "layers": pa.schema({"copy": text, "position": pa.int32(), "content": blob}),
        "tags": pa.schema({"copy": text, "tag": text}),
        "entries": pa.schema(entries | dict.fromkeys(SIGNATURE_COLUMNS.values(), vector)),
    }


def column_values(table: Any, name: str) -> list[Any]:
    """A column of what Arrow returned; signatures as bytes, None for those that are not there."""
    column = table.column(name)
    if name not in SIGNATURE_COLUMNS.values():
        return list(column.to_pylist())
    column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    flat = column.drop_null().flatten().to_numpy(zero_copy_only=False)
    vectors = iter(flat.reshape(-1, DEPTHS * WIDTH))
    return [next(vectors).tobytes() if there else None for there in column.is_valid().to_pylist()]


def copy_rows(name: str, new: NewRecording) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of a new recording: those of its layers, and that of its entry."""
    files, shared = split_recording(new.rep)
    entry = replace(new.entry, size=sum(map(len, files)) + len(shared))
    hashes, checksums = tuple(map(_sha256, files)), signature_checksums(new.signatures)
    copy = Copy(name, entry, hashes, _sha256(shared), checksums)
    return (
        [{"copy": name, "position": i, "content": content} for i, content in enumerate(files)],
        {
            **_checked_columns(copy),
            "facts": copy_facts(copy),
            "shared": shared,
            **{SIGNATURE_COLUMNS[kernel]: x for kernel, x in new.signatures.items()},
        },
    )


def copy_facts(copy: Copy) -> str:
    """What is known of a copy's entry but for its tags, which are in a table of their own."""
    return to_facts(copy.entry, copy.signatures, _checked_columns(copy), ())


def _checked_columns(copy: Copy) -> dict[str, str]:
    entry = copy.entry
    columns = (copy.name, entry.id, entry.name, entry.group, " ".join(copy.parts), copy.shared)
    return dict(zip(CHECKSUM_COLUMNS, columns, strict=True))


def parse_copy(row: Mapping[str, Any]) -> Copy:
    """A copy from the columns `CHECKSUM_COLUMNS` and `facts` of its row.

    Raises:
        FormatError: if anything in the row is not as it was written.
    """
    columns = {name: row[name] for name in CHECKSUM_COLUMNS}
    entry, signatures = from_facts(row["facts"], columns, ())
    parts = tuple(row["parts"].split())
    return Copy(row["copy"], entry, parts, row["shared_hash"], signatures)


def new_copy_name() -> str:
    """For a copy: when it is written, then at random, so that sorted the latest is last."""
    return f"{time.time_ns():016x}{secrets.token_hex(8)}"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
