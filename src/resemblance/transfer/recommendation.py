"""The result of `recommend`: ranked candidates, with summary, table and JSON output.

A candidate comes with the accuracy that a linear probe is expected to reach on new samples. The
estimate is the leave-one-out accuracy of kernel ridge. Wilson's interval covers its distance from
the accuracy of such a fit on the whole source. The interval is widened by what
`benchmarks/recommend.py` measured for three further effects: a probe is trained differently, other
samples would train a different probe, and the best of several layers was selected.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from ..errors import DataError
from ..representation.notes import Note
from ..similarity.results import Result
from .candidates import ExcludedCandidate
from .transferability import CandidateScores

SHIFT = -0.10  # log odds of a trained probe's accuracy, less those of leave-one-out ridge: mean
SPREAD = 0.13  # and standard deviation, beyond what Wilson's interval explains
_MAX_SHOWN = 10  # candidates in a summary, and as many that were left out


@dataclass(frozen=True)
class ExpectedAccuracy:
    """An accuracy and the ends of its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.0%} ({self.low:.0%} to {self.high:.0%})"


def wilson_interval(share: float, count: int, level: float = 0.95) -> tuple[float, float]:
    """The interval of a binomial share by Wilson's score (Wilson 1927), which is within [0, 1].

    >>> low, high = wilson_interval(0.5, 100)
    >>> round(low, 3), round(high, 3)
    (0.404, 0.596)
    """
    from scipy.stats import binomtest

    ends = binomtest(round(share * count), count).proportion_ci(level, method="wilson")
    return float(ends.low), float(ends.high)


def expected_probe(
    share: float, count: int, *, shift: float = SHIFT, spread: float = SPREAD
) -> ExpectedAccuracy:
    """The accuracy of a trained probe, from the leave-one-out accuracy `share` of `count` samples.

    With a 95 % interval. In log odds: value = logit(share) + shift, and each end at the root of the
    squares of Wilson's distance and of z · spread. Bias: `shift` and `spread` are those of the
    benchmark's networks and of its probes; others may differ.

    >>> str(expected_probe(0.8, 400, shift=0.0, spread=0.0))
    '80% (76% to 84%)'
    """
    from scipy.special import expit, logit

    z = NormalDist().inv_cdf(0.975)
    ends = wilson_interval(share, count)
    centre = logit(np.clip(share, 0.5 / count, 1 - 0.5 / count))  # finite
    far = np.hypot(logit(np.clip(ends, 0.01 / count, 1 - 0.01 / count)) - centre, z * spread)
    middle = centre + shift
    value, low, high = expit([middle, middle - far[0], middle + far[1]]).tolist()
    return ExpectedAccuracy(value, low, high)


@dataclass(frozen=True)
class RankedCandidate:
    """One candidate: its place, where to start in it, what to expect, and why."""

    rank: int  # from 1
    name: str
    id: str | None  # of its entry in the zoo
    value: float  # of the score that ranks; larger is better (of combined scores, among these)
    layer: str  # to start from: what comes after it is replaced
    expected: ExpectedAccuracy | None  # accuracy of a linear probe there
    scores: CandidateScores  # all that were computed
    distance: float | None  # of its training data from these, if linked to a recording of them
    parameters: int
    seconds: float  # that it took to load, run and score
    reasons: tuple[str, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Recommendation(Result):
    """Candidates from best to worst, and those that were skipped.

    `to_frame` has one row for each candidate, from best to worst: rank, value (of the score that
    ranks), layer, expected_value, expected_low and expected_high, each score (at its best layer),
    parameters and seconds.

    Attributes:
        ranked: candidates, the best first.
        left_out: candidates that were not run, or whose run failed, and why.
        score: the score that ranks.
        samples: number of samples that every candidate was run on.
        total: number of samples these were drawn from; None if not known.
        classes: number of classes.
        budget: the budget, in words.
        notes: remarks that the summary repeats.
        seconds: duration of the call.
    """

    ranked: tuple[RankedCandidate, ...]
    left_out: tuple[ExcludedCandidate, ...]
    score: str
    samples: int
    total: int | None
    classes: int
    budget: str
    notes: tuple[Note, ...]
    seconds: float

    _kind = "recommendation"
    _note = "{}"
    _index = "candidate"

    @property
    def best(self) -> RankedCandidate:
        return self.ranked[0]

    def __len__(self) -> int:
        return len(self.ranked)

    def __iter__(self) -> Iterator[RankedCandidate]:
        return iter(self.ranked)

    def __getitem__(self, key: int | str) -> RankedCandidate:
        """By place, from 0, or by name."""
        if isinstance(key, int):
            return self.ranked[key]
        for one in self.ranked:
            if one.name == key:
                return one
        known = ", ".join(one.name for one in self.ranked)
        raise DataError(f"no candidate {key!r} was ranked; there are {known}")

    def _text(self) -> str:
        score = f"{self.score} {self.best.value:.3g}"
        return f"{self.best.name!r} from {self.best.layer!r}, {score}, best of {len(self)}"

    def _sentences(self) -> list[str]:
        heading = f"Start from {self.best.name}, at layer {self.best.layer!r}"
        if self.best.expected is not None:
            heading += f": a linear probe there should reach {self.best.expected}"
        lines = [f"{heading}."]
        lines += [
            f"{one.rank}. {one.name}: {'; '.join(one.reasons)}." for one in self.ranked[:_MAX_SHOWN]
        ]
        if len(self) > _MAX_SHOWN:
            lines.append(f"{len(self) - _MAX_SHOWN} more are ranked lower.")
        lines += [f"{one.name} was skipped: {one.why}." for one in self.left_out[:_MAX_SHOWN]]
        if len(self.left_out) > _MAX_SHOWN:
            lines.append(f"{len(self.left_out) - _MAX_SHOWN} more were skipped; see left_out.")
        return lines

    def _columns(self) -> Mapping[str, Any]:
        rows = [_frame_row(one) for one in self.ranked]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name, math.nan) for row in rows] for name in names}


def _frame_row(one: RankedCandidate) -> dict[str, Any]:
    expected = asdict(one.expected) if one.expected is not None else {}
    names = {score for own in one.scores.layers.values() for score in own}
    return {
        "candidate": one.name,
        "rank": one.rank,
        "value": one.value,
        "layer": one.layer,
        **{f"expected_{k}": expected.get(k, math.nan) for k in ("value", "low", "high")},
        **{score: one.scores.best(score) for score in sorted(names)},
        **one.scores.outputs,
        "parameters": one.parameters,
        "seconds": one.seconds,
    }
