"""`behaviour`: whether two networks predict the same, from what their files keep of their outputs.

Predictions are compared sample by sample, so both networks must have the same classes and have seen
the same samples. Up to 1,024 classes everything is exact. Beyond, files keep the likeliest classes
and the probability of groups of the others: divergences are then those of the finest partition of
the classes that both files know, which lie below the true ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._by_content import by_content
from .._shown_text import shown
from ..errors import MismatchError
from ..representation.as_given import Given, recording
from ..representation.outputs import Outputs, group_of
from ..representation.representation import Representation
from ..representation.schema import (
    COUNT,
    ONE,
    REAL,
    TEXT,
    YES_NO,
    check_part,
    list_of,
    or_null,
)
from . import error_bars

_PARTS = 100  # of samples, or of sequences, left out in turn
_ROWS = 1024  # compared at a time
_FLOOR = 1e-9  # of a probability that is left over, below which it is round-off


_NAMES = ("disagreement", "js", "kl", "agreement_beyond_chance", "shared_errors")
_NUMBERS = (*_NAMES, *(f"{name}_stderr" for name in _NAMES))
_OPTIONAL = ("shared_errors", "shared_errors_stderr")
_RULES = {
    "models": list_of(TEXT, 2, 2),
    "samples": COUNT,
    "sequences": or_null(COUNT),
    "classes": ONE,
    "lower_bounds": YES_NO,
    **{name: or_null(REAL) for name in _NUMBERS},
}


@by_content
@dataclass(frozen=True, eq=False)
class Behaviour:
    """How differently two networks predict, each number with its standard error.

    Errors are those of other samples of the same source: groups of samples are left out in turn, of
    tokens whole sequences.
    """

    models: tuple[str, str]
    samples: int  # or tokens
    sequences: int | None  # where samples are tokens
    classes: int
    disagreement: float  # the share of samples on which the most likely classes differ
    disagreement_stderr: float
    js: float  # the Jensen-Shannon divergence of the predictions, in nats, mean over samples
    js_stderr: float
    kl: float  # KL(a‖b), in nats, mean over samples
    kl_stderr: float
    agreement_beyond_chance: float  # Cohen's kappa: 1 for the same predictions, 0 for unrelated
    agreement_beyond_chance_stderr: float
    shared_errors: float | None  # of the samples that either gets wrong, those on which both are
    shared_errors_stderr: float | None  # wrong in the same way; None where labels are not known
    lower_bounds: bool  # js and kl lie below the true ones

    def summary(self) -> str:
        """The numbers in a sentence or two."""
        one, two = map(shown, self.models)
        what = f"{self.samples:,} samples"
        if self.sequences is not None:
            what = f"{self.samples:,} tokens of {self.sequences:,} sequences"
        least = "at least " if self.lower_bounds else ""
        out = (
            f"{one} and {two} predict another class for {_percent(self.disagreement)} ± "
            f"{_percent(self.disagreement_stderr)} of {what}; KL {least}{_few(self.kl)} ± "
            f"{_few(self.kl_stderr)}, JS {least}{_few(self.js)} ± {_few(self.js_stderr)} nats."
        )
        if self.shared_errors is not None:
            out += (
                f" Of what either gets wrong, both are wrong in the same way on "
                f"{_percent(self.shared_errors)}."
            )
        return out

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Behaviour:
        """From what `to_dict` gives, or a FormatError that names what is wrong with it."""
        check_part("behaviour", content, _RULES)
        values = {field.name: content[field.name] for field in fields(cls)}
        for name in _NUMBERS:
            if values[name] is None and name not in _OPTIONAL:
                values[name] = float("nan")
        return cls(**{**values, "models": tuple(values["models"])})

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings; NaN becomes None."""
        found = {
            key: None if isinstance(x, float) and not np.isfinite(x) else x
            for key, x in asdict(self).items()
        }
        return {**found, "models": list(self.models)}


