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
    help="Collect recorded networks, and search them: add, list, search, derivatives, tree, ...",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(zoo, name="zoo")

ZooPlace = Annotated[
    str, Argument(metavar="ZOO", help="A folder, or lance: and a folder or address.")
]
EntryKey = Annotated[str, Argument(help="An id, six of its digits or more, or a name.")]
EntryKeys = Annotated[list[str], Argument(help="Ids, beginnings of them, or names.")]
QueryArgument = Annotated[str, Argument(help="A file (.rsm), or the id or name of an entry.")]
TagFilter = Annotated[Optional[str], Option(help="Only those that have this tag.")]
Limit = Annotated[int, Option(min=1, help="How many.")]


@contextlib.contextmanager
def _opened(place: str, json_file: str | None, read: Sequence[str] = ()) -> Iterator[rs.Zoo]:
    """A zoo that is there, once it is certain that the JSON can be written."""
    check_outputs(json_file, read=read)
    with rs.Zoo(place, create=False) as found:
        yield found


@zoo.command()
def add(
    place: ZooPlace,
    files: Annotated[list[Path], Argument(help="Files written by `resemblance record`.")],
    tag: Annotated[
        Optional[list[str]], Option(help="A word to find them by; repeat for more.")
    ] = None,
    trained_on: Annotated[
        Optional[str],
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
                print_wrapped(f"Added: {', '.join(str(file) for file in files[: len(added)])}.")
            raise
        count = len(found)
    if not output.write_json(json_file, added):
        _show_entries(added)
        new = count_noun(len({entry.id for entry in added} - before), "entry", "entries")
        print_wrapped(f"{new} new in {place}, which has {count:,}.")


@zoo.command(name="list")
def list_(
    place: ZooPlace,
    tag: TagFilter = None,
    name: Annotated[
        Optional[str], Option(help="Only those whose name matches, such as 'resnet*'.")
    ] = None,
    group: Annotated[Optional[str], Option(help="Only those of a group, by its 16 digits.")] = None,
    addresses: Annotated[
        bool, Option("--addresses", help="Show what each says that loads its network.")
    ] = False,
    json_file: Json = None,
) -> None:
    """List what is there, without reading recordings."""
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
    several = f", in {len(groups)} groups that cannot be compared" if len(groups) > 1 else ""
    print_wrapped(f"{some}{count_noun(count, 'entry', 'entries')}{several}.")


@zoo.command()
def search(
    place: ZooPlace,
    query: QueryArgument,
    kernel: Annotated[
        str, Option(help="features: networks alike; gradients or product: of the same task.")
    ] = "features",
    layer: Annotated[
        Optional[str], Option(help="Of the query, by name; default: all depths.")
    ] = None,
    tag: TagFilter = None,
    limit: Limit = 10,
    json_file: Json = None,
) -> None:
    """Find the networks most like one, with standard errors."""
    with _opened(place, json_file, [query]) as zoo:
        found = zoo.search(query, kernel=cast(Any, kernel), layer=layer, tag=tag, limit=limit)
    if not output.write_json(json_file, found):
        _show_search_result(found)


@zoo.command()
def derivatives(
    place: ZooPlace, query: QueryArgument, limit: Limit = 10, json_file: Json = None
) -> None:
    """Find the networks that one was made from, or that were made from it."""
    with _opened(place, json_file, [query]) as zoo:
        found = zoo.derivatives(query, limit=limit)
    if not output.write_json(json_file, found):
        print_wrapped(*found.summary().splitlines())


@zoo.command()
def tree(
    place: ZooPlace,
    group: Annotated[
        Optional[str], Option(help="Of a group, by its 16 digits; default: all.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Draw which networks were made from which."""
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
    tags: Annotated[Optional[list[str]], Argument(help="To give it.")] = None,
    remove: Annotated[
        Optional[list[str]], Option(help="A tag to take off; repeat for more.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Give an entry tags, and take others off."""
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
        bool, Option("--sweep", help="Remove what writers that died left behind.")
    ] = False,
    json_file: Json = None,
) -> None:
    """Read everything, and say what is damaged. Exit status: 0 nothing that was added, 1 some."""
    with _opened(place, json_file) as zoo:
        found, count = zoo.verify(sweep=sweep), len(zoo)
    if not output.write_json(json_file, found):
        _show_damage(found, count, swept=sweep)
    harmed = any(damage.state in ("damaged", "missing", "index") for damage in found)
    raise typer.Exit(1 if harmed else 0)


@zoo.command()
def export(
    place: ZooPlace,
    out: Annotated[Path, Argument(metavar="FOLDER", help="New or empty.")],
    keys: Annotated[Optional[list[str]], Argument(help="Ids or names; default: all.")] = None,
    json_file: Json = None,
) -> None:
    """Write recordings as plain files, with an index.json about them."""
    with _opened(place, json_file) as zoo:
        files = zoo.export(out, keys)
    if not output.write_json(json_file, [str(file) for file in files]):
        many = count_noun(len(files), "recording", "recordings")
        print_line(f"{out}: {many}, and index.json")


@app.command()
def serve(
    zoo: Annotated[str, Argument(help="Folder of a zoo, or lance: and one.")],
    host: Annotated[
        str, Option(help="Address to listen on; one that others can reach needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="0 takes any that is free.")] = DEFAULT_PORT,
    token: Annotated[
        str,
        Option(
            help="What every request needs; auto makes one. Default: the variable "
            "RESEMBLANCE_TOKEN, which is in no list of processes, else none."
        ),
    ] = "",
    allow_host: Annotated[
        Optional[list[str]],
        Option(help="Name under which browsers reach the server; repeat for more."),
    ] = None,
    upload_limit: Annotated[
        int, Option(min=1, help="MiB of a file that is sent, at most.")
    ] = UPLOAD_LIMIT_MIB,
    read_only: Annotated[bool, Option("--read-only", help="Take no files.")] = False,
    open_page: Annotated[bool, Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show a zoo in a browser: a map, search, pairs, families and recommendations."""
    for module, package in (("fastapi", "FastAPI"), ("uvicorn", "uvicorn")):
        import_optional(module, package, "web")
    from ..web import server

    if not zoo.startswith("lance:") and not Path(zoo).is_dir():
        raise DataError(f"no zoo at {zoo}; expected a folder: make one with `resemblance zoo add`")
    secret = server.choose_token(token)
    place = server.listen(host, port, secret)

    def started() -> None:
        print_line(f"{zoo} is at {place.address(secret)} (Ctrl-C stops it)")
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
    print_wrapped(f"{count - len(harmed):,} of {every} are whole.")
    if left:
        done = "do no harm; --sweep removes them"
        if swept:
            done = "were removed, but for what may be being written now"
        print_wrapped(f"{left:,} leftovers of writers that died {done}.")
    if harmed:
        print_wrapped("What is damaged is not served: add those recordings again, or remove them.")


def _name_and_id(entry: Entry) -> str:
    return f"{entry.name} ({entry.id[:_ID_DIGITS]})"
