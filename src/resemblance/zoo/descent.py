"""Descent: whether one network was made from another's weights, or both from a third's.

A copy keeps its origin's units in place, whether it was fine-tuned, pruned, quantised, merged with
others or given an adapter; a network trained independently, or distilled, orders them differently.
So `coordinates` decides: at more than half of the layers, the cosine must exceed what units in
random order would give. Copies exceed it at every layer, even when 90 % pruned or fine-tuned to
another task. Networks trained independently over one shared stem exceed it at the layers of the
stem only: what is shared is reported, and not called descent. If units may have been permuted,
deliberately or by a conversion, coordinates show nothing. Then a noise probe helps: early layers of
a descendant still respond to noise as their origin does, more similarly than those of networks that
learnt the same task independently. That is weaker evidence, with an empirical threshold.

Neither test says which network came first.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._utils.formatting import count_noun, join_names, left_out_sentence, printable
from ..errors import MismatchError, ResemblanceWarning
from ..representation.representation import Representation, RepresentationLike, as_representation
from ..similarity.compare import compare
from ..similarity.drift import (
    FALSE_ALARM_RATE,
    Coordinates,
    centred_sketch,
    coordinates,
    sketched_cosine,
    subtractable_pairs,
)
from ..similarity.pairing import LayerKey, match_by_name
from ..similarity.results import Content, Result, plain
from .entry import Entry, entry_columns, group_of, probe_of
from .search import REASON_DAMAGED, REASON_OTHER_GROUP, open_query, read_entries
from .signature import depth_indices, layers_at_depths, signature

if TYPE_CHECKING:
    from .zoo import Zoo


Evidence = Literal["coordinates", "noise"]
NOISE = "probe:noise"
# The CKA of features, at a third of the depth, above which networks are held to be of one descent;
# and how often networks that are not lie above it. benchmarks/descent.py chose it for that rate on
# some networks (4 of 446 pairs), and found none above it on others (0 of 446).
NOISE_LEVEL, NOISE_ALARMS = 0.964, 0.01
_CAUSES = {  # of a change of more decibels than that
    35: "as after rounding to 8 bits, or less",
    15: "as after rounding to 4 bits, light pruning or brief fine-tuning",
    6: "as after fine-tuning, or pruning about half of the weights",
}
_CAUSE_LARGE = "about as large as the features, as after fine-tuning to a different task"
_MAX_CANDIDATES = 256  # entries that are looked at, those nearest by features first
_MIN_COSINE = 0.25  # cosine of features at any layer, below which nothing more is asked


@dataclass(frozen=True)
class Descent:
    """What two recordings say about whether their networks are of one descent."""

    models: tuple[str, str]
    shown_by: Evidence | None  # None: nothing shows it
    alarms: float  # how often networks that were trained apart are said to be of one descent
    strength: float  # by coordinates: what more than half of the layers exceed, of the cosine over
    # chance in units of the level that marks more; above 1 it is shown. NaN: not compared
    coordinates: Coordinates | None
    obstacle: str | None  # why coordinates cannot be compared
    noise: float | None  # CKA of features on noise, at a third of the depth; None: no such probe

    @property
    def related(self) -> bool:
        """Whether one was made from the other's weights, or both from a third's."""
        return self.shown_by is not None

    @property
    def shared(self) -> tuple[str, ...]:
        """The layers at which both networks have the same units in the same order."""
        if self.coordinates is None:
            return ()
        pairs = zip(self.coordinates.layers, self.coordinates.shared_layers, strict=True)
        return tuple(name for name, shares in pairs if shares)

    @property
    def partial(self) -> bool:
        """Whether units are shared, but at too few layers to call it descent."""
        return bool(self.shared) and not self.related

    @property
    def decibels(self) -> float:
        """How far features moved, the mean over layers; infinite for equal ones, else NaN."""
        if self.coordinates is None or self.shown_by != "coordinates":
            return float("nan")
        return mean_decibels(self.coordinates.decibels[0])

    def summary(self) -> str:
        """The answer in a few plain sentences."""
        a, b = map(printable, self.models)
        if self.shown_by == "coordinates" and self.coordinates is not None:
            words = [
                f"{a} and {b} share an ancestor: one was derived from the other's weights, or both "
                "from a third network's (the recordings do not show which). The units of "
                f"{self.counted} are in the same order (false-alarm rate: {self.alarms:g})."
            ]
            if others := [x for x in self.coordinates.layers if x not in self.shared]:
                words.append(f"Not shared: {join_names(others)}.")
            words.append(f"Features {_drift_sentence(self.decibels)}.")
        elif self.partial:
            words = [
                f"{a} and {b} share units at {self.counted} ({join_names(self.shared)}), but not "
                "elsewhere. Shared weights there, such as a frozen stem under networks trained "
                "independently, explain that. It is no evidence that one was derived from the "
                "other."
            ]
        elif self.shown_by == "noise":
            words = [
                f"{a} and {b} probably share an ancestor: on noise, features at a third of the "
                f"depth score {self.noise:.3f}, above {NOISE_LEVEL:g} (measured false-alarm rate: "
                f"about {self.alarms:g}). Their units are in a different order.",
            ]
        else:
            words = [f"No evidence that {a} and {b} share an ancestor."]
            if self.noise is None and self.obstacle is None:
                words.append(
                    f"Copies with permuted units would not be detected; record both on {NOISE} to "
                    "detect them."
                )
        if self.noise is not None and not self.related:
            words.append(f"On noise, early features score {self.noise:.3f}.")
        if self.obstacle is not None:
            words.append(f"The order of units was not compared: {self.obstacle}.")
        return " ".join(words)

    @property
    def counted(self) -> str:
        """At how many layers units are shared, in words."""
        tested = 0 if self.coordinates is None else len(self.coordinates.layers)
        return f"{len(self.shared)} of {tested} layers"


@dataclass(frozen=True, eq=False)
class Relative(Content):
    """An entry that shares an ancestor with the query, or some layers."""

    entry: Entry
    descent: Descent

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; what is not finite becomes None."""
        told = ("shown_by", "decibels", "strength", "shared", "noise", "alarms")
        found = {key: getattr(self.descent, key) for key in told}
        return plain({"entry": self.entry, **found, "summary": self.descent.summary()})


