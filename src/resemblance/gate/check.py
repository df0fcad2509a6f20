"""Decide whether a copy meets thresholds: passed, failed or undecided (`check`).

Collects the thresholds, measures each one on the recordings' outputs or layers, and decides with
one-sided confidence bounds. The result is a `Verdict`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

from ..errors import warn
from ..representation.notes import Note, make_note
from ..representation.representation import (
    Representation,
    RepresentationLike,
    as_representation,
    few_samples_note,
)
from ..similarity.pairing import check_same_samples
from .bounds import Measurement
from .embedding_thresholds import EmbeddingThresholds
from .layer_thresholds import LayerThresholds
from .output_thresholds import OutputThresholds
from .thresholds import (
    CosineLimits,
    DivergenceLimits,
    Quantity,
    ScoreLimits,
    Threshold,
    collect_thresholds,
)
from .verdict import Finding, Verdict

_BLOCK_SIZE = 128  # samples in a block, unless data are small


def check(
    base: RepresentationLike,
    copy: RepresentationLike,
    *,
    max_disagreement: float | None = None,
    max_kl: DivergenceLimits | None = None,
    max_js: DivergenceLimits | None = None,
    min_kappa: float | None = None,
    min_neighbours: float | None = None,
    min_cosine: CosineLimits | None = None,
    min: ScoreLimits | None = None,
    min_db: float | None = None,
    kl_cap: float | None = None,
    ignore_unmatched: bool = False,
    thresholds: str | os.PathLike[str] | None = None,
) -> Verdict:
    """Whether a copy is still close enough to its base: passed, failed, or undecided.

    A threshold passes if a one-sided 95 % confidence bound lies on its right side, and fails if the
    opposite bound lies on its wrong side. Otherwise it is undecided, and `samples_needed` says how
    many samples would decide with a probability of 80 %. So a copy that is worse than a threshold
    passes with a probability of at most 5 %, whatever the number of layers and of other thresholds,
    because every bound must hold. A copy that keeps to a threshold fails it with at most 5 %, for
    which layers are corrected by their number; with several thresholds these add up.

    Bounds are about the population that the samples were drawn from: Clopper and Pearson's for
    disagreement and percentiles (tokens count as many as their spread between sequences allows),
    betting bounds for mean divergences and for neighbours (about all queries, given the samples
    that neighbours are taken from), Student's t on the logarithm of 1 − score and on decibels.
    Predictions and neighbours pass only if a permutation test shows them to be related, scores and
    neighbours only above their chance level: unrelated networks that nearly always predict the same
    class agree as well.
    Layers that are constant in both are skipped, with a note; one that is constant in the copy
    alone fails. A layer of the base without a counterpart leaves its thresholds undecided.

    Args:
        base: a recording of the original network, or the path of its file.
        copy: a recording of the copy on the same samples with the same settings, or its path.
        max_disagreement: largest share of samples that may be predicted differently; of multi-label
            networks, with any label differing.
        max_kl: largest mean over samples of KL(base‖copy), in nats, each capped at `kl_cap`; with
            percentiles as a mapping, `{"mean": 0.01, "p99": 0.05}`, or as words, `"p99=0.05"`. The
            99th percentile is judged as the share of samples above its limit, at most 1 %. Beyond
            1,024 classes KL is estimated, and the mean of each sequence (or sample) is capped.
        max_js: largest Jensen-Shannon divergence, in nats, in the same forms. It needs no cap.
        min_kappa: least Cohen's kappa of the predictions, which is agreement beyond chance.
        min_neighbours: least share of nearest neighbours that both networks' embeddings have in
            common, the mean over queries.
        min_cosine: least cosine of a sample's embeddings by the two networks, as a percentile:
            `{"p01": 0.98}` or `"p01=0.98"` allows 1 % of samples below 0.98. It needs copies whose
            embeddings have the basis of the base's.
        min: least CKA by kernel at the worst layer, or with `mean:` on average over layers:
            `{"gradients": 0.8, "mean:features": 0.95}`, or words such as `"gradients=0.8"`.
        min_db: least decibels of features at the worst layer, as `coordinates` returns them.
        kl_cap: largest KL that one sample adds to the mean, in nats. Default: 1.
        ignore_unmatched: judge scores and decibels though layers of the base have no counterpart
            in the copy. Without it such thresholds are undecided.
        thresholds: path of a TOML file with thresholds; arguments take precedence over it.

    Returns:
        A verdict with a finding for each threshold. It is true if the copy passed.

    Raises:
        DataError: if no threshold is given, or one is out of its range.
        MismatchError: if the recordings are of different samples, or lack what a threshold needs.

    Example:
        >>> import torch, resemblance as rs
        >>> _ = torch.manual_seed(0)
        >>> layers = torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
        >>> rep = rs.record(torch.nn.Sequential(*layers), torch.randn(200, 4))
        >>> rs.check(rep, rep, max_disagreement=0.02, min={"gradients": 0.8}).status
        'passed'
        >>> rs.check(rep, rep, max_disagreement=0.001).samples_needed
        3000
    """
    limits = collect_thresholds(
        max_disagreement=max_disagreement,
        max_kl=max_kl,
        max_js=max_js,
        min_kappa=min_kappa,
        min_neighbours=min_neighbours,
        min_cosine=min_cosine,
        min_db=min_db,
        min=min,
        thresholds=thresholds,
        kl_cap=kl_cap,
    )
    one, two = as_representation(base), as_representation(copy)
    layers = LayerThresholds(one, two, ignore_unmatched=ignore_unmatched)
    outputs, embeddings = OutputThresholds(one, two), EmbeddingThresholds(one, two)
    check_same_samples(one, two)
    measure: dict[Quantity, Callable[[Threshold], Measurement]] = {
        "disagreement": outputs.disagreement,
        "kappa": outputs.kappa,
        "kl": outputs.divergence,
        "js": outputs.divergence,
        "neighbours": embeddings.neighbours,
        "cosine": embeddings.cosine,
        "decibels": layers.decibels,
        "score": layers.score,
    }
    findings = tuple(_finding(one, of, measure[of.quantity](of)) for of in limits)
    rows, tokens = sum(one.block_sizes) or one.samples, one.settings.tokens_of_each
    notes: list[Note] = [*layers.notes, *outputs.notes, *embeddings.notes]
    if one.data.skipped:
        notes.append(make_note("skipped-samples", samples=one.data.skipped))
    if few := few_samples_note(rows, one.settings):
        warn(few)
        notes = [few, *(note for note in notes if note.code != few.code)]  # said once
    sequences = None if tokens is None else rows // tokens
    return Verdict(one.name, two.name, rows, sequences, findings, tuple(dict.fromkeys(notes)))


def _finding(base: Representation, of: Threshold, measured: Measurement) -> Finding:
    """What becomes of a threshold, and how many samples would decide where it is undecided."""
    status = measured.status(of)
    reason = measured.reason if status == "undecided" or measured.fails else None
    needed = None
    if status == "undecided" and measured.can_decide:
        needed = measured.needed
        on_limit = "it is so close to the limit that no number of samples would decide"
        reason = _blocks_for(base, needed) if needed else reason or on_limit
    bounds = (measured.bounds.value, measured.bounds.low, measured.bounds.high)
    value, low, high = (None if math.isnan(x) else float(x) for x in bounds)
    remarks = measured.remarks
    rows, samples = sum(base.block_sizes), base.samples
    if of.quantity in ("neighbours", "cosine") and base.embeddings is not None:
        rows = base.embeddings.rows
    whole = base.data.order == "seeded" or rows in (0, samples)
    if not whole and of.quantity != "decibels":  # blocks hold the beginning of a stream
        blocks = -(-samples // base.settings.block)
        assumes = (
            f"assumes that the stream is in random order, as only the first {rows:,} of "
            f"{samples:,} samples are judged"
        )
        if of.quantity not in ("neighbours", "cosine"):  # of which files hold no more
            assumes += f"; record with `blocks={blocks}` to use all of them"
        remarks = (*remarks, assumes)
    return Finding(of, status, value, low, high, measured.layer, needed, reason, remarks)


def _blocks_for(base: Representation, needed: int) -> str | None:
    """How to record so many samples, where files would not keep them by default."""
    settings = base.settings
    block = max(settings.block, _BLOCK_SIZE)
    if not settings.blocks or needed <= settings.windows * block:
        return None
    return f"recorded with `blocks={-(-needed // block) * settings.tokens}`"
