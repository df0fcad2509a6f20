"""`trajectory`: checkpoints of a run, or copies of a network, in order, layer by layer.

Of each layer, the checkpoints are laid side by side as if they were the layers of one network,
which is compared with itself. So scores and errors are those of `compare`, from the same
estimators, while each kernel is read once for all pairs.
"""

from __future__ import annotations

import itertools
import math
import numbers
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from .._whole_numbers import is_whole as is_whole_number
from ..errors import DataError, MismatchError, ResemblanceWarning
from ..representation.as_given import Given, recordings
from ..representation.layer import Layer
from ..representation.representation import Representation
from . import block_estimates, layer_matching, ratio_estimates, whole_estimates
from .combinations import Question
from .doubtful_errors import untrusted
from .estimate import Estimate
from .layer_matching import MatchedBy
from .many_networks import refuse_incomparable
from .predictions_of_many import behaviour_of_all
from .training_course import Course, Seen, Step, Trajectory
from .two_networks import constant_layer
from .whole_estimates import Pairing, Spans, is_whole


def trajectory(reps: Iterable[Given], *, steps: Sequence[Step] | None = None) -> Trajectory:
    """Checkpoints of one run against the first, the last and each other, layer by layer.

    Args:
        reps: two or more recordings in order, or their paths, made on the same samples with the
            same settings. They may as well be ever more changed copies of one network, the first
            of them the network itself.
        steps: what to call each: a number, such as that of its step, or a word; all different. None
            takes the names of the recordings, or numbers from 0 where those are not all different.

    Features are compared by centred CKA, and gradients, if all recordings have them, by CKA, as
    `compare` does with the estimator that the result names: `ratio` for gradients of more than
    1,024 samples where the norms of all are known, else `blocks`. Scores and standard errors are
    the same. Layers are matched by name, as in `compare`, where at least half of the first
    network's have namesakes in all of them, else by position in networks of as many layers.

    Cost: for each layer, that of comparing two networks of as many layers as there are checkpoints.

    >>> import torch, resemblance as rs
    >>> x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    >>> reps = [rs.record_arrays(y, data_id="x") for y in (x, x.tanh())]
    >>> found = rs.trajectory(reps, steps=[100, 200])
    >>> found.features.scores.shape, found.gradients is None  # layers × checkpoints × checkpoints
    ((1, 2, 2), True)
    """
    reps = recordings(reps)
    refuse_incomparable(reps, "features")
    without = [rep.name for rep in reps if "gradients" not in rep[0].kinds]
    if not without:
        refuse_incomparable(reps, "gradients")
    called = _called(reps, steps)
    chosen, matched_by = _matched(reps)
    notes: list[str] = []
    features = _course(reps, chosen, "features", notes)
    gradients = None if without else _course(reps, chosen, "gradients", notes)
    notes = list(dict.fromkeys(notes))
    for note in notes:
        warnings.warn(note, ResemblanceWarning, stacklevel=2)
    if without and len(without) < len(reps):
        named = ", ".join(map(repr, without))
        notes.append(f"gradients are left out, as {named} was recorded without them")
    return Trajectory(
        models=tuple(rep.name for rep in reps),
        steps=called,
        layers=tuple(layer.name for layer in chosen[0]),
        matched_by=matched_by,
        samples=sum(reps[0].block_sizes),
        tokens=reps[0].settings.tokens_of_each,
        features=features,
        gradients=gradients,
        behaviour=behaviour_of_all(reps),
        notes=tuple(notes),
    )


def _called(reps: Sequence[Representation], steps: Sequence[Step] | None) -> tuple[Step, ...]:
    """What each checkpoint is called, as plain numbers and words."""
    if steps is None:
        names = tuple(rep.name for rep in reps)
        return names if len(set(names)) == len(names) else tuple(range(len(names)))
    if isinstance(steps, str) or not isinstance(steps, Iterable):
        raise DataError(
            f"steps must be a list of numbers or words, one a recording; found {steps!r}"
        )
    called = tuple(map(_step, steps))
    if len(called) != len(reps) or len(set(called)) != len(called):
        raise DataError(
            f"steps must name each of {len(reps)} recordings differently; found {list(called)}"
        )
    return called


