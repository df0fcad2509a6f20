"""What the server asks of recordings: each question is a function of a zoo, answered in a worker.

Answers are what JSON can hold. Ids are whole ones that the server has looked up before.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ..errors import DataError, FormatError, ResemblanceError
from ..recommending.data_likeness import data_distance, why_not
from ..representation.file_format import load
from ..representation.representation import Representation
from ..views.report_page import contents
from ..zoo.collection import Zoo
from ..zoo.entry import Entry
from ..zoo.kernel_signature import Searched
from .shelf import in_a_list, spelt_out
from .zoo_map import laid_out

MOST_POINTS = 4000  # of a map
_LONGEST_NAME = 300  # characters, of any text in what a stranger sends
_MOST_LAYERS = 5000


def pair(zoo: Zoo, a: str, b: str) -> dict[str, Any]:
    """All that the report's page shows of two networks, or of one with itself."""
    ids = list(dict.fromkeys((a, b)))
    content, numbers = contents([zoo.get(id) for id in ids])
    return {"ids": ids, "content": spelt_out(content), "numbers": numbers}


def nearest(zoo: Zoo, id: str, kernel: Searched, limit: int) -> dict[str, Any]:
    """The networks most like one."""
    found = zoo.search(id, kernel=kernel, limit=limit)
    out = found.to_dict()
    for match, known in zip(out["matches"], found.matches, strict=True):
        match["entry"] = in_a_list(known.entry)
        match["above_chance"] = known.above_chance
    return spelt_out({**out, "words": found.summary().splitlines()[0]})


def zoo_map(zoo: Zoo, group: str, kernel: str) -> dict[str, Any]:
    """Where the networks of a group lie on a plane; of very many, some that lie evenly in them."""
    ids: list[str] = []
    rows: list[np.ndarray] = []
    among, other = (None, 0) if kernel == "features" else _of_one_target(zoo, group)
    for names, vectors in zoo.store.signatures(group, kernel, among=among):
        ids, rows = ids + names, [*rows, vectors]
    if not ids:
        return {"points": [], "share": 1.0, "left_out": 0}
    chosen = np.unique(np.linspace(0, len(ids) - 1, MOST_POINTS).round().astype(int))
    layout = laid_out(np.concatenate(rows)[chosen])
    points = [
        {"id": ids[i], "x": round(float(x), 5), "y": round(float(y), 5)}
        for i, (x, y) in zip(chosen, layout.points, strict=True)
    ]
    left_out = len(ids) - len(points) + other
    return {"points": points, "share": round(layout.share, 4), "left_out": left_out}


def _of_one_target(zoo: Zoo, group: str) -> tuple[list[str], int]:
    """Entries whose gradients are of the target that most have, and how many are of another."""
    targets = {x.id: x.gradients for x in zoo.store.entries(group=group) if x.gradients is not None}
    most, _ = Counter(targets.values()).most_common(1)[0] if targets else (None, 0)
    ids = [id for id, target in targets.items() if target == most]
    return ids, len(targets) - len(ids)


def by_data(zoo: Zoo, id: str, limit: int) -> dict[str, Any]:
    """Entries by how like a query's data are to those that they were trained on; none is run.

    Of entries linked to a recording of a reference network on their training data, if the query is
    a recording of that network on other data.
    """
    query = zoo.get(id)
    linked = [entry for entry in zoo.list() if entry.trained_on is not None and entry.id != id]
    found, skipped = _by_data(zoo, query, linked)
    return spelt_out(
        {
            "by_data": found[:limit],
            "linked": len(linked),
            "skipped": [{"why": why, "count": count} for why, count in skipped.items()],
        }
    )


def _by_data(
    zoo: Zoo, query: Representation, linked: Sequence[Entry]
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    distances: dict[str, float | str] = {}  # or why there is none, by reference
    for reference in dict.fromkeys(entry.trained_on for entry in linked):
        assert reference is not None
        try:
            other = zoo.get(reference)
        except ResemblanceError:
            distances[reference] = "the recording of its training data is not in this zoo"
            continue
        reason = why_not(query, other)
        said = f"the query and the recording of its training data cannot be compared: {reason}"
        distances[reference] = data_distance(query, other) if reason is None else said
    found = [(distances[str(entry.trained_on)], entry) for entry in linked]
    known = [(value, entry) for value, entry in found if isinstance(value, float)]
    skipped: dict[str, int] = {}
    for value, _ in found:
        if isinstance(value, str):
            skipped[value] = skipped.get(value, 0) + 1
    known.sort(key=lambda x: (x[0], x[1].name))
    return [{"entry": in_a_list(entry), "distance": value} for value, entry in known], skipped


def relatives(zoo: Zoo, id: str, limit: int) -> dict[str, Any]:
    """Which entries were made from a network, or it from them."""
    found = zoo.derivatives(id, limit=limit)
    out = found.to_dict()
    for relative, known in zip(out["relatives"], found.relatives, strict=True):
        relative["entry"] = in_a_list(known.entry)
    return spelt_out({**out, "words": found.summary().splitlines()[0]})


def families(zoo: Zoo, group: str) -> dict[str, Any]:
    """Which entries of a group were made from which."""
    found = zoo.family_tree(group=group)
    out = found.to_dict()
    for member, known in zip(out["members"], found.members, strict=True):
        member["entry"] = in_a_list(known.entry)
    together, alone = found.counts()
    return spelt_out({**out, "families": together, "alone": alone})


def add(zoo: Zoo, path: str, tags: Sequence[str]) -> dict[str, Any]:
    """Read a whole file that a stranger sent, and add it to the zoo if it is a recording."""
    if not os.path.isfile(path):
        raise DataError("nothing was sent; send a file written by Representation.save")
    try:
        rep = load(path)
    except ResemblanceError as error:
        raise FormatError(str(error).replace(path, "the file")) from error
    _check_names(rep)
    return in_a_list(zoo.add(rep, tags=tags))


def _check_names(rep: Representation) -> None:
    """Refuse names and other texts that nobody gave a network, and that would fill a page."""
    if len(rep) > _MOST_LAYERS:
        raise FormatError(f"expected at most {_MOST_LAYERS:,} layers, found {len(rep):,}")
    parts = [asdict(part) for part in (rep.settings, rep.model, rep.data, rep.made)]
    said = (rep.layer_names, *parts)
    longest = max(map(len, _texts(said)))
    if longest > _LONGEST_NAME:
        raise FormatError(
            f"expected names of at most {_LONGEST_NAME} characters, found one of {longest:,}; "
            "rename it before it is sent"
        )


def _texts(value: object) -> Iterator[str]:
    """Every text in nested values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, Sequence):
        for part in value:
            yield from _texts(part)


QUESTIONS: Mapping[str, Callable[..., Any]] = {
    "pair": pair,
    "nearest": nearest,
    "zoo_map": zoo_map,
    "by_data": by_data,
    "relatives": relatives,
    "families": families,
    "add": add,
}
