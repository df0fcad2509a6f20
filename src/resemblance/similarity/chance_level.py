"""The chance level: scores of the same kernels with the pairing of their samples permuted.

The mean over all permutations inside a block is known exactly; how far single ones stray from it
is drawn. Blocks are permuted apart, so one draw of each block makes one draw of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._ops import packed_kernels as packing
from .pair_sums import Side, pair_sums

_DRAWS = 256  # permutations drawn in all, spread over the blocks
_Z95 = 1.645  # standard deviations: the 95 % quantile of the normal distribution
_TOTALS = 1000  # ways of choosing one draw a block, for the 95 % quantile


def permuted_sums(sums: Tensor, n: int) -> Tensor:  # (9, ...) -> (9, ...)
    """The mean of `pair_sums` over all permutations of the samples of one side.

    Every pair of samples then meets every other equally often: Σ K1_ij K2_ij, for one, averages
    to s1 s2 / n(n-1).
    """
    _, _, _, _, _, ss, tt, ts, st = sums
    return torch.stack([ss / (n * (n - 1)), ss / n, tt / n, ts / n, st / n, ss, tt, ts, st])


def orders(blocks: int, draws: int, n: int, generator: torch.Generator) -> Tensor:  # (g, p, n)
    each = [torch.randperm(n, generator=generator) for _ in range(blocks * draws)]
    return torch.stack(each).view(blocks, draws, n)


class Orders:
    """Permutations of the samples of windows: one block each, or as many as a sequence has tokens.

    Blocks of one window are permuted alike, as their rows are tokens of the same sequences.
    """

    def __init__(self, windows: int, generator: torch.Generator) -> None:
        self._each, self._generator = max(2, -(-_DRAWS // windows)), generator
        self._drawn: dict[int, Tensor] = {}

    def of(self, windows: Sequence[int], n: int) -> Tensor:  # (g, p, n)
        """The permutations of the windows that some successive blocks belong to."""
        for window in dict.fromkeys(windows):
            if window not in self._drawn:
                self._drawn[window] = orders(1, self._each, n, self._generator)[0]
        return torch.stack([self._drawn[window] for window in windows])


def drawn(one: Side, two: Side, orders: Tensor, factors: Tensor) -> Tensor:  # (g, L1, L2, p)
    """Inner products with the samples of one side in each of the orders (g, p, n)."""
    blocks, layers = len(orders), len(two[1]) // len(orders)
    if not orders.is_cuda:  # precise enough here; a GPU may be set to round float32 products
        one, two = (Side(*(part.float() for part in x)) for x in (one, two))
        factors = factors.float()
    parts = []
    for some in orders.split(max(1, 32 // blocks), 1):
        sums = pair_sums(one, permuted(two, some), blocks)  # (9, g, L1, p · L2)
        parts.append(torch.tensordot(factors, sums, 1).unflatten(2, (-1, layers)).mT)
    return torch.cat(parts, 3).double()


def permuted(x: Side, orders: Tensor) -> Side:
    """A side of g blocks in the orders (g, p, n): in each block, all layers of draw after draw."""
    triangle, diagonal, sums, t, s = x
    blocks, draws, n = orders.shape
    layers, device = len(diagonal) // blocks, orders.device
    by_sample = orders.permute(2, 0, 1).contiguous()  # (n, g, p): neighbours are copied together
    i, j = (by_sample.index_select(0, ends) for ends in packing.lower(n, device))
    places = packing.square_places(n, device).flatten().index_select(0, (i * n + j).flatten())
    at = places.view_as(i) * blocks + torch.arange(blocks, device=device)[:, None]
    flat = triangle.T.contiguous().view(-1, layers)  # (t · g, L)

    def moved(rows: Tensor) -> Tensor:  # (g · L, n) -> (g · p · L, n)
        every = rows.view(blocks, 1, layers, n).expand(-1, draws, -1, -1)
        return every.gather(3, orders[:, :, None].expand_as(every)).flatten(0, 2)

    entries = flat.index_select(0, at.flatten()).view(len(i), -1).T
    totals = (x.view(blocks, layers).repeat(1, draws).flatten() for x in (t, s))
    return Side(entries, moved(diagonal), moved(sums), *totals)


def high(draws: Tensor) -> Tensor:  # (..., p) -> (...)
    """How far the 95 % quantile lies above the mean, from few draws.

    By their second and third moments, as in a gamma distribution (Wilson and Hilferty 1931).

    >>> normal = torch.randn(10_000, generator=torch.Generator().manual_seed(0)).double()
    >>> abs(float(high(normal)) - 1.645) < 0.05, abs(float(high(normal**2)) - 2.84) < 0.15
    (True, True)
    """
    deviation = draws - draws.mean(-1, keepdim=True)
    sigma = draws.std(-1)
    return quantile(sigma, (deviation**3).mean(-1) / sigma**3)


def quantile(sigma: Tensor, skew: Tensor) -> Tensor:
    """How far the 95 % quantile lies above the mean, from standard deviation and skewness."""
    skew = skew.nan_to_num(0.1).clamp(0.1, 2.8)  # of no less than normal, no more than χ² of one
    return sigma * 2 / skew * ((1 + skew * _Z95 / 6 - skew**2 / 36) ** 3 - 1)


def spread(draws: Tensor, share: Tensor, generator: torch.Generator) -> Tensor:
    """How far the 95 % quantile of the blocks' mean lies above its own mean."""
    k, _, _, p = draws.shape  # blocks, layers, layers, permutations
    apart = (draws - draws.mean(-1, keepdim=True)) * (p / (p - 1)) ** 0.5
    chosen = torch.stack([torch.randint(p, (_TOTALS,), generator=generator) for _ in range(k)])
    weight = share[:, None, None].expand(k, 1, _TOTALS)
    choice = draws.new_zeros(k, p, _TOTALS).scatter_(1, chosen[:, None].to(draws.device), weight)
    totals = apart.permute(1, 2, 0, 3).flatten(2) @ choice.flatten(0, 1)
    return torch.quantile(totals, 0.95, dim=-1)
