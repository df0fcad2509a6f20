"""How alike two data sets are to one reference network: a first look that runs no candidate.

A recording keeps, for each layer, the sum of all features folded to 256 numbers by a map that is
the same for every recording of one network and seed (`Sketch.total`). The means of two data sets
are so known in shared coordinates, and their distance, next to how long features are, is a
kernel distance of the data sets (the maximum mean discrepancy of a linear kernel).
"""

from __future__ import annotations

import math

import numpy as np

from ..errors import MismatchError
from ..representation.representation import Representation


def data_distance(a: Representation, b: Representation) -> float:
    """The mean over layers of ‖m_a − m_b‖² / ‖m_a‖ ‖m_b‖, of folded means m: 0 for equal data.

    Args:
        a, b: recordings of one network, with one seed, on two data sets.

    Bias: upwards by about (E‖f‖² / n_a + E‖f‖² / n_b) / ‖m‖², as means of samples differ by
    chance; the fold adds noise of about 1/16 of the distance, and none to equal means.
    Cost: 256 numbers a layer. Reference: Gretton et al. 2012 (JMLR 13), for the discrepancy.

    >>> import torch, resemblance as rs
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> x = torch.randn(300, 4)
    >>> one, far = rs.record(net, x), rs.record(net, x + 5)
    >>> data_distance(one, one), data_distance(one, far) > 0.1
    (0.0, True)
    """
    _refuse_others(a, b)
    return float(np.mean([_at(a, b, layer) for layer in a.layer_names]))


def why_not(a: Representation, b: Representation) -> str | None:
    """Why two recordings cannot be set against each other as data sets; None if they can."""
    if a.model.weights is None or a.model.weights != b.model.weights:
        return "they are not of one network"
    if a.settings.seed != b.settings.seed or a.settings.pool != b.settings.pool:
        return "they were not recorded with one seed and pool"
    if list(a.layer_names) != list(b.layer_names):
        return "they do not hold the same layers"
    if any(_mean(rep, name) is None for rep in (a, b) for name in a.layer_names):
        return "one of them keeps no means"
    return None


def _refuse_others(a: Representation, b: Representation) -> None:
    reason = why_not(a, b)
    if reason is not None:
        raise MismatchError(
            f"data sets are compared through two recordings of one reference network; of "
            f"{a.name!r} and {b.name!r}, {reason}: record both data sets with it, in the same way"
        )


def _mean(rep: Representation, layer: str) -> np.ndarray | None:  # (256,)
    sketch = rep[layer].features.sketch
    return None if sketch is None else sketch.total.double().cpu().numpy() / rep.samples


def _at(a: Representation, b: Representation, layer: str) -> float:
    one, two = _mean(a, layer), _mean(b, layer)
    assert one is not None
    assert two is not None
    size = math.sqrt(float(one @ one) * float(two @ two))
    return float((one - two) @ (one - two)) / size if size > 0 else 0.0
