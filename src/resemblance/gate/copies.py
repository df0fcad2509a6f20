"""Many copies of one network, a line each: what they predict, how far they drifted, a verdict."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .._utils.formatting import join_names, printable
from ..errors import DataError, MismatchError, ResemblanceWarning, warn
from ..representation.representation import (
    Representation,
    RepresentationLike,
    as_representation,
)
from ..similarity.agreement import Behaviour
from ..similarity.compare import compare
from ..similarity.comparison import FullComparison
from ..similarity.neighbours import EmbeddingBehaviour
from ..similarity.pairing import same_samples
from ..similarity.results import Plotted, Result, count_samples
from .check import check

NOT_COMPARABLE = "not comparable"
_NAN = (math.nan, math.nan)


@dataclass(frozen=True, eq=False, repr=False)
class Copies(Plotted, Result):
    """Copies of one network, those that predict most like it first.

    `to_frame` has one row for each copy: name, disagreement, kl, neighbours, features and
    gradients, each with its `_stderr`, cosine, decibels, layer and verdict. `plot` draws features
    and gradients as bars, beside the share of samples that are predicted differently. What is not
    known is NaN: predictions of copies with different classes, neighbours and cosine of networks
    that return no embeddings, gradients of recordings without them, features and gradients of
    recordings with other layers (as those that hold outputs alone), decibels of networks whose
    units are not those of the base, or are the same in another basis.

    Attributes:
        base: name of the network that they are copies of.
        samples: number of samples, or of tokens.
        sequences: number of sequences; None where samples are not tokens.
        name: names of the copies.
        disagreement: share of samples on which the most likely class differs from the base's.
        disagreement_stderr: standard error of the disagreement.
        kl: KL(base‖copy) in nats, the mean over samples, as `behaviour` has it.
        kl_stderr: standard error of the KL divergence.
        neighbours: share of nearest neighbours in common with the base's embeddings.
        neighbours_stderr: standard error of that share.
        cosine: 1st percentile of the cosine of a sample's embeddings by base and copy.
        features: CKA of centred features, the mean over layers.
        features_stderr: standard error of that mean.
        gradients: CKA of gradients, the mean over layers.
        gradients_stderr: standard error of that mean.
        decibels: signal-to-noise ratio of the features at the layer where it is lowest.
        layer: the layer with the lowest decibels; empty where they are not known.
        verdict: `passed`, `failed`, `undecided`, or `not comparable` where a recording lacks what a
            threshold needs; empty if no threshold was given.
    """

    base: str
    samples: int
    sequences: int | None
    name: tuple[str, ...]
    disagreement: tuple[float, ...]
    disagreement_stderr: tuple[float, ...]
    kl: tuple[float, ...]
    kl_stderr: tuple[float, ...]
    neighbours: tuple[float, ...]
    neighbours_stderr: tuple[float, ...]
    cosine: tuple[float, ...]
    features: tuple[float, ...]
    features_stderr: tuple[float, ...]
    gradients: tuple[float, ...]
    gradients_stderr: tuple[float, ...]
    decibels: tuple[float, ...]
    layer: tuple[str, ...]
    verdict: tuple[str, ...]

    _kind = "copies"

    def _text(self) -> str:
        return f"{self.base!r}, {len(self.name)} copies, {self._count()}"

    def _count(self) -> str:
        return count_samples(self.samples, self.sequences)

    def _sentences(self) -> Iterator[str]:
        yield f"Copies of {printable(self.base)}, on {self._count()}."
        for i, name in enumerate(self.name):
            share, layer = self.disagreement[i], self.layer[i]
            parts = [] if math.isnan(share) else [f"{100 * share:.2g} % of predictions differ"]
            parts += [f"KL {self.kl[i]:.2g} nats"] if not math.isnan(self.kl[i]) else []
            near, cosine = self.neighbours[i], self.cosine[i]
            parts += [] if math.isnan(near) else [f"{100 * near:.3g} % of neighbours in common"]
            parts += (
                [] if math.isnan(cosine) else [f"cosine similarity {cosine:.4f} (1st percentile)"]
            )
            parts += [f"{self.decibels[i]:.1f} dB at {printable(layer)}"] if layer else []
            parts += [self.verdict[i]] if self.verdict[i] else []
            yield f"{printable(name)}: {', '.join(parts) or 'nothing can be compared'}."

    def _columns(self) -> Mapping[str, Any]:
        return {field: getattr(self, field) for field in _COLUMNS}


_COLUMNS = [
    name for name in Copies.__dataclass_fields__ if name not in ("base", "samples", "sequences")
]


def copies(
    base: RepresentationLike, others: Iterable[RepresentationLike], **thresholds: Any
) -> Copies:
    """Compare many copies with the network that they are made from, one row each.

    Args:
        base: a recording of the original network, or the path of its file.
        others: recordings of the copies on the same samples, or their paths.
        thresholds: limits as `check` takes them, for a verdict on each copy.

    Returns:
        The table, the copies that predict most like the base first.

    Raises:
        DataError: if there is no copy, or a threshold is out of its range.
        MismatchError: if a copy was recorded on different samples.

    Example:
        >>> import torch, resemblance as rs
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> rep = rs.record(net, torch.randn(64, 4))
        >>> rs.copies(rep, [rep]).disagreement
        (0.0,)
    """
    base = as_representation(base)
    rows: list[dict[str, Any]] = []
    said: dict[str, list[str]] = {}  # warnings, and the copies that they are about
    for other in others:
        copy = as_representation(other)
        if not same_samples(base, copy):
            which = repr(copy.name) if other is copy else str(other)
            raise MismatchError(
                f"{which} was recorded on different samples than {base.name!r}; omit it, or record "
                "it on the same samples"
            )
        with _warnings_held(copy.name, said):
            rows.append(_row(base, copy, thresholds))
    if not rows:
        raise DataError("no copies to compare: expected at least one recording")
    for text, names in said.items():  # of all copies, it is about the samples or the base
        warn(text if len(names) == len(rows) else f"{join_names(names)}: {text}")
    rows.sort(key=lambda row: [math.inf if math.isnan(x) else x for x in _order(row)])
    tokens = base.settings.tokens_of_each
    samples = base.samples
    return Copies(
        base=base.name,
        samples=samples,
        sequences=None if tokens is None else samples // tokens,
        **{name: tuple(row[name] for row in rows) for name in _COLUMNS},
    )


def _row(
    base: Representation, copy: Representation, thresholds: Mapping[str, Any]
) -> dict[str, Any]:
    compared = compare(base, copy)
    assert isinstance(compared, FullComparison)
    row = {"name": copy.name, **_numbers(compared)}
    try:
        row["verdict"] = check(base, copy, **thresholds).status if thresholds else ""
    except MismatchError:  # as where classes differ: the other copies can be judged
        row["verdict"] = NOT_COMPARABLE
    return row


@contextlib.contextmanager
def _warnings_held(name: str, said: dict[str, list[str]]) -> Iterator[None]:
    """Hold this package's warnings back, to be given once, with the copies they are about."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResemblanceWarning)
        yield
    texts = [str(w.message) for w in caught if issubclass(w.category, ResemblanceWarning)]
    for text in dict.fromkeys(texts):
        said.setdefault(text, []).append(name)
    for other in caught:
        if not issubclass(other.category, ResemblanceWarning):
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)


