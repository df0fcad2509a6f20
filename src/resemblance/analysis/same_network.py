"""Whether a network is the one that a recording was made of, by the hash of its weights."""

from __future__ import annotations

from torch import nn

from .._model.model_pass import runnable
from .._model.weight_hash import of_all_weights, of_weights
from ..errors import MismatchError
from ..representation.representation import Representation


def refuse_other_network(model: nn.Module, rep: Representation) -> None:
    """An error if the weights are known to differ; what was recorded from arrays has none."""
    model = runnable(model)
    if rep.model.weights is not None:
        same = of_all_weights(model) == rep.model.weights
    else:  # an older file
        same = rep.model.fingerprint in (None, of_weights(model))
    if same:
        return
    weight = next(model.parameters(), None)
    here, there = "none" if weight is None else str(weight.dtype)[6:], rep.made.dtype
    precision = f", and are {here} where they were {there}" if here != there else ""
    raise MismatchError(
        f"this {type(model).__name__} is not the network of the recording {rep.name!r}: its "
        f"weights differ{precision}; pass that network, in the precision it was recorded in, or "
        "record this one"
    )
