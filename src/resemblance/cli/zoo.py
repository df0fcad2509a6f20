"""The commands `resemblance zoo ...`, a collection of recorded networks, and `resemblance serve`.

Each command is a thin shell around a method of `Zoo`; `serve` shows one as a web page, by default
for this machine only. The exit status is 0, except for `verify`: 1 if something that was added is
damaged or missing.
"""

from __future__ import annotations

import contextlib
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, cast

import typer
from rich import filesize
from typer import Argument, Option

import resemblance as rs

from .._utils import formatting as digits
from .._utils.formatting import count_noun
from ..errors import DataError, import_optional
from ..web import DEFAULT_PORT, UPLOAD_LIMIT_MIB
from . import output
from .commands import app
from .options import Json
from .output import TableColumn, check_outputs, print_columns, print_line, print_wrapped

if TYPE_CHECKING:
    from ..zoo.entry import Damage, Entry
    from ..zoo.search import SearchResult


_ID_DIGITS = 8  # digits of an id

zoo = typer.Typer(
    help="Collect recordings in a zoo, and search it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(zoo, name="zoo")

ZooPlace = Annotated[
    str, Argument(metavar="ZOO", help="The zoo: a folder, or lance:FOLDER-OR-URL.")
]
EntryKey = Annotated[
    str,
    Argument(metavar="ENTRY", help="The entry: its id (at least the first six digits) or name."),
]
EntryKeys = Annotated[
    list[str],
    Argument(metavar="ENTRY...", help="The entries: ids (at least the first six digits) or names."),
]
QueryArgument = Annotated[
    str,
    Argument(metavar="QUERY", help="The query: a recording (.rsm), or the id or name of an entry."),
]
TagFilter = Annotated[Optional[str], Option(metavar="TAG", help="Only entries with this tag.")]
Limit = Annotated[int, Option(min=1, metavar="N", help="Maximum number of results.")]


@contextlib.contextmanager
def _opened(place: str, json_file: str | None, read: Sequence[str] = ()) -> Iterator[rs.Zoo]:
    """A zoo that is there, once it is certain that the JSON can be written."""
    check_outputs(json_file, read=read)
    with rs.Zoo(place, create=False) as found:
        yield found


@zoo.command()
def add(
    place: ZooPlace,
    files: Annotated[
        list[Path], Argument(metavar="FILE...", help="Files written by `resemblance record`.")
    ],
    tag: Annotated[
        Optional[list[str]], Option(metavar="TAG", help="Tag for these entries; repeatable.")
    ] = None,
    trained_on: Annotated[
        Optional[str],
        Option(
            metavar="KEY",
            help="Entry that records a reference model on the training data of these networks.",
        ),
    ] = None,
    json_file: Json = None,
) -> None:
    """Add recordings to a zoo, which is created if needed.

    A recording that is already in the zoo is not added twice; it only gets the new tags.
    """
    check_outputs(json_file, read=files)
    with rs.Zoo(place) as found:
        before = {entry.id for entry in found}
        added: list[Entry] = []
        try:
            for file in files:
                added.append(found.add(file, tags=tag or (), trained_on=trained_on))
        except rs.ResemblanceError:
            if added and json_file is None:
                print_wrapped(f"Added: {', '.join(str(file) for file in files[: len(added)])}.")
            raise
        count = len(found)
    if not output.write_json(json_file, added):
        _show_entries(added)
        new = count_noun(len({entry.id for entry in added} - before), "entry", "entries")
        print_wrapped(f"Added {new} to {place}, which now has {count:,}.")


@zoo.command(name="list")
def list_(
    place: ZooPlace,
    tag: TagFilter = None,
    name: Annotated[
        Optional[str],
        Option(metavar="PATTERN", help="Only entries whose name matches, such as 'resnet*'."),
    ] = None,
    group: Annotated[
        Optional[str], Option(metavar="GROUP", help="Only entries of this group (16 digits).")
    ] = None,
    addresses: Annotated[
        bool, Option("--addresses", help="Show the address that each network was loaded from.")
    ] = False,
    json_file: Json = None,
) -> None:
    """List the entries of a zoo."""
    with _opened(place, json_file) as found:
        entries = found.list(tag=tag, name=name, group=group)
        count = len(found)
    if output.write_json(json_file, entries):
        return
    if addresses and entries:
        places = [entry.address or digits.MISSING for entry in entries]
        print_columns(*_name_columns(entries), TableColumn("address", places))
    elif entries:
        _show_entries(entries)
    groups = {entry.group for entry in entries}
    some = f"{len(entries):,} of " if len(entries) < count else ""
    several = (
        f", in {len(groups)} groups recorded on different samples, which cannot be compared"
        if len(groups) > 1
        else ""
    )
    print_wrapped(f"{some}{count_noun(count, 'entry', 'entries')}{several}.")


@zoo.command()
def search(
    place: ZooPlace,
    query: QueryArgument,
    kernel: Annotated[
        str,
        Option(
            metavar="KERNEL",
            help="Kernel: features (similar networks), gradients or product (similar tasks).",
        ),
    ] = "features",
    layer: Annotated[
        Optional[str],
        Option(metavar="NAME", help="Search by this layer of the query. Default: all depths."),
    ] = None,
    tag: TagFilter = None,
    limit: Limit = 10,
    json_file: Json = None,
) -> None:
    """Find the networks most similar to a query."""
    with _opened(place, json_file, [query]) as zoo:
        found = zoo.search(query, kernel=cast(Any, kernel), layer=layer, tag=tag, limit=limit)
    if not output.write_json(json_file, found):
        _show_search_result(found)


@zoo.command()
def derivatives(
    place: ZooPlace, query: QueryArgument, limit: Limit = 10, json_file: Json = None
) -> None:
    """Find the ancestors and derivatives of a network."""
    with _opened(place, json_file, [query]) as zoo:
        found = zoo.derivatives(query, limit=limit)
    if not output.write_json(json_file, found):
        print_wrapped(*found.summary().splitlines())


@zoo.command()
def tree(
    place: ZooPlace,
    group: Annotated[
        Optional[str], Option(metavar="GROUP", help="Only this group (16 digits). Default: all.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Draw the family tree: which network was derived from which."""
    with _opened(place, json_file) as zoo:
        found = zoo.family_tree(group=group)
    if not output.write_json(json_file, found):
        lines = found.to_text().splitlines()
        print_line(*lines[: len(found)])  # a line an entry, then sentences
        print_wrapped(*lines[len(found) :])


@zoo.command()
def tag(
    place: ZooPlace,
    key: EntryKey,
    tags: Annotated[Optional[list[str]], Argument(metavar="[TAG]...", help="Tags to add.")] = None,
    remove: Annotated[
        Optional[list[str]], Option(metavar="TAG", help="Tag to remove; repeatable.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Add tags to an entry, or remove them."""
    with _opened(place, json_file) as zoo:
        entry = zoo.tag(key, *(tags or ()), remove=remove or ())
    if not output.write_json(json_file, entry):
        print_line(f"{_name_and_id(entry)}: {', '.join(entry.tags) or 'no tags'}")


@zoo.command()
def remove(place: ZooPlace, keys: EntryKeys, json_file: Json = None) -> None:
    """Remove entries and their recordings."""
    with _opened(place, json_file) as zoo:
        ids = [zoo.entry(key).id for key in keys]  # a mistake in one of them removes none
        gone = [zoo.remove(id) for id in dict.fromkeys(ids)]
    if not output.write_json(json_file, gone):
        for entry in gone:
            print_line(f"removed {_name_and_id(entry)}")


@zoo.command()
def verify(
    place: ZooPlace,
    sweep: Annotated[
        bool, Option("--sweep", help="Remove leftover files of writers that crashed.")
    ] = False,
    json_file: Json = None,
) -> None:
    """Check every file of a zoo for damage.

    Exit status: 0 if all entries are intact, 1 if any is damaged or missing.
    """
    with _opened(place, json_file) as zoo:
        found, count = zoo.verify(sweep=sweep), len(zoo)
    if not output.write_json(json_file, found):
        _show_damage(found, count, swept=sweep)
    harmed = any(damage.state in ("damaged", "missing", "index") for damage in found)
    raise typer.Exit(1 if harmed else 0)


@zoo.command()
def export(
    place: ZooPlace,
    out: Annotated[Path, Argument(metavar="FOLDER", help="A new or empty folder.")],
    keys: Annotated[
        Optional[list[str]],
        Argument(metavar="[ENTRY]...", help="Ids or names of entries. Default: all."),
    ] = None,
    json_file: Json = None,
) -> None:
    """Export recordings as plain files, with an index.json."""
    with _opened(place, json_file) as zoo:
        files = zoo.export(out, keys)
    if not output.write_json(json_file, [str(file) for file in files]):
        many = count_noun(len(files), "recording", "recordings")
        print_line(f"{out}: {many}, and index.json")


@app.command()
def serve(
    zoo: Annotated[str, Argument(metavar="ZOO", help="The zoo: a folder, or lance:FOLDER-OR-URL.")],
    host: Annotated[
        str,
        Option(
            metavar="HOST",
            help="Address to listen on. An address that other machines can reach requires --token.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        Option(min=0, max=65535, metavar="PORT", help="Port to listen on; 0 for any free port."),
    ] = DEFAULT_PORT,
    token: Annotated[
        str,
        Option(
            metavar="TOKEN",
            help="Access token that every request must carry; auto generates one. Default: the "
            "environment variable RESEMBLANCE_TOKEN (hidden from process lists), else no token.",
        ),
    ] = "",
    allow_host: Annotated[
        Optional[list[str]],
        Option(metavar="NAME", help="Host name that browsers may use; repeatable."),
    ] = None,
    upload_limit: Annotated[
        int, Option(min=1, metavar="MIB", help="Maximum size of an uploaded file, in MiB.")
    ] = UPLOAD_LIMIT_MIB,
    read_only: Annotated[bool, Option("--read-only", help="Disable uploads.")] = False,
    open_page: Annotated[bool, Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Browse a zoo in a web browser.

    Shows a map of the networks, search, comparisons of pairs, families and recommendations.
    """
    for module, package in (("fastapi", "FastAPI"), ("uvicorn", "uvicorn")):
        import_optional(module, package, "web")
    from ..web import server

    if not zoo.startswith("lance:") and not Path(zoo).is_dir():
        raise DataError(f"no zoo at {zoo}; create one with `resemblance zoo add {zoo} FILE.rsm`")
    secret = server.choose_token(token)
    place = server.listen(host, port, secret)

    def started() -> None:
        print_line(f"Serving {zoo} at {place.address(secret)} (press Ctrl-C to stop)")
        if open_page:
            webbrowser.open(place.address(secret))

    try:
        server.serve(
            place,
            zoo,
            token=secret,
            names=allow_host or (),
            read_only=read_only,
            upload_limit=upload_limit,
            started=started,
        )
    except KeyboardInterrupt:  # the usual end
        pass
    finally:
        place.socket.close()
    print_line("stopped", err=True)


def _show_entries(entries: Sequence[Entry]) -> None:
    """A line an entry, group by group, each below what it was recorded on."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.group, []).append(entry)
    for i, (group, some) in enumerate(groups.items()):
        if i:
            print_line("")
        print_wrapped(f"On {some[0].probe} (group {group}):")
        layers = [str(len(entry.layers)) for entry in some]
        sizes = [filesize.decimal(entry.size) for entry in some]
        print_columns(
            *_name_columns(some),
            TableColumn("layers", layers, right=True),
            TableColumn("size", sizes, right=True),
            *_tags_column(some),
        )


def _name_columns(entries: Sequence[Entry], head: str = "name") -> list[TableColumn]:
    return [
        TableColumn(head, [entry.name for entry in entries], gives_way=True),
        TableColumn("id", [entry.id[:_ID_DIGITS] for entry in entries]),
    ]


def _tags_column(entries: Sequence[Entry]) -> list[TableColumn]:
    """The tags, if there are any."""
    cells = [", ".join(entry.tags) for entry in entries]
    return [TableColumn("tags", cells, gives_way=True)] if any(cells) else []


def _show_search_result(found: SearchResult) -> None:
    """A line a network, then what was looked at and what was left out."""
    entries = [x.entry for x in found]
    scores = [digits.join_error(digits.format_score(x.score, x.stderr)) for x in found]
    chance = [digits.format_score(x.chance_high)[0] for x in found]
    first, *rest = found.summary().splitlines()
    print_wrapped(first)
    if found.matches:
        print_line("")
        print_columns(
            *_name_columns(entries, "network"),
            TableColumn("score", scores),
            TableColumn("chance", chance),
            *_tags_column(entries),
        )
    print_wrapped(*rest[len(found) :])


def _show_damage(found: Sequence[Damage], count: int, *, swept: bool) -> None:
    if found:
        of = [x.where if x.entry is None else _name_and_id(x.entry) for x in found]
        print_columns(
            TableColumn("state", [x.state for x in found]),
            TableColumn("of", of, gives_way=True),
            TableColumn("what", [x.words for x in found], gives_way=True),
        )
    harmed = {x.entry.id for x in found if x.entry is not None}
    left = sum(x.state == "leftover" for x in found)
    every = count_noun(count, "entry", "entries")
    print_wrapped(f"{count - len(harmed):,} of {every} are intact.")
    if left:
        done = "remain; they are harmless, and --sweep removes them"
        if swept:
            done = "were removed, except files that may be in use"
        print_wrapped(f"{left:,} leftover files of crashed writers {done}.")
    if harmed:
        print_wrapped("Damaged entries cannot be used: add those recordings again, or remove them.")


def _name_and_id(entry: Entry) -> str:
    return f"{entry.name} ({entry.id[:_ID_DIGITS]})"
