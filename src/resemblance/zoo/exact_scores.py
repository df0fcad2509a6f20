"""Exact scores of one network with several others, from sums that they share.

A score, its standard error and whether it is doubtful are those of `compare`. Kernels of the one
network are read once for all others, and the level of chance is known from its moments instead of
being drawn (`similarity.chance_moments`). What shares no sums, such as a network with kernels of
all samples at some layers and of blocks at others, is compared by itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import MismatchError, ResemblanceWarning
from ..representation.representation import Representation
from ..similarity.combinations import Question
from ..similarity.comparison import Comparison, mean_over_layers
from ..similarity.doubtful_errors import are_doubtful
from ..similarity.estimate import Estimate
from ..similarity.tables_of_blocks import OfBlocks
from ..similarity.tables_of_whole import OfWhole
from ..similarity.two_networks import check_recorded, compare, question
from ..similarity.whole_estimates import is_whole
from .kernel_signature import Searched


@dataclass(frozen=True)
class Scored:
    """CKA of two networks, the mean over layers that stand at the same place."""

    score: float
    stderr: float
    chance_high: float  # the mean over layers of what chance exceeds in one of twenty cases
    doubtful: bool  # too few samples carry the score to trust its standard error


def one_with_many(
    query: Representation, others: Sequence[Representation], kernel: Searched
) -> list[Scored | None]:
    """A network with each of others, which have as many layers; None: samples do not match.

    Bias and standard errors: those of `compare`. Cost: L² N² / 4 multiplications for L layers of
    all networks together and the kernels of N samples; less where those are in blocks.
    """
    out: list[Scored | None] = [None] * len(others)
    alike: dict[tuple[Question, bool], list[int]] = {}
    for place, other in enumerate(others):
        try:
            check_recorded(query, other, kernel)
            asked = question(query, other, kernel, "cka", None, "auto")
        except MismatchError:
            continue
        whole = {is_whole(layer, kernel) for rep in (query, other) for layer in rep}
        if asked.estimator in ("blocks", "ratio") and len(whole) == 1:
            alike.setdefault((asked, whole.pop()), []).append(place)
        else:
            out[place] = _alone(query, other, kernel)
    for (asked, whole_kernels), places in alike.items():
        some = [others[place] for place in places]
        for place, found in zip(places, _together(query, some, asked, whole_kernels), strict=True):
            out[place] = found
    return out


def _together(
    query: Representation, others: Sequence[Representation], asked: Question, whole: bool
) -> list[Scored]:
    layers = [layer for rep in (query, *others) for layer in rep]
    count = len(query)
    tables = OfWhole(layers, query.samples, asked) if whole else OfBlocks(layers, query, asked)
    found = tables.estimate(slice(0, count), slice(count, len(layers)), asked)
    out = []
    for start in range(0, len(layers) - count, count):
        one = found.of_columns(slice(start, start + count))
        left_out = None if one.replicates is None else one.replicates.diagonal(axis1=1, axis2=2)
        out.append(_scored(query, one, left_out))
    return out


def _alone(query: Representation, other: Representation, kernel: Searched) -> Scored:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResemblanceWarning)  # `doubtful` says it
        found = compare(_numbered(query), _numbered(other), kernel=kernel)
    return _scored(query, found, found.replicates)


def _numbered(rep: Representation) -> Representation:
    """Layers that are compared one by one, whatever their names, and nothing of behaviour."""
    named = (replace(x, name=f"place {i}", bare_name="") for i, x in enumerate(rep))
    return replace(rep, layers=tuple(named), outputs=None)


def _scored(
    query: Representation,
    found: Estimate | Comparison,
    left_out: np.ndarray | None,  # (groups, layers): scores with a group of samples left out
) -> Scored:
    score, error = mean_over_layers(found.scores.diagonal(), left_out)
    high = np.nan
    if found.chance_high is not None:
        high = float(mean_over_layers(found.chance_high.diagonal())[0])
    doubtful = bool(are_doubtful(query, found).diagonal().any())
    return Scored(float(score), float(error), high, doubtful)
