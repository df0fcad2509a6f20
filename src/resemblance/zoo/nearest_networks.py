"""`Zoo.search`: the networks most like a given one, found by signatures and ranked by exact scores.

A search stays inside a group, where networks saw the same samples. Signatures say who may be near
(`kernel_signature`); of those, scores with standard errors decide (`exact_scores`), from the layers
at four relative depths alone, or from one layer. Nearest first, they are read until no other is
likely to be nearer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._shown_text import shown
from ..errors import DataError, FormatError, LayerError, MismatchError, nearest, optional
from ..representation.as_given import Given, recording
from ..representation.file_format import positions
from ..representation.layer import Layer
from ..representation.representation import Representation
from ..similarity.comparison import plain
from ..similarity.kernels import needs
from ..similarity.layer_matching import Known, by_name
from .entry import Entry, gradients_of, group_of, probe_of
from .exact_scores import one_with_many
from .kernel_signature import DEPTHS, SEARCHED, WIDTH, Searched, depths, signature

if TYPE_CHECKING:
    import pandas

    from .collection import Zoo

MatchedBy = Literal["depth", "name"]
_CANDIDATES = 4  # for each network wanted
_FEWEST = 16  # candidates at least
_TOGETHER = 10  # that are in memory, and compared, at a time
_MARGIN = 4 / (DEPTHS * WIDTH) ** 0.5  # how far a signature's cosine may lie from the score
_OF_ONE = 4 / WIDTH**0.5  # and where it is of one depth
_OTHER = "recorded on other samples or in another way"
_WITHOUT = "recorded without gradients"
_OF_ANOTHER = "with gradients of another target or beta"
_DAMAGED = "damaged"
_ITSELF = "the network asked about"


@dataclass(frozen=True)
class Neighbour:
    """An entry that is like the network asked about."""

    entry: Entry
    score: float  # CKA: the mean over depths, or of one layer
    stderr: float
    chance_high: float  # what unrelated samples exceed in one of twenty cases; of a mean, at most
    layers: tuple[tuple[str, str], ...]  # the layers compared: of the network, of the entry
    matched_by: MatchedBy  # how they were found
    signature: float  # the score by signatures, which made it a candidate
    doubtful: bool  # too few samples carry the score to trust its standard error

    @property
    def above_chance(self) -> bool:
        return self.score > self.chance_high


@dataclass(frozen=True)
class Found:
    """The networks of a zoo that are most like one, the most like first."""

    query: str  # name of the network asked about
    kernel: Searched
    layer: str | None  # of the network asked about; None: the mean over four depths
    matches: tuple[Neighbour, ...]
    looked_at: int  # entries whose signatures were compared
    compared: int  # of those, entries whose scores were computed
    left_out: dict[str, int]  # why entries were not looked at, and how many
    probe: str  # what the network asked about was recorded on, in words
    tag: str | None = None

    def __iter__(self) -> Iterator[Neighbour]:
        return iter(self.matches)

    def __len__(self) -> int:
        return len(self.matches)

    def __repr__(self) -> str:
        return f"Found({len(self)} near {self.query!r}, of {self.looked_at:,} looked at)"

    @property
    def heading(self) -> str:
        """What scores are."""
        centred = "centred " if self.kernel == "features" else ""
        where = "mean over four depths" if self.layer is None else f"at {shown(self.layer)}"
        return f"cka of {centred}{self.kernel}, {where}"

    def summary(self) -> str:
        """What was found, and what was left out, in a few plain sentences."""
        tagged = "" if self.tag is None else f" tagged {shown(self.tag)}"
        looked = _counted(self.looked_at, f"network{tagged}", f"networks{tagged}")
        lines = [
            f"Near {shown(self.query)} ({self.heading}): {looked} on {shown(self.probe)} looked "
            f"at, {self.compared:,} compared exactly."
        ]
        lines += [
            f"{place}. {shown(x.entry.name)} ({x.entry.id[:12]}) {x.score:.3f} ± {x.stderr:.3f}"
            + ("" if x.above_chance else ", no more than chance")
            + (", carried by few samples" if x.doubtful else "")
            for place, x in enumerate(self.matches, 1)
        ]
        if not self.matches:
            lines.append("None was found.")
        lines += [self._left_out()] if self.left_out else []
        return "\n".join(lines)

    def _left_out(self) -> str:
        parts = [
            why if why == _ITSELF else f"{count:,} {why}" for why, count in self.left_out.items()
        ]
        remedy = ""
        if _OTHER in self.left_out:
            remedy = f"; to search those, record {shown(self.query)} as they were"
        return f"Left out: {', '.join(parts)}{remedy}."

    def to_frame(self) -> pandas.DataFrame:
        """One row for each network found: name, id, score, stderr, chance_high, above_chance,
        doubtful, signature, matched_by, tags and probe."""
        rows = [
            {
                "name": x.entry.name,
                "id": x.entry.id,
                "score": x.score,
                "stderr": x.stderr,
                "chance_high": x.chance_high,
                "above_chance": x.above_chance,
                "doubtful": x.doubtful,
                "signature": x.signature,
                "matched_by": x.matched_by,
                "tags": ", ".join(x.entry.tags),
                "probe": x.entry.probe,
            }
            for x in self.matches
        ]
        return optional("pandas", "pandas", "frames").DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; NaN becomes None."""
        out = {key: plain(value) for key, value in asdict(self).items() if key != "matches"}
        out["matches"] = [
            {
                **{key: plain(value) for key, value in asdict(x).items() if key != "entry"},
                "entry": x.entry.to_dict(),
            }
            for x in self.matches
        ]
        return {**out, "heading": self.heading}


