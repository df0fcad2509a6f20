"""What many networks predict, every one against every other, in one go.

The same numbers as `behaviour` has for two: how often predictions differ, and their Jensen-Shannon
divergence. The first costs next to nothing. The second reads every probability of every pair, so it
is computed up to a cost of a few seconds, and else left out, with a word on why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._by_content import by_content
from .._shown_text import shown
from ..representation.outputs import GROUPS, TOP, Outputs
from ..representation.representation import Representation
from ..representation.schema import COUNT, ONE, TABLE, TEXT, YES_NO, check_part, list_of, or_null
from .result_files import plain, table
from .same_predictions import divergences, parts

_MOST = 10**9  # probabilities to be read for js, about ten seconds
_OF_PARTITIONS = 4  # times as long to read
_AT_ONCE = 2**22  # probabilities in memory
_NAMED = 8  # networks that a reason names
_TABLES = ("disagreement", "disagreement_stderr", "js", "js_stderr")
_RULES = {
    "models": list_of(TEXT, 2),
    "classes": list_of(or_null(ONE)),
    "samples": COUNT,
    "sequences": or_null(COUNT),
    **dict.fromkeys(_TABLES, TABLE),
    "lower_bounds": YES_NO,
    "js_missing": or_null(TEXT),
}


@by_content
@dataclass(frozen=True, eq=False)
class BehaviourOfAll:
    """How differently networks predict, pair by pair; NaN for pairs that cannot be compared.

    Numbers are those of `behaviour`, and so are their standard errors.
    """

    models: tuple[str, ...]
    classes: tuple[int | None, ...]  # of each model; None: its outputs are not known
    samples: int  # or tokens
    sequences: int | None  # where samples are tokens
    disagreement: np.ndarray  # (models, models) share of samples whose likeliest classes differ
    disagreement_stderr: np.ndarray
    js: np.ndarray  # Jensen-Shannon divergence in nats, mean over samples
    js_stderr: np.ndarray
    lower_bounds: bool  # js of more than 1,024 classes lies below the true one
    js_missing: str | None = None  # why js was not computed

    def why_not(self, i: int, j: int) -> str | None:
        """Why the predictions of two networks cannot be compared, or None if they can."""
        for at in (i, j):
            if self.classes[at] is None:
                return f"{self.models[at]!r} has none of its outputs"
        if self.classes[i] != self.classes[j]:
            return f"they have {self.classes[i]:,} and {self.classes[j]:,} classes"
        return None

    @property
    def missing(self) -> tuple[str, ...]:
        """What keeps predictions from being compared, in sentences; empty if all were."""
        out = []
        of_classes: dict[int | None, list[str]] = {}
        for name, classes in zip(self.models, self.classes, strict=True):
            of_classes.setdefault(classes, []).append(name)
        if without := of_classes.pop(None, None):
            out.append(
                f"No predictions are known of {_listed(without)}: outputs are kept where they are "
                "logits of one prediction a sample, and not in files from before they were; record "
                "those again."
            )
        if len(of_classes) > 1:
            kinds = (f"{n:,} classes ({_listed(of_classes[n])})" for n in of_classes if n)
            out.append(
                f"Predictions are compared among networks of as many classes: {'; '.join(kinds)}."
            )
        if self.js_missing is not None:
            out.append(self.js_missing)
        return tuple(out)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> BehaviourOfAll:
        """From what `to_dict` gives, or a FormatError that names what is wrong with it."""
        check_part("behaviour", content, _RULES)
        values = {key: content[key] for key in _RULES}
        number = len(values["models"])
        if len(values["classes"]) != number:
            raise ValueError(f"classes must be of {number} models")
        shaped = {key: table(values[key], (number, number)) for key in _TABLES}
        named = {key: tuple(values[key]) for key in ("models", "classes")}
        return cls(**{**values, **shaped, **named})

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; NaN becomes None."""
        return {key: plain(getattr(self, key)) for key in _RULES}


