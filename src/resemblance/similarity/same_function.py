"""Copies that compute the same function in a different basis (`SameFunction`).

A copy may be permuted (its units are in another order, or have another sign), rescaled (its units
are multiplied by numbers that the next layer divides by, as folding norms into weights does), or
rotated (its residual stream is turned, as QuaRot and SliceGPT do), and still predict exactly what
its base predicts. Decibels compare unit with unit and mean nothing there; what stays exact is:

    permuted   CKA of features and of gradients, and of f ∘ g
    rescaled   CKA of f ∘ g, and ⟨f, g⟩ of each sample: where f becomes s f, g becomes g / s
    rotated    CKA of features and of gradients, and ⟨f, g⟩
    both       ⟨f, g⟩

So a layer is recognised by invariants that are equal but for rounding, where the predictions are
equal but for rounding. Networks trained independently predict differently, and their scores lie
below 1 by thousands of times that. Without f ∘ g in the recordings (`elementwise=True`), rescaled
units are recognised by the second and fourth moments of ⟨f, g⟩, which every recording with
gradients has, whether they were rotated as well or not, and permuted units cannot be distinguished
from rotated ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import numpy as np

from .._utils.formatting import join_names
from ..representation.layer import Layer, Products
from ..representation.representation import Representation
from ..representation.schema import REAL, TEXT, list_of, one_of
from .agreement import Behaviour
from .drift import Coordinates, rounding_step
from .results import Content

if TYPE_CHECKING:
    from .comparison import KernelComparison

Basis = Literal[
    "unchanged",
    "permuted",
    "rescaled",
    "rotated",
    "rescaled and rotated",
    "permuted or rotated",
    "undecided",
]
EXACT = ("blocks", "ratio")  # estimators whose scores no basis changes
BASES: tuple[Basis, ...] = get_args(Basis)
_TENSOR_CORE_EPS = 2.0**-10  # of float32 on a GPU, whose matrix units may take it as TF32
_ROUNDINGS = 16  # that add up on the way through a network
_MOVED_ALONE = 100  # times as far as scores, what a basis moves units by
_ALIGNED = 0.9  # cosine of features above which units are where they were
_MOMENTS = 1e-3  # relative difference of moments up to which they are equal
_FINE = 1e-5  # tolerance of float32 on a CPU
_LEAST, _MOST = 1e-6, 1e-3  # tolerance: what files keep, and where other networks may begin


@dataclass(frozen=True)
class SameFunction(Content):
    """Two networks with equal predictions whose layers have another basis.

    Attributes:
        layers: layers of the first network that have a counterpart.
        basis: of each layer: unchanged (its units are where they were), permuted, rescaled,
            rotated, "rescaled and rotated", "permuted or rotated" (where recordings lack f ∘ g), or
            undecided, where no invariant is equal.
        kl: KL divergence of the predictions, in nats.
        tolerance: what rounding is taken to leave of a divergence, or of 1 less a score.
    """

    layers: tuple[str, ...]
    basis: tuple[Basis, ...]
    kl: float
    tolerance: float

    _rules: ClassVar = {
        "layers": list_of(TEXT),
        "basis": list_of(one_of(*BASES)),
        "kl": REAL,
        "tolerance": REAL,
    }

    @property
    def recognised(self) -> bool:
        """Whether every layer is unchanged, or the same in a basis that was recognised."""
        return "undecided" not in self.basis

    @property
    def moved(self) -> tuple[str, ...]:
        """The layers whose units cannot be compared one by one."""
        pairs = zip(self.layers, self.basis, strict=True)
        return tuple(layer for layer, basis in pairs if basis != "unchanged")

    def sentences(self) -> Iterator[str]:
        """What was recognised, and what does not apply because of it."""
        found: dict[Basis, list[str]] = {}
        for layer, basis in zip(self.layers, self.basis, strict=True):
            found.setdefault(basis, []).append(layer)
        known = [
            f"{basis} at {join_names(found[basis])}" for basis in BASES[1:-1] if basis in found
        ]
        equal = f"Predictions are equal up to rounding (KL {max(self.kl, 0):.1g} nats)"
        if known:
            kept = (
                f"; unchanged at {join_names(found['unchanged'])}" if "unchanged" in found else ""
            )
            yield (
                f"{equal}: the same function in a different basis, {'; '.join(known)}{kept}. "
                "SQNR and cosine similarity compare unit by unit, so they do not apply to permuted "
                "or rotated units."
            )
        if any(basis.startswith("rescaled") for basis in found):
            yield (
                "CKA of features and of gradients depends on the scale of units, so it does not "
                "apply to rescaled layers either. CKA of the elementwise kernel f ∘ g does, unless "
                "units were also rotated."
            )
        if "undecided" in found:
            yield (
                f"{'Undecided' if known else f'{equal}, but it is undecided'} whether the copy is "
                f"the same network in a different basis at {join_names(found['undecided'])}: "
                "neither a permutation, a rescaling nor a rotation of units explains "
                "the difference there, or the recordings lack what would show it (gradients, and "
                "`elementwise=True`)."
            )


def rounding_tolerance(a: Representation, b: Representation) -> float:
    """What rounding may leave of a divergence, or of 1 less a score, between equal functions."""
    steps = []
    for rep in (a, b):
        eps = rounding_step(rep)
        steps.append(eps if rep.made.device.startswith("cpu") else max(eps, _TENSOR_CORE_EPS))
    return float(np.clip((_ROUNDINGS * max(steps)) ** 2, _LEAST, _MOST))


def recognise(
    a: Representation,
    b: Representation,
    features: KernelComparison,
    gradients: KernelComparison | None,
    drift: Coordinates | None,
    predicted: Behaviour | None,
    compare_elementwise: Callable[[], KernelComparison],
) -> SameFunction | None:
    """What became of each layer of a copy that predicts the same; None if it does not, or if
    nothing changed.

    Args:
        a: the recording of the base.
        b: the recording of the copy.
        features: the comparison by features.
        gradients: the comparison by gradients; None if there is none.
        drift: the drift of layers of equal shape; None if not known.
        predicted: how differently the two predict; None if not known.
        compare_elementwise: compares f ∘ g, which is called where both recordings hold it.
    """
    tolerance = rounding_tolerance(a, b)
    if predicted is None:
        return None
    noise = 0.0 if predicted.js_upper is None else 3 * predicted.kl_stderr  # where KL is estimated
    if not predicted.kl + noise <= tolerance:
        return None
    products = None
    if all(layer.elementwise is not None for rep in (a, b) for layer in rep):
        products = compare_elementwise()
    moved: dict[str, tuple[float, float]] = {}  # relative change, and cosine
    if drift is not None:
        change = 10 ** (-drift.decibels[0] / 10)
        moved = dict(zip(drift.layers, zip(change, drift.cosine[0], strict=True), strict=True))
    found: dict[str, Basis] = {}
    for i, j in zip(*features.counterparts(), strict=True):
        below = [
            None if x is None or x.estimator not in EXACT else float(1 - x.scores[i, j])
            for x in (features, gradients, products)
        ]
        known = moved.get(features.rows[i])
        found[features.rows[i]] = _basis(a.layers[i], b.layers[j], below, known, tolerance)
    if set(found.values()) <= {"unchanged"}:
        return None
    return SameFunction(tuple(found), tuple(found.values()), predicted.kl, tolerance)


def _basis(
    x: Layer,
    y: Layer,
    below: Sequence[float | None],  # 1 less the scores of features, gradients and f ∘ g
    moved: tuple[float, float] | None,  # relative change of features, and cosine
    tolerance: float,
) -> Basis:
    """What became of one layer."""
    if moved is None or (x.dim, x.shape) != (y.dim, y.shape):
        return "undecided"
    change, cosine = moved
    if change <= tolerance or np.isnan(change):  # NaN: zero in both
        return "unchanged"
    # a small error of each unit moves scores by about as much as units; a basis moves units alone
    most = min(tolerance, change / _MOVED_ALONE)
    features, gradients, products = (x is not None and x <= most for x in below)
    turned = features and (gradients or below[1] is None)
    aligned = cosine >= _ALIGNED
    # where rounding is coarse, a plain error may leave moments nearly as they were
    moments = (not aligned or tolerance <= _FINE) and _equal_moments(x.products, y.products)
    if below[2] is None:
        products = moments
    if products and (not features or cosine >= 1 - _MOMENTS):
        return "rescaled"
    if turned:
        known: Basis = "permuted" if products else "rotated"
        return "permuted or rotated" if below[2] is None else known
    if moments:
        return "rescaled and rotated"
    # without gradients, units that were rescaled a little look like units with an error
    plain = below[1] is not None or tolerance > _FINE or change <= _MOST
    return "unchanged" if aligned and plain else "undecided"


def _equal_moments(x: Products | None, y: Products | None) -> bool:
    """Whether ⟨f, g⟩ has the same moments, over all samples, in two layers."""
    if x is None or y is None:
        return False
    pairs = (x.inner_squared, y.inner_squared), (x.inner_fourth, y.inner_fourth)
    return all(p > 0 and abs(p - q) <= _MOMENTS * p for p, q in pairs)
