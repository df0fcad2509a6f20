"""Queries about recordings: each is a function of a zoo that a worker process runs.

Answers are JSON-serialisable. Ids are full ones that the server has looked up before.

The map of a zoo places networks on a plane, near each other if they are similar. The cosine of two
signatures approximates the CKA of two networks, so the distance of signatures of norm one is
√(2 − 2 CKA). Classical scaling (Torgerson 1952) finds the plane that keeps most of these distances:
that of the first two principal components. It is deterministic given the networks' order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import FormatError, ResemblanceError
from ..representation.file_format import load
from ..representation.representation import Representation
from ..similarity.agreement import comparable_outputs, predictions_obstacle
from ..similarity.results import Content, plain
from ..transfer.recommend import training_data_distances
from ..views.report import report_contents
from ..zoo.signature import SearchKernel
from ..zoo.zoo import Zoo
from .cache import entry_summary, hide_zoo_path, json_safe

LANDMARKS = 1000  # networks that the plane is laid through; others are put onto it


def project_to_plane(signatures: np.ndarray) -> tuple[np.ndarray, float]:  # (n, d) -> (n, 2)
    """Points on the plane through signatures, and the share of squared distances that it shows.

    Of more than 1,000 networks, those that lie evenly among them make the plane (landmarks: de
    Silva and Tenenbaum 2004). Cost: O(n d) beyond those.

    >>> project_to_plane(np.array([[1, 0], [1, 0], [0, 1]]))[0].round(3).tolist()
    [[-0.471, 0.0], [-0.471, 0.0], [0.943, 0.0]]
    """
    rows = np.asarray(signatures, np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows / np.maximum(lengths, np.finfo(np.float32).tiny)
    chosen = rows[np.unique(np.linspace(0, len(rows) - 1, LANDMARKS).round().astype(int))]
    middle = chosen.mean(0)
    axes, share = _principal_axes((chosen - middle).astype(np.float64))
    return ((rows - middle) @ axes.T).astype(np.float64), share


def _principal_axes(rows: np.ndarray) -> tuple[np.ndarray, float]:  # (n, d) -> (2, d)
    """The two directions in which rows differ most; each points to its longest row."""
    sides, lengths, axes = np.linalg.svd(rows, full_matrices=False)
    squares = lengths**2
    total = float(squares.sum())
    if total <= len(rows) * 1e-9:  # all are the same, up to round-off
        return np.zeros((2, rows.shape[1])), 1.0
    signs = np.sign(sides[np.abs(sides[:, :2]).argmax(0), [0, 1]])
    kept = squares[:2] > total * 1e-9  # an axis of round-off gets length 0
    return axes[:2] * (signs * kept)[:, None], float(squares[:2][kept].sum()) / total


MOST_POINTS = 4000  # of a map
_MAX_TEXT_LENGTH = 300  # characters, of any text in what a stranger sends
_MOST_LAYERS = 5000


def pair_report(zoo: Zoo, a: str, b: str) -> dict[str, Any]:
    """All that the report's page shows of two networks, or of one with itself."""
    ids = list(dict.fromkeys((a, b)))
    content, numbers = report_contents([zoo.get(id) for id in ids])
    return {"ids": ids, "content": json_safe(content), "numbers": numbers}


def nearest_entries(zoo: Zoo, id: str, kernel: SearchKernel, limit: int) -> dict[str, Any]:
    """The networks most like one, and the share of samples that each predicts differently."""
    found = zoo.search(id, kernel=kernel, limit=limit)
    out = _with_summaries(found, "matches")
    query = zoo.get(id, layers=[0])
    for match, known in zip(out["matches"], found.matches, strict=True):
        match["above_chance"] = known.above_chance
        match["disagreement"] = _disagreement(zoo, query, known.entry.id)
    return json_safe({**out, "words": found.summary().splitlines()[0]})


def _disagreement(zoo: Zoo, query: Representation, id: str) -> float | None:
    """The share of samples with a different predicted class, or None if it is not known."""
    try:
        other = zoo.get(id, layers=[0])
    except ResemblanceError:  # removed or damaged since the search
        return None
    if predictions_obstacle(query, other) is not None:
        return None
    one, two = comparable_outputs(query, other)
    return float((one.prediction != two.prediction).double().mean())


def zoo_map(zoo: Zoo, group: str, kernel: str) -> dict[str, Any]:
    """Where the networks of a group lie on a plane; of very many, some that lie evenly in them."""
    among, other = (None, 0) if kernel == "features" else _ids_of_main_target(zoo, group)
    batches = list(zoo.store.signatures(group, kernel, among=among))
    names = [id for ids, _ in batches for id in ids]
    rows = np.concatenate([vectors for _, vectors in batches] or [np.zeros((0, 1))])
    known = np.flatnonzero(~np.isnan(rows).any(1))  # NaN: a damaged signature
    if not len(known):
        return {"points": [], "share": 1.0, "left_out": len(rows) + other}
    chosen = known[np.unique(np.linspace(0, len(known) - 1, MOST_POINTS).round().astype(int))]
    places, share = project_to_plane(rows[chosen])
    points = [
        {"id": names[i], "x": round(float(x), 5), "y": round(float(y), 5)}
        for i, (x, y) in zip(chosen, places, strict=True)
    ]
    left_out = len(rows) - len(points) + other
    return {"points": points, "share": round(share, 4), "left_out": left_out}


