"""Agreement of predictions: disagreement, kappa, KL and JS of two networks, and of all pairs.

Predictions are compared sample by sample, so both networks must have the same classes and must have
been recorded on the same samples. Up to 1,024 classes everything is exact. Beyond, KL is an
unbiased estimate, and JS is known between two bounds (`output_divergences`). Multi-label networks
disagree on a sample if any label differs, and their divergences are exact sums over labels.

`behaviour` compares two networks, `behaviour_matrix` all pairs of many, where single-label and
multi-label networks are compared among their own kind. Of many, disagreement costs almost nothing;
the divergence reads every probability of every pair, so it is skipped, with the reason, where it
would take more than about ten seconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._utils.formatting import printable
from ..errors import MismatchError
from ..representation.outputs import CLASS_GROUPS, TOP_CLASSES, Outputs
from ..representation.representation import Representation, RepresentationLike, as_representation
from ..representation.schema import (
    COUNT,
    ONE,
    REAL,
    TABLE,
    TEXT,
    YES_NO,
    list_of,
    optional,
    or_null,
)
from . import jackknife
from .neighbours import EmbeddingBehaviour, embedding_behaviour, embeddings_obstacle
from .output_divergences import Known, log_probabilities, row_divergences
from .pairing import blocks_obstacle, incomplete_message
from .results import Content, Shape, StoredResult, count_samples, join_names

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
                f" Of what either gets wrong, both are wrong in the same way on "
                f"{_percent(self.shared_errors)}."
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
            f"what {a.name!r} and {b.name!r} predict cannot be compared: {why}{advice}"
        )
    assert a.predictions is not None
    assert b.predictions is not None
    return a.predictions, b.predictions


def predictions_obstacle(a: Representation, b: Representation) -> str | None:
    """Why what two networks predict cannot be compared, or None if it can."""

    for rep in (a, b):
        if not rep.complete:
            return incomplete_message(rep)
        if rep.embeddings is not None:
            return f"{rep.name!r} returns embeddings, which have neighbours and no predictions"
        if rep.predictions is None:
            if rep.made.logits == "none":
                return (
                    f"{rep.name!r} has none of its outputs, as they were not recognised as "
                    "predictions; record it again and pass `logits`, which says what they are"
                )
            return (
                f"{rep.name!r} has none of its outputs: its file is from before they were kept, or "
                "it was recorded without them, or its outputs are no logits of one prediction a "
                "sample; record it again"
            )
        if (bad := rep.predictions.undefined) > 0:
            return (
                f"{rep.name!r} predicted NaN for {bad:,} of {rep.predictions.rows:,} samples; "
                "repair the model and record it again"
            )
    p, q = a.predictions, b.predictions
    assert p is not None
    assert q is not None
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


# -- all pairs of many networks ------------------------------------------------------------------

_MAX_COST = 10**9  # probabilities to be read for js, about ten seconds
_PARTITION_COST = 4  # times as long to read
_AT_ONCE = 2**22  # probabilities in memory
_TABLES = ("disagreement", "disagreement_stderr", "js", "js_stderr")


@dataclass(frozen=True, eq=False)
class BehaviourMatrix(Content):
    """How differently networks predict, pair by pair; NaN for pairs that cannot be compared.

    Numbers are those of `behaviour`, and so are their standard errors.
    """

    models: tuple[str, ...]
    classes: tuple[int | None, ...]  # or labels, of each model; None: its outputs are not known
    samples: int  # or tokens
    sequences: int | None  # where samples are tokens
    disagreement: np.ndarray  # (models, models) share of samples whose likeliest classes differ
    disagreement_stderr: np.ndarray
    js: np.ndarray  # Jensen-Shannon divergence in nats, mean over samples
    js_stderr: np.ndarray
    lower_bounds: bool  # js of more than 1,024 classes lies below the true one
    js_missing: str | None = None  # why js was not computed
    multi_label: tuple[bool, ...] = ()  # of each model; empty if none is

    _rules: ClassVar = {
        "models": list_of(TEXT, 2),
        "classes": list_of(or_null(ONE)),
        "samples": COUNT,
        "sequences": or_null(COUNT),
        **dict.fromkeys(_TABLES, TABLE),
        "lower_bounds": YES_NO,
        "js_missing": or_null(TEXT),
        "multi_label": optional(list_of(YES_NO)),
    }

    def why_not(self, i: int, j: int) -> str | None:
        """Why the predictions of two networks cannot be compared, or None if they can."""
        one, two = self._predicts(i), self._predicts(j)
        if one is None or two is None:
            return f"{self.models[i if one is None else j]!r} has none of its outputs"
        if one == two:
            return None
        if one.split()[1] == two.split()[1]:
            one = one.split()[0]  # "5 and 7 classes"
        return f"they have {one} and {two}"

    def _predicts(self, at: int) -> str | None:
        """How many classes or labels a network predicts, in words; None if that is not known."""
        number = self.classes[at]
        what = "labels" if self.multi_label and self.multi_label[at] else "classes"
        return None if number is None else f"{number:,} {what}"

    @property
    def missing(self) -> tuple[str, ...]:
        """What keeps predictions from being compared, in sentences; empty if all were."""
        out = []
        by_kind: dict[str | None, list[str]] = {}
        for at, name in enumerate(self.models):
            by_kind.setdefault(self._predicts(at), []).append(name)
        if without := by_kind.pop(None, []):
            out.append(
                f"No predictions are known of {join_names(without)}: outputs are "
                "stored where a sample has one prediction, and not in files from before they were "
                "stored. Record those networks again; embeddings are compared by `behaviour`, two "
                "networks at a time."
            )
        if len(by_kind) > 1:
            kinds = (f"{kind} ({join_names(names)})" for kind, names in by_kind.items())
            out.append(
                f"Predictions are compared among networks of as many classes: {'; '.join(kinds)}."
            )
        if self.js_missing is not None:
            out.append(self.js_missing)
        return tuple(out)

    @classmethod
    def _shapes(cls, content: Mapping[str, Any]) -> Mapping[str, Shape]:
        number, kinds = len(content["models"]), content.get("multi_label") or ()
        if len(content["classes"]) != number or len(kinds) not in (0, number):
            raise ValueError(f"classes must be of {number} models")
        return dict.fromkeys(_TABLES, (number, number))


def check_models(content: Mapping[str, Any]) -> None:
    """Raise a ValueError if the `behaviour` in a file is that of other models."""
    if (content["behaviour"] or content).get("models") != content["models"]:
        raise ValueError("behaviour must be of the same models")


def behaviour_matrix(reps: Sequence[Representation]) -> BehaviourMatrix:
    """What networks that were recorded on the same samples predict, every one against the others.

    Cost: R² · samples comparisons for disagreement, and as many times classes for js, which is left
    out where that exceeds 10⁹, or a quarter of it for probabilities of groups of classes.
    """
    number, part = len(reps), jackknife_parts(reps[0])
    known = [rep.predictions for rep in reps]
    groups: dict[tuple[int, bool], dict[int, Outputs]] = {}  # networks of one kind, by position
    for i, x in enumerate(known):
        if x is not None:
            groups.setdefault((x.classes, x.multi_label), {})[i] = x
    tables = {key: np.full((number, number), np.nan) for key in _TABLES}
    cost = sum(_js_cost(list(group.values())) for group in groups.values())
    js_missing = None
    if cost > _MAX_COST:
        js_missing = (
            f"The divergence of predictions was left out: {cost:.1g} probabilities would be read "
            f"for it, more than {_MAX_COST:.0g}; `behaviour` has it for any two."
        )
    exact = True
    for group in groups.values():
        at, outputs = np.ix_([*group], [*group]), list(group.values())
        tables["disagreement"][at], tables["disagreement_stderr"][at] = _disagreement_matrix(
            outputs, part
        )
        if js_missing is None:
            tables["js"][at], tables["js_stderr"][at] = _js_matrix(outputs, part)
            exact &= len(group) < 2 or all(x.top is None for x in outputs)
    tokens = reps[0].settings.tokens_of_each
    multi_label = tuple(x is not None and x.multi_label for x in known)
    return BehaviourMatrix(
        models=tuple(rep.name for rep in reps),
        classes=tuple(None if x is None else x.classes for x in known),
        samples=len(part),
        sequences=None if tokens is None else len(part) // tokens,
        lower_bounds=not exact,
        js_missing=js_missing,
        multi_label=multi_label if any(multi_label) else (),
        **tables,
    )


def _js_cost(outputs: Sequence[Outputs]) -> int:
    """How many probabilities js reads, or so many as would take as long."""
    first, each = outputs[0], _PARTITION_COST * (2 * TOP_CLASSES + CLASS_GROUPS)
    if first.top is None:
        each = first.classes * (2 if first.multi_label else 1)
    return math.comb(len(outputs), 2) * first.rows * each


def _disagreement_matrix(outputs: Sequence[Outputs], part: Tensor) -> np.ndarray:
    """The share of rows predicted differently and its standard error, of all pairs."""
    order = part.argsort(stable=True)
    ids = torch.stack([x.prediction[order] for x in outputs])
    if outputs[0].multi_label:  # ids of sets of labels, which take 64 bits
        ids = torch.unique(ids, return_inverse=True)[1]
    predicted = ids.to(torch.int32).numpy()
    starts = np.searchsorted(part[order].numpy(), np.arange(int(part.max()) + 1))
    sums = (
        torch.from_numpy(np.add.reduceat(predicted[i:] != mine, starts, axis=1, dtype=np.float64))
        for i, mine in enumerate(predicted)
    )
    return _means_with_errors(sums, part, len(outputs))


def _js_matrix(outputs: Sequence[Outputs], part: Tensor) -> np.ndarray:
    """The mean Jensen-Shannon divergence and its standard error, of all pairs."""
    number = len(outputs)
    total = torch.zeros(number, number, int(part.max()) + 1, dtype=torch.float64)
    if all(x.top is None for x in outputs):
        step = max(1, _AT_ONCE // (number * outputs[0].classes))
        for start in range(0, len(part), step):
            rows = slice(start, start + step)
            p = torch.stack([log_probabilities(x, rows).exp() for x in outputs])
            _add_js(total, p, part[rows])
    else:
        for i, j in itertools.combinations(range(number), 2):
            found = row_divergences(outputs[i], outputs[j], estimate=False)
            total[i, j].index_add_(0, part, found.js)
    return _means_with_errors((x[i:] for i, x in enumerate(total)), part, number)


def _add_js(total: Tensor, p: Tensor, part: Tensor) -> None:  # (R, R, parts), (R, rows, k), (rows,)
    """Add the divergences of rows to their parts: the entropy of the mean less that of each."""
    own = torch.special.entr(p).sum(-1)
    for i in range(len(p) - 1):
        both = torch.special.entr((p[i] + p[i + 1 :]) / 2).sum(-1)
        js = (both - (own[i] + own[i + 1 :]) / 2).clamp_min(0)
        total[i, i + 1 :].index_add_(1, part, js)


def _means_with_errors(sums: Iterable[Tensor], part: Tensor, number: int) -> np.ndarray:
    """Symmetric matrices (2, R, R) of means over rows and of their jackknife errors over parts.

    Sums come row by row of the matrix, from its diagonal on: over each part, (R - i, parts).
    """
    rows, out = part.bincount()[:, None], np.empty((2, number, number))
    for i, each in enumerate(sums):
        whole = each.sum(1)
        rest = (whole - each.T) / (len(part) - rows)  # of a single part nothing: NaN
        both = torch.stack([whole / len(part), jackknife.jackknife_error(rest)]).numpy()
        out[:, i, i:] = out[:, i:, i] = both
    return out