def search(
    zoo: Zoo,
    query: Given,
    *,
    kernel: Searched = "features",
    layer: str | int | None = None,
    tag: str | None = None,
    limit: int = 10,
) -> Found:
    """The networks most like a given one, among those recorded on the same samples.

    Scores are those of `compare`: CKA with its standard error, the mean over the layers at four
    relative depths (the first, those at a third and two thirds, the last) or, with `layer`, of
    that layer and its namesake, or else the one at its relative depth. Entries are taken in the
    order of their signatures' cosines, until what is left lies four standard errors of a cosine
    below the `limit` best, at most four times `limit` of them: a network that is missed was
    misjudged by more, or stands behind so many. A group is of samples and of how features were
    recorded; gradients are compared only if they are of the same target. Cost: one product with all
    signatures of the group, then the layers needed of each candidate, ten at a time.
    """
    if kernel not in SEARCHED:
        raise DataError(f"kernel must be one of {', '.join(SEARCHED)}; found {kernel!r}")
    asked = _Asked.of(zoo, query, kernel, layer)
    group = zoo.store.entries(group=asked.group, tag=tag)
    there = {x.id: x for x in group if x.id != asked.id and asked.lacks(x) is None}
    left_out = _counted_out(zoo, asked, group, tag)
    several = {x.gradients for x in group if x.gradients is not None}
    among = None if tag is None and (kernel == "features" or len(several) == 1) else list(there)
    most = max(_CANDIDATES * limit, _FEWEST)
    found = zoo.store.nearest(asked.group, kernel, asked.signature(), most + 1, among=among)
    waiting = [(there[id], asked.scale * cosine) for id, cosine in found if id in there][:most]
    near: list[Neighbour] = []
    while waiting:
        together = min(_TOGETHER, limit - len(near)) if len(near) < limit else _TOGETHER
        new, lost = asked.neighbours(zoo, waiting[:together])
        near = sorted([*near, *new], key=lambda x: -np.nan_to_num(x.score, nan=-1.0))
        for why in lost:
            left_out[why] = left_out.get(why, 0) + 1
        least = near[limit - 1].score - asked.margin if len(near) >= limit else -np.inf
        waiting = [x for x in waiting[together:] if not x[1] < least]
    return Found(
        query=asked.rep.name,
        kernel=kernel,
        layer=asked.one,
        matches=tuple(near[:limit]),
        looked_at=len(there),
        compared=len(near),
        left_out=left_out,
        probe=probe_of(asked.rep),
        tag=tag,
    )