@dataclass(frozen=True, eq=False, repr=False)
class Descents(Result):
    """The entries of a zoo that are related to a network by descent, the least changed first.

    `to_frame` has one row for each relative: name, id, shown_by, decibels, strength, noise, alarms
    and tags.

    Attributes:
        query: name of the query.
        relatives: the related entries, each with the evidence of its descent.
        looked_at: number of entries that were compared.
        left_out: why entries were skipped, and how many.
        probe: the samples that the query was recorded on, in words.
        partial: entries that share units at a few layers only, which does not show descent.
    """

    query: str
    relatives: tuple[Relative, ...]
    looked_at: int
    left_out: dict[str, int]
    probe: str
    partial: tuple[Relative, ...] = ()

    _kind = "descents"

    def __iter__(self) -> Iterator[Relative]:
        return iter(self.relatives)

    def __len__(self) -> int:
        return len(self.relatives)

    def _text(self) -> str:
        return f"{len(self)} of {self.looked_at:,} share an ancestor with {self.query!r}"

    def _sentences(self) -> list[str]:
        lines = [
            f"Networks that share an ancestor with {printable(self.query)}: {len(self)} of "
            f"{count_noun(self.looked_at, 'entry', 'entries')} on {printable(self.probe)}."
        ]
        lines += [
            f"{printable(x.entry.name)} ({x.entry.id[:12]}) {_drift_phrase(x.descent)}"
            for x in self.relatives
        ]
        lines += [
            f"{printable(x.entry.name)} ({x.entry.id[:12]}) shares units at only "
            f"{x.descent.counted} ({join_names(x.descent.shared)}), such as a shared stem: no "
            "evidence of common ancestry"
            for x in self.partial
        ]
        return [*lines, left_out_sentence(self.left_out)] if self.left_out else lines

    def _columns(self) -> Mapping[str, Any]:
        entries, found = ([getattr(x, of) for x in self.relatives] for of in ("entry", "descent"))
        own = ("shown_by", "decibels", "strength", "noise", "alarms")
        return {
            **entry_columns(entries, "name", "id"),
            **{key: [getattr(x, key) for x in found] for key in own},
            **entry_columns(entries, "tags"),
        }


