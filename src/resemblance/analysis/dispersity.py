"""How much data differ from those a network was trained on, by its predictions alone.

Two numbers of the softmax predictions P (N × C, rows pᵢ) that a recording stores. *Dispersity* is
their nuclear norm, ‖P‖_* / √(N min(N, C)): 1 where predictions are certain and every class is as
frequent, less where they are uncertain or pile up on a few classes. The *mean gradient* is
‖(1/N) Σᵢ (pᵢ − qᵢ)‖ with qᵢ ∝ pᵢ^β: the norm of the mean of the gradient at the logits, so ‖μ‖ of
the adaptation scores without features. Both are read off every probability, which recordings store
up to 1,024 classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .._utils.formatting import format_quantity, format_score, join_error
from ..representation.representation import Representation
from ..representation.schema import MAX_FULL_CLASSES
from ..similarity import jackknife
from ..similarity.results import Content

_DEFAULT_BETA = 0.5  # of q, where no gradient was recorded or the labels were its target
_ROWS_A_CLASS = 2  # fewer rows, and the error of a nuclear norm is not known


@dataclass(frozen=True, eq=False)
class OutputAdaptation(Content):
    """Adaptation scores of a network's predictions; NaN where `withheld` says why.

    Attributes:
        samples: number of samples, or tokens, whose predictions are stored.
        beta: exponent of the tempered prediction that `mean_gradient` subtracts.
        dispersity: ‖P‖_* / √(N min(N, C)), at most 1; lower means a larger shift.
        dispersity_stderr: its standard error; NaN below two samples a class.
        mean_gradient: ‖mean(p − q)‖; higher means a larger shift.
        mean_gradient_stderr: its standard error.
        withheld: the reason why there are no values, or None.
    """

    samples: int
    beta: float
    dispersity: float = math.nan
    dispersity_stderr: float = math.nan
    mean_gradient: float = math.nan
    mean_gradient_stderr: float = math.nan
    withheld: str | None = None

    def sentence(self) -> str:
        if self.withheld is not None:
            return f"Outputs: no dispersity or mean gradient, because {self.withheld}."
        dispersity = join_error(format_score(self.dispersity, self.dispersity_stderr))
        gradient = join_error(format_quantity(self.mean_gradient, self.mean_gradient_stderr))
        return f"Outputs: dispersity {dispersity}, mean gradient {gradient}."


def output_adaptation(rep: Representation) -> OutputAdaptation:
    """Dispersity and mean gradient of a recording's predictions, with standard errors.

    Standard errors are those of new samples of the same source, from the influence of each sample
    (of tokens, of each sequence).

    Bias: with few samples the mean gradient comes out too large, by about
    E‖p − q‖² / (2 N ‖mean(p − q)‖), and dispersity too small, as the square root is concave.
    Cost: O(N C² + C³), without a pass over the data.
    Reference: Deng et al. 2023, arXiv 2302.01094, for dispersity.
    """
    beta = _DEFAULT_BETA if rep.settings.beta is None else rep.settings.beta
    predictions = rep.predictions
    rows = 0 if predictions is None else predictions.rows
    if (why := _why_withheld(rep)) is not None:
        return OutputAdaptation(rows, beta, withheld=why)
    assert predictions is not None
    assert predictions.every is not None
    log_p = predictions.every.double()
    parts = _parts(rep)
    dispersity, influence = nuclear_norm(log_p.exp())
    enough = rows >= _ROWS_A_CLASS * predictions.classes
    gradient, slope = mean_gradient(log_p, beta)
    return OutputAdaptation(
        rows,
        beta,
        dispersity,
        _standard_error(influence, parts) if enough else math.nan,
        gradient,
        _standard_error(slope, parts),
    )


def nuclear_norm(p: Tensor) -> tuple[float, Tensor]:  # (N, C) -> (), (N,)
    """‖P‖_* / √(N min(N, C)), and the influence of each row on it.

    ‖P‖_* = tr G^½ with G = PᵀP, and d tr G^½ = ½ tr(G^(−½) dG), so that a row weighs
    ½ pᵢᵀ G^(−½) pᵢ: of the sum of all rows' weights, half the norm, each has its share.

    >>> value, influence = nuclear_norm(torch.eye(2, dtype=torch.float64).repeat(3, 1))
    >>> round(value, 6), influence.abs().max().item() < 1e-12
    (1.0, True)
    """
    n, classes = p.shape
    scale = math.sqrt(n * min(n, classes))
    values, vectors = torch.linalg.eigh(p.T @ p)
    roots = values.clamp_min(0).sqrt()
    kept = roots > 1e-9 * roots.amax()
    shares = ((p @ vectors[:, kept]).square() / roots[kept]).sum(1) / 2
    return float(roots.sum()) / scale, (shares - shares.mean()) / scale


def mean_gradient(log_p: Tensor, beta: float) -> tuple[float, Tensor]:  # (N, C) -> (), (N,)
    """‖mean(p − q)‖ with q = softmax(β log p), and the influence of each row on it.

    >>> mean_gradient(torch.full((3, 4), 0.25).log(), 0.5)[0]
    0.0
    """
    each = log_p.exp() - (beta * log_p.clamp_min(-1e30)).softmax(1)
    mean = each.mean(0)
    norm = float(mean.norm())
    direction = mean / norm if norm > 0 else mean
    return norm, (each - mean) @ direction / len(each)


def _standard_error(influence: Tensor, parts: Tensor) -> float:  # (N,), (N,) -> ()
    """From the influence of each sample: of sums over the parts that are independent."""
    sums = torch.zeros(int(parts.max()) + 1, dtype=influence.dtype).index_add_(0, parts, influence)
    many = len(sums)
    if many < 2:
        return math.nan
    deviations = jackknife.jackknife_deviations(sums * many / (many - 1))
    return float(jackknife.standard_error([deviations])[0])


def _parts(rep: Representation) -> Tensor:  # (rows,)
    """The number of each row's sequence; without tokens every row is a part."""
    rows = sum(rep.block_sizes) if rep.rows is None else len(rep.sample_numbers()["index"])
    if rep.settings.tokens == 1:
        return torch.arange(rows)
    index = rep.sample_numbers()["index"]
    return torch.from_numpy(np.unique(index, return_inverse=True)[1])


def _why_withheld(rep: Representation) -> str | None:
    outputs = rep.predictions
    if outputs is None:
        what = "embeddings" if rep.embeddings is not None else "no predictions"
        return f"the recording has {what}"
    if outputs.multi_label:
        return "labels are predicted independently of each other"
    if outputs.every is None:
        return (
            f"they need the probability of every class, and of {outputs.classes:,} classes only "
            f"the likeliest are stored (all of them up to {MAX_FULL_CLASSES:,})"
        )
    if outputs.undefined:
        return f"the network predicted NaN for {outputs.undefined:,} of {outputs.rows:,} samples"
    if outputs.rows < 2:
        return "predictions of two samples at least are needed"
    return None
