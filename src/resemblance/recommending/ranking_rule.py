"""Which score ranks candidates, at which layer it is read, and how much that is worth.

The defaults are what `benchmarks/recommend.py` found best on targets other than those it was judged
on; docs/recommend.md has the numbers.
"""

from __future__ import annotations

import math
from statistics import fmean, pstdev
from typing import Literal

from ..errors import DataError, nearest
from .layer_scores import BY_OUTPUT, SCORES, WITHOUT_LABELS, Scored

Where = Literal["best", "last", "middle"]

WITH_LABELS, NO_LABELS = "ridge", "log_ratio"  # the defaults
OF_LAYERS = ("ridge", "log_me")  # which together find the layer to start from
WHERE: dict[str, Where] = {  # of the layers, where each score ranked best
    "ridge": "best",
    "log_me": "best",
    "h_score": "last",
    "shrunk_h_score": "last",
    "trans_rate": "last",
    "mean_embedding": "last",
    "log_ratio": "middle",
}
LOST = {"ridge": 0.2, "log_ratio": 2.2}  # points of accuracy, of the first choice, on average
WITHOUT = (
    f"Without labels the order is a weak guide: where it was measured, its first choice lost "
    f"{LOST[NO_LABELS]} points of accuracy against the best, with labels {LOST[WITH_LABELS]}; and "
    "the layer is a guess (docs/recommend.md)."
)
IN_WORDS = {
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


def chosen(score: str, *, labelled: bool) -> str:
    """The score that ranks, or an error if there is none of that name or it needs labels.

    >>> chosen("auto", labelled=False)
    'log_ratio'
    """
    if score == "auto":
        return WITH_LABELS if labelled else NO_LABELS
    if score not in SCORES:
        raise DataError(
            f"no score is named {score!r}; expected auto or one of {', '.join(SCORES)} "
            f"(nearest: {nearest(score, SCORES, 1)})"
        )
    if not labelled and score not in WITHOUT_LABELS:
        raise DataError(
            f"{score} needs labels, and there are none; pass labels=, or use "
            f"{' or '.join(WITHOUT_LABELS)}"
        )
    return score


def needed(score: str, *, labelled: bool) -> tuple[str, ...]:
    """What is to be computed: the score that ranks, what finds a layer, and what costs nothing."""
    if not labelled:
        return WITHOUT_LABELS
    return tuple(dict.fromkeys((*OF_LAYERS, score, *BY_OUTPUT)))


def value_of(scored: Scored, score: str) -> float:
    """The one number by which a candidate is ranked; NaN where it could not be computed."""
    if score in BY_OUTPUT:
        return scored.outputs.get(score, math.nan)
    where = WHERE[score]
    if where == "best":
        return scored.best(score)
    along = [own.get(score, math.nan) for own in scored.layers.values()]
    return along[-1 if where == "last" else len(along) // 2]


def starting_layer(scored: Scored) -> str:
    """The layer whose features predict labels best; without labels the last.

    By leave-one-out ridge and LogME, each in standard deviations over layers, added: together they
    are nearer to the best layer than ridge alone. Of equals, the later.
    """
    both = [_standardised(scored.along(score)) for score in OF_LAYERS]
    names = [name for name in scored.layers if all(name in along for along in both)]
    if not names:
        return list(scored.layers)[-1]
    return max(reversed(names), key=lambda name: sum(along[name] for along in both))


def _standardised(along: dict[str, float]) -> dict[str, float]:
    if not along:
        return {}
    mean, spread = fmean(along.values()), pstdev(along.values())
    return {name: (value - mean) / (spread or 1.0) for name, value in along.items()}
