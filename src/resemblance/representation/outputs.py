"""Outputs: the predictions stored for the samples of the recorded blocks.

Up to 1,024 classes, every log-probability is stored. Beyond that, each sample stores its 64 most
likely classes, the probability mass of each of 256 groups of classes, and sketches of all other
probabilities and log-probabilities, from which the KL divergence of two networks is estimated
without bias. The groups depend on the class index alone, so they are the same in every file. Files
from before there were sketches have the 32 most likely classes. A multi-label network predicts each
label independently of the others, and the logit of every label is stored.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from .._utils.equality import by_content
from .._utils.hashing import GROUP, LABEL, random_bits, scale_below

TOP_CLASSES, CLASS_GROUPS = 64, 256
TOP_WITHOUT_SKETCH = 32  # most likely classes in files that have no sketches
MIN_LOG_P = -60.0  # nats: smaller log-probabilities are sketched as this
_MAX_EXACT_LABELS = 62  # labels whose sets are numbered exactly; beyond, by a 64-bit hash


@by_content
@dataclass(frozen=True, eq=False)
class Outputs:
    """The predictions stored for the samples of the blocks, as natural log-probabilities.

    Up to 1,024 classes `every` is stored, beyond that `top`, `groups` and sketches, and of
    multi-label networks `label_logits`; the others are None. Sketches are of the classes that are
    not among `top`, with log-probabilities floored at −60; older files have none.

    Attributes:
        classes: number of classes, or of labels of a multi-label network.
        every: log-probability of every class.
        top: the 64 most likely classes of each sample, the most likely first (32 in older files).
        top_log_p: their log-probabilities.
        groups: log-probability of each of 256 groups of classes.
        others: the classes that another network had among its most likely.
        others_log_p: their log-probabilities by this network.
        mean_log_p: mean log-probability over all classes.
        sketch_p: sketch of the probabilities.
        sketch_log_p: sketch of the log-probabilities less their mean.
        sketch_key: the key of each row's signs, from the seed and the index of its sample.
        labels: the true class of each sample, −1 if not known; for multi-label networks 1 or 0 for
            each label.
        label_logits: logit of each label of a multi-label network.
    """

    classes: int
    every: Tensor | None = None  # (rows, classes) float32
    top: Tensor | None = None  # (rows, 64) int64
    top_log_p: Tensor | None = None  # (rows, 64) float32
    groups: Tensor | None = None  # (rows, 256) float32
    others: Tensor | None = None  # (rows, 64) int64
    others_log_p: Tensor | None = None  # (rows, 64) float32
    mean_log_p: Tensor | None = None  # (rows,) float32
    sketch_p: Tensor | None = None  # (rows, 512) float16
    sketch_log_p: Tensor | None = None  # (rows, 512) float16
    sketch_key: Tensor | None = None  # (rows,) int64
    labels: Tensor | None = None  # (rows,) int64; multi-label: (rows, labels) int16
    label_logits: Tensor | None = None  # (rows, labels) float32

    @property
    def multi_label(self) -> bool:
        """Whether labels are predicted independently of each other, instead of one class."""
        return self.label_logits is not None

    @property
    def rows(self) -> int:
        return len(self.first)

    @property
    def first(self) -> Tensor:
        """A tensor with a row for each sample."""
        known = (self.every, self.top, self.label_logits)
        found = next((x for x in known if x is not None), None)
        assert found is not None
        return found

    @functools.cached_property
    def undefined(self) -> int:
        """The number of rows with NaN."""
        floating = (x for x in self.tensors().values() if x.is_floating_point())
        nan = [x.reshape(len(x), -1).isnan().any(1) for x in floating]
        return int(torch.stack(nan).any(0).sum())

    @property
    def largest_js(self) -> float:
        """The largest Jensen-Shannon divergence that a row can have, in nats."""
        return math.log(2) * (self.classes if self.multi_label else 1)

    @property
    def prediction(self) -> Tensor:  # (rows,) int64
        """The most likely class; of a multi-label network an id of the set of predicted labels.

        A label is predicted if its probability exceeds 0.5. Ids are equal if and only if the sets
        are; beyond 62 labels they are 64-bit hashes, so two sets collide with probability 2⁻⁶⁴.
        """
        if self.label_logits is not None:  # a bit, or 64 random bits, of each predicted label
            weights = 2 ** torch.arange(self.classes)
            if self.classes > _MAX_EXACT_LABELS:
                bits = random_bits(0, LABEL, np.arange(self.classes))
                weights = torch.from_numpy(bits.view(np.int64))
            return (self.label_logits > 0).long() @ weights
        if self.every is not None:
            return self.every.argmax(1)
        assert self.top is not None
        return self.top[:, 0]

    def tensors(self) -> dict[str, Tensor]:
        """Those that there are, by name.

        Returns:
            The tensors of the fields that are not None.
        """
        found = ((field.name, getattr(self, field.name)) for field in fields(self)[1:])
        return {name: x for name, x in found if x is not None}


def join_outputs(parts: Sequence[Outputs | None], order: Tensor) -> Outputs | None:
    """Outputs one after the other, their rows in an order; None if some are not known."""
    known = [part for part in parts if part is not None]
    kinds = {(part.classes, part.multi_label) for part in known}
    if not known or len(known) < len(parts) or len(kinds) > 1:
        return None
    names = set.intersection(*(set(part.tensors()) for part in known))
    joined = {name: _concatenate([part.tensors()[name] for part in known]) for name in names}
    in_order = {name: x[order.to(x.device)] for name, x in joined.items()}
    return Outputs(known[0].classes, **in_order)


def _concatenate(parts: Sequence[Tensor]) -> Tensor:
    """Rows one after the other; of files of different versions, as many columns as all have."""
    if parts[0].ndim > 1:
        columns = min(x.shape[1] for x in parts)
        parts = [x[:, :columns] for x in parts]
    return torch.cat([*parts])


def class_groups(classes: int) -> Tensor:  # (classes,) int64
    """The group that each class belongs to, the same in every file."""
    return torch.from_numpy(scale_below(random_bits(0, GROUP, np.arange(classes)), CLASS_GROUPS))
