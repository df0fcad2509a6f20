"""Transferability scores of a candidate from one pass, and which of them ranks candidates.

Some are scores of a layer (`LAYER_SCORES` with labels, `UNLABELLED_SCORES` without), some of the
network's predictions (`OUTPUT_SCORES`). Larger is better for all of them.

Scores without labels are the adaptation scores of a layer for the product kernel
K_ij = (fᵢ·fⱼ)(gᵢ·gⱼ), as in `rs.adaptation` but exact for the samples at hand. Both are negated,
since a network that must change less is better.

The default ranking scores are those that `benchmarks/recommend.py` found best on held-out targets.
On a second collection of networks kernel ridge ranked worse than LogME, LEEP and a linear probe,
and the ranking without labels was at chance; docs/how-to/recommend.md has both.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Literal

import numpy as np
from torch.nn.functional import one_hot

from ..analysis.kernel_ridge import FeatureSpectrum, RidgeProblem, cross_kernel, encode_labels
from ..analysis.layer_vectors import Vectors
from ..errors import DataError, close_matches
from .candidates import CandidatePass
from .hscore import h_score, shrunk_h_score, trans_rate
from .leep import leep, nce
from .logme import log_me

_MAX_KERNEL_SAMPLES = 1024  # samples of which the whole kernel is made, as `record` does


def adaptation_scores(vectors: Vectors) -> dict[str, float]:
    """−‖μ‖ and −log(‖μ‖ / (‖K‖_F / N²)) of features and gradients (n, d), n up to 1,024 used.

    ‖μ‖² = (1/N²) Σ_ij K_ij. Bias: ‖μ‖² of these samples is above that of their source by about
    Tr K / N². Cost: O(N² d). Reference: Tang et al. 2020, arXiv 2003.11498, section 6.3.

    >>> import torch
    >>> x = torch.eye(2)
    >>> found = adaptation_scores({"features": x, "gradients": x})
    >>> {name: round(value, 3) for name, value in found.items()}
    {'mean_embedding': -0.707, 'log_ratio': -0.693}
    """
    some: Vectors = {kind: x[:_MAX_KERNEL_SAMPLES] for kind, x in vectors.items()}
    kernel = cross_kernel(some, some)
    n = len(kernel)
    mean = math.sqrt(max(float(kernel.sum()), 0.0)) / n
    size = float(kernel.norm()) / n**2
    ratio = math.log(mean / size) if mean > 0 < size else math.nan
    return {"mean_embedding": -mean, "log_ratio": -ratio}


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
UNLABELLED_SCORES = ("mean_embedding", "log_ratio")
ALL_SCORES = (*LAYER_SCORES, *OUTPUT_SCORES, *UNLABELLED_SCORES)


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
    seen: CandidatePass, labels: np.ndarray | None, wanted: Collection[str] = ALL_SCORES
) -> CandidateScores:
    """The scores that are wanted and possible: with labels (n,) or None, in the query's order.

    Vectors of a layer go once used. Cost: a spectrum a layer, O(n² min(n, d)), which the scores
    with labels share.
    """
    own = None if labels is None else labels[seen.positions]
    outputs: dict[str, float] = {}
    if own is not None and seen.logits is not None:
        p = seen.logits.double().softmax(1)
        outputs = {name: score(p, own) for name, score in OUTPUT_SCORES.items() if name in wanted}
    layers = {}
    for name in list(seen.layers):
        layers[name] = _score_layer(seen.layers.pop(name), own, wanted)
    return CandidateScores(layers, outputs)


def _score_layer(
    vectors: Vectors, labels: np.ndarray | None, wanted: Collection[str]
) -> dict[str, float]:
    found: dict[str, float] = {}
    if labels is not None and any(name in wanted for name in LAYER_SCORES):
        spectrum = FeatureSpectrum.of(vectors["features"])
        found |= {
            name: score(spectrum, labels) for name, score in LAYER_SCORES.items() if name in wanted
        }
    if "gradients" in vectors and any(name in wanted for name in UNLABELLED_SCORES):
        found |= adaptation_scores(vectors)
    return {name: value for name, value in found.items() if name in wanted}


LayerPosition = Literal["best", "last", "middle"]

DEFAULT_LABELLED_SCORE, DEFAULT_UNLABELLED_SCORE = "ridge", "log_ratio"  # the defaults
STARTING_LAYER_SCORES = ("ridge", "log_me")  # which together find the layer to start from
SCORE_POSITION: dict[str, LayerPosition] = {  # of the layers, where each score ranked best
    "ridge": "best",
    "log_me": "best",
    "h_score": "last",
    "shrunk_h_score": "last",
    "trans_rate": "last",
    "mean_embedding": "last",
    "log_ratio": "middle",
}
SCORE_DESCRIPTIONS = {
    "ridge": "leave-one-out accuracy of kernel ridge",
    "log_me": "LogME",
    "h_score": "H-score",
    "shrunk_h_score": "shrunk H-score",
    "trans_rate": "TransRate",
    "leep": "LEEP",
    "nce": "NCE",
    "mean_embedding": "how little it must adapt, −‖μ‖:",
    "log_ratio": "how little it must adapt, −log ratio:",
}


def choose_score(score: str, *, labelled: bool) -> str:
    """The score that ranks, or an error if there is none of that name or it needs labels.

    >>> choose_score("auto", labelled=False)
    'log_ratio'
    """
    if score == "auto":
        return DEFAULT_LABELLED_SCORE if labelled else DEFAULT_UNLABELLED_SCORE
    if score not in ALL_SCORES:
        raise DataError(
            f"no score is named {score!r}; expected auto or one of {', '.join(ALL_SCORES)} "
            f"(nearest: {close_matches(score, ALL_SCORES, 1)})"
        )
    if not labelled and score not in UNLABELLED_SCORES:
        raise DataError(
            f"{score} needs labels, and there are none; pass `labels`, or use "
            f"{' or '.join(UNLABELLED_SCORES)}"
        )
    return score


def scores_to_compute(score: str, *, labelled: bool) -> tuple[str, ...]:
    """What is to be computed: the score that ranks, what finds a layer, and what costs nothing."""
    if not labelled:
        return UNLABELLED_SCORES
    return tuple(dict.fromkeys((*STARTING_LAYER_SCORES, score, *OUTPUT_SCORES)))


def ranking_value(scored: CandidateScores, score: str) -> float:
    """The one number by which a candidate is ranked; NaN where it could not be computed."""
    if score in OUTPUT_SCORES:
        return scored.outputs.get(score, math.nan)
    where = SCORE_POSITION[score]
    if where == "best":
        return scored.best(score)
    along = [own.get(score, math.nan) for own in scored.layers.values()]
    return along[-1 if where == "last" else len(along) // 2]


def starting_layer(scored: CandidateScores) -> str:
    """The layer whose features predict labels best; without labels the last.

    By leave-one-out ridge and LogME, each in standard deviations over layers, added: together they
    are nearer to the best layer than ridge alone. Of equals, the later.
    """
    both = [_z_scores(scored.along(score)) for score in STARTING_LAYER_SCORES]
    names = [name for name in scored.layers if all(name in along for along in both)]
    if not names:
        return list(scored.layers)[-1]
    return max(reversed(names), key=lambda name: sum(along[name] for along in both))


def _z_scores(along: dict[str, float]) -> dict[str, float]:
    if not along:
        return {}
    mean, spread = fmean(along.values()), pstdev(along.values())
    return {name: (value - mean) / (spread or 1.0) for name, value in along.items()}
