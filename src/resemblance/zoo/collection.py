"""Zoo: a collection of recorded networks that can be searched, in a folder or in Lance tables."""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from .._atomic_files import write_atomically
from .._whole_numbers import whole_number
from ..errors import DataError, MismatchError, nearest
from ..representation.as_given import Given, recording, recordings
from ..representation.file_format import content
from ..representation.representation import Representation
from .entry import Entry, checked_tags, described, is_beginning, is_id
from .folder_store import FolderStore
from .kernel_signature import Searched, signatures
from .store import Damage, Newcomer, Store

if TYPE_CHECKING:
    from .descent import Descents
    from .family_tree import FamilyTree
    from .nearest_networks import Found

_LANCE = "lance:"
_SHORTEST = 6  # digits of an id that may stand for it
_TOGETHER = 64  # recordings that are entered at a time
_SHOWN = 5
_LONGEST = 80  # characters of a name in that of a file


class Zoo:
    """A collection of recorded networks, which any number of processes may use at once.

    Args:
        place: a folder, made when something is first added; or "lance:" and a folder or an address
            that LanceDB knows, such as "lance:s3://bucket/zoo" (extra `lance`).
        create: whether the place may be new.

    A key is the id of an entry, a beginning of it of six digits or more, or a name that only one
    entry has.

    >>> import tempfile, torch, resemblance as rs
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> x = torch.randn(64, 4)
    >>> with tempfile.TemporaryDirectory() as folder, rs.Zoo(folder) as zoo:
    ...     entry = zoo.add(rs.record(net, x, name="small"), tags=["untrained"])
    ...     [found.name for found in zoo], zoo.get("small").samples, zoo.verify()
    (['small'], 64, [])
    """

    def __init__(self, place: str | os.PathLike[str], *, create: bool = True) -> None:
        if not isinstance(place, str | os.PathLike) or not os.fspath(place):
            raise DataError(
                f"expected the folder of a zoo, or lance: and one, found {place!r}; name one"
            )
        self.store: Store = _opened(os.fspath(place), create=create)

    def add(self, rep: Given, *, tags: Iterable[str] = (), trained_on: str | None = None) -> Entry:
        """Add a recording, which is on the disk when this returns.

        Args:
            rep: a Representation, or the path of one.
            tags: words to find it by. Added again, a recording stays one entry, and gets them too.
            trained_on: key of an entry, or an id from elsewhere: a recording of a reference model
                on the data that this network was trained on, for `recommend`.
        """
        return self.store.put([self._newcomer(rep, checked_tags(tags), trained_on)])[0]

    def add_all(self, reps: Iterable[Given], *, tags: Iterable[str] = ()) -> list[Entry]:
        """Add many recordings, some dozens at a time, which is faster than one by one.

        After an error, those of earlier dozens are there.
        """
        if isinstance(reps, str | os.PathLike | Representation):
            recordings(reps)  # which says what is expected
        words, out = checked_tags(tags), list[Entry]()
        waiting: list[Newcomer] = []
        for rep in reps:
            waiting.append(self._newcomer(rep, words, None))
            if len(waiting) == _TOGETHER:
                out += self.store.put(waiting)
                waiting = []
        return out + (self.store.put(waiting) if waiting else [])

    def get(self, key: str, *, layers: Sequence[str | int] | None = None) -> Representation:
        """The recording of an entry; with `layers`, names or positions, these alone are read.

        A damaged one is an error, never an answer.
        """
        entry = self.entry(key)
        found = self.store.read(entry.id, layers)
        if found is None:
            raise DataError(f"the entry {key!r} of {self.store.where} has just been removed")
        return found

    def entry(self, key: str) -> Entry:
        """What is known of an entry without reading its file."""
        if not isinstance(key, str):
            raise DataError(f"expected the id or the name of an entry, found {type(key).__name__}")
        found = self._matching(key)
        if len(found) == 1:
            return found[0]
        if not found:
            names = [entry.name for entry in self.store.entries()]
            close = f"; nearest: {nearest(key, dict.fromkeys(names))}" if names else ", it is empty"
            raise DataError(f"no entry {key!r} in {self.store.where}{close}")
        ids = [entry.id[:12] for entry in found]
        more = [f"{len(ids) - _SHOWN} more"] if len(ids) > _SHOWN else []
        raise DataError(
            f"expected one entry, found {len(found)} for {key!r} in {self.store.where}: "
            f"{', '.join(ids[:_SHOWN] + more)}; give more of the id"
        )

    def remove(self, key: str) -> Entry:
        """Remove an entry, and say what it was."""
        found = self.store.drop(self.entry(key).id)
        if found is None:
            raise DataError(f"the entry {key!r} of {self.store.where} has just been removed")
        return found

    def tag(self, key: str, *tags: str, remove: Iterable[str] = ()) -> Entry:
        """Give an entry tags, and take others off."""
        words = checked_tags(tags), checked_tags(remove)
        found = self.store.retag(self.entry(key).id, *words)
        if found is None:
            raise DataError(f"the entry {key!r} of {self.store.where} has just been removed")
        return found

    def search(
        self,
        query: Given,
        *,
        kernel: Searched = "features",
        layer: str | int | None = None,
        tag: str | None = None,
        limit: int = 10,
    ) -> Found:
        """The networks most like a given one, among those recorded on the same samples.

        Args:
            query: a Representation, the path of one, or the key of an entry, which is then left out
                itself.
            kernel: "features" finds networks that see the samples alike; "gradients" and "product"
                those that were trained for the same task.
            layer: of the query alone, by name or position; by default all depths count.
            tag: only entries that have it.
            limit: how many.
        """
        from .nearest_networks import search

        whole_number("limit", limit, 1)
        return search(self, query, kernel=kernel, layer=layer, tag=tag, limit=limit)

    def derivatives(self, query: Given, *, limit: int = 10) -> Descents:
        """Which entries were made from a network, or it from them: copies, fine-tuned or pruned."""
        from .descent import derivatives

        whole_number("limit", limit, 1)
        return derivatives(self, query, limit=limit)

    def family_tree(self, *, group: str | None = None) -> FamilyTree:
        """Which entries of a group were made from which."""
        from .family_tree import family_tree

        return family_tree(self, group=group)

    def verify(self, *, sweep: bool = False) -> list[Damage]:
        """All that is not as it should be: every file is read whole and compared with its hash.

        Damaged entries, entries without a file, files without an entry, files that are not the
        zoo's. Nothing is changed, unless `sweep` removes what writers that died left.
        """
        return self.store.damage(sweep=sweep)

    def export(
        self, folder: str | os.PathLike[str], keys: Iterable[str] | None = None
    ) -> list[Path]:
        """Write recordings as plain files into a new folder, with `index.json` about them.

        Args:
            folder: new or empty.
            keys: which entries; by default all.
        """
        place = Path(folder)
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise DataError(f"expected a new or an empty folder, found {place}; name another")
        if isinstance(keys, str):
            raise DataError(f"expected a list of keys, found {keys!r}; write [{keys!r}]")
        chosen = self.store.entries() if keys is None else [self.entry(key) for key in keys]
        place.mkdir(parents=True, exist_ok=True)
        named = {_file_name(entry): entry for entry in chosen}
        for name, entry in named.items():
            write_atomically(place / name, content(self.get(entry.id)))
        facts = [{"file": name, **entry.to_dict()} for name, entry in named.items()]
        text = json.dumps({"entries": facts}, indent=1)
        write_atomically(place / "index.json", f"{text}\n".encode())
        return [place / name for name in named]

    def close(self) -> None:
        """Let go of files that are held open; they are opened again when needed."""
        self.store.close()

    def __enter__(self) -> Zoo:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self.store.count()

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.store.entries())

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and len(self._matching(key)) == 1

    def __repr__(self) -> str:
        count = len(self)
        return f"Zoo({self.store.where!r}, {count:,} {'entry' if count == 1 else 'entries'})"

    def _matching(self, key: str) -> Sequence[Entry]:
        """Entries that a key may mean: an id is one alone, and a name goes before a beginning."""
        if is_id(key):
            found = self.store.find(key)
            return [] if found is None else [found]
        there = self.store.matching(key)
        named = [entry for entry in there if entry.name == key]
        begun = len(key) >= _SHORTEST and is_beginning(key)
        return named or (there if begun else [])

    def _newcomer(self, rep: Given, tags: tuple[str, ...], trained_on: str | None) -> Newcomer:
        found = recording(rep)
        if not found.complete:
            raise MismatchError(
                f"{found.name!r} is a share of a recording ({len(found.data.shards)} of "
                f"{found.data.shards[0][1]}); put all together with merge before adding it"
            )
        reference = trained_on
        if reference is not None and not (isinstance(reference, str) and is_id(reference)):
            reference = self.entry(reference).id
        entry = described(found, tags=tags, size=0, trained_on=reference)
        return Newcomer(entry, found, signatures(found))

    def list(
        self, *, tag: str | None = None, name: str | None = None, group: str | None = None
    ) -> list[Entry]:
        """Entries in the order in which they came.

        Args:
            tag: those that have it.
            name: those whose name matches, where * stands for anything.
            group: those recorded on the same samples in the same way; see `Entry.group`.
        """
        found = self.store.entries(tag=tag, group=group)
        return [x for x in found if name is None or fnmatch.fnmatchcase(x.name, name)]


def _opened(place: str, *, create: bool) -> Store:
    if place.startswith(_LANCE):
        from .lance_store import LanceStore

        return LanceStore(place.removeprefix(_LANCE), create=create)
    return FolderStore(Path(place), create=create)


def _file_name(entry: Entry) -> str:
    """A name for a file that no system takes amiss, and that no other entry has."""
    plain = re.sub(r"[^\w.-]+", "_", entry.name)[:_LONGEST].strip("._-")
    return f"{plain or 'network'}-{entry.id[:16]}.rsm"
