"""`coordinates`: how far the layers of a copy moved, from two recordings that were made apart.

Kernels do not depend on a layer's coordinates; a copy keeps its origin's, whether it was rounded,
pruned or tuned, and a network trained apart does not. This module matches layers and refuses
recordings that cannot be subtracted; `sketched_change` has the arithmetic, `exchanged_units` tells
whether coordinates are shared, `coordinates_by_layer` is the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from ..errors import MismatchError
from ..representation.as_given import Given, recording
from ..representation.layer import Kind, Layer
from ..representation.representation import Representation, difference
from .coordinates_by_layer import COLUMNS, Coordinates
from .exchanged_units import chance
from .layer_matching import Matching, known, match
from .sketched_change import Centred, Change, change
from .two_networks import check_recorded, mispaired, same_samples

FALSE_ALARMS = 1e-3  # of a comparison
# Of what rounding changes, in squares and of values spread evenly between two powers of two: a
# twelfth of a squared step, over their mean square.
_ROUNDING = 1 / 12 / (7 / 3)
_OTHER_GRADIENTS = "gradients are left out: {}"
_NO_SKETCH = (
    "expected recordings with sketches in coordinates, found {!r} without (written by version "
    "{}); record it again"
)


def coordinates(a: Given, b: Given) -> Coordinates:
    """How far each layer of a copy `b` moved from its origin `a`, in decibels, and the cosine.

    Args:
        a, b: from `record`, of the same samples with the same seed, or paths of files that hold
            them. `a` is what changes are relative to.

    For copies, rounded, pruned or tuned: layers of one shape (matched by name, else by position)
    whose units were never exchanged. It says by itself whether that is so (`shared`), with a false
    alarm in a thousand comparisons of networks that were trained apart; where it is not so, use
    `compare`.

    ‖X_a‖² is known exactly; the rest is from sketches of 128 × 256 numbers a layer, unbiased, with
    standard errors about the values of all samples recorded. They are at most 0.2 dB and 0.03 where
    a change has ten directions or more, and 0.7 dB where it has one. Cost: a few products of such
    tables a layer, and for `shared` O(positions · units²), of at most 128 units. Channels of images
    are units; `record_arrays` keeps no channels, so give it vectors, or images that were pooled.

    >>> import torch, resemblance as rs
    >>> x = torch.randn(500, 40, generator=torch.Generator().manual_seed(0))
    >>> a, b = (rs.record_arrays(y, data_id="x") for y in (x, 0.9 * x))
    >>> found = rs.coordinates(a, b)
    >>> found.shared, round(float(found.decibels[0, 0])), round(float(found.cosine[0, 0]), 3)
    (True, 20, 1.0)
    """
    a, b = recording(a), recording(b)
    check(a, b)
    matching, pairs = counterparts(a, b)
    kinds, notes = kinds_of(a, b)
    found: dict[Kind, list[Change]] = {kind: [] for kind in kinds}
    chances = []
    for x, y in pairs:
        for kind, changes in found.items():
            one, two = _sketch(x, kind, a), _sketch(y, kind, b)
            trace, centre = x.recorded(kind).trace, kind == "features"
            changes.append(change(one, two, trace=trace, dim=x.dim, centre=centre))
        one, two = _sketch(x, "features", a), _sketch(y, "features", b)
        cosine, rate = found["features"][-1].cosine, FALSE_ALARMS / len(pairs)
        chances.append(chance(one, two, cosine, x, a.settings, rate))
    columns = {
        name + end: np.array(
            [[getattr(getattr(x, name), part) for x in found[kind]] for kind in kinds]
        )
        for name in COLUMNS
        for end, part in (("", "value"), ("_stderr", "stderr"))
    }
    return Coordinates(
        models=(a.name, b.name),
        layers=tuple(one.name for one, _ in pairs),
        counterparts=tuple(two.name for _, two in pairs),
        matched_by=matching.by,
        kinds=kinds,
        **columns,
        chance=np.array([x.mean for x in chances]),
        chance_high=np.array([x.high for x in chances]),
        alarms=FALSE_ALARMS,
        floor=_floor(a, b),
        samples=a.samples,
        tokens=a.settings.tokens_of_each,
        left_out=tuple(x.name for x in a if all(x is not one for one, _ in pairs)),
        notes=notes,
    )


def _sketch(layer: Layer, kind: Kind, rep: Representation) -> Centred:
    sketch, signs = layer.recorded(kind).sketch, layer.sketch_signs
    if sketch is None or signs is None:
        raise MismatchError(_NO_SKETCH.format(rep.name, rep.made.resemblance))
    return Centred.of(sketch, signs, rep.samples)


def check(a: Representation, b: Representation) -> None:
    """An error where two recordings cannot be taken from each other."""
    for rep in (a, b):
        for layer in rep:
            _sketch(layer, "features", rep)
    check_recorded(a, b, "features")
    if not same_samples(a, b):
        raise MismatchError(
            f"expected recordings of the same samples, found {a.samples:,} in {a.name!r} and "
            f"{b.samples:,} others in {b.name!r}; record both on one set of samples"
        )
    if trouble := difference(a, b, ("seed",)):
        raise MismatchError(f"expected sketches of one seed; {trouble}; record both with one")
    trouble = mispaired(a, b)
    if trouble is None and not torch.equal(a[0].sketch_signs, b[0].sketch_signs):  # type: ignore[arg-type]
        trouble = "other samples were skipped as not finite in one than in the other"
    if trouble:
        raise MismatchError(
            f"expected the same samples in the same places; {trouble}; record both anew on one set"
        )


def counterparts(
    a: Representation, b: Representation
) -> tuple[Matching, Sequence[tuple[Layer, Layer]]]:
    """Counterparts of equal shape."""
    matching = match(known(a), known(b), np.zeros((len(a), len(b))))
    if matching.by == "similarity":
        raise MismatchError(
            f"expected copies, with layers of the same names or shapes; found {len(a)} layers in "
            f"{a.name!r} and {len(b)} others in {b.name!r}; use compare, which needs no coordinates"
        )
    together = [(a[i], b[j]) for i, j in enumerate(matching.columns) if j is not None]
    pairs = [(x, y) for x, y in together if (x.dim, x.shape) == (y.dim, y.shape)]
    if not pairs:
        x, y = together[0]
        raise MismatchError(
            f"expected layers of equal shape, found {x.shape} at {x.name!r} of {a.name!r} and "
            f"{y.shape} at {y.name!r} of {b.name!r}, and no others that agree; use compare, which "
            "needs no coordinates"
        )
    return matching, pairs


def kinds_of(a: Representation, b: Representation) -> tuple[tuple[Kind, ...], tuple[str, ...]]:
    """What can be compared, and why gradients cannot be where both have them."""
    if not all(layer.gradients is not None for rep in (a, b) for layer in rep):
        return ("features",), ()
    if trouble := difference(a, b, ("target", "beta")):
        return ("features",), (_OTHER_GRADIENTS.format(trouble),)
    return ("features", "gradients"), ()


def _floor(a: Representation, b: Representation) -> float:
    """Decibels that rounding gives: of each side's features to its dtype, and of sums to float32.

    Networks round at every layer, so that changes somewhat below it may be rounding as well.
    """
    steps = [torch.finfo(torch.float32).eps] * 2
    for rep in (a, b):
        kind = getattr(torch, (rep.made.autocast or rep.made.dtype).removeprefix("torch."), None)
        half = kind in (torch.float16, torch.bfloat16)
        steps.append(torch.finfo(kind if half else torch.float32).eps)  # type: ignore[arg-type]
    return -10 * math.log10(_ROUNDING * sum(step**2 for step in steps))
