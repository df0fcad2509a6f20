"""The 95 % level of chance from moments over all permutations, without drawing any.

A score of permuted samples is T = c Σ_{i≠j} K1_ij K2_π(i)π(j) and inner products of row sums and
diagonals. With K_ij = u_i + u_j + W_ij, where rows of W sum to zero, it falls into a part that is
linear in π, of x = (u, d) with d the diagonal, and Σ W1_ij W2_π(i)π(j). The two are uncorrelated,
and of each the variance over all permutations is known exactly:

    Var Σ_i x_iᵀ M y_π(i)  =  tr(S_x M S_y Mᵀ) / (n − 1),          S the scatter of x, of y,
    Var Σ W1_ij W2_π(i)π(j) =  ‖W1‖² ‖W2‖² / (n(n − 3)/2).

The third moment is taken to first order in 1/n, by what it is made of in a gamma distribution. So
each layer has a few numbers, and the level of every pair of layers is a product of them; drawing
permutations takes a product of whole kernels for every draw instead. Blocks are permuted apart and
their moments add up; blocks of one window, of other tokens of the same sequences, are permuted
alike, so that their covariances count as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .chance_level import quantile


class Moments(NamedTuple):
    """What layers bring to the variance and the third moment of a permuted score."""

    mine: Tensor  # (L, f) of rows
    theirs: Tensor  # (L, f) of columns: the variance is a product of the two
    mine_third: Tensor  # (L, h)
    theirs_third: Tensor  # (L, h)

    def above_mean(self, rows: slice, columns: slice) -> Tensor:
        """How far the 95 % level of scores lies above their mean, for rows × columns."""
        variance = (self.mine[rows] @ self.theirs[columns].T).clamp_min(0)
        third = self.mine_third[rows] @ self.theirs_third[columns].T
        sigma = variance.sqrt()
        return quantile(sigma, third / sigma**3)


class Window(NamedTuple):
    """What of blocks that are permuted alike depends on the order of their samples."""

    u: Tensor  # (L, t, n) of each of t blocks
    d: Tensor  # (L, t, n)
    kernels: Tensor  # (L, t, t) Σ_{i≠j} K_ij K'_ij of any two of them
    few: Tensor | None = None  # (L, m, m) K of some samples of a single block, with a diagonal of
    # zeros, for the third moment


def moments(windows: Sequence[tuple[float, Tensor, Window]]) -> Moments:
    """Moments of a sum over windows, each by its share, of the mean over the blocks of a window.

    With each window come the factors (9,) of `pair_sums.factors`.
    """
    mine, theirs, mine_third, theirs_third = [], [], [], []
    for share, add_up, window in windows:
        count, n = window.d.shape[1:]
        if n < 4:
            continue
        form, weight = _form(add_up, n), (share / count) ** 2
        x = torch.stack([window.u, window.d], 2).flatten(1, 2)  # (L, 2t, n)
        x = x - x.mean(2, keepdim=True)
        scatter, turn = x @ x.mT, torch.block_diag(*[form] * count)
        mine.append(weight / (n - 1) * scatter.flatten(1))
        theirs.append((turn @ scatter @ turn.T).flatten(1))
        squares = _without_effects(window).flatten(1)
        mine.append(2 * weight * float(add_up[0]) ** 2 / (n * (n - 3)) * squares)
        theirs.append(squares)
        if window.few is not None:
            one, two = _third(window.u[:, 0], x, window.few, form, float(add_up[0]))
            mine_third.append(share**3 * one)
            theirs_third.append(two)
    nothing = torch.zeros(len(windows[0][2].d), 1, dtype=torch.float64)
    parts = (mine, theirs, mine_third, theirs_third)
    return Moments(*(torch.cat([nothing, *part], 1) for part in parts))


def _form(add_up: Tensor, n: int) -> Tensor:  # (2, 2)
    """M of the linear part, in terms of u and d; row sums are (n − 2) u and a constant."""
    c, m = add_up.tolist(), n - 2
    return torch.tensor(
        [[2 * m * c[0] + m * m * c[1], c[4] * m], [c[3] * m, c[2]]], dtype=torch.float64
    )


def _without_effects(window: Window) -> Tensor:  # (L, t, t)
    """⟨W, W'⟩ of any two blocks: what is left of ⟨K, K'⟩ without the effects of rows."""
    u, total = window.u, window.u.sum(2, keepdim=True)
    return window.kernels - 2 * (u.shape[2] - 2) * (u @ u.mT) - 2 * total * total.mT


def _third(
    u: Tensor, x: Tensor, few: Tensor, form: Tensor, c: float
) -> tuple[Tensor, Tensor]:  # (L, n), (L, 2, n), (L, m, m) -> (L, h) twice
    """The third moment, as products: of W alone, of x alone, and of both.

    8 tr W1³ tr W2³ / n³ + Σ x⊗x⊗x · Σ y⊗y⊗y / n + 6 (xᵀW1x)(yᵀW2y) / n² + 12 (Σ x_i W1_ij²) ·
    (Σ y_i W2_ij²) / n², with M between x and y. Those with W are estimated from some samples.
    """
    n, m = x.shape[2], few.shape[1]
    some = u[:, :m].float()
    w = few - some[:, :, None] - some[:, None, :]
    w.diagonal(dim1=1, dim2=2).zero_()
    square = w @ w
    more = n / m * (n - 1) / max(1, m - 1)  # pairs than there are of some samples
    cube = (square * w).sum((1, 2)).double() * more * (n - 2) / max(1, m - 2)
    y = x[:, :, :m]  # (L, 2, m)
    both = y @ w.double() @ y.mT * more
    heavy = (y * square.diagonal(dim1=1, dim2=2).double()[:, None]).sum(2) * more
    alone = torch.einsum("lai,lbi,lci->labc", x, x, x)
    turned = torch.einsum("labc,pa,qb,rc->lpqr", alone, form, form, form)
    mine = [
        8 * c**3 / n**3 * cube[:, None],
        alone.flatten(1) / n,
        6 * c / n**2 * both.flatten(1),
        12 * c**2 / n**2 * heavy,
    ]
    theirs = [
        cube[:, None],
        turned.flatten(1),
        (form @ both @ form.T).flatten(1),
        (form @ heavy[..., None])[..., 0],
    ]
    return torch.cat(mine, 1), torch.cat(theirs, 1)
