"""Which network to fine-tune for a new data set, and from which layer: `recommend`.

First, without running any candidate, those linked to a recording of their training data are sorted
by the distance of that data from the new data (`data_distance`). Then each candidate is run once,
until the `Budget` is spent, and ranked by a transferability score.

`data_distance` compares two data sets through one reference network. A recording keeps for each
layer the sum of all features, folded to 256 numbers by a map that is the same for every recording
of one network and seed (`Sketch.total`). The means of two data sets are therefore in the same
basis, and their squared distance, relative to their norms, is a kernel distance of the data sets
(the maximum mean discrepancy with a linear kernel).
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from .._models.layer_outputs import Pool
from .._models.logits import Logits, LogitsReader
from .._utils.formatting import count_noun
from .._utils.validation import check_integer, check_seed, is_integer
from ..errors import DataError, MismatchError, ResemblanceError, first_line
from ..recording.record import record
from ..representation.notes import Note, make_note
from ..representation.representation import Representation, RepresentationLike, as_representation
from ..zoo.zoo import Zoo
from . import transferability
from .candidates import (
    Candidate,
    CandidatePass,
    ExcludedCandidate,
    Models,
    NetworkSource,
    collect_candidates,
    run_candidate,
)
from .query_samples import MAX_SAMPLES, Query, draw_query
from .recommendation import (
    ExpectedAccuracy,
    RankedCandidate,
    Recommendation,
    expected_probe,
)
from .transferability import OUTPUT_SCORES, score_candidate

_TIME_UNITS = {"s": 1, "m": 60, "h": 3600}
_TIME_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*([smh])")


@dataclass(frozen=True)
class Budget:
    """How many candidates may be run, or for how long."""

    text: str = "none"
    candidates: float = math.inf
    seconds: float = math.inf
    began: float = field(default_factory=time.perf_counter)

    @staticmethod
    def of(given: int | str | None) -> Budget:
        """A whole number is candidates; a number with s, m or h is a time.

        >>> Budget.of(8).candidates, Budget.of("1.5m").seconds
        (8, 90.0)
        """
        if given is None:
            return Budget()
        text = str(given).strip()
        found = _TIME_PATTERN.fullmatch(text) if isinstance(given, str) else None
        if (is_integer(given) or isinstance(given, str)) and text.isdigit() and int(text) > 0:
            return Budget(count_noun(int(text), "candidate", "candidates"), candidates=int(text))
        if found is None or float(found[1]) == 0:
            raise DataError(
                "`budget` must be a number of candidates, such as 8, or a time, such as '90s', "
                f"'10m' or '2h'; found {given!r}"
            )
        seconds = float(found[1]) * _TIME_UNITS[found[2]]
        return Budget(f"{seconds:g} seconds", seconds=seconds)

    def spent(self, run: int) -> bool:
        """Whether no further candidate may be begun, after so many."""
        over = time.perf_counter() - self.began >= self.seconds
        return run >= self.candidates or (over and run > 0)


def data_distance(a: Representation, b: Representation) -> float:
    """The mean over layers of ‖m_a − m_b‖² / ‖m_a‖ ‖m_b‖, of folded means m: 0 for equal data.

    Args:
        a, b: recordings of one network, with one seed, on two data sets.

    Bias: upwards by about (E‖f‖² / n_a + E‖f‖² / n_b) / ‖m‖², as means of samples differ by
    chance; the fold adds noise of about 1/16 of the distance, and none to equal means.
    Cost: 256 numbers a layer. Reference: Gretton et al. 2012 (JMLR 13), for the discrepancy.

    >>> import torch, resemblance as rs
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> x = torch.randn(300, 4)
    >>> one, far = rs.record(net, x), rs.record(net, x + 5)
    >>> data_distance(one, one), data_distance(one, far) > 0.1
    (0.0, True)
    """
    reason = why_incomparable(a, b)
    if reason is not None:
        raise MismatchError(
            "comparing data sets needs two recordings of one reference network, but for "
            f"{a.name!r} and {b.name!r}, {reason}: record both data sets with the same network and "
            "settings"
        )
    distances = []
    for layer in a.layer_names:
        one, two = (_layer_mean(rep, layer) for rep in (a, b))
        size = np.sqrt((one @ one) * (two @ two))
        distances.append((one - two) @ (one - two) / size if size > 0 else 0.0)
    return float(np.mean(distances))


def why_incomparable(a: Representation, b: Representation) -> str | None:
    """Why two recordings cannot be set against each other as data sets; None if they can."""
    if a.model.weights is None or a.model.weights != b.model.weights:
        return "they are of different networks"
    if a.settings.seed != b.settings.seed or a.settings.pool != b.settings.pool:
        return "they were recorded with a different seed or pool"
    if list(a.layer_names) != list(b.layer_names):
        return "they have different layers"
    if any(layer.features.sketch is None for rep in (a, b) for layer in rep):
        return "one of them has no means"
    return None


def training_data_distances(
    zoo: Zoo, query: Representation, linked: Iterable[str]
) -> tuple[dict[str, float], dict[str, str]]:
    """Distances of a query's data from recordings of training data, and why some have none.

    Args:
        zoo: where the recordings are.
        query: a recording of the reference network on the new data.
        linked: the ids of the reference network's recordings on the training data.

    Returns:
        By id, the `data_distance`; and by id, the reason for those that cannot be compared.
    """
    distances: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for id in dict.fromkeys(linked):
        try:
            other = zoo.get(id)
        except ResemblanceError:
            reasons[id] = "the recording of its training data is not in this zoo, or is damaged"
            continue
        reason = why_incomparable(query, other)
        if reason is None:
            distances[id] = data_distance(query, other)
        else:
            reasons[id] = f"the recording of its training data cannot be compared: {reason}"
    return distances, reasons


def _layer_mean(rep: Representation, layer: str) -> np.ndarray:  # (256,)
    sketch = rep[layer].features.sketch
    assert sketch is not None
    return sketch.total.double().cpu().numpy() / rep.samples


def recommend(
    zoo: NetworkSource,
    data: Any,
    labels: Any = None,
    *,
    models: Models | None = None,
    trust: Collection[str] = (),
    reference: nn.Module | RepresentationLike | None = None,
    budget: int | str | None = None,
    score: str = "auto",
    layers: str | Sequence[str] = "auto",
    pool: Pool = "flatten",
    logits: Logits = "auto",
    samples: int = MAX_SAMPLES,
    seed: int = 0,
    batch_size: int = 128,
) -> Recommendation:
    """Which network to start from for new data, and from which layer.

    A candidate that fails is excluded and the result says why; the others are ranked. Cost: one
    forward pass over the samples for each candidate, and O(n² min(n, d)) for each of its layers.

    Args:
        zoo: a dict of networks by name (or of functions that return them); or a `Zoo`, or the
            folder of one, with `models`.
        data: anything that `record` takes, such as (inputs, labels).
        labels: one label per sample, in the order of the data; None takes those in the data. A
            few hundred are enough. Without any there is an error, as no score without labels ranked
            networks reliably.
        models: which network an entry is: a dict by name or id, or a function of the `Entry` that
            returns a network or None. Entries without a network are excluded and listed.
        trust: addresses that may be loaded where `models` has no network, exactly as entries show
            them, on a GPU if there is one. Nothing else in a zoo is ever run.
        reference: the network by which entries are linked to their training data
            (`Zoo.add(..., trained_on=...)`), or its recording on these data. Candidates are then
            first ordered without running them.
        budget: how many candidates may be run, such as `8`, or for how long, such as `"10m"`.
        score: the score to rank by: `"ridge+log_me"`, `"ridge"`, `"log_me"`, `"h_score"`,
            `"shrunk_h_score"`, `"trans_rate"`, `"leep"` or `"nce"`. `"auto"` is `"ridge+log_me"`:
            leave-one-out accuracy of kernel ridge and LogME, each at its best layer and in standard
            deviations over the candidates, added.
        layers: layers to score, as in `record`.
        pool: how a layer's output becomes a vector, as in `record`.
        logits: what the models' outputs are, as in `record`.
        samples: largest number of samples; the draw is stratified by class.
        seed: seed of the draw.
        batch_size: samples per forward pass.

    Returns:
        The candidates, best first, each with its best layer and all its scores.

    Example:
        >>> import torch
        >>> one, two = (
        ...     nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)) for _ in range(2)
        ... )
        >>> x = torch.randn(60, 4)
        >>> found = recommend({"one": one, "two": two}, x, (x[:, 0] > 0).long())
        >>> len(found), found.best.layer
        (2, '1')
    """
    start = time.perf_counter()
    check_seed(seed)
    check_integer("samples", samples, 2)
    limit = Budget.of(budget)
    query = draw_query(data, labels, at_most=samples, seed=seed)
    ranks_by = transferability.choose_score(score)
    reader = LogitsReader(logits)
    if reader.independent and ranks_by in OUTPUT_SCORES:
        raise DataError(
            f'{ranks_by} needs one predicted class per sample, and `logits="{reader.option}"` '
            "reads independent labels; rank by another `score`"
        )
    run = partial(
        run_candidate,
        query=query,
        layers=layers,
        pool=pool,
        logits=reader,
        seed=seed,
        batch_size=batch_size,
    )
    with contextlib.ExitStack() as stack:
        collection: Any = zoo
        if isinstance(zoo, str | os.PathLike):
            collection = stack.enter_context(Zoo(zoo, create=False))
        candidates, left_out = collect_candidates(collection, models, trust)
        distances, note = _first_look(collection, candidates, query, reference)
    importlib.import_module("torch._dynamo")  # by any first pass, and no candidate's cost
    done: list[RankedCandidate] = []
    for candidate in sorted(candidates, key=lambda one: distances.get(one.name, math.inf)):
        if limit.spent(len(done)):
            left_out.append(
                ExcludedCandidate(candidate.name, f"the budget of {limit.text} was spent")
            )
            continue
        try:
            one = _score_one_candidate(candidate, query, run, ranks_by)
        except (Exception, SystemExit) as error:  # a stranger's network raises what it likes
            why = f"{type(error).__name__}: {first_line(error)}"
            if isinstance(error, ResemblanceError):
                why = str(error)
            left_out.append(ExcludedCandidate(candidate.name, why))
            continue
        done.append(replace(one, distance=distances.get(candidate.name)))
    if not done:
        whys = "; ".join(f"{one.name}: {one.why}" for one in left_out[:5])
        remedy = "networks that take these data" if candidates else "models, or trust an address"
        raise DataError(f"no candidate could be run ({whys}); give {remedy}")
    values = transferability.ranking_values([one.scores for one in done], ranks_by)
    done = [replace(one, value=value) for one, value in zip(done, values, strict=True)]
    done.sort(key=_sort_key)
    first = done[0].expected
    ranked = [replace(one, rank=i) for i, one in enumerate(done, 1)]
    return Recommendation(
        tuple(replace(x, reasons=tuple(_ranking_reasons(x, first, ranks_by))) for x in ranked),
        tuple(left_out),
        ranks_by,
        query.count,
        query.total,
        query.classes,
        limit.text,
        tuple(_recommendation_notes(query, note)),
        time.perf_counter() - start,
    )


def _sort_key(one: RankedCandidate) -> tuple[float, float, int]:
    """Best first, of equals the one to expect more of, then the smaller; without a value last."""
    value = math.inf if math.isnan(one.value) else -one.value
    return value, 0.0 if one.expected is None else -one.expected.value, one.parameters


# -- the first look ------------------------------------------------------------------------------


def _first_look(
    zoo: Any, candidates: Sequence[Candidate], query: Query, reference: Any
) -> tuple[dict[str, float], Note | None]:
    """Distances of training data from the query, by candidate, and what to say of the look."""
    links = {x.name: x.entry.trained_on for x in candidates if x.entry and x.entry.trained_on}
    if not links:
        asked = isinstance(zoo, Zoo) or reference is not None
        return {}, make_note("no-first-look") if asked else None
    if reference is None:
        return {}, make_note("no-reference", linked=len(links), candidates=len(candidates))
    if isinstance(reference, nn.Module):
        here = record(reference, query.samples, gradients=False, outputs=False, progress=False)
    else:
        here = as_representation(reference)
    by_id, reasons = training_data_distances(zoo, here, links.values())
    distances = {name: by_id[id] for name, id in links.items() if id in by_id}
    skipped = [f"{name} ({reasons[id]})" for name, id in links.items() if id in reasons]
    skipped += [x.name for x in candidates if x.name not in links]
    rest = f"; not {', '.join(skipped)}" if skipped else ""
    return distances, make_note(
        "first-look", ordered=len(distances), candidates=len(candidates), rest=rest
    )


# -- one candidate -------------------------------------------------------------------------------


def _score_one_candidate(
    candidate: Candidate, query: Query, run: Callable[..., CandidatePass], ranks_by: str
) -> RankedCandidate:
    """A candidate with its scores; its value, rank and reasons depend on the others."""
    start = time.perf_counter()
    shown = run(candidate.load())
    wanted = transferability.scores_to_compute(ranks_by)
    found = score_candidate(shown, query.labels, wanted)
    layer = transferability.starting_layer(found)
    share = found.layers[layer].get("ridge")
    return RankedCandidate(
        rank=0,
        name=candidate.name,
        id=None if candidate.entry is None else candidate.entry.id,
        value=math.nan,
        layer=layer,
        expected=None if share is None else expected_probe(share, query.count),
        scores=found,
        distance=None,
        parameters=shown.parameters,
        seconds=time.perf_counter() - start,
        reasons=(),
    )


# -- words ---------------------------------------------------------------------------------------


def _ranking_reasons(
    one: RankedCandidate, first: ExpectedAccuracy | None, ranks_by: str
) -> Iterator[str]:
    if one.expected is not None:
        along = one.scores.along("ridge")
        last = list(along)[-1]
        yield f"layer {one.layer!r} predicts {along[one.layer]:.0%} of labels from other samples"
        if last != one.layer:
            yield f"its last layer {along[last]:.0%}"
        yield f"a linear probe should reach {one.expected}"
    if one.expected is None or ranks_by != "ridge":
        yield f"{transferability.SCORE_DESCRIPTIONS[ranks_by]} {one.value:.3g}"
    if one.rank > 1 and first and one.expected and one.expected.high >= first.value:
        yield "not significantly different from the first"
    if one.distance is not None:
        yield f"distance of its training data {one.distance:.2g}"
    yield f"{one.seconds:.1f} s"


def _recommendation_notes(query: Query, first_look: Note | None) -> Iterator[Note]:
    drawn = "" if query.total == query.count else f" drawn of {query.total:,}"
    yield make_note("query", samples=query.count, what=f"labelled samples{drawn}")
    if first_look:
        yield first_look
