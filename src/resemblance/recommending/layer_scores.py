"""Every score of a candidate, from what one pass of it showed.

Some are of a layer (`BY_LAYER` with labels, `WITHOUT_LABELS` without), some of the network's own
predictions (`BY_OUTPUT`). All are such that larger is better.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from ..analysis.kernel_ridge import Problem
from ..analysis.sample_vectors import Vectors
from .candidate_pass import Seen
from .class_separation import h_score, shrunk_h_score, trans_rate
from .feature_spectrum import FeatureSpectrum, numbered, one_hot
from .maximum_evidence import log_me
from .own_predictions import leep, nce
from .unlabelled_scores import adaptation_scores

BY_LAYER = ("ridge", "log_me", "h_score", "shrunk_h_score", "trans_rate")
BY_OUTPUT = ("leep", "nce")
WITHOUT_LABELS = ("mean_embedding", "log_ratio")
SCORES = (*BY_LAYER, *BY_OUTPUT, *WITHOUT_LABELS)


@dataclass(frozen=True)
class Scored:
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


def scored(seen: Seen, labels: np.ndarray | None, wanted: Collection[str] = SCORES) -> Scored:
    """The scores that are wanted and possible: with labels (n,) or None, in the query's order.

    Vectors of a layer go once used. Cost: a spectrum a layer, O(n² min(n, d)), which the scores
    with labels share.
    """
    own = None if labels is None else labels[seen.positions]
    outputs: dict[str, float] = {}
    p = seen.probabilities()
    if own is not None and p is not None:
        outputs = {k: f(p, own) for k, f in (("leep", leep), ("nce", nce)) if k in wanted}
    layers = {}
    for name in list(seen.layers):
        layers[name] = _of_layer(seen.layers.pop(name), own, wanted)
    return Scored(layers, outputs)


def _of_layer(
    vectors: Vectors, labels: np.ndarray | None, wanted: Collection[str]
) -> dict[str, float]:
    found: dict[str, float] = {}
    if labels is not None and any(name in wanted for name in BY_LAYER):
        spectrum = FeatureSpectrum.of(vectors["features"])
        made = {
            "ridge": ridge_accuracy,
            "log_me": log_me,
            "h_score": h_score,
            "shrunk_h_score": shrunk_h_score,
            "trans_rate": trans_rate,
        }
        found |= {name: made[name](spectrum, labels) for name in BY_LAYER if name in wanted}
    if "gradients" in vectors and any(name in wanted for name in WITHOUT_LABELS):
        found |= adaptation_scores(vectors)
    return {name: value for name, value in found.items() if name in wanted}


def ridge_accuracy(spectrum: FeatureSpectrum, labels: np.ndarray) -> float:
    """Leave-one-out accuracy of kernel ridge at the α of least squared error, as `leave_one_out`.

    >>> spectrum = FeatureSpectrum.of(np.array([[0.0, 1.0], [1.0, 0.0]] * 5))
    >>> ridge_accuracy(spectrum, np.array([0, 1] * 5))
    1.0
    """
    targets = one_hot(*numbered(labels, len(spectrum.vectors)))
    problem = Problem({}, targets, spectrum.values, spectrum.vectors)
    return problem.best_by_leave_one_out(problem.alphas())[1]
