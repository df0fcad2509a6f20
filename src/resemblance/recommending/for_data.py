"""`recommend`: which network to start from for these data, and from which layer.

First, without running anything, candidates linked to a recording of their training data are set in
the order of how like these data are to those (`data_likeness`). Then each is run once, as far as
the budget goes, and ranked by what its features tell of the labels (`ranking_rule`).
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from .._model.losses import FindLogits
from .._model.pooling import Pool
from .._whole_numbers import checked_seed, whole_number
from ..errors import DataError, ResemblanceError, first_line
from ..recording.from_model import record
from ..representation.as_given import Given, recording
from ..representation.representation import Representation
from ..zoo.collection import Zoo
from . import ranking_rule
from .candidate_pass import Look, seen
from .candidates import Candidate, Collected, LeftOut, Models, gathered, linked
from .data_likeness import data_distance, why_not
from .layer_scores import WITHOUT_LABELS, Scored, scored
from .probe_interval import Expected, expected_probe
from .query_samples import AT_MOST, Query, drawn
from .recommendation import Ranked, Recommendation
from .time_or_count import Budget


def recommend(
    zoo: Collected,
    data: Any,
    labels: Any = None,
    *,
    models: Models | None = None,
    trust: Collection[str] = (),
    reference: nn.Module | Given | None = None,
    budget: int | str | None = None,
    score: str = "auto",
    layers: str | Sequence[str] = "auto",
    pool: Pool = "flatten",
    logits: FindLogits | None = None,
    samples: int = AT_MOST,
    seed: int = 0,
    batch_size: int = 128,
) -> Recommendation:
    """Which network to start from for new data, and from which layer.

    Args:
        zoo: a dict of networks by name (or of functions that make them); or a `Zoo`, or the folder
            of one, with `models`.
        data: as in `record`, such as (inputs, labels). At most `samples` are drawn of it.
        labels: one a sample, in the order of the data, if they are not in it. Without any,
            candidates are ranked by how little they must adapt, which is a weak guide; a few
            hundred labels are worth having (docs/recommend.md).
        models: which network an entry is: a dict by name or id, or a function of the `Entry` that
            gives a network or None. Entries without are left out, and the result says so.
        trust: addresses that may be loaded where `models` has no network, word by word as entries
            show them, on a GPU if there is one. Nothing else in a zoo is ever run.
        reference: for a first look that runs no candidate: the network by which entries are linked
            to their training data (`Zoo.add(..., trained_on=...)`), or its recording on these data.
        budget: how many candidates may be run, such as 8; or for how long, such as "10m".
        score: `"auto"`, or one of ridge, log_me, h_score, shrunk_h_score, trans_rate, leep, nce,
            mean_embedding and log_ratio.
        layers, pool, logits, batch_size: as in `record`.
        samples: at most so many, by class.
        seed: of the draw.

    A candidate that fails is left out and the result says why; the others are ranked. Cost: one
    forward pass over the samples for each candidate (and a backward without labels), and
    O(n² min(n, d)) for each of its layers.

    >>> import torch
    >>> one, two = (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)) for _ in range(2))
    >>> x = torch.randn(60, 4)
    >>> found = recommend({"one": one, "two": two}, x, (x[:, 0] > 0).long())
    >>> len(found), found.best.layer
    (2, '1')
    """
    start = time.perf_counter()
    checked_seed(seed)
    whole_number("samples", samples, 2)
    limit = Budget.of(budget)
    query = drawn(data, labels, at_most=samples, seed=seed)
    labelled = query.labels is not None
    ranks_by = ranking_rule.chosen(score, labelled=labelled)
    gradients = ranks_by in WITHOUT_LABELS
    look = Look(layers, pool, gradients, logits, seed=seed, batch_size=batch_size)
    wanted = ranking_rule.needed(ranks_by, labelled=labelled)
    with _opened(zoo) as collected:
        found = gathered(collected, models, trust)
        distances, note = _first_look(collected, found.candidates, query, reference)
    order = sorted(found.candidates, key=lambda one: distances.get(one.name, math.inf))
    importlib.import_module("torch._dynamo")  # by any first pass, and no candidate's cost
    done: list[Ranked] = []
    left_out = list(found.left_out)
    for candidate in order:
        if limit.spent(len(done)):
            left_out.append(LeftOut(candidate.name, f"the budget of {limit} was spent"))
            continue
        try:
            one = _run(candidate, query, look, wanted, ranks_by)
        except (Exception, SystemExit) as error:  # a stranger's network raises what it likes
            left_out.append(LeftOut(candidate.name, _said(error)))
            continue
        done.append(replace(one, distance=distances.get(candidate.name)))
    if not done:
        whys = "; ".join(f"{one.name}: {one.why}" for one in left_out[:5])
        remedy = "networks that take these data" if order else "models, or trust an address"
        raise DataError(f"no candidate could be run ({whys}); give {remedy}")
    ranked = _with_reasons(_in_order(done), query, ranks_by)
    return Recommendation(
        tuple(ranked),
        tuple(left_out),
        ranks_by,
        labelled,
        query.count,
        query.total,
        query.classes,
        str(limit),
        tuple(_notes(ranked, query, note)),
        time.perf_counter() - start,
    )


@contextlib.contextmanager
def _opened(zoo: Collected) -> Iterator[Zoo | Mapping[str, Any]]:
    if isinstance(zoo, str | os.PathLike):
        with Zoo(zoo, create=False) as opened:
            yield opened
    else:
        yield zoo


# -- the first look ------------------------------------------------------------------------------


def _first_look(
    zoo: Any, candidates: Sequence[Candidate], query: Query, reference: Any
) -> tuple[dict[str, float], str]:
    """Distances of training data from the query, by candidate, and what to say of the look."""
    ids = {one.name: linked(one) for one in candidates}
    known = {name: id for name, id in ids.items() if id is not None}
    if not known:
        asked = isinstance(zoo, Zoo) or reference is not None
        return {}, _NO_FIRST_LOOK if asked else ""
    if reference is None:
        return {}, (
            f"{len(known)} of {len(candidates)} candidates are linked to a recording of their "
            "training data; pass reference= to set them in order before any is run."
        )
    here = _recorded(reference, query)
    distances, reasons = {}, []
    for name, id in known.items():
        try:
            there = zoo.get(id)
        except ResemblanceError as error:
            reasons.append(f"{name} ({_said(error)})")
            continue
        reason = why_not(here, there)
        if reason is None:
            distances[name] = data_distance(here, there)
        else:
            reasons.append(f"{name} ({reason})")
    skipped = [*reasons, *(name for name, id in ids.items() if id is None)]
    said = f"A first look set {len(distances)} of {len(candidates)} candidates in order"
    return distances, f"{said}; not {', '.join(skipped)}." if skipped else f"{said}."


_NO_FIRST_LOOK = "No candidate is linked to a recording of its training data: no first look."


def _recorded(reference: Any, query: Query) -> Representation:
    """The reference network on the query's samples."""
    if isinstance(reference, nn.Module):
        return record(reference, query.samples, gradients=False, outputs=False, progress=False)
    return recording(reference)


