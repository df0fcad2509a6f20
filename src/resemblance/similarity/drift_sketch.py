"""Drift and cosine of one layer from sketches, and the test whether units are in the same order.

A sketch Y = S X P (128 × 256) holds samples X (N × D) up to two random maps that are the same for
both networks, so Y_a − Y_b is the sketch of X_a − X_b. The mean over samples is subtracted first:
Y_c = Y − c m̄ᵀ is exactly the sketch of centred samples, with c the sums of the signs and m̄ the
folded mean. Then, over sketches,

    E[‖Y_c‖² + N ‖m̄‖²] = ‖X‖²,

with a variance of 2/128 Σ_{i≠j} K_ij² from samples that share a row, K = X_c X_cᵀ, and of
2/256 Σ_{j≠l} C_jl² from features that share a column, C = XᵀX. Y holds unbiased sketches of both
sums: of the first, the off-diagonal entries of Y_c Y_cᵀ. What rows and columns both count is
subtracted once. All other values are smooth functions of such squares, with first-order errors.

Networks trained separately number their units (channels of images, else features) in any order, so
their cosine is one draw from those of all permutations of units. Mean and spread of these come from
the matrix of inner products U_uv of unit u of one network and unit v of the other, over samples and
positions: a permutation π gives Σ_u U_uπ(u). Counterparts (u = v) are excluded. The cosine must
exceed all but a stated rate of what permutations give. Beyond 256 features U is itself a sketch;
its known noise is subtracted from the spread, and added where it blurs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._ops.count_sketch import COLUMNS, column_assignment
from ..representation.layer import Layer, Sketch
from ..representation.representation import Settings
from .jackknife import effective_number, standard_error


class CentredSketch(NamedTuple):
    """The sketch of samples less their mean, and √N times that mean, folded."""

    table: Tensor  # (128, 256) float64
    mean: Tensor  # (256,) float64

    @classmethod
    def of(cls, sketch: Sketch, signs: Tensor, samples: int) -> CentredSketch:
        """From what a recording holds; `signs` (128,) are the sums of those of each row."""
        mean = sketch.total.double() / samples
        table = sketch.table.double() - torch.outer(signs.double(), mean)
        return cls(table, mean * samples**0.5)

    def squared_norms(self) -> tuple[float, float]:
        """Of the centred samples, and of their mean."""
        return float(self.table.square().sum()), float(self.mean.square().sum())

    def is_constant(self, least: float) -> bool:
        """Whether differences between samples make up no more than a share of the squares."""
        centred, mean = self.squared_norms()
        return centred <= least * (centred + mean)

    def __sub__(self, other: CentredSketch) -> CentredSketch:
        return CentredSketch(self.table - other.table, self.mean - other.mean)


class Measurement(NamedTuple):
    """A value and its standard error: how far it may lie from that of the vectors themselves."""

    value: float
    stderr: float


_NOT_MEASURED = Measurement(math.nan, math.nan)


class LayerDrift(NamedTuple):
    """What became of one kind of vector at one layer."""

    decibels: Measurement  # −10 log₁₀ ‖X_a − X_b‖² / ‖X_a‖²
    cosine: Measurement
    mean_share: Measurement  # of ‖X_a − X_b‖², what the change of the mean makes up


def layer_drift(
    a: CentredSketch,
    b: CentredSketch,
    *,
    trace: float,  # ‖X_a‖², which is known exactly
    dim: int,
    centre: bool,  # whether the cosine is of centred vectors
) -> LayerDrift:
    """The change from a to b and the cosine between them.

    Bias: none in ‖X_a − X_b‖²; in its logarithm and in ratios, that of second order, within the
    standard error. Cost: a few products of 128 × 256 matrices.
    """
    change, folded = a - b, dim > COLUMNS
    centred, mean = change.squared_norms()
    total = centred + mean
    cosine = _cosine_with_error(a, b, folded=folded, centre=centre)
    if total == 0:
        unchanged = Measurement(drift_decibels(total, trace), math.nan)
        return LayerDrift(unchanged, cosine, _NOT_MEASURED)
    slope, share = torch.full((1, 1), 1 / total, dtype=torch.float64), mean / total
    relative = _sketch_error([change], slope, slope, folded)
    of_share = _sketch_error([change], -share * slope, (1 - share) * slope, folded)
    moved = Measurement(drift_decibels(total, trace), 10 / math.log(10) * relative)
    return LayerDrift(moved if trace > 0 else _NOT_MEASURED, cosine, Measurement(share, of_share))


def drift_decibels(change: float, trace: float) -> float:
    """−10 log₁₀ of a change over ‖X_a‖²: infinite for no change, NaN if ‖X_a‖² is 0."""
    if not trace > 0:
        return math.nan
    return -10 * math.log10(change / trace) if change > 0 else math.inf


class PopulationError(NamedTuple):
    """The standard error of a change in decibels about the population of samples."""

    stderr: float  # dB
    df: float  # degrees of freedom of `stderr`
    effective_rows: float  # how many of the 128 rows the change effectively lies in


def population_error(
    moved: CentredSketch, norms: Tensor, *, samples: int, tokens: int, dim: int
) -> PopulationError:
    """How far the decibels of a change may lie from those of the population of samples.

    Each row of a sketch holds different samples, so the spread between rows shows both the error of
    sampling and the noise of the sketch. Three parts are added to it. The change of the mean is
    known but for the fold, and its sampling error is that of the projections on it. ‖X_a‖² has the
    sampling error of the squared norms. All rows share the fold of the features, whose error is
    that of `change`. The parts are taken as independent. As samples with large norms change most,
    errors of ‖X_a − X_b‖² and ‖X_a‖² partly cancel, which this leaves out.

    Args:
        moved: the sketch of X_a − X_b.
        norms: squared norms of single samples of a, NaN where unknown.
        samples: the number of samples, or of tokens.
        tokens: tokens per sequence; 1 for independent samples. Rows mix sequences, so the variance
            is multiplied by it, which is the largest design effect there can be.
        dim: the width of the vectors before the fold.

    Returns:
        The standard error, its degrees of freedom, and the effective number of rows.
    """
    total = sum(moved.squared_norms())
    rows = moved.table.square().sum(1) / total
    deviations = (rows - rows.mean()) * (len(rows) / (len(rows) - 1)) ** 0.5
    of_rows, df = standard_error([deviations])
    of_mean = 2 * float((moved.table @ moved.mean).norm()) / (samples**0.5 * total)
    known = norms[norms.isfinite()].double()
    of_norms = float(known.std() / known.mean()) / samples**0.5
    slope = torch.full((1, 1), 1 / total, dtype=torch.float64)
    _, of_columns, of_both = _variances([moved], slope, slope, dim > COLUMNS)
    variance = tokens * (float(of_rows) ** 2 + of_mean**2 + of_norms**2)
    variance += max(0.0, of_columns - of_both)
    return PopulationError(
        10 / math.log(10) * variance**0.5, float(df), float(effective_number(rows))
    )


def sketched_cosine(a: CentredSketch, b: CentredSketch, *, centre: bool) -> float:
    """⟨X_a, X_b⟩ / ‖X_a‖ ‖X_b‖ with all three from the sketches; NaN where a norm is zero."""
    inner = _inner_products([a, b], centre=centre)
    square = float(inner[0, 0] * inner[1, 1])
    return max(-1.0, min(1.0, float(inner[0, 1]) / square**0.5)) if square > 0 else math.nan


def _cosine_with_error(
    a: CentredSketch, b: CentredSketch, *, folded: bool, centre: bool
) -> Measurement:
    """The cosine, with its error: the errors of the product and of both norms go together.

    Of normal entries its error is (1 − cosine²) times what a cosine near zero has. What is missing
    from 1 is known up to a factor, so where it comes out small, so does its error: as much is added
    as that factor is uncertain.
    """
    cosine = sketched_cosine(a, b, centre=centre)
    if math.isnan(cosine):
        return _NOT_MEASURED
    norms = _inner_products([a, b], centre=centre).diagonal()
    form = (1 - torch.eye(2, dtype=torch.float64)) * 0.5 / norms.prod().sqrt()
    form -= cosine / 2 * (1 / norms).diag()
    of_mean = torch.zeros_like(form) if centre else form
    error, missing = _sketch_error([a, b], form, of_mean, folded), 1 - abs(cosine)
    return Measurement(cosine, error * (1 + error / max(error, missing, 1e-300)))


def _inner_products(sketches: Sequence[CentredSketch], *, centre: bool) -> Tensor:  # (k, k)
    tables, means = (torch.stack(x) for x in zip(*sketches, strict=True))
    inner = tables.flatten(1) @ tables.flatten(1).T
    return inner if centre else inner + means @ means.T


def _sketch_error(
    sketches: Sequence[CentredSketch],  # k of them
    form: Tensor,  # (k, k): the slope along the inner products of sketches
    of_mean: Tensor,  # (k, k): and along those of their means
    folded: bool,  # whether features met in columns
) -> float:
    """The standard error of a sum Σ B_xy (⟨X_x, X_y⟩ − …) over sketches, from what they hold."""
    rows, columns, both = _variances(sketches, form, of_mean, folded)
    return max(rows + columns - both, rows, columns) ** 0.5


def _variances(
    sketches: Sequence[CentredSketch], form: Tensor, of_mean: Tensor, folded: bool
) -> tuple[float, float, float]:
    """The variances of such a sum from samples that share a row and from features that share a
    column, and what both of them count; the last two are zero if nothing was folded."""
    tables, means = (torch.stack(x) for x in zip(*sketches, strict=True))
    mixed = torch.einsum("xy,yrc->xrc", form, tables)
    rows = _off_diagonal_variance(torch.einsum("xrc,xsc->rs", mixed, tables))
    if not folded:
        return rows, 0.0, 0.0
    columns = torch.einsum("xrc,xrd->cd", mixed, tables) + means.T @ of_mean @ means
    once = torch.einsum("xrc,yrc->xy", mixed, tables)
    both = 2 * float((once @ once).trace()) / tables[0].numel()
    return rows, _off_diagonal_variance(columns), both


def _off_diagonal_variance(kernel: Tensor) -> float:  # (m, m), symmetric
    """The variance that sharing one of m places gives."""
    apart = kernel - kernel.diagonal().diag()
    return 2 / (len(kernel) - 1) * float(apart.square().sum())


_MAX_UNITS = 128  # of which pairs are looked at
_PERMUTATIONS = 20_000


class PermutedCosine(NamedTuple):
    """Cosines between networks whose units are in any order."""

    mean: float
    high: float  # which only the stated rate of them exceeds; NaN where units are too few to tell


def unit_count(layer: Layer, pool: str) -> int:
    """How many units a layer's vector has; of images, its channels, each with all its positions."""
    if pool != "flatten" or layer.dim != math.prod(layer.shape) or len(layer.shape) < 2:
        return layer.dim
    return layer.shape[0] if len(layer.shape) > 2 else layer.shape[1]


