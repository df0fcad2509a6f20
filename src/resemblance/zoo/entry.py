"""An `Entry`, what a zoo knows of a network without reading its file, and the `Store` protocol.

The id of an entry is a SHA-256 hash of everything its recording holds except the circumstances of
recording (dates, versions, devices), so recording or adding the same thing twice gives one entry.
Entries of one group were recorded on the same samples in the same way: their features can be
compared sample by sample, and so can their gradients if they were taken of the same target.

A store keeps recordings, entries and signatures. There is one for a folder and one for Lance
tables, with the same guarantees: whatever `put` returned is there afterwards, even with concurrent
writers, and damaged data are reported and never served.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import DataError, FormatError
from ..representation.schema import COUNT, HASH, Rule, list_of, optional, or_null
from ..similarity.results import Content

if TYPE_CHECKING:
    from ..representation.representation import Representation

DIGEST_LENGTH, GROUP_LENGTH = 64, 16
_HEX_DIGITS = frozenset("0123456789abcdef")
_MAX_TAG_LENGTH = 200  # characters
_CHECKSUM_DIGITS = 16
_MIN_PREFIX_DIGITS = 6  # digits of an id that may stand for it


def is_digest(value: object) -> bool:
    """Whether a value is a SHA-256 hash in hexadecimal digits, as an id is.

    >>> is_digest("0f" * 32), is_digest("resnet18")
    (True, False)
    """
    return isinstance(value, str) and len(value) == DIGEST_LENGTH and is_id_prefix(value)


def is_id_prefix(text: str) -> bool:
    """Whether a text could be the beginning of an id."""
    return set(text) <= _HEX_DIGITS


def is_text(x: Any) -> bool:
    """Whether it is text that can be written as UTF-8: without lone surrogates."""
    return isinstance(x, str) and (x.isascii() or not any("\ud800" <= c <= "\udfff" for c in x))


_DIGEST = Rule(f"{DIGEST_LENGTH} hexadecimal digits", is_digest)
_TEXT = Rule("valid Unicode text", is_text)
_RULES = {
    "id": _DIGEST,
    "name": _TEXT,
    "tags": list_of(_TEXT),
    "added": _TEXT,
    "group": HASH,
    "probe": _TEXT,
    "samples": COUNT,
    "layers": list_of(_TEXT, 1),
    "kinds": list_of(_TEXT),
    "classes": or_null(COUNT),
    "parameters": or_null(COUNT),
    "weights": or_null(_TEXT),
    "address": or_null(_TEXT),
    "size": COUNT,
    "trained_on": optional(or_null(_DIGEST)),
    "gradients": optional(or_null(_TEXT)),
}


@dataclass(frozen=True)
class Entry(Content):
    """What a zoo knows of a network without reading its file.

    Attributes:
        id: hash of what the recording holds, 64 hexadecimal digits.
        name: name of the network.
        tags: its tags, sorted.
        added: when it was added, ISO 8601 in UTC.
        group: hash of samples and settings, 16 hexadecimal digits; entries of one group can be
            compared.
        probe: the samples that it was recorded on, in words.
        samples: number of samples, or of tokens.
        layers: names of the recorded layers.
        kinds: what was recorded: features, gradients, elementwise.
        classes: number of classes; None if not known.
        parameters: number of parameters; None if not known.
        weights: hash of all weights; None if not known.
        address: what loads the model, as the recording says; it is shown and never run.
        size: size of the file in bytes.
        trained_on: id of a recording of a reference network on its training data; None if not
            linked.
        gradients: target and beta of the gradients; None if none were recorded.
    """

    id: str
    name: str
    tags: tuple[str, ...]
    added: str
    group: str
    probe: str
    samples: int
    layers: tuple[str, ...]
    kinds: tuple[str, ...]
    classes: int | None
    parameters: int | None
    weights: str | None
    address: str | None
    size: int
    trained_on: str | None = None
    gradients: str | None = None

    _rules = _RULES

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Entry:
        """The entry that `to_dict` returned; keys that a later version may add are ignored.

        Args:
            values: the fields by name, as JSON holds them.

        Returns:
            The entry.

        Raises:
            FormatError: if a field is missing, or is not what it must be.
        """
        return cls._from_dict(values)


def entry_columns(entries: Sequence[Entry], *names: str) -> dict[str, list[Any]]:
    """The columns of a table that describe entries; tags are joined by commas."""
    known = {name: [getattr(x, name) for x in entries] for name in names}
    if "tags" in known:
        known["tags"] = [", ".join(tags) for tags in known["tags"]]
    return known


def entry_for(
    rep: Representation, *, tags: tuple[str, ...], size: int, trained_on: str | None
) -> Entry:
    """The entry of a recording that is added now."""
    return Entry(
        id=content_hash(rep),
        name=rep.name,
        tags=tags,
        added=datetime.datetime.now(datetime.timezone.utc).isoformat("T", "milliseconds"),
        group=group_of(rep),
        probe=probe_of(rep),
        samples=rep.samples,
        layers=tuple(rep.layer_names),
        kinds=tuple(rep[0].kinds),
        classes=None if rep.predictions is None else rep.predictions.classes,
        parameters=rep.model.parameters,
        weights=rep.model.weights,
        address=rep.model.address,
        size=size,
        trained_on=trained_on,
        gradients=gradients_of(rep),
    )


def content_hash(rep: Representation) -> str:
    """A hash of all that a recording holds but when, where and with what versions it was made.

    What is as it is by default is passed over: a field that a later version adds leaves older
    recordings their hash.
    """
    found = hashlib.sha256()
    for field in fields(rep):
        value = getattr(rep, field.name)
        if field.name != "made" and not _is_default(value, field.default):
            _update_hash(found, field.name, value)
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
    return hashlib.sha256(text.encode()).hexdigest()[:GROUP_LENGTH]


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


def describe_mismatch(entry: Entry, rep: Representation, stored: Mapping[str, Any]) -> str:
    """How an entry, or its stored signatures by kernel, differ from its recording; else ""."""
    from .signature import mismatched_kernels, signatures

    fresh = entry_for(rep, tags=entry.tags, size=entry.size, trained_on=entry.trained_on)
    if replace(fresh, added=entry.added) != entry:
        return "the index disagrees with its recording"
    kernels = mismatched_kernels(stored, signatures(rep))
    return f"its signatures differ from its recording's: {', '.join(kernels)}" if kernels else ""


def to_facts(
    entry: Entry,
    signatures: Mapping[str, int],
    columns: Mapping[str, Any],
    tags: Iterable[str],
) -> str:
    """The fields of an entry as text for a row of an index, with checksums.

    Args:
        entry: what the row describes.
        signatures: the checksum of each of its signatures, by kernel.
        columns: the other columns of the row, which the checksum covers as well.
        tags: the tags that the checksum covers; they are not part of the text.
    """
    facts = {**entry.to_dict(), "signatures": dict(signatures)}
    del facts["tags"]
    return json.dumps({**facts, "check": _row_checksum(facts, columns, tags)})


def from_facts(
    text: Any, columns: Mapping[str, Any], tags: Iterable[str]
) -> tuple[Entry, dict[str, int]]:
    """The entry of a row, and the checksums of its signatures.

    Args:
        text: what `to_facts` returned.
        columns: the other columns of the row.
        tags: the tags of the entry.

    Raises:
        FormatError: if anything in the row is not as it was written.
    """
    try:
        facts = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise FormatError("its facts are not a JSON object")
    check = facts.pop("check", None)
    if check != _row_checksum(facts, columns, tags):
        raise FormatError("it does not match its checksum: it was edited after it was written")
    return Entry.from_dict({**facts, "tags": list(tags)}), facts["signatures"]


def validate_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags, each once and sorted; a text of one line, as people type it."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise DataError(f'expected a list of tags, found {tags!r}; write `tags=["..."]`')
    checked = set()
    for tag in tags:
        if not isinstance(tag, str):
            raise DataError(f"a tag must be text; found {type(tag).__name__}")
        if not tag or tag != tag.strip() or not tag.isprintable() or len(tag) > _MAX_TAG_LENGTH:
            raise DataError(
                f"a tag must be printable text of 1 to {_MAX_TAG_LENGTH} characters without spaces "
                f"around it; found {tag[:_MAX_TAG_LENGTH]!r}"
            )
        checked.add(tag)
    return tuple(sorted(checked))


def _row_checksum(facts: Mapping[str, Any], columns: Mapping[str, Any], tags: Iterable[str]) -> str:
    text = json.dumps([facts, columns, list(tags)], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:_CHECKSUM_DIGITS]


def _update_hash(found: hashlib._Hash, name: str, value: Any) -> None:
    """Add a named value to a hash: its kind and length go before what it holds."""
    import torch

    if isinstance(value, torch.Tensor):
        x = value.detach().cpu().contiguous()
        found.update(f"{name}:{x.dtype}{list(x.shape)}".encode())
        found.update(x.reshape(-1).view(torch.uint8).numpy().data)
    elif is_dataclass(value) and not isinstance(value, type):
        there = [f for f in fields(value) if not _is_default(getattr(value, f.name), f.default)]
        found.update(f"{name}:{type(value).__name__}{len(there)}".encode())
        for field in there:
            _update_hash(found, field.name, getattr(value, field.name))
    elif isinstance(value, tuple):
        found.update(f"{name}:tuple{len(value)}".encode())
        for part in value:
            _update_hash(found, "", part)
    else:
        text = json.dumps(value)
        found.update(f"{name}:{len(text)}:{text}".encode())


def _is_default(value: Any, default: Any) -> bool:
    return default is not MISSING and type(value) is type(default) and bool(value == default)


LayerSelection = Sequence[str | int] | None
DamageState = Literal["damaged", "missing", "leftover", "foreign", "index"]


@dataclass(frozen=True)
class NewRecording:
    """A recording on its way into a store, and what is known of it."""

    entry: Entry
    rep: Representation
    signatures: Mapping[str, np.ndarray]  # by kernel: (d,) float16 each


@dataclass(frozen=True)
class Damage:
    """Something in a zoo that is not as it should be."""

    # damaged or missing: an entry that is not served; leftover: of a writer that died
    state: DamageState
    where: str  # a path inside the zoo
    words: str
    entry: Entry | None = None


class Store(ABC):
    """Where a zoo keeps its recordings. Every id is a whole one."""

    where: str  # for messages

    def missing_error(self) -> DataError:
        """The error for a place where a zoo is expected and none is."""
        return DataError(
            f"no zoo at {self.where}: it does not exist, or was moved or removed. Create one with "
            "`resemblance zoo add`"
        )

    def damaged_error(self, entry: Entry, reason: str) -> FormatError:
        """The error for an entry whose recording is not what was added."""
        return FormatError(
            f"the entry {entry.name!r} ({entry.id[:12]}) of {self.where} is damaged: {reason}; add "
            "the recording again, or remove the entry"
        )

    @abstractmethod
    def put(self, several: Sequence[NewRecording]) -> list[Entry]:
        """Keep recordings; one that is there stays, and gets the tags as well."""

    @abstractmethod
    def listed(
        self,
        *,
        id: str | None = None,
        key: str | None = None,
        tag: str | None = None,
        group: str | None = None,
    ) -> tuple[list[Entry], list[Damage]]:
        """Entries in the order in which they came, and the rows of the index that are damaged.

        Args:
            id: only the entry of this id.
            key: only entries of this very name, and those whose id begins so.
            tag: only entries that have this tag.
            group: only entries of this group.
        """

    def matching(self, key: str) -> list[Entry]:
        """Entries that a key may mean: an id is one alone, and a name goes before a beginning."""
        if not is_text(key):
            return []
        if is_digest(key):
            return self.listed(id=key)[0]
        found, _ = self.listed(key=key)
        named = [entry for entry in found if entry.name == key]
        is_prefix = len(key) >= _MIN_PREFIX_DIGITS and is_id_prefix(key)
        return named or (found if is_prefix else [])

    @abstractmethod
    def count(self) -> int:
        """How many entries there are, with those that are damaged."""

    @abstractmethod
    def retag(self, id: str, add: Iterable[str], remove: Iterable[str]) -> Entry | None:
        """The entry with other tags; None if there is none."""

    @abstractmethod
    def drop(self, id: str) -> Entry | None:
        """Remove an entry, and say what it was; None if there was none."""

    @abstractmethod
    def read(self, id: str, layers: LayerSelection = None) -> Representation | None:
        """A recording, or some of its layers; None if there is none. Damage is an error."""

    @abstractmethod
    def damage(self, *, sweep: bool = False) -> list[Damage]:
        """All that is not as it should be; `sweep` removes what writers that died left."""

    @abstractmethod
    def signatures(
        self, group: str, kernel: str, *, among: Sequence[str] | None = None
    ) -> Iterator[tuple[list[str], np.ndarray]]:
        """Ids and signatures (n, d) of a group, or of some ids of it, some hundred at a time.

        A signature that is damaged, or missing, is a row of NaN.
        """

    def nearest(
        self,
        group: str,
        kernel: str,
        signature: np.ndarray,
        limit: int,
        *,
        among: Sequence[str] | None = None,
    ) -> list[tuple[str, float]]:
        """Ids and cosines of the nearest signatures of a group, or of some ids of it.

        Those whose signature is damaged come first, beyond the limit, with NaN as their cosine.
        """
        from .signature import exact_nearest

        return exact_nearest(self.signatures(group, kernel, among=among), signature, limit)

    @abstractmethod
    def close(self) -> None:
        """Let go of files that are held open."""