def descent(a: RepresentationLike, b: RepresentationLike) -> Descent:
    """Whether two recorded networks are of one descent.

    By coordinates, where layers match and both saw the same samples, whatever those are: more than
    half of the layers must have the same units in the same order. The chance of a false alarm is at
    most one in a thousand (benchmarks/descent.py counts them). A layer of logits does not count, as
    its units have a meaning that all networks of a task share. Where no layer shares units and both
    were recorded on the noise that ships with the package (`--data probe:noise`), features on it
    decide. Networks that began from the same random weights are of one descent too. In a residual
    network or a transformer, a shared stem or embedding reaches later layers through the residual
    stream, and may look like descent.

    Args:
        a: a Representation, or the path of one.
        b: a different one.
    """
    a, b = as_representation(a), as_representation(b)
    found: Coordinates | None = None
    obstacle: str | None = None
    one, two = without_logits(a), without_logits(b)
    if not len(one) or not len(two):
        obstacle = "only logits were recorded, and networks of the same task have similar logits"
    else:
        try:
            found = coordinates(one, two)
        except MismatchError as error:
            obstacle = str(error)
    noise = _noise_score(a, b)
    strength = float("nan") if found is None else sharing_strength(found)
    shown_by: Evidence | None = None
    if strength > 1:
        shown_by = "coordinates"
    elif noise is not None and noise > NOISE_LEVEL and not (found is not None and found.shared):
        shown_by = "noise"
    alarms = NOISE_ALARMS if noise is not None and shown_by != "coordinates" else FALSE_ALARM_RATE
    return Descent((a.name, b.name), shown_by, alarms, strength, found, obstacle, noise)


def derivatives(zoo: Zoo, query: RepresentationLike, *, limit: int = 10) -> Descents:
    """The entries of a zoo that are of one descent with a network, the least changed first.

    Of entries recorded on the same samples with layers of the same names or as many, the 256
    nearest by features are compared, at four relative depths; where some of these layers share
    units and some do not, all layers are. Cost: those layers of each, and a comparison in
    coordinates of those that have a cosine above 0.25 at any.

    Args:
        zoo: where to search.
        query: a Representation, the path of one, or the key of an entry.
        limit: how many entries are returned at most.
    """
    own, names, read = open_query(zoo, query)
    rep = read(sorted(set(depth_indices(len(names)))))
    group = group_of(rep)
    entries, unreadable = zoo.store.listed(group=group)
    others = [x for x in entries if x.id != own]
    matching = [x for x in others if _layers_may_match(names, x.layers)]
    if rep.block_sizes:  # else there are no signatures
        vector = signature(rep, "features", layers_at_depths(rep))
        nearest = zoo.store.nearest(group, "features", vector, len(others) + 1)
        order = {id: place for place, (id, _) in enumerate(nearest)}
        matching.sort(key=lambda x: order.get(x.id, len(order)))
    left_out = Counter(
        {
            REASON_OTHER_GROUP: len(zoo) - len(others) - len(unreadable) - (own is not None),
            "with other layers": len(others) - len(matching),
            "less similar by features than those examined": len(matching[_MAX_CANDIDATES:]),
            REASON_DAMAGED: len(unreadable),
        }
    )
    found: list[Relative] = []
    looked_at = 0
    nearby = matching[:_MAX_CANDIDATES]
    at_depths = read_entries(zoo, nearby, lambda x: depth_indices(len(x.layers)), left_out)
    for other, theirs in at_depths:
        looked_at += 1
        if not may_be_related(rep, theirs):
            continue
        one = descent(rep, theirs)
        if one.coordinates is not None and 0 < len(one.shared) < len(one.coordinates.layers):
            # layers disagree, so all of them decide
            for _, whole in read_entries(zoo, [other], lambda _: None, Counter()):
                one = descent(read(range(len(names))), whole)
        found.append(Relative(other, one))
    found.sort(key=lambda x: -np.nan_to_num(x.descent.decibels, nan=-1e3, posinf=1e3))
    return Descents(
        query=rep.name,
        relatives=tuple(x for x in found if x.descent.related)[:limit],
        looked_at=looked_at,
        left_out=dict(+left_out),
        probe=probe_of(rep),
        partial=tuple(x for x in found if x.descent.partial)[:limit],
    )


