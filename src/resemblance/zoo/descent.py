"""Descent: whether one network was made from another's weights, or both from a third's.

A copy keeps its origin's units in their places, whether it was tuned, pruned, rounded, merged with
others or given an adapter; a network trained apart, or distilled, numbers them anew. So
`coordinates` tells: some layer's cosine is above what units in any order would give. Where units
may have been exchanged, on purpose or by a conversion, that shows nothing. Then a probe of noise
helps: early layers of a descendant still see noise as their origin does, more alike than those of
networks that learnt the same apart. That is weaker evidence, with a threshold that was measured,
not derived.

Neither says who came first.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._shown_text import shown
from ..errors import FormatError, MismatchError, ResemblanceWarning, optional
from ..representation.as_given import Given, recording
from ..representation.layer import Layer
from ..representation.representation import Representation
from ..similarity.coordinates_by_layer import Coordinates
from ..similarity.layer_matching import Known, by_name
from ..similarity.shared_coordinates import FALSE_ALARMS, check, coordinates, counterparts
from ..similarity.sketched_change import Centred
from ..similarity.two_networks import compare
from .entry import Entry, group_of, probe_of
from .kernel_signature import at_depths, depths, signature
from .nearest_networks import opened

if TYPE_CHECKING:
    import pandas

    from .collection import Zoo

ShownBy = Literal["coordinates", "noise"]
NOISE = "probe:noise"
# The CKA of features, at a third of the depth, above which networks are held to be of one descent;
# and how often networks that are not lie above it. benchmarks/descent.py chose it for that rate on
# some networks (4 of 446 pairs), and found none above it on others (0 of 446).
NOISE_LEVEL, NOISE_ALARMS = 0.964, 0.01
_CANDIDATES = 256  # entries that are looked at, those nearest by features first
_ALIKE = 0.25  # cosine of features at any layer, below which nothing more is asked


@dataclass(frozen=True)
class Descent:
    """What two recordings say about whether their networks are of one descent."""

    models: tuple[str, str]
    shown_by: ShownBy | None  # None: nothing shows it
    alarms: float  # how often networks that were trained apart are said to be of one descent
    strength: float  # by coordinates: the cosine over chance, in units of the level that marks
    # more; above 1 it is shown. NaN where coordinates cannot be compared
    coordinates: Coordinates | None
    obstacle: str | None  # why coordinates cannot be compared
    noise: float | None  # CKA of features on noise, at a third of the depth; None: no such probe

    @property
    def related(self) -> bool:
        """Whether one was made from the other's weights, or both from a third's."""
        return self.shown_by is not None

    @property
    def decibels(self) -> float:
        """How far features moved, the mean over layers; infinite for equal ones, else NaN."""
        if self.coordinates is None or self.shown_by != "coordinates":
            return float("nan")
        return mean_decibels(self.coordinates.decibels[0])

    def summary(self) -> str:
        """The answer in a few plain sentences."""
        a, b = map(shown, self.models)
        if self.shown_by == "coordinates" and self.coordinates is not None:
            found = self.coordinates
            count, every = int(found.shared_layers.sum()), len(found.layers)
            words = [
                f"{a} and {b} are of one descent: one was made from the other's weights, or both "
                f"from a third's. {count} of {every} layers share coordinates (false alarms: "
                f"{self.alarms:g}).",
                f"Features {_told(self.decibels)}.",
            ]
        elif self.shown_by == "noise":
            words = [
                f"{a} and {b} are likely of one descent: on noise, features at a third of the "
                f"depth score {self.noise:.3f}, above {NOISE_LEVEL:g} (false alarms: about "
                f"{self.alarms:g}, as measured). Their units are not in the same places.",
            ]
        else:
            words = [f"Nothing shows that {a} and {b} are of one descent."]
            if self.noise is not None:
                words.append(f"On noise, early features score {self.noise:.3f}.")
            elif self.obstacle is None:
                words.append(
                    "Copies whose units were exchanged would not show; record both on "
                    f"{NOISE} to see those."
                )
        if self.obstacle is not None:
            words.append(f"Coordinates were not compared: {self.obstacle}.")
        return " ".join(words)


@dataclass(frozen=True)
class Relative:
    """An entry that is of one descent with the network asked about."""

    entry: Entry
    descent: Descent


@dataclass(frozen=True)
class Descents:
    """The entries of a zoo that are of one descent with a network, the least changed first."""

    query: str
    relatives: tuple[Relative, ...]
    looked_at: int
    left_out: dict[str, int]  # why entries were not looked at, and how many
    probe: str

    def __iter__(self) -> Iterator[Relative]:
        return iter(self.relatives)

    def __len__(self) -> int:
        return len(self.relatives)

    def __repr__(self) -> str:
        return f"Descents({len(self)} of one descent with {self.query!r}, of {self.looked_at:,})"

    def summary(self) -> str:
        """What was found, and what was left out, in a few plain sentences."""
        entries = "entry" if self.looked_at == 1 else "entries"
        lines = [
            f"Of one descent with {shown(self.query)}: {len(self)} of {self.looked_at:,} {entries} "
            f"on {shown(self.probe)}."
        ]
        lines += [
            f"{shown(x.entry.name)} ({x.entry.id[:12]}) {_moved(x.descent)}" for x in self.relatives
        ]
        if self.left_out:
            parts = [f"{count:,} {why}" for why, count in self.left_out.items()]
            lines.append(f"Left out: {', '.join(parts)}.")
        return "\n".join(lines)

    def to_frame(self) -> pandas.DataFrame:
        """One row for each: name, id, shown_by, decibels, strength, noise, alarms and tags."""
        rows = [
            {
                "name": x.entry.name,
                "id": x.entry.id,
                "shown_by": x.descent.shown_by,
                "decibels": x.descent.decibels,
                "strength": x.descent.strength,
                "noise": x.descent.noise,
                "alarms": x.descent.alarms,
                "tags": ", ".join(x.entry.tags),
            }
            for x in self.relatives
        ]
        return optional("pandas", "pandas", "frames").DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; what is not finite becomes None."""
        return {
            "query": self.query,
            "probe": self.probe,
            "looked_at": self.looked_at,
            "left_out": dict(self.left_out),
            "relatives": [
                {
                    "entry": x.entry.to_dict(),
                    "shown_by": x.descent.shown_by,
                    "decibels": _finite(x.descent.decibels),
                    "strength": _finite(x.descent.strength),
                    "noise": x.descent.noise,
                    "alarms": x.descent.alarms,
                    "summary": x.descent.summary(),
                }
                for x in self.relatives
            ],
        }


