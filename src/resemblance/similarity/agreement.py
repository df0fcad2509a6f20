"""Agreement of predictions of two networks: disagreement, kappa, KL and JS (`Behaviour`).

Predictions are compared sample by sample, so both networks must have the same classes and must have
been recorded on the same samples. Multi-label networks disagree on a sample if any label differs,
and their divergences are exact sums over labels. `agreement_matrix` compares all pairs of many.

Up to 1,024 classes, and for independent labels, divergences are exact. Beyond, KL is estimated
without bias in both directions: exactly at the classes T that both files list, and from sketches
over classes at the others,

    KL(p‖q) ≈ Σ_T p (log p − log q) + ⟨S p, S (d − d̄)⟩ + d̄ Σ p,   d = log p − log q,

with the last two terms over the classes outside of T and d̄ the mean of d over all classes. The
variance is about ‖p‖² ‖d − d̄‖² / 512 over these classes, which is small for copies, and errors of
different rows are independent. A single row's estimate may be negative. JS is bounded from below by
the divergence of the finest partition of the classes that both files know. So is KL where a file
has no sketches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .._ops.class_sketch import CLASS_BUCKETS, class_places
from .._utils.formatting import printable
from ..errors import MismatchError
from ..representation.outputs import MIN_LOG_P, Outputs, class_groups
from ..representation.representation import Representation, RepresentationLike, as_representation
from ..representation.schema import (
    COUNT,
    ONE,
    REAL,
    TEXT,
    YES_NO,
    list_of,
    optional,
    or_null,
)
from . import jackknife
from .neighbours import EmbeddingBehaviour, embedding_behaviour, embeddings_obstacle
from .pairing import blocks_obstacle, incomplete_message
from .results import StoredResult, count_samples

Known = Literal["exact", "estimated", "bounded"]
_MAX_PARTS = 100  # of samples, or of sequences, left out in turn
_QUANTILES = (0.5, 0.9, 0.99, 1.0)
_MEASURES = ("disagreement", "js", "kl", "kl_reverse", "agreement_beyond_chance", "shared_errors")
_MEANS = 4  # of these that are means over rows
_KL = 5  # the column of KL among the numbers of a row
_NUMBERS = (*_MEASURES, *(f"{name}_stderr" for name in _MEASURES))
_BY_LABEL = ("label_disagreement", "label_disagreement_stderr")
_NEW = ("kl_reverse", "kl_reverse_stderr", "js_upper")  # not in results of earlier versions


@dataclass(frozen=True, eq=False, repr=False)
class Behaviour(StoredResult):
    """How differently two networks predict, each number with its standard error.

    Standard errors are those of other samples of the same source: groups of samples are left out in
    turn, of tokens whole sequences. Multi-label networks disagree on a sample if any label differs;
    a label is predicted if its probability is above 0.5. `to_frame` has one row for each measure,
    with its value and stderr.

    Attributes:
        models: names of the two networks.
        samples: number of samples, or of tokens.
        sequences: number of sequences; None where samples are not tokens.
        classes: number of classes, or of labels of multi-label networks.
        disagreement: share of samples on which the most likely classes differ.
        disagreement_stderr: standard error of the disagreement.
        js: Jensen-Shannon divergence in nats, the mean over samples; of multi-label networks, the
            sum over labels. Beyond 1,024 classes a lower bound.
        js_stderr: standard error of the Jensen-Shannon divergence.
        kl: KL(a‖b) in nats, the mean over samples; of multi-label networks, the sum over labels.
            Beyond 1,024 classes an unbiased estimate, whose noise is in the standard error.
        kl_stderr: standard error of the KL divergence.
        agreement_beyond_chance: Cohen's kappa: 1 for equal predictions, 0 for unrelated ones.
        agreement_beyond_chance_stderr: standard error of kappa.
        shared_errors: of the samples that either network gets wrong, the share on which both are
            wrong in the same way; None where labels are not known.
        shared_errors_stderr: standard error of that share; None where labels are not known.
        lower_bounds: whether `js`, `kl` and `kl_reverse` are lower bounds: beyond 1,024 classes,
            where a recording is from before files held sketches of probabilities.
        kl_quantiles: median, 90th and 99th percentile and maximum over samples of KL(a‖b); None
            where it is not exact.
        label_disagreement: share of samples on which each label differs; None for single-label
            networks.
        label_disagreement_stderr: standard errors of those shares; None for single-label networks.
        kl_reverse: KL(b‖a) in nats, known as `kl` is; None in results of earlier versions.
        kl_reverse_stderr: standard error of that divergence.
        js_upper: where KL is estimated, (KL(a‖b) + KL(b‖a)) / 4, which JS cannot exceed; else None.
    """

    models: tuple[str, str]
    samples: int
    sequences: int | None
    classes: int
    disagreement: float
    disagreement_stderr: float
    js: float
    js_stderr: float
    kl: float
    kl_stderr: float
    agreement_beyond_chance: float
    agreement_beyond_chance_stderr: float
    shared_errors: float | None
    shared_errors_stderr: float | None
    lower_bounds: bool
    kl_quantiles: tuple[float, ...] | None = None
    label_disagreement: tuple[float, ...] | None = None
    label_disagreement_stderr: tuple[float, ...] | None = None
    kl_reverse: float | None = None
    kl_reverse_stderr: float | None = None
    js_upper: float | None = None

    _kind = "behaviour"
    _rules: ClassVar = {
        "models": list_of(TEXT, 2, 2),
        "samples": COUNT,
        "sequences": or_null(COUNT),
        "classes": ONE,
        "lower_bounds": YES_NO,
        **{name: or_null(REAL) for name in _NUMBERS if name not in _NEW},
        **{name: optional(or_null(REAL)) for name in _NEW},
        "kl_quantiles": optional(or_null(list_of(REAL, 4, 4))),
        **{name: optional(or_null(list_of(or_null(REAL)))) for name in _BY_LABEL},
    }

    def _text(self) -> str:
        count = count_samples(self.samples, self.sequences)
        share = f"{_percent(self.disagreement)} disagreement"
        return f"{self.models[0]!r}, {self.models[1]!r}, {share}, {count}"

    def _sentences(self) -> Iterator[str]:
        one, two = map(printable, self.models)
        least = "at least " if self.lower_bounds else ""
        kind = "a different class" if self.label_disagreement is None else "different labels"
        out = (
            f"{one} and {two} predict {kind} for {_percent(self.disagreement)} ± "
            f"{_percent(self.disagreement_stderr)} of "
            f"{count_samples(self.samples, self.sequences)} (Cohen's kappa "
            f"{self.agreement_beyond_chance:.3f} ± {self.agreement_beyond_chance_stderr:.2g}); KL "
            f"{least}{self.kl:.2g} ± {self.kl_stderr:.2g}, {self._js_text(least)} nats."
        )
        if self.kl_quantiles is not None:
            names = ("median", "90 %", "99 %", "largest")
            each = (f"{at} {x:.2g}" for at, x in zip(names, self.kl_quantiles, strict=True))
            out += f" KL of single samples: {', '.join(each)}."
        if self.shared_errors is not None:
            out += (
                f" Of the errors of either network, {_percent(self.shared_errors)} are shared "
                "(same wrong class)."
            )
        yield out

    def _js_text(self, least: str) -> str:
        if self.js_upper is not None:  # a mean of estimates may lie below zero, or the bound
            return f"JS between {self.js:.2g} and {max(self.js, self.js_upper):.2g}"
        return f"JS {least}{self.js:.2g} ± {self.js_stderr:.2g}"

    def _columns(self) -> Mapping[str, Any]:
        ends = {"value": "", "stderr": "_stderr"}
        numbers = {key: [getattr(self, x + end) for x in _MEASURES] for key, end in ends.items()}
        return {"measure": _MEASURES, **numbers}

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings; what is not finite becomes None.

        Numbers of labels are there for multi-label networks only.

        Returns:
            The fields by name, as JSON can hold them.
        """
        found = super().to_dict()
        optional_keys = (*_BY_LABEL, *_NEW)
        return {key: x for key, x in found.items() if x is not None or key not in optional_keys}


