"""Store: what keeps the recordings of a zoo, their entries and their signatures.

There is one for a folder and one for Lance tables, with the same promises: what `put` returned is
there afterwards, whoever else writes at the same time; what is damaged is told and never served.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from ..representation.representation import Representation
from .entry import Entry

Layers = Sequence[str | int] | None
State = Literal["damaged", "missing", "leftover", "foreign", "index"]
AT_ONCE = 512  # signatures in memory at a time: few enough for a processor's cache


@dataclass(frozen=True)
class Newcomer:
    """A recording on its way into a store, and what is known of it."""

    entry: Entry
    rep: Representation
    signatures: Mapping[str, np.ndarray]  # by kernel: (d,) float16 each


@dataclass(frozen=True)
class Damage:
    """Something in a zoo that is not as it should be."""

    state: State  # damaged or missing: an entry that is not served; leftover: of a writer that died
    where: str  # a path inside the zoo
    words: str
    entry: Entry | None = None


class Store(Protocol):
    """What a zoo asks of a store. Every id is a whole one."""

    where: str  # for messages

    def put(self, several: Sequence[Newcomer]) -> list[Entry]:
        """Keep recordings; one that is there stays, and gets the tags as well."""

    def entries(self, *, tag: str | None = None, group: str | None = None) -> list[Entry]:
        """All, or those of a tag or a group, in the order in which they came."""

    def count(self) -> int:
        """How many entries there are."""

    def find(self, id: str) -> Entry | None:
        """The entry of an id."""

    def matching(self, key: str) -> list[Entry]:
        """Entries of this very name, and those whose id begins so."""

    def retag(self, id: str, add: Iterable[str], remove: Iterable[str]) -> Entry | None:
        """The entry with other tags; None if there is none."""

    def drop(self, id: str) -> Entry | None:
        """Remove an entry, and say what it was; None if there was none."""

    def read(self, id: str, layers: Layers = None) -> Representation | None:
        """A recording, or some of its layers; None if there is none. Damage is an error."""

    def damage(self, *, sweep: bool = False) -> list[Damage]:
        """All that is not as it should be; `sweep` removes what writers that died left."""

    def signatures(
        self, group: str, kernel: str, *, among: Sequence[str] | None = None
    ) -> Iterator[tuple[list[str], np.ndarray]]:
        """Ids and signatures (n, d) of a group, or of some ids of it, some hundred at a time."""

    def nearest(
        self,
        group: str,
        kernel: str,
        signature: np.ndarray,
        limit: int,
        *,
        among: Sequence[str] | None = None,
    ) -> list[tuple[str, float]]:
        """Ids and cosines of the nearest signatures of a group, or of some ids of it."""

    def close(self) -> None:
        """Let go of files that are held open."""


def exactly_nearest(
    blocks: Iterable[tuple[list[str], np.ndarray]], signature: np.ndarray, limit: int
) -> list[tuple[str, float]]:
    """Ids and cosines of the nearest of signatures that come in blocks, the nearest first.

    Every one is looked at. Of equals, the one that came first is nearer. Those of another length,
    from another way to make signatures, are passed over.
    """
    asked = np.asarray(signature, np.float32).ravel()
    asked = asked / max(float(np.linalg.norm(asked)), np.finfo(np.float32).tiny)
    ids: list[str] = []
    cosines = np.zeros(0, np.float32)
    for names, vectors in blocks:
        if vectors.shape[1] != len(asked):
            continue
        rows = vectors.astype(np.float32)
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        found = rows @ asked / np.maximum(lengths, np.finfo(np.float32).tiny)
        ids, cosines = ids + names, np.concatenate([cosines, found])
        best = np.argsort(-cosines, kind="stable")[:limit]
        ids, cosines = [ids[i] for i in best], cosines[best]
    return [(name, float(cosine)) for name, cosine in zip(ids, cosines, strict=True)]