def may_be_related(a: Representation, b: Representation) -> bool:
    """Whether it is worth asking: some cosine is not small, or noise may tell."""
    if a.data.id == NOISE:
        return True
    sketches = (
        (centred_sketch(x, "features", a), centred_sketch(y, "features", b))
        for x, y in subtractable_pairs(a, b) or ()
    )
    return any(sketched_cosine(*both, centre=True) > _MIN_COSINE for both in sketches)


def without_logits(rep: Representation) -> Representation:
    """A recording without its logits: their units mean the same to every network of a task."""
    last = rep[-1]
    logits = rep.predictions is not None and last.dim == rep.predictions.classes
    return replace(rep, layers=rep.layers[:-1]) if logits else rep


def mean_decibels(decibels: np.ndarray) -> float:
    """The mean over layers that have a value; infinite where none moved at all."""
    there = decibels[~np.isnan(decibels)]
    if not len(there) or np.isposinf(there).all():
        return float("inf") if len(there) else float("nan")
    return float(there[np.isfinite(there)].mean())


def sharing_strength(found: Coordinates) -> float:
    """What more than half of the layers exceed, of the cosine over chance in units of the level.

    Above 1, more than half of the layers that can be tested share units: evidence of descent.
    """
    over = (found.cosine[0] - found.chance) / (found.chance_high - found.chance)
    known = np.sort(over[~np.isnan(over)])[::-1]
    return float(known[len(known) // 2]) if len(known) else float("nan")


def _noise_score(a: Representation, b: Representation) -> float | None:
    """The CKA of features at a third of the depth, where both were recorded on the same noise."""
    if a.data.id != NOISE or b.data.id != NOISE:
        return None
    early = (replace(rep, layers=(layers_at_depths(rep)[1],), outputs=None) for rep in (a, b))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResemblanceWarning)
            score = float(compare(*early, kernel="features").scores[0, 0])
    except MismatchError:
        return None
    return None if np.isnan(score) else score


def _layers_may_match(names: Sequence[str], others: Sequence[str]) -> bool:
    if len(names) == len(others):
        return True
    return match_by_name([LayerKey(x) for x in names], [LayerKey(x) for x in others]) is not None


def _drift_sentence(decibels: float) -> str:
    """What a change of this size comes from, as seen on copies (docs/evidence/copies.md)."""
    if np.isposinf(decibels):
        return "are unchanged"
    cause = next((words for least, words in _CAUSES.items() if decibels > least), _CAUSE_LARGE)
    return f"differ: SQNR {decibels:.1f} dB on average, {cause}"


def _drift_phrase(found: Descent) -> str:
    if found.shown_by == "noise":
        return f"by noise ({found.noise:.3f}), units permuted"
    if np.isposinf(found.decibels):
        return "with equal features"
    return f"SQNR {found.decibels:.1f} dB"
