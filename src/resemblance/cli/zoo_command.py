"""`resemblance zoo`: a collection of recorded networks, from the command line.

Each command is a thin shell around a method of `Zoo`. Their exit status is 0, but for `verify`: 1
if something that was added is damaged or gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, cast

import typer
from typer import Argument, Option

import resemblance as rs

from . import digits, tables
from .commands import Json, app
from .output_files import check_outputs
from .tables import Column

if TYPE_CHECKING:
    from ..zoo.entry import Entry
    from ..zoo.nearest_networks import Found
    from ..zoo.store import Damage

_Words = Optional[str]  # noqa: UP045 - typer reads it at run time on Python 3.10
_Several = Optional[list[str]]  # noqa: UP045
_SHOWN = 8  # digits of an id
_KILO = 1000

zoo = typer.Typer(
    help="Collect recorded networks, and search them: add, list, search, derivatives, tree, ...",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(zoo, name="zoo")

Place = Annotated[str, Argument(metavar="ZOO", help="A folder, or lance: and a folder or address.")]
Key = Annotated[str, Argument(help="An id, six of its digits or more, or a name.")]
Keys = Annotated[list[str], Argument(help="Ids, beginnings of them, or names.")]
Query = Annotated[str, Argument(help="A file (.rsm), or the id or name of an entry.")]
Tag = Annotated[_Words, Option(help="Only those that have this tag.")]
Limit = Annotated[int, Option(min=1, help="How many.")]


@zoo.command()
def add(
    place: Place,
    files: Annotated[list[Path], Argument(help="Files written by `resemblance record`.")],
    tag: Annotated[_Several, Option(help="A word to find them by; repeat for more.")] = None,
    trained_on: Annotated[
        _Words,
        Option(metavar="KEY", help="Recording of a reference model on their training data."),
    ] = None,
    json_file: Json = None,
) -> None:
    """Add recordings. What is there stays one entry, and gets the tags as well."""
    check_outputs(json_file, read=files)
    with rs.Zoo(place) as found:
        before = {entry.id for entry in found}
        added: list[Entry] = []
        try:
            for file in files:
                added.append(found.add(file, tags=tag or (), trained_on=trained_on))
        except rs.ResemblanceError:
            if added and json_file is None:
                tables.tell(f"Added: {', '.join(str(file) for file in files[: len(added)])}.")
            raise
        count = len(found)
    if not tables.wrote_json(json_file, [entry.to_dict() for entry in added]):
        _show_entries(added)
        new = len({entry.id for entry in added} - before)
        tables.tell(f"{_entries(new)} new in {place}, which has {count:,}.")


@zoo.command(name="list")
def list_(
    place: Place,
    tag: Tag = None,
    name: Annotated[
        _Words, Option(help="Only those whose name matches, such as 'resnet*'.")
    ] = None,
    group: Annotated[_Words, Option(help="Only those of a group, by its 16 digits.")] = None,
    addresses: Annotated[
        bool, Option("--addresses", help="Show what each says that loads its network.")
    ] = False,
    json_file: Json = None,
) -> None:
    """List what is there, without reading recordings."""
    check_outputs(json_file)
    with rs.Zoo(place, create=False) as found:
        entries = found.list(tag=tag, name=name, group=group)
        count = len(found)
    if tables.wrote_json(json_file, [entry.to_dict() for entry in entries]):
        return
    if entries:
        (_show_addresses if addresses else _show_entries)(entries)
    groups = {entry.group for entry in entries}
    some = f"{len(entries):,} of {_entries(count)}" if len(entries) < count else _entries(count)
    several = f", in {len(groups)} groups that cannot be compared" if len(groups) > 1 else ""
    tables.tell(f"{some}{several}.")


@zoo.command()
def search(
    place: Place,
    query: Query,
    kernel: Annotated[
        str, Option(help="features: networks alike; gradients or product: of the same task.")
    ] = "features",
    layer: Annotated[_Words, Option(help="Of the query, by name; default: all depths.")] = None,
    tag: Tag = None,
    limit: Limit = 10,
    json_file: Json = None,
) -> None:
    """Find the networks most like one, with standard errors."""
    check_outputs(json_file, read=[query])
    with rs.Zoo(place, create=False) as zoo:
        found = zoo.search(query, kernel=cast(Any, kernel), layer=layer, tag=tag, limit=limit)
    if not tables.wrote_json(json_file, found.to_dict()):
        _show_found(found)


@zoo.command()
def derivatives(place: Place, query: Query, limit: Limit = 10, json_file: Json = None) -> None:
    """Find the networks that one was made from, or that were made from it."""
    check_outputs(json_file, read=[query])
    with rs.Zoo(place, create=False) as zoo:
        found = zoo.derivatives(query, limit=limit)
    if not tables.wrote_json(json_file, found.to_dict()):
        for line in found.summary().splitlines():
            tables.tell(line)


@zoo.command()
def tree(
    place: Place,
    group: Annotated[_Words, Option(help="Of a group, by its 16 digits; default: all.")] = None,
    json_file: Json = None,
) -> None:
    """Draw which networks were made from which."""
    check_outputs(json_file)
    with rs.Zoo(place, create=False) as zoo:
        found = zoo.family_tree(group=group)
    if not tables.wrote_json(json_file, found.to_dict()):
        lines = found.to_text().splitlines()
        for line in lines[: len(found)]:  # a line an entry, then sentences
            tables.say(line)
        for line in lines[len(found) :]:
            tables.tell(line)


@zoo.command()
def tag(
    place: Place,
    key: Key,
    tags: Annotated[_Several, Argument(help="To give it.")] = None,
    remove: Annotated[_Several, Option(help="A tag to take off; repeat for more.")] = None,
    json_file: Json = None,
) -> None:
    """Give an entry tags, and take others off."""
    check_outputs(json_file)
    with rs.Zoo(place, create=False) as zoo:
        entry = zoo.tag(key, *(tags or ()), remove=remove or ())
    if not tables.wrote_json(json_file, entry.to_dict()):
        tables.say(f"{_called(entry)}: {', '.join(entry.tags) or 'no tags'}")


@zoo.command()
def remove(place: Place, keys: Keys, json_file: Json = None) -> None:
    """Remove entries and their recordings."""
    check_outputs(json_file)
    with rs.Zoo(place, create=False) as zoo:
        ids = [zoo.entry(key).id for key in keys]  # a mistake in one of them removes none
        gone = [zoo.remove(id) for id in dict.fromkeys(ids)]
    if not tables.wrote_json(json_file, [entry.to_dict() for entry in gone]):
        for entry in gone:
            tables.say(f"removed {_called(entry)}")


@zoo.command()
def verify(
    place: Place,
    sweep: Annotated[
        bool, Option("--sweep", help="Remove what writers that died left behind.")
    ] = False,
    json_file: Json = None,
) -> None:
    """Read everything, and say what is damaged. Exit status: 0 nothing that was added, 1 some."""
    check_outputs(json_file)
    with rs.Zoo(place, create=False) as zoo:
        found, count = zoo.verify(sweep=sweep), len(zoo)
    if not tables.wrote_json(json_file, [_damage(damage) for damage in found]):
        _show_damage(found, count, swept=sweep)
    harmed = any(damage.state in ("damaged", "missing", "index") for damage in found)
    raise typer.Exit(1 if harmed else 0)


@zoo.command()
def export(
    place: Place,
    out: Annotated[Path, Argument(metavar="FOLDER", help="New or empty.")],
    keys: Annotated[_Several, Argument(help="Ids or names; default: all.")] = None,
    json_file: Json = None,
) -> None:
    """Write recordings as plain files, with an index.json about them."""
    check_outputs(json_file)
    with rs.Zoo(place, create=False) as zoo:
        files = zoo.export(out, keys)
    if not tables.wrote_json(json_file, [str(file) for file in files]):
        many = "1 recording" if len(files) == 1 else f"{len(files):,} recordings"
        tables.say(f"{out}: {many}, and index.json")


def _show_entries(entries: Sequence[Entry]) -> None:
    """A line an entry, group by group, each below what it was recorded on."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.group, []).append(entry)
    for i, (group, some) in enumerate(groups.items()):
        if i:
            tables.say("")
        tables.tell(f"On {some[0].probe} (group {group}):")
        columns = [
            Column("name", [entry.name for entry in some], gives_way=True),
            Column("id", [entry.id[:_SHOWN] for entry in some]),
            Column("layers", [str(len(entry.layers)) for entry in some], right=True),
            Column("size", [_size(entry.size) for entry in some], right=True),
        ]
        if any(entry.tags for entry in some):
            columns.append(Column("tags", [", ".join(x.tags) for x in some], gives_way=True))
        _show(columns)


