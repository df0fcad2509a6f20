"""The class `Zoo`: a searchable collection of recorded networks, in a folder or in Lance tables.

`Zoo` resolves keys (an id, a prefix of it, or a unique name) and delegates to a store
(`folder_store` or `lance_store`). `search`, `descent` and `family_tree` are imported when used, and
so is whatever imports torch: an index can be read without it.
"""

from __future__ import annotations

import fnmatch
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from .._utils.atomic_files import make_folder, write_atomically
from .._utils.formatting import count_noun, join_names
from .._utils.validation import check_integer
from ..errors import DataError, FormatError, MismatchError, close_matches, warn
from .entry import (
    Damage,
    Entry,
    NewRecording,
    Store,
    entry_for,
    is_digest,
    validate_tags,
)
from .folder_store import FolderStore

if TYPE_CHECKING:
    from ..representation.representation import Representation, RepresentationLike
    from .descent import Descents
    from .family_tree import FamilyTree
    from .search import SearchResult
    from .signature import SearchKernel


T = TypeVar("T")
_LANCE_PREFIX = "lance:"
_ADD_BATCH = 64  # recordings that are entered at a time
_MAX_SHOWN_IDS = 5
_MAX_FILE_NAME = 80  # characters of a name in that of a file


class Zoo:
    """A collection of recorded networks, which any number of processes may use at once.

    A key is the id of an entry, a prefix of it of at least six digits, or a name that only one
    entry has.

    Args:
        place: a folder, created when something is first added; or `"lance:"` and a folder or an
            address that LanceDB knows, such as `"lance:s3://bucket/zoo"` (extra `lance`).
        create: whether the place may be new.

    Example:
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
            raise DataError(f"expected the folder of a zoo, or lance:FOLDER, found {place!r}")
        self.store: Store
        if (path := os.fspath(place)).startswith(_LANCE_PREFIX):
            from .lance_store import LanceStore

            self.store = LanceStore(path.removeprefix(_LANCE_PREFIX), create=create)
        else:
            self.store = FolderStore(Path(path), create=create)

    def add(
        self, rep: RepresentationLike, *, tags: Iterable[str] = (), trained_on: str | None = None
    ) -> Entry:
        """Add a recording, which is on disk when this returns.

        Args:
            rep: a Representation, or the path of its file.
            tags: words to find it by. A recording that is added again stays one entry and gets
                these tags as well.
            trained_on: for `recommend`, the recording of a reference model on the data that this
                network was trained on: key of an entry, or an id from a different zoo.

        Returns:
            The new entry.

        Raises:
            MismatchError: if the recording is one shard of several.
        """
        return self.store.put([self._new_recording(rep, validate_tags(tags), trained_on)])[0]

    def add_all(
        self, reps: Iterable[RepresentationLike], *, tags: Iterable[str] = ()
    ) -> list[Entry]:
        """Add many recordings in batches of 64, which is faster than one by one.

        Args:
            reps: Representations, or paths of their files.
            tags: words to find them by.

        Returns:
            The new entries. After an error, earlier batches have been added.
        """
        from ..representation.representation import Representation, as_representations

        if isinstance(reps, str | os.PathLike | Representation):
            as_representations(reps)  # which says what is expected
        checked, rest, entries = validate_tags(tags), iter(reps), list[Entry]()
        while some := list(itertools.islice(rest, _ADD_BATCH)):
            entries += self.store.put([self._new_recording(rep, checked) for rep in some])
        return entries

    def get(self, key: str, *, layers: Sequence[str | int] | None = None) -> Representation:
        """Read the recording of an entry.

        Args:
            key: id, prefix of an id, or name.
            layers: names or positions of the layers to read; None reads all.

        Returns:
            The recording.

        Raises:
            DataError: if no entry, or more than one, has the key.
            FormatError: if its file is damaged or missing.
        """
        return self._unless_removed(self.store.read(self.entry(key).id, layers), key)

    def entry(self, key: str) -> Entry:
        """Look up an entry without reading its file.

        Args:
            key: id, prefix of an id, or name.

        Returns:
            The entry.

        Raises:
            DataError: if no entry, or more than one, has the key.
        """
        if not isinstance(key, str):
            raise DataError(f"expected the id or the name of an entry, found {type(key).__name__}")
        found = self.store.matching(key)
        if len(found) == 1:
            return found[0]
        if not found:
            entries, damaged = self.store.listed()
            names = dict.fromkeys(entry.name for entry in entries)
            close = f"; nearest: {close_matches(key, names)}" if names else ", it is empty"
            rest = f". {damaged_rows_message(len(damaged))}" if damaged else ""
            raise DataError(f"no entry {key!r} in {self.store.where}{close}{rest}")
        ids = join_names((entry.id[:12] for entry in found), _MAX_SHOWN_IDS)
        raise DataError(
            f"expected one entry, found {len(found)} for {key!r} in {self.store.where}: "
            f"{ids}; give more of the id"
        )

    def remove(self, key: str) -> Entry:
        """Remove an entry.

        Args:
            key: id, prefix of an id, or name.

        Returns:
            The entry that was removed.
        """
        return self._unless_removed(self.store.drop(self.entry(key).id), key)

    def tag(self, key: str, *tags: str, remove: Iterable[str] = ()) -> Entry:
        """Add tags to an entry and remove others.

        Args:
            key: id, prefix of an id, or name.
            *tags: tags to add.
            remove: tags to remove.

        Returns:
            The entry with its new tags.
        """
        more, fewer = validate_tags(tags), validate_tags(remove)
        return self._unless_removed(self.store.retag(self.entry(key).id, more, fewer), key)

    def search(
        self,
        query: RepresentationLike,
        *,
        kernel: SearchKernel = "features",
        layer: str | int | None = None,
        tag: str | None = None,
        limit: int = 10,
    ) -> SearchResult:
        """The networks most similar to a given one, among those recorded on the same samples.

        Args:
            query: a Representation, the path of its file, or the key of an entry, which is then
                excluded from the result.
            kernel: `"features"` finds networks with similar features; `"gradients"` and `"product"`
                find networks that were trained for the same task.
            layer: layer of the query to search by, by name or position; None uses all depths.
            tag: search only entries that have this tag.
            limit: largest number of results.

        Returns:
            Entries with their scores, the most similar first.
        """
        from .search import search

        check_integer("limit", limit, 1)
        return search(self, query, kernel=kernel, layer=layer, tag=tag, limit=limit)

    def derivatives(self, query: RepresentationLike, *, limit: int = 10) -> Descents:
        """Find entries that share weights with a network: fine-tuned, pruned or quantised copies.

        Args:
            query: a Representation, the path of its file, or the key of an entry.
            limit: largest number of results.

        Returns:
            Entries related to the network, with the evidence.
        """
        from .descent import derivatives

        check_integer("limit", limit, 1)
        return derivatives(self, query, limit=limit)

    def family_tree(self, *, group: str | None = None) -> FamilyTree:
        """Which entries of a group were derived from which.

        Args:
            group: the group (see `Entry.group`); None takes each group by itself.

        Returns:
            The forest of families.
        """
        from .family_tree import family_tree

        return family_tree(self, group=group)

    def verify(self, *, sweep: bool = False) -> list[Damage]:
        """Read every file in full, compare it with its hash, and list all damage.

        Damage is a damaged entry, an entry without a file, a file without an entry, or a file that
        is not the zoo's.

        Args:
            sweep: whether to remove what writers that were killed left behind; nothing else is
                ever changed.

        Returns:
            The damage; empty if there is none.
        """
        return self.store.damage(sweep=sweep)

    def export(
        self, folder: str | os.PathLike[str], keys: Iterable[str] | None = None
    ) -> list[Path]:
        """Write recordings as plain files into a new folder, with `index.json` about them.

        Args:
            folder: a new or an empty folder.
            keys: keys of the entries to write; None writes all.

        Returns:
            The paths of the files.
        """
        from ..representation.file_format import representation_bytes

        place = Path(folder)
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise DataError(f"expected a new or an empty folder, found {place}; name another")
        if isinstance(keys, str):
            raise DataError(f"expected a list of keys, found {keys!r}; write [{keys!r}]")
        chosen = self.list() if keys is None else [self.entry(key) for key in keys]
        make_folder(place)
        named = {_export_file_name(entry): entry for entry in chosen}
        for name, entry in named.items():
            write_atomically(place / name, representation_bytes(self.get(entry.id)))
        facts = [{"file": name, **entry.to_dict()} for name, entry in named.items()]
        text = json.dumps({"entries": facts}, indent=1)
        write_atomically(place / "index.json", f"{text}\n".encode())
        return [place / name for name in named]

    def close(self) -> None:
        """Let go of files that are held open; they are opened again when needed."""
        self.store.close()

    def __enter__(self) -> Zoo:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.store.count()

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.store.listed()[0])

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and len(self.store.matching(key)) == 1

    def __repr__(self) -> str:
        return f"Zoo({self.store.where!r}, {count_noun(len(self), 'entry', 'entries')})"

    def _unless_removed(self, result: T | None, key: str) -> T:
        """What a store returned for an entry, or an error if the entry was removed meanwhile."""
        if result is None:
            raise DataError(f"the entry {key!r} of {self.store.where} has just been removed")
        return result

    def _new_recording(
        self, rep: RepresentationLike, tags: tuple[str, ...], trained_on: str | None = None
    ) -> NewRecording:
        from ..representation.representation import as_representation
        from .signature import signatures

        found = as_representation(rep)
        if not found.complete:
            raise MismatchError(
                f"{found.name!r} is an incomplete recording ({len(found.data.shards)} of "
                f"{found.data.shards[0][1]} shards); merge all shards before adding it"
            )
        if trained_on is not None and not is_digest(trained_on):
            trained_on = self.entry(trained_on).id
        entry = entry_for(found, tags=tags, size=0, trained_on=trained_on)
        try:
            Entry.from_dict(entry.to_dict())
        except FormatError as error:
            raise DataError(
                f"cannot add the recording {found.name!r}: {error}; record it again with a name "
                "that is valid text, or give it one with Representation.renamed"
            ) from None
        return NewRecording(entry, found, signatures(found))

    def list(
        self, *, tag: str | None = None, name: str | None = None, group: str | None = None
    ) -> list[Entry]:
        """Entries in the order in which they came; a warning counts damaged rows of the index.

        Args:
            tag: only entries that have this tag.
            name: only entries whose name matches, where * stands for anything.
            group: only entries recorded on the same samples in the same way; see `Entry.group`.

        Returns:
            The entries.
        """
        found, damaged = self.store.listed(tag=tag, group=group)
        if damaged:
            warn(f"{self.store.where}: {damaged_rows_message(len(damaged))}")
        return [x for x in found if name is None or fnmatch.fnmatchcase(x.name, name)]


def damaged_rows_message(count: int) -> str:
    """What is said where entries are listed and some rows of the index cannot be read."""
    rows = count_noun(count, "row of the index is", "rows of the index are")
    return (
        f"{rows} damaged and skipped; `resemblance zoo verify` lists the damage, and adding the "
        "recordings again repairs it"
    )


def _export_file_name(entry: Entry) -> str:
    """A name for a file that no system takes amiss, and that no other entry has."""
    plain = re.sub(r"[^\w.-]+", "_", entry.name)[:_MAX_FILE_NAME].strip("._-")
    return f"{plain or 'network'}-{entry.id[:16]}.rsm"