def behaviour(a: Given, b: Given) -> Behaviour:
    """How differently two networks predict on the samples that both were recorded on.

    `disagreement` is exact always. `kl` is KL(a‖b) and `js` symmetric; beyond 1,024 classes both
    are lower bounds, the better if b was recorded with `outputs_of=a`.

    >>> import torch, resemblance as rs
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> rep = rs.record(net, torch.randn(64, 4))
    >>> rs.behaviour(rep, rep).disagreement
    0.0
    """
    a, b = recording(a), recording(b)
    if (why := obstacle(a, b)) is not None:
        raise MismatchError(f"what {a.name!r} and {b.name!r} predict cannot be compared: {why}")
    one, two = a.outputs, b.outputs
    assert one is not None
    assert two is not None
    p, q = one.prediction, two.prediction
    kl, js, exact = divergences(one, two)
    labels = one.labels if one.labels is not None else two.labels
    known = labels is not None and bool((labels >= 0).any())
    value, error = _with_errors(_sums(p, q, js, kl, labels, parts(a)))
    numbers: dict[str, Any] = {}
    for name, x, e in zip(_NAMES, value, error, strict=True):
        there = known or name != "shared_errors"
        numbers |= {name: x if there else None, f"{name}_stderr": e if there else None}
    tokens = a.settings.tokens_of_each
    return Behaviour(
        models=(a.name, b.name),
        samples=len(p),
        sequences=None if tokens is None else len(p) // tokens,
        classes=one.classes,
        **numbers,
        lower_bounds=not exact,
    )


def obstacle(a: Representation, b: Representation) -> str | None:
    """Why what two networks predict cannot be compared, or None if it can."""
    from .two_networks import no_blocks

    for rep in (a, b):
        if rep.outputs is None:
            return (
                f"{rep.name!r} has none of its outputs: its file is from before they were kept, or "
                "it was recorded without them, or its outputs are no logits of one prediction a "
                "sample; record it again"
            )
    assert a.outputs is not None
    assert b.outputs is not None
    if a.outputs.classes != b.outputs.classes:
        return f"they have {a.outputs.classes:,} and {b.outputs.classes:,} classes"
    return no_blocks(a, b)


class _Sums(NamedTuple):
    """What the numbers are made of, added up over the rows of a part, or of all."""

    rows: Tensor  # (...,)
    means: Tensor  # (..., 3): Σ of whether they differ, of js and of kl
    first: Tensor  # (..., k): how often each class is predicted, by the one and by the other
    second: Tensor
    wrong: Tensor  # (...,): rows that either gets wrong
    both: Tensor  # (...,): and both in the same way

    def numbers(self) -> Tensor:  # (..., 5), in the order of `_NAMES`
        means = self.means / self.rows[..., None]
        chance = (self.first * self.second).sum(-1) / self.rows**2
        kappa = torch.where(chance < 1, (1 - means[..., 0] - chance) / (1 - chance), 1.0)
        shared = self.both / self.wrong.clamp_min(1)
        return torch.cat([means, kappa[..., None], shared[..., None]], -1)


def _sums(
    p: Tensor, q: Tensor, js: Tensor, kl: Tensor, labels: Tensor | None, parts: Tensor
) -> _Sums:
    """Over the rows of each part."""
    count = int(parts.max()) + 1
    classes, both = torch.unique(torch.cat([p, q]), return_inverse=True)
    wrong = torch.zeros(len(p), dtype=torch.bool)
    if labels is not None:
        wrong = ((p != labels) | (q != labels)) & (labels >= 0)
    each = torch.stack([p != q, js, kl, torch.ones_like(js), wrong, wrong & (p == q)], 1).double()
    sums = torch.zeros(count, 6, dtype=torch.float64).index_add_(0, parts, each)
    predicted = [
        torch.zeros(count, len(classes), dtype=torch.float64).index_put_(
            (parts, which), torch.ones((), dtype=torch.float64), accumulate=True
        )
        for which in both.split(len(p))
    ]
    return _Sums(sums[:, 3], sums[:, :3], predicted[0], predicted[1], sums[:, 4], sums[:, 5])


