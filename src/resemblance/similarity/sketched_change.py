"""How far one layer moved between two networks, from sketches of both in shared coordinates.

A sketch Y = S X P (128 × 256) holds samples X (N × D) up to two random maps that are the same for
both networks, so that Y_a − Y_b is the sketch of X_a − X_b. The mean over samples is taken off
before: Y_c = Y − c m̄ᵀ is exactly the sketch of centred samples, with c the sums of the signs and m̄
the mean, folded; what the mean itself adds is known but for the fold. Then, over sketches,

    E[‖Y_c‖² + N ‖m̄‖²] = ‖X‖²,

with a variance of 2/128 Σ_{i≠j} K_ij² from samples that meet in a row, K = X_c X_cᵀ, and of
2/256 Σ_{j≠l} C_jl² from features that meet in a column, C = XᵀX. Of both sums Y holds unbiased
sketches: of the first, the entries of Y_c Y_cᵀ beside its diagonal, which holds what samples are
by themselves and does not vary. What rows and columns both count is taken off once. Anything else
here is a smooth function of such squares, and has their errors to first order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .._ops.coordinate_sketch import COLUMNS
from ..representation.layer import Sketch


@dataclass(frozen=True)
class Centred:
    """The sketch of samples whose mean was taken off, and √N times that mean, folded."""

    table: Tensor  # (128, 256) float64
    mean: Tensor  # (256,) float64

    @classmethod
    def of(cls, sketch: Sketch, signs: Tensor, samples: int) -> Centred:
        """From what a recording holds; `signs` (128,) are the sums of those of each row."""
        mean = sketch.total.double() / samples
        table = sketch.table.double() - torch.outer(signs.double(), mean)
        return cls(table, mean * samples**0.5)

    def __sub__(self, other: Centred) -> Centred:
        return Centred(self.table - other.table, self.mean - other.mean)


@dataclass(frozen=True)
class Measured:
    """A value and its standard error: how far it may lie from that of the vectors themselves."""

    value: float
    stderr: float


_UNKNOWN = Measured(math.nan, math.nan)


@dataclass(frozen=True)
class Change:
    """What became of one kind of vector at one layer."""

    decibels: Measured  # −10 log₁₀ ‖X_a − X_b‖² / ‖X_a‖²
    mean_share: Measured  # of ‖X_a − X_b‖², what the change of the mean makes up
    cosine: Measured


def change(
    a: Centred,
    b: Centred,
    *,
    trace: float,  # ‖X_a‖², which is known exactly
    dim: int,
    centre: bool,  # whether the cosine is of centred vectors
) -> Change:
    """The change from a to b and the cosine between them.

    Bias: none in ‖X_a − X_b‖²; in its logarithm and in ratios, that of second order, within the
    standard error. Cost: a few products of 128 × 256 matrices.
    """
    folded = dim > COLUMNS
    return Change(*_moved(a - b, trace, folded=folded), _cosine(a, b, folded=folded, centre=centre))


def _moved(moved: Centred, trace: float, *, folded: bool) -> tuple[Measured, Measured]:
    """The decibels of a change, and the share of the mean in it."""
    centred, mean = (float(x.square().sum()) for x in (moved.table, moved.mean))
    total = centred + mean
    if total == 0:
        return Measured(math.inf if trace > 0 else math.nan, math.nan), _UNKNOWN
    slope = torch.full((1, 1), 1 / total, dtype=torch.float64)
    share = mean / total
    of_share = _error([moved], -share * slope, (1 - share) * slope, folded)
    if not trace > 0:
        return _UNKNOWN, Measured(share, of_share)
    decibels = -10 * math.log10(total / trace)
    relative = _error([moved], slope, slope, folded)
    return Measured(decibels, 10 / math.log(10) * relative), Measured(share, of_share)


def _cosine(a: Centred, b: Centred, *, folded: bool, centre: bool) -> Measured:
    """⟨X_a, X_b⟩ / ‖X_a‖ ‖X_b‖ with all three from the sketch: their errors go together.

    Of normal entries its error is (1 − cosine²) times what a cosine near zero has. What is missing
    from 1 is known up to a factor, so where it comes out small, so does its error: as much is added
    as that factor is uncertain.
    """
    inner = _gram([x.table for x in (a, b)])
    if not centre:
        inner = inner + _gram([x.mean for x in (a, b)])
    square = float(inner[0, 0] * inner[1, 1])
    if not square > 0:
        return _UNKNOWN
    cosine = float(inner[0, 1]) / square**0.5
    across = 0.5 / square**0.5
    form = torch.tensor([[0.0, across], [across, 0.0]], dtype=torch.float64)
    form = form - cosine / 2 * (1 / inner.diagonal()).diag()
    of_mean = torch.zeros_like(form) if centre else form
    error, missing = _error([a, b], form, of_mean, folded), 1 - min(1.0, abs(cosine))
    return Measured(max(-1.0, min(1.0, cosine)), error * (1 + error / max(error, missing, 1e-300)))


def _gram(vectors: Sequence[Tensor]) -> Tensor:  # (k, k)
    flat = torch.stack([x.flatten() for x in vectors])
    return flat @ flat.T


def _error(
    sketches: Sequence[Centred],  # k of them
    form: Tensor,  # (k, k): the slope along the inner products of sketches
    of_mean: Tensor,  # (k, k): and along those of their means
    folded: bool,  # whether features met in columns
) -> float:
    """The standard error of a sum Σ B_xy (⟨X_x, X_y⟩ − …) over sketches, from what they hold."""
    tables = torch.stack([x.table for x in sketches])
    mixed = torch.einsum("xy,yrc->xrc", form, tables)
    rows = torch.einsum("xrc,xsc->rs", mixed, tables)
    by_rows = _beside_diagonal(rows)
    if not folded:
        return by_rows**0.5
    means = torch.stack([x.mean for x in sketches])
    columns = torch.einsum("xrc,xrd->cd", mixed, tables) + means.T @ of_mean @ means
    by_columns = _beside_diagonal(columns)
    once = form @ _gram([x.table for x in sketches])
    both = 2 * float((once @ once).trace()) / tables[0].numel()
    return max(by_rows + by_columns - both, by_rows, by_columns) ** 0.5


def _beside_diagonal(kernel: Tensor) -> float:  # (m, m), symmetric
    """The variance that sharing one of m places gives."""
    apart = kernel - kernel.diagonal().diag()
    return 2 / (len(kernel) - 1) * float(apart.square().sum())