# -- one candidate -------------------------------------------------------------------------------


def _run(
    candidate: Candidate, query: Query, look: Look, wanted: Collection[str], ranks_by: str
) -> Ranked:
    start = time.perf_counter()
    shown = seen(candidate.load(), query, look)
    parameters = shown.parameters
    found = scored(shown, query.labels, wanted)
    layer = ranking_rule.starting_layer(found)
    expected = _expected(found, layer, query)
    return Ranked(
        rank=0,
        name=candidate.name,
        id=None if candidate.entry is None else candidate.entry.id,
        value=ranking_rule.value_of(found, ranks_by),
        layer=layer,
        expected=expected,
        scores=found,
        distance=None,
        parameters=parameters,
        seconds=time.perf_counter() - start,
        reasons=(),
    )


def _expected(found: Scored, layer: str, query: Query) -> Expected | None:
    share = found.layers[layer].get("ridge")
    return None if share is None else expected_probe(share, query.count)


def _said(error: BaseException) -> str:
    if isinstance(error, ResemblanceError):
        return str(error)
    return f"{type(error).__name__}: {first_line(error)}"


# -- order and words -----------------------------------------------------------------------------


def _in_order(done: Sequence[Ranked]) -> list[Ranked]:
    """Best first; of equals, the smaller network. What has no value comes last."""

    def key(one: Ranked) -> tuple[bool, float, int]:
        missing = math.isnan(one.value)
        return missing, 0.0 if missing else -one.value, one.parameters

    return [replace(one, rank=i + 1) for i, one in enumerate(sorted(done, key=key))]


def _with_reasons(ranked: Sequence[Ranked], query: Query, ranks_by: str) -> list[Ranked]:
    return [replace(one, reasons=tuple(_reasons(one, ranked, query, ranks_by))) for one in ranked]


def _reasons(one: Ranked, ranked: Sequence[Ranked], query: Query, ranks_by: str) -> Iterator[str]:
    if one.expected is not None:
        along = one.scores.along("ridge")
        last = list(along)[-1]
        yield f"layer {one.layer!r} predicts {along[one.layer]:.0%} of labels from other samples"
        if last != one.layer:
            yield f"its last layer {along[last]:.0%}"
        yield f"a linear probe should reach {one.expected}"
    if one.expected is None or ranks_by != "ridge":
        yield f"{ranking_rule.IN_WORDS[ranks_by]} {one.value:.3g}"
    first = ranked[0]
    if one.rank > 1 and _overlap(first.expected, one.expected):
        yield "not told apart from the first by these samples"
    if one.distance is not None:
        yield f"its training data are {one.distance:.2g} away"
    yield f"{one.seconds:.1f} s"


def _overlap(first: Expected | None, other: Expected | None) -> bool:
    return first is not None and other is not None and other.high >= first.value


def _notes(ranked: Sequence[Ranked], query: Query, first_look: str) -> Iterator[str]:
    drawn = "" if query.total == query.count else f" drawn of {query.total:,}"
    what = "labelled samples" if query.labels is not None else "samples without labels"
    yield f"From {query.count:,} {what}{drawn}, one pass of each candidate."
    if query.labels is None:
        yield ranking_rule.WITHOUT
    if first_look:
        yield first_look