@dataclass(frozen=True)
class _Asked:
    """A network asked about: the layers that are compared, and at which depths."""

    id: str | None  # of an entry
    rep: Representation  # with the layers needed alone
    names: tuple[str, ...]  # of all layers
    places: tuple[int, ...]  # of each depth, or of one layer, where it is among all layers
    kernel: Searched
    one: str | None  # name of the one layer

    @classmethod
    def of(cls, zoo: Zoo, query: Given, kernel: Searched, layer: str | int | None) -> _Asked:
        id, names, read = opened(zoo, query)
        one = None if layer is None else _place(names, layer)
        places = depths(len(names)) if one is None else [one]
        rep = read(sorted(set(places)))
        _check(rep, kernel)
        return cls(id, rep, names, tuple(places), kernel, None if one is None else names[one])

    @property
    def group(self) -> str:
        return group_of(self.rep)

    @property
    def margin(self) -> float:
        """How far a score may lie above what signatures say; a layer between depths has none."""
        if self.one is None:
            return _MARGIN
        return _OF_ONE if self.places[0] in depths(len(self.names)) else np.inf

    @property
    def scale(self) -> float:
        """What makes a score of a cosine: of one depth, others add length alone."""
        return 1.0 if self.one is None else DEPTHS**0.5

    @property
    def layers(self) -> list[Layer]:
        """One for each of `places`."""
        return _at(self.rep, self.places)

    def signature(self) -> np.ndarray:
        if self.one is None:
            return signature(self.rep, self.kernel, self.layers)
        at = round((DEPTHS - 1) * self.places[0] / max(1, len(self.names) - 1))
        only: list[Layer | None] = [None] * DEPTHS
        only[at] = self.layers[0]
        return signature(self.rep, self.kernel, only)

    def lacks(self, entry: Entry) -> str | None:
        """Why an entry of the group has nothing to compare with, or None."""
        if self.kernel == "features":
            return None
        if entry.gradients is None:
            return _WITHOUT
        return None if entry.gradients == gradients_of(self.rep) else _OF_ANOTHER

    def neighbours(
        self, zoo: Zoo, candidates: Sequence[tuple[Entry, float]]
    ) -> tuple[list[Neighbour], list[str]]:
        """Entries with their scores, and why others have none; what was just removed is neither."""
        lost: list[str] = []
        there: list[tuple[Entry, float, MatchedBy]] = []
        reps: list[Representation] = []
        for entry, cosine in candidates:
            places, matched_by = self._counterparts(entry)
            try:
                rep = zoo.store.read(entry.id, sorted(set(places)))
            except FormatError:
                lost.append(_DAMAGED)
                continue
            if rep is not None:
                reps.append(replace(rep, layers=tuple(_at(rep, places))))
                there.append((entry, cosine, matched_by))
        own = replace(self.rep, layers=tuple(self.layers))
        out = []
        scores = one_with_many(own, reps, self.kernel)
        for (entry, cosine, matched_by), rep, found in zip(there, reps, scores, strict=True):
            if found is None:
                lost.append(_OTHER)
                continue
            pairs = tuple(zip(own.layer_names, rep.layer_names, strict=True))
            values = (found.score, found.stderr, found.chance_high, pairs)
            out.append(Neighbour(entry, *values, matched_by, cosine, found.doubtful))
        return out, lost

    def _counterparts(self, entry: Entry) -> tuple[Sequence[int], MatchedBy]:
        count = len(entry.layers)
        if self.one is None:
            return depths(count), "depth"
        (place,) = self.places
        named = by_name([Known(x) for x in self.names], [Known(x) for x in entry.layers])
        namesake = None if named is None else named.columns[place]
        if namesake is not None:
            return [namesake], "name"
        return [round(place * (count - 1) / max(1, len(self.names) - 1))], "depth"


def opened(
    zoo: Zoo, query: Given
) -> tuple[str | None, tuple[str, ...], Callable[[Sequence[int]], Representation]]:
    """The id of a network, if it is an entry; the names of its layers; and how to read some.

    A text names an entry before it is taken for the path of a file.
    """
    entry = _asked_entry(zoo, query)
    if entry is not None:
        id = entry.id
        return id, entry.layers, lambda places: zoo.get(id, layers=places)
    rep = recording(query)
    return (
        None,
        tuple(rep.layer_names),
        lambda places: replace(rep, layers=tuple(rep[i] for i in places)),
    )


def _asked_entry(zoo: Zoo, query: Given) -> Entry | None:
    if not isinstance(query, str):
        return None
    if query in zoo:
        return zoo.entry(query)
    if Path(query).exists():
        return None
    return zoo.entry(query)  # which says what there is


def _place(names: Sequence[str], layer: str | int) -> int:
    if isinstance(layer, str) and layer not in names:
        raise LayerError(f"no layer {layer!r}; nearest: {nearest(layer, names)}")
    return positions(names, [layer])[0]


def _check(rep: Representation, kernel: Searched) -> None:
    if not rep.block_sizes:
        raise DataError(
            f"expected a recording with blocks, found {rep.name!r} without; record it again with "
            "blocks above 0"
        )
    if not set(needs(kernel)) <= set(rep[0].kinds):
        raise MismatchError(
            f"kernel {kernel!r} needs gradients, and {rep.name!r} was recorded without; search by "
            "features, or record it again with gradients"
        )


def _at(rep: Representation, places: Sequence[int]) -> list[Layer]:
    """The layers at some places, of a Representation that holds these alone."""
    kept = sorted(set(places))
    return [rep[kept.index(place)] for place in places]


def _counted_out(
    zoo: Zoo, asked: _Asked, there: Sequence[Entry], tag: str | None
) -> dict[str, int]:
    """Why entries are not looked at, and how many."""
    every = len(zoo) if tag is None else len(zoo.store.entries(tag=tag))
    lacking = [asked.lacks(x) for x in there]
    out = {
        _ITSELF: sum(x.id == asked.id for x in there),
        _OTHER: every - len(there),
        _WITHOUT: lacking.count(_WITHOUT),
        _OF_ANOTHER: lacking.count(_OF_ANOTHER),
    }
    return {why: count for why, count in out.items() if count > 0}


def _counted(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"