def _ids_of_main_target(zoo: Zoo, group: str) -> tuple[list[str], int]:
    """Entries whose gradients are of the target that most have, and how many are of another."""
    targets = {x.id: x.gradients for x in zoo.list(group=group) if x.gradients is not None}
    most, _ = Counter(targets.values()).most_common(1)[0] if targets else (None, 0)
    ids = [id for id, target in targets.items() if target == most]
    return ids, len(targets) - len(ids)


def recommended_entries(zoo: Zoo, id: str, limit: int) -> dict[str, Any]:
    """Entries to look at for the data of a query: by how like data are, and how like networks."""
    entry = zoo.entry(id)
    alike, why = None, None
    try:
        kernel: SearchKernel = "product" if "gradients" in entry.kinds else "features"
        alike = nearest_entries(zoo, id, kernel, limit)
    except ResemblanceError as error:
        why = hide_zoo_path(error, zoo.store.where)
    return {
        "query": entry_summary(entry),
        **entries_by_data(zoo, id, limit),
        "alike": alike,
        "alike_why": why,
    }


def entries_by_data(zoo: Zoo, id: str, limit: int) -> dict[str, Any]:
    """Entries by how like a query's data are to those that they were trained on; none is run.

    Of entries linked to a recording of a reference network on their training data, if the query is
    a recording of that network on other data.
    """
    linked = [(x.trained_on, x) for x in zoo.list() if x.trained_on is not None and x.id != id]
    distances, reasons = training_data_distances(zoo, zoo.get(id), [link for link, _ in linked])
    known = [(distances[link], entry) for link, entry in linked if link in distances]
    known.sort(key=lambda x: (x[0], x[1].name))
    skipped = Counter(reasons[link] for link, _ in linked if link in reasons)
    return json_safe(
        {
            "by_data": [{"entry": entry_summary(x), "distance": d} for d, x in known[:limit]],
            "linked": len(linked),
            "skipped": [{"why": why, "count": count} for why, count in skipped.items()],
        }
    )


def related_entries(zoo: Zoo, id: str, limit: int) -> dict[str, Any]:
    """Which entries were made from a network, or it from them."""
    found = zoo.derivatives(id, limit=limit)
    words = found.summary().splitlines()[0]
    return json_safe({**_with_summaries(found, "relatives", "partial"), "words": words})


def family_forest(zoo: Zoo, group: str) -> dict[str, Any]:
    """Which entries of a group were made from which."""
    found = zoo.family_tree(group=group)
    families, alone = found.counts()
    return json_safe({**_with_summaries(found, "members"), "families": families, "alone": alone})


def _with_summaries(found: Content, *lists: str) -> dict[str, Any]:
    """A result as `to_dict` has it, with entries in a line in each of some lists."""
    out = found.to_dict()
    for name in lists:
        for item, known in zip(out[name], getattr(found, name), strict=True):
            item["entry"] = entry_summary(known.entry)
    return out


def add_upload(zoo: Zoo, path: str, tags: Sequence[str]) -> dict[str, Any]:
    """Read a whole file that a stranger sent, and add it to the zoo if it is a recording."""
    try:
        rep = load(path)
    except ResemblanceError as error:
        raise FormatError(str(error).replace(path, "the file")) from error
    _check_text_lengths(rep)
    return entry_summary(zoo.add(rep, tags=tags))


def _check_text_lengths(rep: Representation) -> None:
    """Refuse names and other texts that nobody gave a network, and that would fill a page."""
    if len(rep) > _MOST_LAYERS:
        raise FormatError(f"expected at most {_MOST_LAYERS:,} layers, found {len(rep):,}")

    def check(text: str) -> str:
        if len(text) > _MAX_TEXT_LENGTH:
            raise FormatError(
                f"expected names of at most {_MAX_TEXT_LENGTH} characters, found one of "
                f"{len(text):,}; rename it before uploading"
            )
        return text

    names = (rep.layer_names, [layer.bare_name for layer in rep])
    plain((*names, rep.settings, rep.model, rep.data, rep.made), spell=check)


QUESTIONS: Mapping[str, Callable[..., Any]] = {
    "pair": pair_report,
    "nearest": nearest_entries,
    "zoo_map": zoo_map,
    "recommend": recommended_entries,
    "relatives": related_entries,
    "families": family_forest,
    "add": add_upload,
}
