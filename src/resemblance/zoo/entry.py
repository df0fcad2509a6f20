"""Entry: what a zoo knows of a network without reading its file.

An entry goes by a hash of all that its recording holds but the circumstances it was made in (dates,
versions, devices), so that the same thing recorded or added twice is one entry. Entries of one
group were recorded on the same samples in the same way: their features can be compared sample by
sample, and their gradients if those are of one target.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import DataError
from ..representation.representation import Representation

ID_DIGITS, GROUP_DIGITS = 64, 16
_HEXADECIMAL = frozenset("0123456789abcdef")
_LONGEST_TAG = 200  # characters


@dataclass(frozen=True)
class Entry:
    """A network of a zoo, as far as it is known without its file."""

    id: str  # 64 hexadecimal digits, of what the recording holds
    name: str
    tags: tuple[str, ...]  # sorted
    added: str  # ISO 8601, in UTC
    group: str  # 16 hexadecimal digits, of probe and settings
    probe: str  # in words: which samples, and how many
    samples: int
    layers: tuple[str, ...]
    kinds: tuple[str, ...]  # features, gradients, elementwise
    classes: int | None
    parameters: int | None
    weights: str | None  # hash of all weights
    address: str | None  # what the recording says that loads its model: shown, never run
    size: int  # bytes
    trained_on: str | None = None  # id of a recording of a reference model on its training data
    gradients: str | None = None  # of which target, and at which beta; None: none were recorded

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON can hold them."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Entry:
        """What `to_dict` gave; keys that a later version may add are passed over."""
        return cls(**{key: _frozen(values[key]) for key in cls.__match_args__ if key in values})


def described(
    rep: Representation, *, tags: tuple[str, ...], size: int, trained_on: str | None
) -> Entry:
    """The entry of a recording that is added now."""
    return Entry(
        id=identity(rep),
        name=rep.name,
        tags=tags,
        added=datetime.datetime.now(datetime.timezone.utc).isoformat("T", "milliseconds"),
        group=group_of(rep),
        probe=probe_of(rep),
        samples=rep.samples,
        layers=tuple(rep.layer_names),
        kinds=tuple(rep[0].kinds),
        classes=None if rep.outputs is None else rep.outputs.classes,
        parameters=rep.model.parameters,
        weights=rep.model.weights,
        address=rep.model.address,
        size=size,
        trained_on=trained_on,
        gradients=gradients_of(rep),
    )


def identity(rep: Representation) -> str:
    """A hash of all that a recording holds but when, where and with what versions it was made.

    What is as it is by default is passed over: a field that a later version adds leaves older
    recordings their hash.
    """
    found = hashlib.sha256()
    for field in fields(rep):
        value = getattr(rep, field.name)
        if field.name != "made" and not _by_default(value, field.default):
            _add(found, field.name, value)
    return found.hexdigest()


def group_of(rep: Representation) -> str:
    """A hash of all that must agree for features of two recordings to be compared by sample.

    For gradients, `gradients_of` must agree as well.
    """
    settings, data = rep.settings, rep.data
    parts = {
        "samples": [data.fingerprint, rep.samples],
        "order": [settings.seed, settings.block, rep.block_sizes, rep.block_numbers],
        "came": rep.block_hashes if data.order == "keyed" else None,  # in an order of their own
        "unit": [settings.unit, settings.tokens],
        "tokenizer": rep.model.tokenizer if settings.unit == "token" else None,
        "vectors": settings.pool,
    }
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:GROUP_DIGITS]


def gradients_of(rep: Representation) -> str | None:
    """What gradients were taken of, in words; None if none were recorded."""
    if "gradients" not in rep[0].kinds:
        return None
    beta = rep.settings.beta
    return rep.settings.target if beta is None else f"{rep.settings.target}, beta {beta!r}"


def probe_of(rep: Representation) -> str:
    """What a recording was made on, in words."""
    known = rep.data.id or f"data {(rep.data.content or rep.data.fingerprint)[:12]}"
    what = "tokens" if rep.settings.unit == "token" else "samples"
    return f"{known}, {rep.samples:,} {what}"


def told_by(entry: Entry, rep: Representation) -> bool:
    """Whether what is known of an entry is what its recording says."""
    said = described(rep, tags=entry.tags, size=entry.size, trained_on=entry.trained_on)
    return replace(said, added=entry.added) == entry


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags, each once and sorted; a text of one line, as people type it."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise DataError(f'expected a list of tags, found {tags!r}; write tags=["..."]')
    found = sorted(set(_words(tags)))
    for tag in found:
        if not tag or tag != tag.strip() or not tag.isprintable() or len(tag) > _LONGEST_TAG:
            raise DataError(
                f"a tag must be printable text of 1 to {_LONGEST_TAG} characters without spaces "
                f"around it; found {tag[:_LONGEST_TAG]!r}"
            )
    return tuple(found)


def is_id(text: str) -> bool:
    """Whether a text could be the id of an entry.

    >>> is_id("0f" * 32), is_id("resnet18")
    (True, False)
    """
    return len(text) == ID_DIGITS and is_beginning(text)


def is_beginning(text: str) -> bool:
    """Whether a text could be the beginning of one."""
    return set(text) <= _HEXADECIMAL


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _words(tags: Iterable[Any]) -> list[str]:
    found = list(tags)
    for tag in found:
        if not isinstance(tag, str):
            raise DataError(f"a tag must be text; found {type(tag).__name__}")
    return found


class _Hash(Protocol):
    def update(self, data: Any, /) -> None: ...


def _add(found: _Hash, name: str, value: Any) -> None:
    """Add a named value to a hash: its kind and length go before what it holds."""
    if isinstance(value, Tensor):
        x = value.detach().cpu().contiguous()
        found.update(f"{name}:{x.dtype}{list(x.shape)}".encode())
        found.update(x.reshape(-1).view(torch.uint8).numpy().data)
    elif is_dataclass(value) and not isinstance(value, type):
        there = [f for f in fields(value) if not _by_default(getattr(value, f.name), f.default)]
        found.update(f"{name}:{type(value).__name__}{len(there)}".encode())
        for field in there:
            _add(found, field.name, getattr(value, field.name))
    elif isinstance(value, tuple):
        found.update(f"{name}:tuple{len(value)}".encode())
        for part in value:
            _add(found, "", part)
    else:
        text = json.dumps(value)
        found.update(f"{name}:{len(text)}:{text}".encode())


def _by_default(value: Any, default: Any) -> bool:
    return default is not MISSING and type(value) is type(default) and bool(value == default)