AnyBehaviour = Behaviour | EmbeddingBehaviour


def behaviour(a: RepresentationLike, b: RepresentationLike) -> AnyBehaviour:
    """How differently two networks predict, or embed, the samples that both were recorded on."""
    a, b = as_representation(a), as_representation(b)
    return embedding_behaviour(a, b) if _embed(a, b) else prediction_behaviour(a, b)


def outputs_obstacle(a: Representation, b: Representation) -> str | None:
    """Why the outputs of two networks cannot be compared, or None if they can."""
    return embeddings_obstacle(a, b) if _embed(a, b) else predictions_obstacle(a, b)


def _embed(a: Representation, b: Representation) -> bool:
    return a.embeddings is not None or b.embeddings is not None


def prediction_behaviour(a: Representation, b: Representation) -> Behaviour:
    """How differently two networks predict on the samples that both were recorded on."""
    one, two = comparable_outputs(a, b)
    tokens, parts = a.settings.tokens_of_each, jackknife_parts(a)
    return behaviour_of_rows((a.name, b.name), predicted_rows(one, two), parts, tokens)


class PredictedRows(NamedTuple):
    """What two networks predict for some rows."""

    numbers: Tensor  # (rows, 7 + labels) float64, as `_measures` takes their sums; _KL is KL
    predictions: Tensor  # (2, rows) int64
    known: Known
    labelled: bool  # whether the right answers are known for any row
    classes: int
    multi_label: bool


