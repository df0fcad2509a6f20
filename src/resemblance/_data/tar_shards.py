"""Tar shards as WebDataset writes them: files that share a name up to its first dot are a sample.

`cats/0001.jpg` and `cats/0001.cls` are the image and the label of the sample `cats/0001`; they
follow one another. A shard is read once, from its beginning to its end, and nothing of it is ever
written to disk: names are names, wherever they point. Links, folders and devices are left out.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

from .._shown_text import shown
from ..errors import DataError, FormatError, first_line
from .images import IMAGES
from .stream_rows import Kind, Row

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_LARGEST = 2**30  # bytes of a file in a shard
_KINDS: dict[str, Kind] = {
    **{suffix.removeprefix("."): "image" for suffix in IMAGES},
    "npy": "array",
    "txt": "text",
    "text": "text",
    "cls": "label",
    "json": "json",
}


def rows_of_tar(path: Path) -> Iterator[Row]:
    """The samples of a shard in its order."""
    key, fields = None, dict[str, tuple[Kind, bytes]]()
    for name, content in _files(path):
        of, field = _parts(name)
        if not of or not field:
            continue
        if of != key and fields and key is not None:
            yield Row(key, f"{key} in {path}", fields)
            fields = {}
        key = of
        if field in fields:
            raise DataError(f"{path} holds {shown(name)} twice; write it again")
        fields[field] = (_KINDS.get(field.rpartition(".")[2], "other"), content)
    if key is not None:
        yield Row(key, f"{key} in {path}", fields)


def _parts(name: str) -> tuple[str, str]:
    """The key of the sample that a file is of, and the field it is; empty if it is of none.

    >>> _parts("./cats/0001.seg.PNG"), _parts("cats/.hidden"), _parts("README")
    (('cats/0001', 'seg.png'), ('', ''), ('', ''))
    """
    folder, slash, base = name.removeprefix("./").rpartition("/")
    stem, dot, field = base.partition(".")
    return (folder + slash + stem, field.lower()) if stem and dot else ("", "")


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the plain files in a shard."""
    last = ""
    try:
        with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r|*") as shard:
            for member in shard:
                if not member.isreg():
                    continue
                if member.size > _LARGEST:
                    raise DataError(
                        f"{shown(member.name)} in {path} says that it has {member.size:,} bytes; "
                        f"expected at most {_LARGEST:,} a file"
                    )
                content = shard.extractfile(member)
                assert content is not None  # of what is no plain file
                yield member.name, content.read()
                last = member.name
    except DataError:
        raise
    except Exception as error:  # of tarfile, of its decompressors or of the disk
        after = f" after {shown(last)}" if last else ""
        raise FormatError(
            f"{path} cannot be read as a tar file{after} ({first_line(error)}); write it again, or "
            "leave it out"
        ) from error