def _with_errors(parts: _Sums) -> tuple[list[float], list[float]]:
    """Numbers of all rows, and their standard errors: a jackknife over parts."""
    total = _Sums(*(x.sum(0) for x in parts))
    value = total.numbers().tolist()
    if len(parts.rows) < 2:
        return value, [float("nan")] * len(value)
    rest = _Sums(*(whole - part for whole, part in zip(total, parts, strict=True)))
    return value, error_bars.jackknife(rest.numbers()).tolist()


def parts(rep: Representation) -> Tensor:  # (rows,)
    """The part that each row of the blocks is left out with: a token, with its sequence."""
    tokens, start, out = rep.settings.tokens, 0, []
    for n in rep.block_sizes[::tokens]:
        out += [torch.arange(start, start + n)] * tokens
        start += n
    return torch.cat(out) * min(_PARTS, start) // start


def divergences(one: Outputs, two: Outputs) -> tuple[Tensor, Tensor, bool]:  # (rows,), (rows,)
    """KL(one‖two) and JS of each row, and whether they are exact."""
    exact = one.every is not None and two.every is not None
    found = []
    for start in range(0, one.rows, _ROWS):
        rows = slice(start, start + _ROWS)
        if one.every is not None and two.every is not None:
            log_p, log_q = one.every[rows].double(), two.every[rows].double()
        else:
            log_p, log_q = _partition(one, two, rows)
        log_m = torch.logaddexp(log_p, log_q) - np.log(2)
        kl, left, right = (_kl(x, y) for x, y in ((log_p, log_q), (log_p, log_m), (log_q, log_m)))
        found.append((kl, (left + right) / 2))
    kl, js = (torch.cat(x) for x in zip(*found, strict=True))
    return kl, js, exact


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:  # (rows, k) -> (rows,)
    each = log_p.exp() * (log_p - log_q)
    return torch.where(log_p.isneginf(), 0.0, each).sum(1).clamp_min(0)


def _partition(one: Outputs, two: Outputs, rows: slice) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the finest partition that both know: single classes, and groups."""
    group = group_of(one.classes)
    (ids, log_p), (other_ids, log_q) = (_known(x, rows) for x in (one, two))
    shared, at = _where(ids, other_ids, one.classes)
    q = torch.where(shared, log_q.gather(1, at), -torch.inf)
    p = torch.where(shared, log_p, -torch.inf)
    parts = []
    for single, outputs in ((p, one), (q, two)):
        assert outputs.groups is not None
        taken = torch.zeros(len(ids), outputs.groups.shape[1], dtype=torch.float64)
        taken.scatter_add_(1, torch.where(shared, group[ids.clamp_min(0)], 0), single.exp())
        rest = (outputs.groups[rows].double().exp() - taken).clamp_min(_FLOOR)
        parts.append(torch.cat([single, rest.log()], 1))
    return parts[0], parts[1]


def _where(ids: Tensor, others: Tensor, classes: int) -> tuple[Tensor, Tensor]:  # (rows, k1) both
    """Whether each class is among the others of its row, and where."""
    start = torch.arange(len(ids))[:, None] * (classes + 1) + 1  # -1 stands for no class
    sorted_, order = (others + start).sort(1)
    at = torch.searchsorted(sorted_, (ids + start).contiguous()).clamp_max(others.shape[1] - 1)
    found = (sorted_.gather(1, at) == ids + start) & (ids >= 0)
    return found, order.gather(1, at)


def _known(outputs: Outputs, rows: slice) -> tuple[Tensor, Tensor]:  # (rows, k), (rows, k)
    """Classes whose probability is known, each once (-1 for none), and its logarithm."""
    assert outputs.top is not None
    assert outputs.top_log_p is not None
    ids, log_p = outputs.top[rows], outputs.top_log_p[rows].double()
    if outputs.others is None or outputs.others_log_p is None:
        return ids, log_p
    more, of_more = outputs.others[rows], outputs.others_log_p[rows].double()
    again, _ = _where(more, ids, outputs.classes)
    return (
        torch.cat([ids, torch.where(again, -1, more)], 1),
        torch.cat([log_p, torch.where(again, -torch.inf, of_more)], 1),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.{2 if share < 0.995 else 3}g} %"  # not 1e+02


def _few(x: float) -> str:
    return f"{x:.2g}"
