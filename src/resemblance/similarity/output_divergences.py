"""KL and JS divergence of two networks' predictions, row by row, from what files keep.

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

from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .._ops.class_sketch import CLASS_BUCKETS, class_places
from ..representation.outputs import MIN_LOG_P, Outputs, class_groups

_ROWS_AT_ONCE = 1024  # compared at a time
_MIN_REMAINDER = 1e-9  # of a probability that is left over, below which it is round-off


Known = Literal["exact", "estimated", "bounded"]


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
        log_m = torch.logaddexp(log_p, log_q) - np.log(2)
        js = (_mean_log_ratio(log_p, log_m) + _mean_log_ratio(log_q, log_m)) / 2
        if sketched:
            kl = _estimates(one, two, rows)
        else:
            both = _mean_log_ratio(log_p, log_q), _mean_log_ratio(log_q, log_p)
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


def _mean_log_ratio(log_p: Tensor, log_q: Tensor) -> Tensor:  # (rows, k) -> (rows,)
    """Σ p log(p / q); what has no probability adds nothing."""
    each = log_p.exp() * (log_p - log_q)
    return torch.where(log_p.isneginf(), 0.0, each).sum(1)


# -- from sketches ------------------------------------------------------------------------------


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


# -- from partitions ----------------------------------------------------------------------------


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
