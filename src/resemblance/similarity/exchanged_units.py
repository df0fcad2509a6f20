"""Whether two networks share coordinates at a layer: the cosine that exchanged units would give.

Networks that were trained apart number their units (channels of images, else features) in any
order: one whose units are exchanged is as likely as the other. So their cosine is one draw from
those of all permutations. Those have a mean, as units of a kind have much in common whatever their
number, and a spread, which is wide for few units. Both are read from one matrix of inner products,
U_uv of unit u of one network and unit v of the other, over samples and positions: a permutation π
gives Σ_u U_uπ(u). Units that are counterparts (u = v) are left out of it. The cosine must exceed
all but a stated rate of what permutations give.

Beyond 256 features U is a sketch. Its noise is known, as entries of a sketch are drawn at random:
it is taken off the spread, and added where it blurs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from .._ops.coordinate_sketch import COLUMNS, places
from ..representation.layer import Layer
from ..representation.settings import Settings
from .sketched_change import Centred, Measured

_UNITS = 128  # of which pairs are looked at
_PERMUTATIONS = 20_000


@dataclass(frozen=True)
class Chance:
    """Cosines between networks whose units are in any order."""

    mean: float
    high: float  # which only the stated rate of them exceeds; NaN where units are too few to tell


def units(layer: Layer, pool: str) -> int:
    """How many units a layer's vector has; of images, its channels, each with all its positions."""
    if pool != "flatten" or layer.dim != math.prod(layer.shape) or len(layer.shape) < 2:
        return layer.dim
    return layer.shape[0] if len(layer.shape) > 2 else layer.shape[1]


def chance(
    a: Centred, b: Centred, cosine: Measured, layer: Layer, settings: Settings, rate: float
) -> Chance:
    """What `layer` would give were its units numbered anew, and the level that marks more.

    Cost: O(positions · min(units, 128)²).
    """
    count, seed = units(layer, settings.pool), settings.seed
    norm = float(a.table.norm() * b.table.norm())
    if not norm > 0 or math.lgamma(count + 1) < -math.log(rate):
        return Chance(math.nan, math.nan)  # so few units have too few orders
    inner = a.table.T @ b.table / norm  # (256, 256)
    column, sign = _by_unit(layer, count, seed)
    each = torch.zeros(column.shape[1], COLUMNS, dtype=torch.float64)  # (positions, 256)
    each.scatter_add_(1, column.T, sign.T)
    every = float(((each @ inner) * each).sum() - inner.diagonal()[column].sum())
    mean = every / (count - 1)
    folded = layer.dim > COLUMNS
    positions = column.shape[1]
    noise = positions * float(inner.square().mean()) if folded else 0.0  # of an entry of U
    some = torch.arange(count)[:: -(-count // _UNITS)]
    u = _inner_products(inner, column[some], sign[some], neutral=mean / count)
    spread = float(u.square().sum()) * (count / len(u)) ** 2
    if folded:
        unsure = 2 * 2**0.5 * count * noise  # of the noise, which is a sum of squares
        spread = max(0.0, spread - count**2 * noise) + unsure * (positions > 1)
        spread += float(inner.square().sum())
    variance = spread / (count - 1) + noise + cosine.stderr**2
    return Chance(mean, mean + _tail(u, rate, seed) * variance**0.5)


def _by_unit(layer: Layer, count: int, seed: int) -> tuple[Tensor, Tensor]:  # (units, positions)
    """The column and sign of each feature, unit by unit."""
    images = len(layer.shape) > 2 and count == layer.shape[0]
    column, sign = places(layer.dim, seed, _folded_apart(layer))
    if images:
        return column.unflatten(0, (count, -1)), sign.unflatten(0, (count, -1))
    return column.unflatten(0, (-1, count)).T, sign.unflatten(0, (-1, count)).T


def _folded_apart(layer: Layer) -> int:
    """The channels of an image that is kept whole, whose folds are their own."""
    whole = layer.dim == math.prod(layer.shape) and len(layer.shape) > 2
    return layer.shape[0] if whole else 1


def _inner_products(inner: Tensor, column: Tensor, sign: Tensor, *, neutral: float) -> Tensor:
    """U of some units, counterparts left out, less what is common to a row or a column of it."""
    u = torch.zeros(len(column), len(column), dtype=torch.float64)
    for at, s in zip(column.T, sign.T, strict=True):
        u += inner[at[:, None], at] * torch.outer(s, s)
    u.fill_diagonal_(neutral)
    return u - u.mean(0) - u.mean(1, keepdim=True) + u.mean()


def _tail(u: Tensor, rate: float, seed: int) -> float:
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
