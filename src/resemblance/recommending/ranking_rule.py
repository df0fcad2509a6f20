"""Which score ranks candidates, at which layer it is read, and how much that is worth.

The defaults are what `benchmarks/recommend.py` found best on targets other than those it was judged
on; docs/recommend.md has the numbers.
"""

from __future__ import annotations

import math
from typing import Literal

from ..errors import DataError, nearest
from .layer_scores import BY_LAYER, BY_OUTPUT, SCORES, WITHOUT_LABELS, Scored

Where = Literal["best", "last", "middle", "mean"]

WITH_LABELS, NO_LABELS = "ridge", "log_ratio"  # the defaults
_WHERE: dict[str, Where] = {  # of the layers, where each score ranked best
    "ridge": "best",
    "log_me": "best",
    "h_score": "last",
    "shrunk_h_score": "last",
    "trans_rate": "last",
    "mean_embedding": "last",
    "log_ratio": "middle",
}
IN_WORDS = {
    "ridge": "leave-one-out accuracy of kernel ridge",
    "log_me": "LogME",
    "h_score": "H-score",
    "shrunk_h_score": "shrunk H-score",
    "trans_rate": "TransRate",
    "leep": "LEEP",
    "nce": "NCE",
    "mean_embedding": "−‖μ‖",
    "log_ratio": "−log ratio",
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
    return tuple(dict.fromkeys(("ridge", "log_me", score, *BY_OUTPUT)))


def value_of(scored: Scored, score: str) -> float:
    """The one number by which a candidate is ranked; NaN where it could not be computed."""
    if score in BY_OUTPUT:
        return scored.outputs.get(score, math.nan)
    along = [own.get(score, math.nan) for own in scored.layers.values()]
    where = _WHERE[score]
    if where in ("last", "middle"):
        return along[-1 if where == "last" else len(along) // 2]
    alive = [x for x in along if not math.isnan(x)]
    if not alive:
        return math.nan
    return max(alive) if where == "best" else sum(alive) / len(alive)


def starting_layer(scored: Scored) -> str:
    """The layer whose features predict labels best; without labels the last.

    Of equals, as leave-one-out accuracies often are on few samples, the later.
    """
    along = scored.along("ridge")
    if not along:
        return list(scored.layers)[-1]
    most = max(along.values())
    return [name for name, value in along.items() if value == most][-1]


def is_of_layers(score: str) -> bool:
    return score in (*BY_LAYER, *WITHOUT_LABELS)