def predicted_rows(one: Outputs, two: Outputs) -> PredictedRows:
    """How the predictions of two networks differ, row by row."""
    labels = one.labels if one.labels is not None else two.labels
    kl, reverse, js, _, known = row_divergences(one, two)
    p, q = one.prediction, two.prediction
    wrong = _wrong_rows(one, labels) | _wrong_rows(two, labels)
    each = torch.stack([torch.ones_like(js), wrong, wrong & (p == q), p != q, js, kl, reverse], 1)
    if one.label_logits is not None and two.label_logits is not None:
        each = torch.cat([each, (one.label_logits > 0) != (two.label_logits > 0)], 1)
    labelled = labels is not None and bool((labels >= 0).any())
    both = torch.stack([p, q])
    return PredictedRows(each, both, known, labelled, one.classes, one.multi_label)


def behaviour_of_rows(
    models: tuple[str, str], rows: PredictedRows, parts: Tensor, tokens: int | None
) -> Behaviour:
    """Means over rows, with standard errors by leaving parts out.

    Args:
        models: names of the two networks.
        rows: what they predict.
        parts: (rows,) the part that each row is left out with.
        tokens: rows of a sequence; None if rows are samples.
    """
    sums, predicted = _sums_by_part(rows.numbers, rows.predictions, parts)
    total, count = sums.sum(0), predicted.sum(0)
    value = _measures(total, count)
    error = torch.full_like(value, torch.nan)
    if len(sums) > 1:
        error = jackknife.jackknife_error(_measures(total - sums, count - predicted))
    numbers: dict[str, Any] = {}
    for end, x in (("", value.tolist()), ("_stderr", error.tolist())):
        numbers |= {f"{name}{end}": number for name, number in zip(_MEASURES, x, strict=False)}
        if not rows.labelled:
            numbers[f"shared_errors{end}"] = None
        if rows.multi_label:
            numbers[f"label_disagreement{end}"] = tuple(x[len(_MEASURES) :])
    if rows.known == "estimated":
        numbers["js_upper"] = (numbers["kl"] + numbers["kl_reverse"]) / 4
    return Behaviour(
        models=models,
        samples=len(parts),
        sequences=None if tokens is None else len(parts) // tokens,
        classes=rows.classes,
        lower_bounds=rows.known == "bounded",
        kl_quantiles=kl_quantiles(rows.numbers[:, _KL]) if rows.known == "exact" else None,
        **numbers,
    )


def kl_quantiles(kl: Tensor) -> tuple[float, ...]:  # (rows,)
    """Median, 90th and 99th percentile and maximum of the divergences of rows."""
    return tuple(np.quantile(kl.numpy(), _QUANTILES).tolist())


def comparable_outputs(
    a: Representation, b: Representation, advice: str = ""
) -> tuple[Outputs, Outputs]:
    """The outputs of two networks, or an error that says why they cannot be compared."""
    if (why := predictions_obstacle(a, b)) is not None:
        raise MismatchError(
            f"the predictions of {a.name!r} and {b.name!r} cannot be compared: {why}{advice}"
        )
    assert a.predictions is not None
    assert b.predictions is not None
    return a.predictions, b.predictions


