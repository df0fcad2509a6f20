"""Shard files: tar and Parquet, given as a file, a folder or a pattern, read row by row.

Tar shards follow WebDataset: files that share a name up to its first dot form one sample, so
`cats/0001.jpg` and `cats/0001.cls` are the image and the label of sample `cats/0001`, and they are
adjacent. A shard is read once, front to back, and nothing is extracted to disk. Links, folders and
devices are skipped.

Parquet files are read a few rows at a time. A column of bytes, or of the structs that the library
datasets writes, holds images; one of lists holds numbers; one of strings holds text, labels or
keys. Patterns are such as `shards-{000..010}.tar`.
"""

from __future__ import annotations

import glob
import itertools
import operator
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._utils.formatting import printable
from .._utils.hashing import seeded_permutation
from ..errors import DataError, FormatError, first_line, import_optional
from .decoding import IMAGE_SUFFIXES, LABEL_FIELDS, FieldKind, Row
from .sample_hashes import KEY_FIELD

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_MAX_MEMBER_BYTES = 2**30  # bytes of a file in a shard
_KIND_BY_SUFFIX: dict[str, FieldKind] = {
    **{suffix.removeprefix("."): "image" for suffix in IMAGE_SUFFIXES},
    "npy": "array",
    "txt": "text",
    "text": "text",
    "cls": "label",
    "json": "json",
}


def read_tar(path: Path) -> Iterator[Row]:
    """The samples of a shard in its order."""
    members = ((*_key_and_field(name), name, content) for name, content in _tar_members(path))
    of_samples = (member for member in members if member[0] and member[1])
    for key, files in itertools.groupby(of_samples, operator.itemgetter(0)):
        fields: dict[str, tuple[FieldKind, bytes]] = {}
        for _, field, name, content in files:
            if field in fields:
                raise DataError(f"{path} contains {printable(name)} twice; write it again")
            fields[field] = (_KIND_BY_SUFFIX.get(field.rpartition(".")[2], "other"), content)
        yield Row(key, f"{key} in {path}", fields)


def _key_and_field(name: str) -> tuple[str, str]:
    """The key of the sample that a file is of, and the field it is; empty if it is of none.

    >>> (_key_and_field("./cats/0001.seg.PNG"),
    ...  _key_and_field("cats/.hidden"), _key_and_field("README"))
    (('cats/0001', 'seg.png'), ('', ''), ('', ''))
    """
    folder, slash, base = name.removeprefix("./").rpartition("/")
    stem, dot, field = base.partition(".")
    return (folder + slash + stem, field.lower()) if stem and dot else ("", "")


