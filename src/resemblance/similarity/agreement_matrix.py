"""Agreement of predictions of all pairs of many networks (`behaviour_matrix`).

Single-label and multi-label networks are compared among their own kind. Disagreement costs almost
nothing. The divergence reads every probability of every pair, so it is skipped, with the reason,
where it would take more than about ten seconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from .._utils.formatting import join_names
from ..representation.outputs import CLASS_GROUPS, TOP_CLASSES, Outputs
from ..representation.representation import Representation
from ..representation.schema import (
    COUNT,
    ONE,
    TABLE,
    TEXT,
    YES_NO,
    list_of,
    optional,
    or_null,
)
from .agreement import jackknife_parts, log_probabilities, row_divergences
from .jackknife import jackknife_error
from .results import Content, Shape

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
            return f"{self.models[i if one is None else j]!r} has no outputs"
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
                f"No predictions are stored for {join_names(without)}: their recordings are from "
                "an older version, or their outputs are not one prediction per sample. Record "
                "those networks again; use `behaviour` to compare the embeddings of two networks."
            )
        if len(by_kind) > 1:
            kinds = (f"{kind} ({join_names(names)})" for kind, names in by_kind.items())
            out.append(
                "Predictions are compared between networks with the same number of classes: "
                f"{'; '.join(kinds)}."
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
            f"The divergence of predictions was skipped: it would read {cost:.1g} probabilities "
            f"(limit: {_MAX_COST:.0g}). Use `behaviour` for two networks."
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
        both = torch.stack([whole / len(part), jackknife_error(rest)]).numpy()
        out[:, i, i:] = out[:, i:, i] = both
    return out