def predictions_obstacle(a: Representation, b: Representation) -> str | None:
    """Why what two networks predict cannot be compared, or None if it can."""
    found: list[Outputs] = []
    for rep in (a, b):
        if not rep.complete:
            return incomplete_message(rep)
        if rep.embeddings is not None:
            return f"{rep.name!r} returns embeddings, which have neighbours and no predictions"
        if rep.predictions is None:
            if rep.made.logits == "none":
                return (
                    f"{rep.name!r} has no outputs, because they were not recognised as "
                    "predictions; record it again with `logits` set to what they are"
                )
            return (
                f"{rep.name!r} has no outputs: the recording is from a version that did not store "
                "them, was made without them, or the outputs are not one prediction per sample; "
                "record it again"
            )
        if (bad := rep.predictions.undefined) > 0:
            return (
                f"{rep.name!r} predicted NaN for {bad:,} of {rep.predictions.rows:,} samples; fix "
                "the model and record it again"
            )
        found.append(rep.predictions)
    p, q = found
    if p.multi_label != q.multi_label:
        one, two = (a, b) if p.multi_label else (b, a)
        return f"{one.name!r} is a multi-label network and {two.name!r} predicts one class"
    if p.classes != q.classes:
        what = "labels" if p.multi_label else "classes"
        return f"they have {p.classes:,} and {q.classes:,} {what}"
    return blocks_obstacle(a, b)


def _wrong_rows(outputs: Outputs, labels: Tensor | None) -> Tensor:  # (rows,) bool
    """The rows that a network gets wrong, as far as the right answers are known."""
    if labels is None:
        return torch.zeros(outputs.rows, dtype=torch.bool, device=outputs.first.device)
    if outputs.label_logits is not None:
        return (((outputs.label_logits > 0) != (labels > 0)) & (labels >= 0)).any(1)
    return (outputs.prediction != labels) & (labels >= 0)


