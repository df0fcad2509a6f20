"""Streams by name, for the command line: shards, and streaming data sets of Hugging Face.

Rows that hold images or numbers become a `Stream`. Text is read to its end and cut like that of
files, so that its sequences are visited in the seeded order of all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError, optional
from .hugging_face import loading
from .sample_keys import KEY
from .shard_files import is_shards, rows_of, shard_files
from .stream_rows import LABELS, Kind, Row
from .streams import Stream, of_files, of_rows
from .text_files import Texts, field_of_text

PREFIX = "hf-stream:"
_SPLITS = ("test", "validation", "train")  # that are looked for, in this order


@dataclass(frozen=True)
class NamedRows:
    """Rows that a name stands for, in their own order."""

    name: str  # for people
    rows: Callable[[], Iterator[Row]]
    streamed: Callable[..., Stream]  # by the function that makes samples, and options

    def text_field(self, wanted: str | None) -> str | None:
        """The field that holds text; None where the rows are of images or numbers."""
        row = next(self.rows(), None)
        if row is None:
            raise DataError(f"{self.name} holds no samples: expected at least one")
        kinds = {name: row.kind(name) for name in row if name != KEY}
        if wanted is None and not {"image", "array"}.isdisjoint(kinds.values()):
            return None
        of_text = [name for name, kind in kinds.items() if kind == "text"]
        return field_of_text(wanted, of_text, list(kinds), self.name)

    def texts(self, field: str) -> Texts:
        """The texts of all rows."""
        return Texts(f"{self.name} ({field})", (row[field] or "" for row in self.rows()))


def rows_named(spec: str) -> NamedRows | None:
    """The rows of shards or of a streaming data set; None for a name of anything else."""
    if spec.startswith(PREFIX):
        table, name = streaming_table(spec.removeprefix(PREFIX))

        def rows() -> Iterator[Row]:
            return (_row(number, values) for number, values in enumerate(table))

        return NamedRows(name, rows, lambda sample, **options: of_rows(rows, sample, **options))
    if spec.startswith("hf:") or ".py:" in spec or not is_shards(spec):
        return None
    files = shard_files(spec)
    return NamedRows(
        spec,
        lambda: itertools.chain.from_iterable(map(rows_of, files)),
        lambda sample, **options: of_files(files, sample, **options),
    )


def streaming_table(name: str) -> tuple[Any, str]:
    """A data set of Hugging Face's that is read as it comes, one split of it, and its name."""
    datasets = optional("datasets", "datasets", "text")
    remedy = (
        "expected a folder written by save_to_disk, a folder of its files, or a name on the hub"
    )
    with loading(name, "Hugging Face data set", remedy):
        saved = [Path(name) / x for x in ("dataset_dict.json", "dataset_info.json")]
        if any(file.is_file() for file in saved):
            table = datasets.load_from_disk(name)
        else:
            table = datasets.load_dataset(name, streaming=True)
    if isinstance(table, Mapping):
        split = next(x for x in (*_SPLITS, *table) if x in table)
        table, name = table[split], f"{name}, {split}"
    return table if hasattr(table, "n_shards") else table.to_iterable_dataset(), name


def _row(number: int, values: Mapping[str, Any]) -> Row:
    key = values.get(KEY)
    fields = {name: (_kind(name, value), value) for name, value in values.items()}
    return Row(key if isinstance(key, str) else number, str(key or number), fields)


def _kind(name: str, value: Any) -> Kind:
    if name in LABELS and isinstance(value, int | str):
        return "label"
    if isinstance(value, str):
        return "text"
    if isinstance(value, list | np.ndarray):
        return "array" if np.asarray(value).dtype.kind in "biuf" else "other"
    return "image" if hasattr(value, "convert") else "other"  # of PIL
