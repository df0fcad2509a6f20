"""Transferability scores of a candidate from one pass, and which of them ranks candidates.

Some are scores of a layer (`LAYER_SCORES`), some of the network's predictions (`OUTPUT_SCORES`),
and some add others (`COMBINED_SCORES`). Larger is better for all of them.

The default follows what `benchmarks/recommend.py` measured on three collections of networks
(docs/evidence/recommending.md).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Literal, TypeVar

import numpy as np
from torch.nn.functional import one_hot

from ..analysis.kernel_ridge import FeatureSpectrum, RidgeProblem, encode_labels
from ..analysis.layer_vectors import Vectors
from ..errors import DataError, close_matches
from .candidates import CandidatePass
from .hscore import h_score, shrunk_h_score, trans_rate
from .leep import leep, nce
from .logme import log_me

_Name = TypeVar("_Name")


def ridge_accuracy(spectrum: FeatureSpectrum, labels: np.ndarray) -> float:
    """Leave-one-out accuracy of kernel ridge at the α of least squared error, as `leave_one_out`.

    >>> spectrum = FeatureSpectrum.of(np.array([[0.0, 1.0], [1.0, 0.0]] * 5))
    >>> ridge_accuracy(spectrum, np.array([0, 1] * 5))
    1.0
    """
    targets = one_hot(encode_labels(labels, len(spectrum.vectors))[0]).double()
    problem = RidgeProblem({}, targets, spectrum.values, spectrum.vectors)
    return problem.best_by_leave_one_out(problem.alphas())[1]


LAYER_SCORES = {  # each of a layer's spectrum and labels
    "ridge": ridge_accuracy,
    "log_me": log_me,
    "h_score": h_score,
    "shrunk_h_score": shrunk_h_score,
    "trans_rate": trans_rate,
}
OUTPUT_SCORES = {"leep": leep, "nce": nce}  # each of probabilities and labels
COMBINED_SCORES = {"ridge+log_me": ("ridge", "log_me")}  # added in standard deviations
ALL_SCORES = (*LAYER_SCORES, *OUTPUT_SCORES, *COMBINED_SCORES)


@dataclass(frozen=True)
class CandidateScores:
    """A candidate's scores: of each layer, and of its predictions."""

    layers: Mapping[str, Mapping[str, float]]  # by layer in order of execution, then by score
    outputs: Mapping[str, float]

    def along(self, score: str) -> dict[str, float]:
        """One score over layers, where it could be computed."""
        found = {name: own[score] for name, own in self.layers.items() if score in own}
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def best(self, score: str) -> float:
        """At the layer where it is best; NaN where it was computed at none."""
        return max(self.along(score).values(), default=math.nan)


def score_candidate(
    seen: CandidatePass, labels: np.ndarray, wanted: Collection[str] = ALL_SCORES
) -> CandidateScores:
    """The scores that are wanted and possible, with labels (n,) in the query's order.

    Vectors of a layer go once used. Cost: a spectrum a layer, O(n² min(n, d)), which the scores
    share.
    """
    own = labels[seen.positions]
    outputs: dict[str, float] = {}
    if seen.logits is not None:
        p = seen.logits.double().softmax(1)
        outputs = {name: score(p, own) for name, score in OUTPUT_SCORES.items() if name in wanted}
    layers = {}
    for name in list(seen.layers):
        layers[name] = _score_layer(seen.layers.pop(name), own, wanted)
    return CandidateScores(layers, outputs)


def _score_layer(vectors: Vectors, labels: np.ndarray, wanted: Collection[str]) -> dict[str, float]:
    some = {name: score for name, score in LAYER_SCORES.items() if name in wanted}
    if not some:
        return {}
    spectrum = FeatureSpectrum.of(vectors["features"])
    return {name: score(spectrum, labels) for name, score in some.items()}


LayerPosition = Literal["best", "last", "middle"]

DEFAULT_SCORE = "ridge+log_me"
STARTING_LAYER_SCORES = ("ridge", "log_me")  # which together find the layer to start from
SCORE_POSITION: dict[str, LayerPosition] = {  # of the layers, where each score ranked best
    "ridge": "best",
    "log_me": "best",
    "h_score": "last",
    "shrunk_h_score": "last",
    "trans_rate": "last",
}
SCORE_DESCRIPTIONS = {
    "ridge": "leave-one-out accuracy of kernel ridge",
    "log_me": "LogME",
    "h_score": "H-score",
    "shrunk_h_score": "shrunk H-score",
    "trans_rate": "TransRate",
    "leep": "LEEP",
    "nce": "NCE",
    "ridge+log_me": "ridge + LogME, in standard deviations over candidates:",
}


def choose_score(score: str) -> str:
    """The score that ranks, or an error if there is none of that name.

    >>> choose_score("auto")
    'ridge+log_me'
    """
    if score == "auto":
        return DEFAULT_SCORE
    if score not in ALL_SCORES:
        raise DataError(
            f"no score is named {score!r}; expected auto or one of {', '.join(ALL_SCORES)} "
            f"(nearest: {close_matches(score, ALL_SCORES, 1)})"
        )
    return score


def scores_to_compute(score: str) -> tuple[str, ...]:
    """What is to be computed: the score that ranks, what finds a layer, and what costs nothing."""
    ranking = COMBINED_SCORES.get(score, (score,))
    return tuple(dict.fromkeys((*STARTING_LAYER_SCORES, *ranking, *OUTPUT_SCORES)))


def ranking_values(scored: Sequence[CandidateScores], score: str) -> list[float]:
    """The number by which each candidate is ranked; NaN where it could not be computed.

    A combined score adds its parts, each less its mean and over its standard deviation over the
    candidates that have it: it says how candidates compare, and nothing of one alone.
    """
    if score not in COMBINED_SCORES:
        return [_ranking_value(one, score) for one in scored]
    parts = [
        _z_scores({i: x for i, x in enumerate(ranking_values(scored, part)) if not math.isnan(x)})
        for part in COMBINED_SCORES[score]
    ]
    # round-off decides no tie, such as that of two candidates on which the parts disagree
    return [round(sum(part.get(i, math.nan) for part in parts), 9) for i in range(len(scored))]


def _ranking_value(scored: CandidateScores, score: str) -> float:
    if score in OUTPUT_SCORES:
        return scored.outputs.get(score, math.nan)
    where = SCORE_POSITION[score]
    if where == "best":
        return scored.best(score)
    along = [own.get(score, math.nan) for own in scored.layers.values()]
    return along[-1 if where == "last" else len(along) // 2]


def starting_layer(scored: CandidateScores) -> str:
    """The layer whose features predict labels best.

    By leave-one-out ridge and LogME, each in standard deviations over layers, added: together they
    are nearer to the best layer than ridge alone. Of equals, the later.
    """
    both = [_z_scores(scored.along(score)) for score in STARTING_LAYER_SCORES]
    names = [name for name in scored.layers if all(name in along for along in both)]
    if not names:
        return list(scored.layers)[-1]
    return max(reversed(names), key=lambda name: sum(along[name] for along in both))


def _z_scores(along: dict[_Name, float]) -> dict[_Name, float]:
    if not along:
        return {}
    mean, spread = fmean(along.values()), pstdev(along.values())
    return {name: (value - mean) / (spread or 1.0) for name, value in along.items()}