def descent(a: Given, b: Given) -> Descent:
    """Whether two recorded networks are of one descent.

    By coordinates, where layers match and both saw the same samples, whatever those are: the chance
    of a false alarm is one in a thousand (benchmarks/descent.py counts them). A layer of logits is
    left out, as its units have a meaning that all networks of a task share. Where coordinates show
    nothing and both were recorded on the noise that ships with the package (`--data probe:noise`),
    features on it decide. Networks that began from the same random weights are of one descent too.
    """
    a, b = recording(a), recording(b)
    found, obstacle = _compared(a, b)
    noise = _on_noise(a, b)
    strength = float("nan") if found is None else _strength(found)
    shown_by: ShownBy | None = None
    if found is not None and found.shared:
        shown_by = "coordinates"
    elif noise is not None and noise > NOISE_LEVEL:
        shown_by = "noise"
    alarms = NOISE_ALARMS if noise is not None and shown_by != "coordinates" else FALSE_ALARMS
    return Descent((a.name, b.name), shown_by, alarms, strength, found, obstacle, noise)


def derivatives(zoo: Zoo, query: Given, *, limit: int = 10) -> Descents:
    """The entries of a zoo that are of one descent with a network, the least changed first.

    Of entries recorded on the same samples with layers of the same names or as many, the 256
    nearest by features are looked at, at four relative depths. Cost: those layers of each, and a
    comparison in coordinates of those that have a cosine above 0.25 at any.
    """
    own, names, read = opened(zoo, query)
    rep = read(sorted(set(depths(len(names)))))
    group = group_of(rep)
    there = [x for x in zoo.store.entries(group=group) if x.id != own]
    matching = {x.id: x for x in there if _may_match(names, x.layers)}
    order = _by_features(zoo, rep, group, len(there) + 1)
    chosen = sorted(matching.values(), key=lambda x: order.get(x.id, len(order)))
    left_out = {
        "recorded on other samples or in another way": len(zoo) - len(there) - (own is not None),
        "with other layers": len(there) - len(matching),
        "farther by features than those looked at": len(chosen[_CANDIDATES:]),
    }
    relatives, damaged, gone = [], 0, 0
    for other in chosen[:_CANDIDATES]:
        try:
            theirs = zoo.store.read(other.id, sorted(set(depths(len(other.layers)))))
        except FormatError:
            damaged += 1
            continue
        if theirs is None:  # it has just been removed
            gone += 1
        elif may_be_related(rep, theirs) and (found := descent(rep, theirs)).related:
            relatives.append(Relative(other, found))
    left_out["damaged"] = damaged
    relatives.sort(key=lambda x: -np.nan_to_num(x.descent.decibels, nan=-1e3, posinf=1e3))
    return Descents(
        query=rep.name,
        relatives=tuple(relatives[:limit]),
        looked_at=min(len(chosen), _CANDIDATES) - damaged - gone,
        left_out={why: count for why, count in left_out.items() if count > 0},
        probe=probe_of(rep),
    )