def permuted_cosine(
    a: CentredSketch,
    b: CentredSketch,
    cosine: Measurement,
    layer: Layer,
    settings: Settings,
    rate: float,
) -> PermutedCosine:
    """What `layer` would give were its units numbered anew, and the level that marks more.

    Cost: O(positions · min(units, 128)²).
    """
    count, seed = unit_count(layer, settings.pool), settings.seed
    norm = float(a.table.norm() * b.table.norm())
    if not norm > 0 or math.lgamma(count + 1) < -math.log(rate):
        return PermutedCosine(math.nan, math.nan)  # so few units have too few orders
    inner = a.table.T @ b.table / norm  # (256, 256)
    column, sign = _columns_by_unit(layer, count, seed)
    each = torch.zeros(column.shape[1], COLUMNS, dtype=torch.float64)  # (positions, 256)
    each.scatter_add_(1, column.T, sign.T)
    every = float(((each @ inner) * each).sum() - inner.diagonal()[column].sum())
    mean = every / (count - 1)
    folded = layer.dim > COLUMNS
    positions = column.shape[1]
    noise = positions * float(inner.square().mean()) if folded else 0.0  # of an entry of U
    some = torch.arange(count)[:: -(-count // _MAX_UNITS)]
    u = _unit_inner_products(inner, column[some], sign[some], neutral=mean / count)
    spread = float(u.square().sum()) * (count / len(u)) ** 2
    if folded:
        unsure = 2 * 2**0.5 * count * noise  # of the noise, which is a sum of squares
        spread = max(0.0, spread - count**2 * noise) + unsure * (positions > 1)
        spread += float(inner.square().sum())
    variance = spread / (count - 1) + noise + cosine.stderr**2
    return PermutedCosine(mean, mean + _permutation_tail(u, rate, seed) * variance**0.5)


def _columns_by_unit(
    layer: Layer, count: int, seed: int
) -> tuple[Tensor, Tensor]:  # (units, positions)
    """The column and sign of each feature, unit by unit."""
    images = len(layer.shape) > 2
    whole = images and layer.dim == math.prod(layer.shape)  # whose channels have folds of their own
    column, sign = column_assignment(layer.dim, seed, layer.shape[0] if whole else 1)
    if images and count == layer.shape[0]:
        return column.unflatten(0, (count, -1)), sign.unflatten(0, (count, -1))
    return column.unflatten(0, (-1, count)).T, sign.unflatten(0, (-1, count)).T


def _unit_inner_products(inner: Tensor, column: Tensor, sign: Tensor, *, neutral: float) -> Tensor:
    """U of some units, counterparts left out, less what is common to a row or a column of it."""
    u = torch.zeros(len(column), len(column), dtype=torch.float64)
    for at, s in zip(column.T, sign.T, strict=True):
        u += inner[at[:, None], at] * torch.outer(s, s)
    u.fill_diagonal_(neutral)
    return u - u.mean(0) - u.mean(1, keepdim=True) + u.mean()


def _permutation_tail(u: Tensor, rate: float, seed: int) -> float:
    """How many standard deviations hold all but a rate of permutations: of few units, more.

    That of the normal distribution or what permutations show, if that is farther.
    """
    every = np.tile(np.arange(len(u)), (_PERMUTATIONS, 1))
    draws = torch.from_numpy(np.random.default_rng(seed % 2**64).permuted(every, axis=1))
    sums = u[torch.arange(len(u)), draws].sum(1)
    normal = NormalDist().inv_cdf(1 - rate)
    deviation = float(sums.std())
    if not deviation > 0:
        return normal
    beyond = min(_PERMUTATIONS, max(1, int(rate * _PERMUTATIONS)))
    farthest = float(sums.topk(beyond).values[-1] - sums.mean())
    return max(normal, farthest / deviation)
