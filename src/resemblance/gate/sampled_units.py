"""How differently two networks predict, unit by unit: samples, or where these are tokens sequences.

Units are what can be drawn anew one by one, so it is their spread that bounds are made of.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import MismatchError
from ..representation.representation import Representation
from ..similarity.same_predictions import divergences, obstacle


class ByUnit(NamedTuple):
    """What `behaviour` gives the means of; each a mean over the rows of a unit."""

    disagreement: Tensor  # (units,): the share of rows whose most likely classes differ
    kl: Tensor  # (units,)
    js: Tensor  # (units,)
    rows: int  # of each unit: 1, or the tokens of a sequence
    exact: bool  # else kl and js lie below the true ones


def by_unit(a: Representation, b: Representation) -> ByUnit:
    """From what two recordings keep of their outputs, or an error that says why they cannot."""
    if (why := obstacle(a, b)) is not None:
        raise MismatchError(
            f"what {a.name!r} and {b.name!r} predict cannot be compared: {why}; thresholds of "
            "kernels need no predictions"
        )
    one, two = a.outputs, b.outputs
    assert one is not None
    assert two is not None
    kl, js, exact = divergences(one, two)
    each = torch.stack([(one.prediction != two.prediction).double(), kl, js])
    tokens, start, found = a.settings.tokens, 0, []
    for n in a.block_sizes[::tokens]:  # one block for each token that was drawn of a sequence
        found.append(each[:, start : start + n * tokens].reshape(3, tokens, n).mean(1))
        start += n * tokens
    differs, kl, js = torch.cat(found, 1)
    return ByUnit(differs, kl, js, tokens, exact)
