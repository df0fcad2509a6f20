"""How far outputs of two networks are apart, sample by sample: KL, JS, disagreement or distance.

For `sensitivity`, which runs many networks on the same samples: outputs are compared as they come,
and only a number a sample is kept. `agreement` compares what two recordings hold of predictions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .._data.batches import attention_mask, num_samples, real_token_mask
from .._models.layer_outputs import floating_tensors
from .._models.logits import LogitsReader
from ..errors import LayerError, MismatchError
from ..similarity.agreement import js_of_rows, kl_of_rows

Measure = Literal["kl", "js", "disagreement", "distance"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
_ROWS = {"cpu": 2**20, "cuda": 2**25}  # outputs that are widened to float32 at a time


@dataclass(frozen=True)
class OutputComparison:
    """How outputs of two networks are read and compared."""

    reader: LogitsReader | None  # None: they are no logits
    measure: Measure

    def read(self, samples: Any, outputs: Any) -> Tensor:  # (n, positions, classes or width)
        if self.reader is not None:
            return self.reader(outputs)
        n, mask = num_samples(samples), attention_mask(samples)
        found = next((x for x in floating_tensors(outputs) if x.shape[:1] == (n,)), None)
        if found is None:
            raise LayerError(
                "expected outputs with one row for each sample; found none. Pass `logits=<function "
                "of the output>` if there are predictions among them"
            )
        tokens = mask is not None and found.ndim == 3 and mask.shape == found.shape[:2]
        return found if tokens else found.reshape(n, 1, -1)

    def sums(self, samples: Any, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:  # (n,), (n,)
        """The measure of each sample, summed over its predictions, and how many those are."""
        if one.shape != two.shape:
            raise MismatchError(
                f"expected outputs of one shape, found {tuple(one.shape)} of the base and "
                f"{tuple(two.shape)} with blocks of the copy; compare networks of the same classes"
            )
        counted = real_token_mask(samples, one.shape[:2], one.device)
        step = max(1, _ROWS.get(one.device.type, _ROWS["cpu"]) // one.shape[-1])
        rows = zip(
            one.flatten(0, 1).split(step), two.to(one.device).flatten(0, 1).split(step), strict=True
        )
        independent = self.reader is not None and self.reader.independent
        each = torch.cat([divergence_of_rows(a, b, self.measure, independent) for a, b in rows])
        each = torch.where(counted, each.view(counted.shape), 0)
        return each.double().sum(1).cpu(), counted.sum(1).double().cpu()


def divergence_of_rows(a: Tensor, b: Tensor, measure: Measure, independent: bool) -> Tensor:
    """The measure of each row of logits (rows, classes), or of outputs for `"distance"`.

    Args:
        a: outputs of the base.
        b: outputs of the network that is compared with it.
        measure: kl, js, disagreement or distance.
        independent: whether logits are those of labels that are predicted independently.
    """
    a, b = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (a, b))
    if measure == "distance":
        return (a - b).square().sum(-1) / a.square().sum(-1)
    if measure == "disagreement":
        if independent:
            return ((a > 0) != (b > 0)).any(-1).to(a.dtype)
        nan = a.isnan().any(-1) | b.isnan().any(-1)
        return torch.where(nan, torch.nan, (a.argmax(-1) != b.argmax(-1)).to(a.dtype))
    if independent:
        log_p, log_q = (F.logsigmoid(torch.cat([x, -x], -1)) for x in (a, b))
    else:
        log_p, log_q = (F.log_softmax(x, -1) for x in (a, b))
    return (kl_of_rows if measure == "kl" else js_of_rows)(log_p, log_q)


def mean_of_predictions(sums: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """The mean over all predictions, and its standard error over samples.

    The mean is the ratio of two sums over samples, and the error that of the ratio, to first order.

    Args:
        sums: the sum over each sample's predictions.
        counts: the number of predictions of each sample.
    """
    total, n = counts.sum(), len(sums)
    value = sums.sum() / total
    off = sums - value * counts
    error = np.sqrt(n / (n - 1) * (off**2).sum()) / total if n > 1 else np.nan
    return float(value), float(error)