def _by_features(zoo: Zoo, rep: Representation, group: str, limit: int) -> dict[str, int]:
    """Places of entries in the order of their signatures; without blocks, there are none."""
    if not rep.block_sizes:
        return {}
    near = signature(rep, "features", at_depths(rep))
    found = zoo.store.nearest(group, "features", near, limit)
    return {id: place for place, (id, _) in enumerate(found)}


def may_be_related(a: Representation, b: Representation) -> bool:
    """Whether it is worth asking: some cosine is not small, or noise may tell."""
    if a.data.id == NOISE:
        return True
    try:
        check(a, b)
        _, pairs = counterparts(a, b)
    except MismatchError:
        return False
    return any(_cosine(x, y, a.samples) > _ALIKE for x, y in pairs)


def with_own_units(rep: Representation) -> Representation:
    """A recording without its logits: their units mean the same to every network of a task."""
    last = rep[-1]
    logits = rep.outputs is not None and last.dim == rep.outputs.classes
    return replace(rep, layers=rep.layers[:-1]) if logits else rep


def mean_decibels(decibels: np.ndarray) -> float:
    """The mean over layers that have a value; infinite where none moved at all."""
    there = decibels[~np.isnan(decibels)]
    if not len(there) or np.isposinf(there).all():
        return float("inf") if len(there) else float("nan")
    return float(there[np.isfinite(there)].mean())


def _compared(a: Representation, b: Representation) -> tuple[Coordinates | None, str | None]:
    one, two = with_own_units(a), with_own_units(b)
    if not len(one) or not len(two):
        return None, "logits are all that was recorded, and networks of a task share theirs"
    try:
        return coordinates(one, two), None
    except MismatchError as error:
        return None, str(error)


def _strength(found: Coordinates) -> float:
    """How far the cosine is above chance, in units of what marks more, at the likeliest layer."""
    over = (found.cosine[0] - found.chance) / (found.chance_high - found.chance)
    return float(np.nanmax(over, initial=-np.inf)) if not np.isnan(over).all() else float("nan")


def _on_noise(a: Representation, b: Representation) -> float | None:
    """The CKA of features at a third of the depth, where both were recorded on the same noise."""
    if a.data.id != NOISE or b.data.id != NOISE:
        return None
    early = (replace(rep, layers=(at_depths(rep)[1],), outputs=None) for rep in (a, b))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResemblanceWarning)
            score = float(compare(*early, kernel="features").scores[0, 0])
    except MismatchError:
        return None
    return None if np.isnan(score) else score


def _cosine(x: Layer, y: Layer, samples: int) -> float:
    tables = []
    for layer in (x, y):
        sketch, signs = layer.features.sketch, layer.sketch_signs
        if sketch is None or signs is None:
            return 0.0
        tables.append(Centred.of(sketch, signs, samples).table)
    length = float(tables[0].norm() * tables[1].norm())
    return float((tables[0] * tables[1]).sum()) / length if length > 0 else 0.0


def _may_match(names: Sequence[str], others: Sequence[str]) -> bool:
    if len(names) == len(others):
        return True
    return by_name([Known(x) for x in names], [Known(x) for x in others]) is not None


def _told(decibels: float) -> str:
    """What a change of this size comes from, as seen on copies (docs/copies.md)."""
    if np.isposinf(decibels):
        return "did not move at all"
    if decibels > 35:
        cause = "as rounding to 8 bits leaves it, or less"
    elif decibels > 15:
        cause = "as rounding to 4 bits, light pruning or a short tuning leaves it"
    elif decibels > 6:
        cause = "as tuning, or pruning of about half of the weights leaves it"
    else:
        cause = "little of them is left, as after heavy pruning or tuning to another task"
    return f"moved by {decibels:.1f} dB on average: {cause}"


def _moved(found: Descent) -> str:
    if found.shown_by == "noise":
        return f"by noise ({found.noise:.3f}), units exchanged"
    if np.isposinf(found.decibels):
        return "with equal features"
    return f"moved by {found.decibels:.1f} dB"


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
