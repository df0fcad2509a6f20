"""Shards by name: a file, a folder of them, or a pattern such as `shards-{000..010}.tar`."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ..errors import DataError
from . import tar_shards
from .images import IMAGES
from .parquet_rows import rows_of_parquet
from .stream_rows import Row
from .tar_shards import rows_of_tar

SUFFIXES = (*tar_shards.SUFFIXES, ".parquet")
_BRACES = re.compile(r"\{([^{}]*)\}")
_MOST = 10**6  # names that a pattern may stand for


def is_shards(spec: str) -> bool:
    """Whether a name is that of shards: by how it ends, or as a folder of nothing else."""
    if Path(spec).is_dir():
        found = list(Path(spec).iterdir())
        other = any(x.is_dir() or x.suffix.lower() in IMAGES for x in found)
        return not other and any(x.name.endswith(SUFFIXES) for x in found)
    return spec.endswith(SUFFIXES)


def shard_files(spec: str | os.PathLike[str]) -> list[Path]:
    """The files that a name stands for, sorted by name where it is a folder or has a star.

    `{000..010}` stands for numbers of one width, `{a,b}` for either, `*` and `?` as in a shell.
    """
    spec = os.fspath(spec)
    if Path(spec).is_dir():
        found = sorted(x for x in Path(spec).iterdir() if x.name.endswith(SUFFIXES))
    elif Path(spec).is_file():
        found = [Path(spec)]
    else:
        found = [Path(file) for name in spelt_out(spec) for file in _matching(name)]
    other = [x for x in found if not x.name.endswith(SUFFIXES)]
    if not found or other:
        what = f"found {other[0]}" if other else "found none"
        raise DataError(
            f"expected shards ({', '.join(SUFFIXES)}) at {spec!r}, {what}; name a file, a folder "
            "of shards or a pattern such as shards-{000..010}.tar"
        )
    return found


def _matching(name: str) -> list[str]:
    if not glob.has_magic(name):
        if not Path(name).is_file():
            raise DataError(f"no shard at {name!r}: expected a file")
        return [name]
    return sorted(glob.glob(name))


def spelt_out(pattern: str) -> list[str]:
    """The names that braces stand for.

    >>> spelt_out("s-{08..10}{,b}.tar")
    ['s-08.tar', 's-08b.tar', 's-09.tar', 's-09b.tar', 's-10.tar', 's-10b.tar']
    """
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern]
    before, after = pattern[: found.start()], pattern[found.end() :]
    first, dots, last = found[1].partition("..")
    choices = found[1].split(",")
    if dots:
        if not (first.isdecimal() and last.isdecimal()) or not 0 <= int(last) - int(first) < _MOST:
            raise DataError(
                f"expected numbers from the smaller to the larger in {found[0]}, such as "
                f"{{000..010}}; found it in {pattern!r}"
            )
        choices = [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    rest = spelt_out(after)
    return [before + choice + end for choice in choices for end in rest]


def rows_of(file: Path) -> Iterator[Row]:
    """The rows of one shard in its order."""
    return rows_of_parquet(file) if file.name.endswith(".parquet") else rows_of_tar(file)