def _step(given: Step) -> Step:
    if isinstance(given, str):
        return given
    if is_whole_number(given):
        return int(given)
    if isinstance(given, numbers.Real) and math.isfinite(given) and not isinstance(given, bool):
        return float(given)
    raise DataError(f"a step must be a finite number or a word; found {given!r}")


def _matched(reps: Sequence[Representation]) -> tuple[list[list[Layer]], MatchedBy]:
    """Of each checkpoint, the layers that all of them have, one by one."""
    shared = layer_matching.in_all([layer_matching.known(rep) for rep in reps])
    if shared is not None:
        return [[rep[i] for i in at] for rep, at in zip(reps, shared, strict=True)], "name"
    depths = [len(rep) for rep in reps]
    if len(set(depths)) == 1:
        return [list(rep) for rep in reps], "position"
    raise MismatchError(
        "expected checkpoints of one network, or copies of it, which have layers of the same "
        f"names; found networks of {min(depths)} to {max(depths)} layers, most of them under other "
        "names; compare those with compare_all"
    )


def _course(
    reps: Sequence[Representation],
    chosen: Sequence[Sequence[Layer]],
    kernel: Seen,
    notes: list[str],
) -> Course:
    """All pairs of checkpoints at each layer; what there is to say about it is added to notes."""
    layers = list(zip(*chosen, strict=True))
    together = [replace(reps[0], layers=row) for row in layers]  # a layer of all, side by side
    asked = Question(kernel, "cka", kernel == "features", "blocks")
    if _ratio_offered(together, asked):
        asked = replace(asked, estimator="ratio")
    whole = [all(is_whole(x, kernel) for x in row) for row in layers]
    spans = _spans(reps[0], asked, exact=all(whole))
    doubtful, found = [], []
    for rep, row, exact in zip(together, layers, whole, strict=True):
        here = _estimate(rep, asked, spans if exact else None)
        found.append(here)
        for original, layer, alive in zip(reps, row, here.alive[0], strict=True):
            if not alive:
                notes.append(constant_layer(original.name, layer.name))
        if untrusted(rep, here):
            doubtful.append(row[0].name)
    if doubtful:
        notes.append(_doubt(kernel, doubtful, len(layers)))
    return Course(
        kernel=kernel,
        estimator=asked.estimator,
        scores=np.stack([x.scores for x in found]),
        stderr=np.stack([x.stderr for x in found]),
        replicates=np.stack([x.replicates[:, 0] for x in found if x.replicates is not None], 1),
    )


def _ratio_offered(together: Sequence[Representation], asked: Question) -> bool:
    """Whether the norms of all samples are known, of more than blocks are exact for."""
    first = together[0]
    if asked.centre or first.settings.tokens > 1 or first.samples <= block_estimates.FEW:
        return False
    return all(ratio_estimates.norms(rep, asked.kernel) is not None for rep in together)


def _spans(rep: Representation, asked: Question, *, exact: bool) -> Spans:
    """Samples to leave out of whole kernels: groups, or blocks where some layers have no more."""
    if exact:
        return whole_estimates.groups(rep.samples)
    weight = block_estimates.weights(rep.block_sizes, rep.samples, centre=asked.centre)
    ends = itertools.pairwise([0, *np.cumsum(rep.block_sizes).tolist()])
    return [span for span, w in zip(ends, weight, strict=True) if w]


def _estimate(rep: Representation, asked: Question, spans: Spans | None) -> Estimate:
    """Every checkpoint with every other, at one layer."""
    if spans is not None:
        every = Pairing(rep.layers, rep.layers, asked, rep.samples, spans)
        return whole_estimates.scores(every, seed=None)
    estimates = ratio_estimates if asked.estimator == "ratio" else block_estimates
    return estimates.scores(rep, rep, asked)


def _doubt(kernel: Seen, layers: Sequence[str], number: int) -> str:
    few = ", ".join(map(repr, layers[:3])) + (", …" if len(layers) > 3 else "")
    remedy = "record more samples"
    if kernel == "gradients":
        remedy += ", or gradients with another beta, which sets how unequal samples are"
    return (
        f"some error bars cannot be trusted, of {kernel} at {len(layers)} of {number} layers "
        f"({few}): too few samples carry their kernels; {remedy}"
    )