def _order(row: Mapping[str, Any]) -> tuple[float, ...]:
    return row["disagreement"], row["kl"], -row["neighbours"], -row["decibels"]


def _numbers(compared: FullComparison) -> dict[str, Any]:
    predicted = compared.behaviour if isinstance(compared.behaviour, Behaviour) else None
    embedded = compared.behaviour if predicted is None else None
    assert embedded is None or isinstance(embedded, EmbeddingBehaviour)
    drift = compared.coordinates
    features = gradients = _NAN
    if compared.features.matched_by != "similarity":  # else they are of no counterparts
        features = compared.features.mean()
        gradients = _NAN if compared.gradients is None else compared.gradients.mean()
    known = drift is not None and drift.shared and compared.same_function is None
    worst = int(drift.decibels[0].argmin()) if known and drift is not None else None
    return {
        "disagreement": predicted.disagreement if predicted else math.nan,
        "disagreement_stderr": predicted.disagreement_stderr if predicted else math.nan,
        "kl": predicted.kl if predicted else math.nan,
        "kl_stderr": predicted.kl_stderr if predicted else math.nan,
        "neighbours": embedded.neighbours if embedded else math.nan,
        "neighbours_stderr": embedded.neighbours_stderr if embedded else math.nan,
        "cosine": math.nan if not embedded or embedded.cosine_p01 is None else embedded.cosine_p01,
        "features": features[0],
        "features_stderr": features[1],
        "gradients": gradients[0],
        "gradients_stderr": gradients[1],
        "decibels": math.nan if worst is None else float(drift.decibels[0, worst]),  # type: ignore[union-attr]
        "layer": "" if worst is None else drift.layers[worst],  # type: ignore[union-attr]
    }