def _tar_members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the plain files in a shard."""
    last = ""
    try:
        with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r|*") as shard:
            for member in shard:
                if not member.isreg():
                    continue
                if member.size > _MAX_MEMBER_BYTES:
                    raise DataError(
                        f"{printable(member.name)} in {path} has {member.size:,} bytes; the limit "
                        f"is {_MAX_MEMBER_BYTES:,} per file"
                    )
                content = shard.extractfile(member)
                assert content is not None  # of what is no plain file
                yield member.name, content.read()
                last = member.name
    except DataError:
        raise
    except Exception as error:  # of tarfile, of its decompressors or of the disk
        after = f" after {printable(last)}" if last else ""
        raise FormatError(
            f"{path} cannot be read as a tar file{after} ({first_line(error)}); write it again, or "
            "leave it out"
        ) from error


_PARQUET_BATCH_ROWS = 256  # that are read at a time


def read_parquet(path: Path) -> Iterator[Row]:
    """The rows of a file in its order; their keys are in a column `__key__`, or file and number."""
    types = import_optional("pyarrow", "pyarrow", "text").types
    parquet = import_optional("pyarrow.parquet", "pyarrow", "text")
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_PARQUET_BATCH_ROWS):
                columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                kinds = {name: _column_kind(types, name, x.type) for name, x in columns.items()}
                for i in range(batch.num_rows):
                    fields = {
                        name: (kinds[name], _decode_scalar(kinds[name], column[i]))
                        for name, column in columns.items()
                    }
                    key = fields.get(KEY_FIELD, ("", None))[1]
                    key = key if isinstance(key, str) else f"{path.name}:{number}"
                    yield Row(key, f"{number} in {path}", fields)
                    number += 1
    except Exception as error:  # as the damage has it
        raise FormatError(
            f"{path} is not a readable .parquet file ({first_line(error)}); write it again"
        ) from error


def _column_kind(types: Any, name: str, column: Any) -> FieldKind:
    """What a column of a type of `pyarrow.types` holds."""
    if name in LABEL_FIELDS and not types.is_nested(column):
        return "label"
    if types.is_struct(column):
        return "image" if column.get_field_index("bytes") >= 0 else "other"
    if types.is_binary(column) or types.is_large_binary(column):
        return "image"
    inner = column
    while types.is_list(inner) or types.is_large_list(inner) or types.is_fixed_size_list(inner):
        inner = inner.value_type
    if inner is not column:
        numbers = (types.is_integer, types.is_floating, types.is_boolean)
        return "array" if any(test(inner) for test in numbers) else "other"
    return "text" if types.is_string(column) or types.is_large_string(column) else "other"


def _decode_scalar(kind: FieldKind, scalar: Any) -> Any:
    """A copy, so that a row that waits does not hold on to all that were read with it."""
    values = scalar.values if kind == "array" else None
    if values is not None and not hasattr(values.type, "value_type"):  # plain numbers
        return np.array(values)
    found = scalar.as_py()
    try:
        return np.array(found) if kind == "array" else found
    except ValueError:  # lists of several lengths: whoever asks for them is told
        return found


SHARD_SUFFIXES = (*TAR_SUFFIXES, ".parquet")
_BRACES = re.compile(r"\{([^{}]*)\}")
_MAX_EXPANSION = 10**6  # names that a pattern may stand for


def is_shards(spec: str) -> bool:
    """Whether a name is that of shards: by how it ends, or as a folder of nothing else."""
    if Path(spec).is_dir():
        found = list(Path(spec).iterdir())
        other = any(x.is_dir() or x.suffix.lower() in IMAGE_SUFFIXES for x in found)
        return not other and any(x.name.endswith(SHARD_SUFFIXES) for x in found)
    return spec.endswith(SHARD_SUFFIXES)


def find_shards(spec: str | os.PathLike[str]) -> list[Path]:
    """The files that a name stands for, sorted by name where it is a folder or has a star.

    `{000..010}` stands for numbers of one width, `{a,b}` for either, `*` and `?` as in a shell.
    """
    spec = os.fspath(spec)
    if Path(spec).is_dir():
        found = sorted(x for x in Path(spec).iterdir() if x.name.endswith(SHARD_SUFFIXES))
    elif Path(spec).is_file():
        found = [Path(spec)]
    else:
        found = []
        for name in expand_braces(spec):
            if not glob.has_magic(name) and not Path(name).is_file():
                raise DataError(f"no shard at {name!r}: expected a file")
            found += map(Path, sorted(glob.glob(name)) if glob.has_magic(name) else [name])
    other = [x for x in found if not x.name.endswith(SHARD_SUFFIXES)]
    if not found or other:
        what = f"found {other[0]}" if other else "found none"
        raise DataError(
            f"expected shards ({', '.join(SHARD_SUFFIXES)}) at {spec!r}, {what}; name a file, a "
            "folder of shards or a pattern such as shards-{000..010}.tar"
        )
    return found


def expand_braces(pattern: str) -> list[str]:
    """The names that braces stand for.

    >>> expand_braces("s-{08..10}{,b}.tar")
    ['s-08.tar', 's-08b.tar', 's-09.tar', 's-09b.tar', 's-10.tar', 's-10b.tar']
    """
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern]
    before, after = pattern[: found.start()], pattern[found.end() :]
    first, dots, last = found[1].partition("..")
    choices = found[1].split(",")
    if dots:
        if (
            not (first.isdecimal() and last.isdecimal())
            or not 0 <= int(last) - int(first) < _MAX_EXPANSION
        ):
            raise DataError(
                f"expected numbers from the smaller to the larger in {found[0]}, such as "
                f"{{000..010}}; found it in {pattern!r}"
            )
        choices = [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    rest = expand_braces(after)
    return [before + choice + end for choice in choices for end in rest]


def shard_rows(files: Sequence[Path], seed: int | None = None) -> Iterator[Row]:
    """The rows of shards, one shard after the other: as listed, or in a seeded order."""
    for i in range(len(files)) if seed is None else seeded_permutation(len(files), seed):
        read = read_parquet if files[i].name.endswith(".parquet") else read_tar
        yield from read(files[i])