def behaviour_of_all(reps: Sequence[Representation]) -> BehaviourOfAll:
    """What networks that were recorded on the same samples predict, every one against the others.

    Cost: R² · samples comparisons for disagreement, and as many times classes for js, which is left
    out where that exceeds 10⁹, or a quarter of it for probabilities of groups of classes.
    """
    number, part = len(reps), parts(reps[0])
    known = [rep.outputs for rep in reps]
    classes = tuple(None if x is None else x.classes for x in known)
    tables = {key: np.full((number, number), np.nan) for key in _TABLES}
    groups = [
        [i for i, other in enumerate(classes) if other == n]
        for n in dict.fromkeys(classes)
        if n is not None
    ]
    cost = sum(_cost([x for i in at if (x := known[i])]) for at in groups)
    exact = True
    for at in groups:
        outputs = [x for i in at if (x := known[i]) is not None]
        found = {"disagreement": _disagreement(outputs, part)}
        if cost <= _MOST:
            found["js"] = _js(outputs, part)
            exact &= len(at) < 2 or all(x.every is not None for x in outputs)
        for key, (value, error) in found.items():
            tables[key][np.ix_(at, at)] = value
            tables[f"{key}_stderr"][np.ix_(at, at)] = error
    tokens = reps[0].settings.tokens_of_each
    rows = len(part)
    return BehaviourOfAll(
        models=tuple(rep.name for rep in reps),
        classes=classes,
        samples=rows,
        sequences=None if tokens is None else rows // tokens,
        lower_bounds=not exact,
        js_missing=None if cost <= _MOST else _too_much(cost),
        **tables,
    )


def _cost(outputs: Sequence[Outputs]) -> int:
    """How many probabilities js reads, or so many as would take as long."""
    pairs = len(outputs) * (len(outputs) - 1) // 2
    first = outputs[0]
    each = first.classes if first.every is not None else _OF_PARTITIONS * (2 * TOP + GROUPS)
    return pairs * first.rows * each


def _too_much(cost: int) -> str:
    return (
        f"The divergence of predictions was left out: {cost:.1g} probabilities would be read for "
        f"it, more than {_MOST:.0g}; `behaviour` has it for any two."
    )


def _disagreement(outputs: Sequence[Outputs], part: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The share of rows that are predicted otherwise, and its standard error, of all pairs."""
    order = part.argsort(stable=True)
    predicted = np.stack([x.prediction[order].to(torch.int32).numpy() for x in outputs])
    rows = np.bincount(part.numpy())
    starts = np.concatenate([[0], np.cumsum(rows)[:-1]])

    def sums() -> Iterator[np.ndarray]:
        for i, mine in enumerate(predicted):
            yield np.add.reduceat(predicted[i:] != mine, starts, axis=1, dtype=np.int64)

    return _means(sums(), rows)


def _js(outputs: Sequence[Outputs], part: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The mean Jensen-Shannon divergence and its standard error, of all pairs."""
    number, rows = len(outputs), np.bincount(part.numpy())
    total = torch.zeros(number, number, len(rows), dtype=torch.float64)
    if all(x.every is not None for x in outputs):
        step = max(1, _AT_ONCE // (number * outputs[0].classes))
        for start in range(0, len(part), step):
            which = slice(start, start + step)
            p = torch.stack([x.every[which] for x in outputs if x.every is not None])
            _add_js(total, p.double().exp_(), part[which])
    else:
        for i, one in enumerate(outputs):
            for j, two in enumerate(outputs[i + 1 :], i + 1):
                total[i, j].index_add_(0, part, divergences(one, two)[1])
    return _means((x[i:].numpy() for i, x in enumerate(total)), rows)


def _add_js(total: Tensor, p: Tensor, part: Tensor) -> None:  # (R, R, parts), (R, rows, k), (rows,)
    """Add the divergences of rows to their parts: the entropy of the mean less that of each."""
    own = torch.special.entr(p).sum(-1)
    for i in range(len(p) - 1):
        both = torch.special.entr((p[i] + p[i + 1 :]) / 2).sum(-1)
        js = (both - (own[i] + own[i + 1 :]) / 2).clamp_min(0)
        total[i, i + 1 :].index_add_(1, part, js)


def _means(sums: Iterator[np.ndarray], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means over rows and the jackknife over parts, of sums over parts (R - i, parts) of each i."""
    values, errors = [], []
    for each in sums:
        whole = each.sum(1, keepdims=True)
        values.append(whole[:, 0] / rows.sum())
        if len(rows) < 2:
            errors.append(np.full(len(each), np.nan))
            continue
        rest = (whole - each) / (rows.sum() - rows)
        spread = ((rest - rest.mean(1, keepdims=True)) ** 2).sum(1)
        errors.append(np.sqrt(spread * (len(rows) - 1) / len(rows)))
    return _mirrored(values), _mirrored(errors)


def _mirrored(of_rows: Sequence[np.ndarray]) -> np.ndarray:  # each (R - i,) -> (R, R)
    out = np.empty((len(of_rows), len(of_rows)))
    for i, row in enumerate(of_rows):
        out[i, i:] = out[i:, i] = row
    return out


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(shown, names[:_NAMED])) + more
