"""Recommendation: which network to start from, and from which layer, in numbers and in words."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DataError, optional
from ..similarity import result_files
from .candidates import LeftOut
from .layer_scores import Scored
from .probe_interval import Expected

if TYPE_CHECKING:
    import pandas

_SHOWN = 10  # candidates in a summary, and as many that were left out


@dataclass(frozen=True)
class Ranked:
    """One candidate: its place, where to start in it, what to expect, and why."""

    rank: int  # from 1
    name: str
    id: str | None  # of its entry in the zoo
    value: float  # of the score that ranks; larger is better
    layer: str  # to start from: what comes after it is replaced
    expected: Expected | None  # accuracy of a linear probe there; None without labels
    scores: Scored  # all that were computed
    distance: float | None  # of its training data from these, if linked to a recording of them
    parameters: int
    seconds: float  # that it took to load, run and score
    reasons: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; NaN becomes None."""
        return {
            "rank": self.rank,
            "name": self.name,
            "id": self.id,
            "value": _plain(self.value),
            "layer": self.layer,
            "expected": None if self.expected is None else asdict(self.expected),
            "scores": {
                "layers": {
                    name: {score: _plain(x) for score, x in own.items()}
                    for name, own in self.scores.layers.items()
                },
                "outputs": {score: _plain(x) for score, x in self.scores.outputs.items()},
            },
            "distance": _plain(self.distance),
            "parameters": self.parameters,
            "seconds": round(self.seconds, 3),
            "reasons": list(self.reasons),
        }


@dataclass(frozen=True)
class Recommendation:
    """Candidates from best to worst, and what was left out. Made by `recommend`."""

    ranked: tuple[Ranked, ...]
    left_out: tuple[LeftOut, ...]  # not run, or failed, and why
    score: str  # that ranks
    labelled: bool
    samples: int  # that every candidate was run on
    total: int | None  # of which these were drawn
    classes: int | None
    budget: str
    notes: tuple[str, ...]  # what the reader should know
    seconds: float

    @property
    def best(self) -> Ranked:
        return self.ranked[0]

    def __len__(self) -> int:
        return len(self.ranked)

    def __iter__(self) -> Iterator[Ranked]:
        return iter(self.ranked)

    def __getitem__(self, key: int | str) -> Ranked:
        """By place, from 0, or by name."""
        if isinstance(key, int):
            return self.ranked[key]
        for one in self.ranked:
            if one.name == key:
                return one
        known = ", ".join(one.name for one in self.ranked)
        raise DataError(f"no candidate {key!r} was ranked; there are {known}")

    def __repr__(self) -> str:
        first = self.best
        return f"Recommendation({first.name!r} from {first.layer!r}, best of {len(self)})"

    def summary(self) -> str:
        """What to do, why, and how sure that is, in lines."""
        lines = [_heading(self.best)]
        lines += [
            f"{one.rank}. {one.name}: {'; '.join(one.reasons)}." for one in self.ranked[:_SHOWN]
        ]
        if len(self) > _SHOWN:
            lines.append(f"{len(self) - _SHOWN} more are ranked below.")
        lines += [f"{one.name} was left out: {one.why}." for one in self.left_out[:_SHOWN]]
        if len(self.left_out) > _SHOWN:
            lines.append(f"{len(self.left_out) - _SHOWN} more were left out; left_out names them.")
        lines += list(self.notes)
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; NaN becomes None."""
        return {
            "score": self.score,
            "labelled": self.labelled,
            "samples": self.samples,
            "total": self.total,
            "classes": self.classes,
            "budget": self.budget,
            "seconds": round(self.seconds, 3),
            "ranked": [one.to_dict() for one in self.ranked],
            "left_out": [asdict(one) for one in self.left_out],
            "notes": list(self.notes),
        }

    def to_frame(self) -> pandas.DataFrame:
        """One row a candidate, from best to worst; scores of layers are those at their best."""
        pandas = optional("pandas", "pandas", "frames")
        return pandas.DataFrame(
            [_row(one) for one in self.ranked],
            index=pandas.Index([one.name for one in self.ranked], name="candidate"),
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write `to_dict` as JSON; the file appears whole or not at all."""
        return result_files.write(path, "recommendation", self.to_dict())


def _heading(best: Ranked) -> str:
    what = f"Start from {best.name}, at layer {best.layer!r}"
    if best.expected is None:
        return f"{what}."
    return f"{what}: a linear probe there should reach {best.expected}."


def _row(one: Ranked) -> dict[str, Any]:
    expected = asdict(one.expected) if one.expected is not None else {}
    names = {score for own in one.scores.layers.values() for score in own}
    return {
        "rank": one.rank,
        "value": one.value,
        "layer": one.layer,
        **{f"expected_{k}": expected.get(k, math.nan) for k in ("value", "low", "high")},
        **{score: one.scores.best(score) for score in sorted(names)},
        **one.scores.outputs,
        "parameters": one.parameters,
        "seconds": one.seconds,
    }


def _plain(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
