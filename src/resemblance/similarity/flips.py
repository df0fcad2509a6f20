"""Flips: the samples that two networks classify differently, and how much each changed.

A flip is a near-tie if each network gave the other's class almost the probability of its own (less
than 0.1 apart); such samples change class under any perturbation. Of a multi-label network a flip
is one label of one sample.
"""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._utils.atomic_files import write_atomically
from .._utils.formatting import printable
from ..errors import DataError
from ..representation.outputs import Outputs
from ..representation.representation import Representation, RepresentationLike, as_representation
from .agreement import comparable_outputs, kl_quantiles, row_divergences
from .results import Result, count_samples

NEAR_TIE = 0.1  # between the probabilities of the two classes
_COLUMNS = (
    "index", "position", "class_a", "class_b", "name_a", "name_b", "label", "confidence_a",
    "confidence_b", "margin_a", "margin_b", "kl",
)  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Flips(Result):
    """The samples that two networks classify differently, the largest KL divergence first.

    `to_frame` has one row for each flip: index, position, class_a, class_b, name_a, name_b, label,
    confidence_a, confidence_b, margin_a, margin_b, kl and near_tie.

    Attributes:
        models: names of the two networks.
        samples: number of samples, or of tokens, that were compared.
        index: number of each sample in the data (of each sequence, for tokens); of streams its
            place in the stream; −1 where it is not known, because samples were skipped or have
            keys.
        position: of tokens, their position in the sequence, counted from its first real token; −1
            for samples.
        class_a: the class that the first network predicts; of a multi-label network the label that
            it predicts and the other does not, or −1.
        class_b: the same of the second network.
        name_a: the name of `class_a`; empty where it is not known.
        name_b: the name of `class_b`; empty where it is not known.
        label: the right class, or −1 where it is not known.
        confidence_a: the probability that the first network gives its class; of a multi-label
            network, the label.
        confidence_b: the same of the second network.
        margin_a: by how much the first network gives its own class a higher probability than the
            other's.
        margin_b: the same of the second network.
        kl: KL(a‖b) of the sample in nats; a lower bound beyond 1,024 classes.
        kl_quantiles: median, 90th and 99th percentile and maximum of KL(a‖b) over all samples; None
            beyond 1,024 classes.
    """

    models: tuple[str, str]
    samples: int
    index: tuple[int, ...]
    position: tuple[int, ...]
    class_a: tuple[int, ...]
    class_b: tuple[int, ...]
    name_a: tuple[str, ...]
    name_b: tuple[str, ...]
    label: tuple[int, ...]
    confidence_a: tuple[float, ...]
    confidence_b: tuple[float, ...]
    margin_a: tuple[float, ...]
    margin_b: tuple[float, ...]
    kl: tuple[float, ...]
    kl_quantiles: tuple[float, ...] | None = None

    _kind = "flips"
    _also = ("near_tie", "directions", "mcnemar")

    @property
    def near_tie(self) -> tuple[bool, ...]:
        """Whether each flip is between classes that both networks find about equally likely."""
        pairs = zip(self.margin_a, self.margin_b, strict=True)
        return tuple(max(a, b) < NEAR_TIE for a, b in pairs)

    @property
    def directions(self) -> dict[str, int]:
        """How many flips with a known right class go which way.

        Returns:
            Numbers of flips that are "right to wrong", "wrong to right" and "wrong to wrong".
        """
        found: Counter[str] = Counter()
        for a, b, label in zip(self.class_a, self.class_b, self.label, strict=True):
            if label >= 0:
                found[f"{_side(a, label)} to {_side(b, label)}"] += 1
        return dict(found)

    @property
    def mcnemar(self) -> float | None:
        """McNemar's exact p-value of whether one network is right more often; None without labels.

        The hypothesis is that a sample which only one network gets right is as likely to be either
        network's.
        """
        from scipy.special import bdtr

        worse = self.directions.get("right to wrong", 0)
        better = self.directions.get("wrong to right", 0)
        if not worse + better:
            return None
        return float(min(1.0, 2 * bdtr(min(worse, better), worse + better, 0.5)))

    def save_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write the table as CSV; the file appears whole or not at all.

        Args:
            path: the file, which is replaced if it exists.

        Returns:
            The path.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        columns = self._columns()
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        return write_atomically(path, text.getvalue().encode())

    def _text(self) -> str:
        return f"{self.models[0]!r}, {self.models[1]!r}, {len(self.index):,} of {self.samples:,}"

    def _sentences(self) -> Iterator[str]:
        one, two = map(printable, self.models)
        near = f"{sum(self.near_tie):,}" if any(self.near_tie) else "none"
        ties = f"; {near} of these are near-ties" if self.index else ""
        yield (
            f"{one} and {two} predict different classes for {len(self.index):,} of "
            f"{count_samples(self.samples, None)}{ties}."
        )
        if directions := self.directions:
            counts = ", ".join(f"{n:,} {name}" for name, n in sorted(directions.items()))
            p = "" if self.mcnemar is None else f" (McNemar's exact test: p = {self.mcnemar:.2g})"
            yield f"With labels: {counts}{p}."

    def _columns(self) -> Mapping[str, Any]:
        return {**{name: getattr(self, name) for name in _COLUMNS}, "near_tie": self.near_tie}