def _sums_by_part(each: Tensor, predictions: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of numbers of rows (rows, m) over each part, and how often each class is predicted.

    Returns:
        Sums (parts, m) and counts (parts, 2, k), of the k classes in the predictions (2, rows).
    """
    count = int(parts.max()) + 1
    sums = torch.zeros(count, each.shape[1], dtype=torch.float64).index_add_(0, parts, each)
    classes, which = torch.unique(predictions, return_inverse=True)
    predicted = torch.zeros(count, 2, len(classes), dtype=torch.float64)
    network = torch.arange(2)[:, None]
    predicted.index_put_((parts, network, which), torch.ones_like(sums[0, 0]), accumulate=True)
    return sums, predicted


def _measures(sums: Tensor, predicted: Tensor) -> Tensor:  # (..., 7 + labels), (..., 2, k)
    """The measures in the order of `_MEASURES`, then the disagreement on each label.

    Sums are over rows: the number of rows, of rows that either network gets wrong and that both get
    wrong in the same way; of rows that are predicted differently, JS and KL both ways, and of rows
    on which each label differs.
    """
    rows, wrong, both_wrong = sums[..., :3].unbind(-1)
    means = sums[..., 3:] / rows[..., None]
    by_chance = predicted.prod(-2).sum(-1) / rows**2
    kappa = torch.where(by_chance < 1, 1 - means[..., 0] / (1 - by_chance), 1.0)
    shared = both_wrong / wrong.clamp_min(1)
    both = torch.stack([kappa, shared], -1)
    return torch.cat([means[..., :_MEANS], both, means[..., _MEANS:]], -1)


def unit_rows(rep: Representation) -> Tensor:  # (units, tokens)
    """The rows of the outputs that belong to each sample, or to each sequence of tokens."""
    tokens, start, out = rep.settings.tokens, 0, []
    for n in rep.block_sizes[::tokens]:  # a block for each token drawn from a sequence
        out.append(start + torch.arange(n * tokens).reshape(tokens, n).T)
        start += n * tokens
    return torch.cat(out)


def jackknife_parts(rep: Representation) -> Tensor:  # (rows,)
    """The part that each row is left out with: a token, with its sequence."""
    units = unit_rows(rep)
    parts = unit_parts(len(units))
    return torch.empty(units.numel(), dtype=torch.int64).index_put_((units,), parts[:, None])


def unit_parts(units: int) -> Tensor:  # (units,)
    """The part that each sample, or sequence, is left out with."""
    return torch.arange(units) * min(_MAX_PARTS, units) // units


def _percent(share: float) -> str:
    return f"{100 * share:.{2 if share < 0.995 else 3}g} %"  # not 1e+02


# -- divergences of rows --

_ROWS_AT_ONCE = 1024  # compared at a time
_MIN_REMAINDER = 1e-9  # of a probability that is left over, below which it is round-off


class Divergences(NamedTuple):
    """Divergences of each row in nats, summed over independent labels.

    `exact`: all are. `estimated`: KL has no bias and `noise`, JS is a lower bound. `bounded`: all
    are lower bounds.
    """

    kl: Tensor  # (rows,) KL(one‖two)
    reverse: Tensor  # (rows,) KL(two‖one)
    js: Tensor  # (rows,)
    noise: Tensor  # (2, rows) standard errors of `kl` and `reverse` of each row: the sketch's
    known: Known


def row_divergences(one: Outputs, two: Outputs, *, estimate: bool = True) -> Divergences:
    """KL in both directions and JS of each row.

    Args:
        one: the outputs of the first network.
        two: the outputs of the second network on the same rows.
        estimate: whether to estimate KL from sketches, where files have them. Rows of different
            samples have no sketch in common, only bounds.

    Returns:
        The divergences, and how they are known.
    """
    exact = one.top is None and two.top is None
    sketched = estimate and not exact and _same_sketches(one, two)
    found = []
    for start in range(0, one.rows, _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        if exact:
            log_p, log_q = log_probabilities(one, rows), log_probabilities(two, rows)
        else:
            log_p, log_q = _shared_partition(one, two, rows)
        js = js_of_rows(log_p, log_q)
        if sketched:
            kl = _estimates(one, two, rows)
        else:
            both = kl_of_rows(log_p, log_q), kl_of_rows(log_q, log_p)
            kl = *(x.clamp_min(0) for x in both), *js.new_zeros(2, len(js))
        found.append(torch.stack([js.clamp_min(0), *kl]))
    js, kl, reverse, *noise = torch.cat(found, 1)
    known: Known = "exact" if exact else "estimated" if sketched else "bounded"
    return Divergences(kl, reverse, js, torch.stack(noise), known)


def log_probabilities(outputs: Outputs, rows: slice) -> Tensor:  # (rows, k) float64
    """All log-probabilities of some rows: of classes, or of each label and of its absence."""
    if outputs.label_logits is not None:
        z = outputs.label_logits[rows].double()
        return F.logsigmoid(torch.cat([z, -z], 1))
    assert outputs.every is not None
    return outputs.every[rows].double()


def kl_of_rows(log_p: Tensor, log_q: Tensor) -> Tensor:  # (rows, k) -> (rows,)
    """Σ p log(p / q) − p + q, which keeps its digits near zero, as each term is positive."""
    ratio = log_p - log_q
    each = log_p.exp() * (ratio + torch.expm1(-ratio))
    return torch.where(log_p.isneginf(), log_q.exp(), each).sum(-1)


def js_of_rows(log_p: Tensor, log_q: Tensor) -> Tensor:  # (rows, k) -> (rows,)
    log_m = torch.logaddexp(log_p, log_q) - np.log(2)
    return (kl_of_rows(log_p, log_m) + kl_of_rows(log_q, log_m)) / 2


def _same_sketches(one: Outputs, two: Outputs) -> bool:
    """Whether both have sketches, and by the same hash in each row."""
    key = one.sketch_key
    return key is not None and two.sketch_key is not None and torch.equal(key, two.sketch_key)


def _estimates(one: Outputs, two: Outputs, rows: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """KL in both directions without bias, and the standard error of each, of some rows."""
    p, q = _Sketched(one, rows), _Sketched(two, rows)
    p.leave_out(shared := _find_classes(p.ids, q.ids, one.classes))
    q.leave_out(_find_classes(q.ids, p.ids, one.classes))
    log_q = q.log_p.gather(1, shared[1])
    listed = torch.where(shared[0], p.log_p - log_q, 0.0)
    ratio, shift = p.sketch_log_p - q.sketch_log_p, (p.mean - q.mean)[:, 0]
    size = ratio.square().sum(1)
    found, noise = [], []
    for side, of_listed, sign in ((p, p.log_p, 1), (q, log_q, -1)):
        inner = (side.sketch_p * ratio).sum(1)
        found.append(sign * ((of_listed.exp() * listed).sum(1) + inner + shift * side.rest))
        noise.append((side.sketch_p.square().sum(1) * size + inner.square()) / CLASS_BUCKETS)
    return found[0], found[1], noise[0].sqrt(), noise[1].sqrt()


class _Sketched:
    """What is known of some rows: listed classes, and sketches of those that are left over."""

    def __init__(self, outputs: Outputs, rows: slice) -> None:
        ids, log_p = _known_classes(outputs, rows)
        found = (outputs.sketch_p, outputs.sketch_log_p, outputs.mean_log_p, outputs.sketch_key)
        sketch_p, sketch_log_p, mean, key = (x[rows] for x in found if x is not None)
        self.ids, self.log_p = ids, log_p.clamp_min(MIN_LOG_P)
        self.sketch_p, self.sketch_log_p = sketch_p.double(), sketch_log_p.double()
        self.mean = mean.double()[:, None]
        self._buckets, self._signs = class_places(ids, key, outputs.classes)
        assert outputs.top is not None
        self._apart = torch.arange(ids.shape[1]) < outputs.top.shape[1]  # from the sketches

    def leave_out(self, shared: tuple[Tensor, Tensor]) -> None:
        """Make the sketches those of all classes but the shared ones, which have `rest`."""
        there = shared[0].double()
        p, weight = self.log_p.exp(), self._signs * (self._apart.double() - there)
        self.sketch_p.scatter_add_(1, self._buckets, weight * p)
        self.sketch_log_p.scatter_add_(1, self._buckets, weight * (self.log_p - self.mean))
        self.rest = (1 - (there * p).sum(1)).clamp_min(0)


def _shared_partition(one: Outputs, two: Outputs, rows: slice) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the finest partition that both know: single classes, and groups."""
    group = class_groups(one.classes)
    (ids, log_p), (other_ids, log_q) = (_known_classes(x, rows) for x in (one, two))
    shared, at = _find_classes(ids, other_ids, one.classes)
    q = torch.where(shared, log_q.gather(1, at), -torch.inf)
    p = torch.where(shared, log_p, -torch.inf)
    parts = []
    for single, outputs in ((p, one), (q, two)):
        assert outputs.groups is not None
        taken = torch.zeros(len(ids), outputs.groups.shape[1], dtype=torch.float64)
        taken.scatter_add_(1, torch.where(shared, group[ids.clamp_min(0)], 0), single.exp())
        rest = (outputs.groups[rows].double().exp() - taken).clamp_min(_MIN_REMAINDER)
        parts.append(torch.cat([single, rest.log()], 1))
    return parts[0], parts[1]


def _find_classes(
    ids: Tensor, others: Tensor, classes: int
) -> tuple[Tensor, Tensor]:  # (rows, k1) both
    """Whether each class is among the others of its row, and where."""
    start = torch.arange(len(ids))[:, None] * (classes + 1) + 1  # -1 stands for no class
    sorted_, order = (others + start).sort(1)
    at = torch.searchsorted(sorted_, (ids + start).contiguous()).clamp_max(others.shape[1] - 1)
    found = (sorted_.gather(1, at) == ids + start) & (ids >= 0)
    return found, order.gather(1, at)


def _known_classes(outputs: Outputs, rows: slice) -> tuple[Tensor, Tensor]:  # (rows, k), (rows, k)
    """Classes whose probability is known, each once (-1 for none), and its logarithm."""
    assert outputs.top is not None
    assert outputs.top_log_p is not None
    ids, log_p = outputs.top[rows], outputs.top_log_p[rows].double()
    if outputs.others is None or outputs.others_log_p is None:
        return ids, log_p
    more, of_more = outputs.others[rows], outputs.others_log_p[rows].double()
    again, _ = _find_classes(more, ids, outputs.classes)
    return (
        torch.cat([ids, torch.where(again, -1, more)], 1),
        torch.cat([log_p, torch.where(again, -torch.inf, of_more)], 1),
    )
