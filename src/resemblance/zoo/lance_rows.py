"""Rows of a zoo's Lance tables: what is written of a recording, and checked when it is read.

    layers     a layer of a recording a row, as a file of its own
    tags       a tag of an entry a row
    entries    an entry a row: what is known of it, hashes of its layers, its signatures

What is written at a time goes by a *copy*, a name of its own.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import FormatError, optional
from .entry import Entry
from .kernel_signature import DEPTHS, SEARCHED, WIDTH
from .recording_parts import Parts
from .store import Newcomer

NOTHING = hashlib.sha256(b"").hexdigest()  # of what layers share, where that is nothing


@dataclass(frozen=True)
class Copy:
    """What one `put` wrote of a recording."""

    name: str
    entry: Entry  # without its tags, which are in a table of their own
    parts: tuple[str, ...]  # hashes of its layers
    shared: str  # hash of what layers share


def checked(
    copy: Copy, wanted: Sequence[int], files: Mapping[int, bytes], shared: bytes | None
) -> Parts:
    """Parts of a copy, or an error if they are not what was added."""
    missing = [copy.entry.layers[i] for i in wanted if i not in files]
    if missing or shared is None:
        raise FormatError(f"{', '.join(missing[:3]) or 'its own row'} is missing")
    found = [*(files[i] for i in wanted), shared]
    if [_hash(text) for text in found] != [*(copy.parts[i] for i in wanted), copy.shared]:
        raise FormatError("its bytes are not those that were added")
    return Parts(tuple(found[:-1]), shared)


def schemas() -> dict[str, Any]:
    """Of the tables by name, once pyarrow is needed."""
    pa = optional("pyarrow", "pyarrow", "lance")
    text, blob = pa.string(), pa.large_binary()
    vector = pa.list_(pa.float16(), DEPTHS * WIDTH)
    words = ("copy", "id", "name", "grp", "facts", "parts", "shared_hash")
    entries = dict.fromkeys(words, text) | {"shared": blob}
    return {
        "layers": pa.schema({"copy": text, "position": pa.int32(), "content": blob}),
        "tags": pa.schema({"copy": text, "tag": text}),
        "entries": pa.schema(entries | {signature_column(kernel): vector for kernel in SEARCHED}),
    }


def signature_column(kernel: str) -> str:
    return f"signature_{kernel}"


def of_tags(tags: Sequence[tuple[str, str]]) -> dict[str, Any]:  # (copy, tag) each
    return {"copy": [copy for copy, _ in tags], "tag": [tag for _, tag in tags]}


def of_layers(parts: Mapping[str, Parts]) -> dict[str, Any]:
    rows = [(name, i, x) for name, part in parts.items() for i, x in enumerate(part.layers)]
    return {key: [row[k] for row in rows] for k, key in enumerate(("copy", "position", "content"))}


def of_entries(fresh: Mapping[str, Newcomer], parts: Mapping[str, Parts]) -> dict[str, Any]:
    """Of newcomers, and the parts of their recordings, by the names of copies."""
    entries = {name: replace(new.entry, size=parts[name].size) for name, new in fresh.items()}
    columns: dict[str, Any] = {
        "copy": list(fresh),
        "id": [entry.id for entry in entries.values()],
        "name": [entry.name for entry in entries.values()],
        "grp": [entry.group for entry in entries.values()],
        "facts": [facts(entry) for entry in entries.values()],
        "parts": [" ".join(map(_hash, parts[name].layers)) for name in fresh],
        "shared_hash": [_hash(parts[name].shared) for name in fresh],
        "shared": [parts[name].shared for name in fresh],
    }
    every = [new.signatures for new in fresh.values()]
    return columns | {signature_column(k): _vectors([x.get(k) for x in every]) for k in SEARCHED}


def _vectors(rows: Sequence[np.ndarray | None]) -> Any:
    """Signatures as one column, without those that are not there."""
    pa = optional("pyarrow", "pyarrow", "lance")
    nothing = np.zeros(DEPTHS * WIDTH, np.float16)
    joined = [nothing if x is None else np.asarray(x, np.float16).ravel() for x in rows]
    flat = pa.array(np.concatenate([*joined, nothing[:0]]))
    missing = pa.array([x is None for x in rows])
    return pa.FixedSizeListArray.from_arrays(flat, DEPTHS * WIDTH, mask=missing)


def facts(entry: Entry) -> str:
    """What is known of an entry but for its tags, which are in a table of their own."""
    return json.dumps({key: value for key, value in entry.to_dict().items() if key != "tags"})


def entry_of(facts: str) -> Entry:
    return Entry.from_dict({**json.loads(facts), "tags": []})


def new_name() -> str:
    """For a copy: when it is written, then at random, so that sorted the latest is last."""
    return f"{time.time_ns():016x}{secrets.token_hex(8)}"


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