def flips(
    a: RepresentationLike, b: RepresentationLike, *, classes: Sequence[str] | None = None
) -> Flips:
    """The samples that two networks classify differently, with how much each changed.

    Args:
        a: a recording of the first network, or the path of its file.
        b: a recording of the second on the same samples, or the path of its file.
        classes: names of the classes, in order. None takes those in either network's configuration
            (`id2label` of the transformers library), if it has any.

    Returns:
        One row for each flip, the largest KL divergence first.

    Raises:
        DataError: if there are not as many names as classes.
        MismatchError: if a recording holds no outputs, or they cannot be compared.

    Example:
        >>> import torch, resemblance as rs
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> rep = rs.record(net, torch.randn(64, 4))
        >>> len(rs.flips(rep, rep).index)
        0
    """
    a, b = as_representation(a), as_representation(b)
    one, two = comparable_outputs(a, b)
    names = _class_names(a, b, classes)
    kl, *_, known = row_divergences(one, two, estimate=False)
    numbers = {name: torch.from_numpy(x) for name, x in a.sample_numbers().items()}
    index = numbers["index"]
    position = numbers.get("position", torch.full_like(index, -1))
    labels = one.labels if one.labels is not None else two.labels
    if one.label_logits is not None and two.label_logits is not None:
        rows, columns = _label_flips(one.label_logits, two.label_logits, labels)
    else:
        rows = (one.prediction != two.prediction).nonzero().flatten()
        columns = _class_flips(one, two, rows)
        columns["label"] = torch.full_like(rows, -1) if labels is None else labels[rows]
    columns |= {"index": index[rows], "position": position[rows], "kl": kl[rows]}
    order = torch.argsort(columns["kl"], descending=True, stable=True)
    rows_of = {name: tuple(column[order].tolist()) for name, column in columns.items()}
    for network in "ab":
        predicted = rows_of[f"class_{network}"]
        rows_of[f"name_{network}"] = tuple(names[i] if names and i >= 0 else "" for i in predicted)
    return Flips(
        models=(a.name, b.name),
        samples=one.rows,
        kl_quantiles=kl_quantiles(kl) if known == "exact" else None,
        **rows_of,
    )


def _class_names(
    a: Representation, b: Representation, given: Sequence[str] | None
) -> Sequence[str] | None:
    """The names of the classes, or of the labels; None if they are not known."""
    assert a.predictions is not None
    if given is None:
        known = (rep.model.classes for rep in (a, b))
        return next((x for x in known if x is not None and len(x) == a.predictions.classes), None)
    if isinstance(given, str) or len(given) != a.predictions.classes:
        found = repr(given) if isinstance(given, str) else f"{len(given):,}"
        raise DataError(f"`classes` must be {a.predictions.classes:,} names; found {found}")
    return [str(name) for name in given]


def _side(predicted: int, label: int) -> str:
    return "right" if predicted == label else "wrong"


def _class_flips(one: Outputs, two: Outputs, rows: Tensor) -> dict[str, Tensor]:
    classes = one.prediction[rows], two.prediction[rows]
    found = {"class_a": classes[0], "class_b": classes[1]}
    for name, outputs, own, other in (("a", one, *classes), ("b", two, *classes[::-1])):
        p = _probability(outputs, rows, own)
        found |= {f"confidence_{name}": p, f"margin_{name}": p - _probability(outputs, rows, other)}
    return found


def _probability(outputs: Outputs, rows: Tensor, classes: Tensor) -> Tensor:  # (flips,)
    """The probability of a class in each row; 0 if it is not among those that are stored."""
    if outputs.every is not None:
        return outputs.every[rows, classes].double().exp()
    assert outputs.top is not None
    assert outputs.top_log_p is not None
    same = outputs.top[rows] == classes[:, None]
    return torch.where(same, outputs.top_log_p[rows].double().exp(), 0.0).sum(1)


def _label_flips(
    one: Tensor, two: Tensor, labels: Tensor | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Each label of each sample that one of two networks predicts and the other does not.

    The right class is the label if the sample has it; else it is −1, as if labels were not known.
    """
    rows, which = ((one > 0) != (two > 0)).nonzero(as_tuple=True)
    there = torch.zeros_like(rows) if labels is None else labels[rows, which].long()
    found = {"label": torch.where(there > 0, which, -1)}
    for name, logits in (("a", one), ("b", two)):
        z = logits[rows, which].double()
        found[f"class_{name}"] = torch.where(z > 0, which, -1)
        found[f"confidence_{name}"] = z.sigmoid()
        found[f"margin_{name}"] = (2 * z.sigmoid() - 1).abs()
    return rows, found