def _show_addresses(entries: Sequence[Entry]) -> None:
    _show(
        [
            Column("name", [entry.name for entry in entries], gives_way=True),
            Column("id", [entry.id[:_SHOWN] for entry in entries]),
            Column("address", [entry.address or digits.NONE for entry in entries]),
        ]
    )


def _show_found(found: Found) -> None:
    """A line a network, then what was looked at and what was left out."""
    scores = [digits.score(x.score, x.stderr) for x in found]
    columns = [
        Column("network", [x.entry.name for x in found], gives_way=True),
        Column("id", [x.entry.id[:_SHOWN] for x in found]),
        Column("score", [f"{a} ± {b}" if b else a for a, b in scores]),
        Column("chance", [digits.score(x.chance_high)[0] for x in found]),
    ]
    if any(x.entry.tags for x in found):
        columns.append(Column("tags", [", ".join(x.entry.tags) for x in found], gives_way=True))
    first, *rest = found.summary().splitlines()
    tables.tell(first)
    if found.matches:
        tables.say("")
        _show(columns)
    for line in rest[len(found) :]:
        tables.tell(line)


def _show_damage(found: Sequence[Damage], count: int, *, swept: bool) -> None:
    if found:
        of = [damage.where if damage.entry is None else _called(damage.entry) for damage in found]
        columns = [Column("state", [damage.state for damage in found])]
        columns.append(Column("of", of, gives_way=True))
        _show([*columns, Column("what", [damage.words for damage in found], gives_way=True)])
    harmed = {x.entry.id for x in found if x.entry is not None}
    left = sum(damage.state == "leftover" for damage in found)
    tables.tell(f"{count - len(harmed):,} of {_entries(count)} are whole.")
    if left:
        done = (
            "were removed, but for what may be being written now"
            if swept
            else ("do no harm; --sweep removes them")
        )
        tables.tell(f"{left:,} leftovers of writers that died {done}.")
    if harmed:
        tables.tell("What is damaged is not served: add those recordings again, or remove them.")


def _show(columns: Sequence[Column]) -> None:
    for line in tables.lines(columns, tables.width()):
        tables.say(line)


def _damage(damage: Damage) -> dict[str, Any]:
    entry = None if damage.entry is None else damage.entry.to_dict()
    return {
        "state": damage.state,
        "where": damage.where,
        "words": damage.words,
        "entry": entry,
    }


def _called(entry: Entry) -> str:
    return f"{entry.name} ({entry.id[:_SHOWN]})"


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"


def _size(count: float) -> str:
    """Bytes, as people read them.

    >>> _size(512), _size(6_200), _size(123_456_789)
    ('512 B', '6.2 kB', '123 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < _KILO or unit == "GB":
            break
        count /= _KILO
    return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
