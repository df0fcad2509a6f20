"""Error bars: how far a score may lie from its target, judged by the parts that it was made of.

A score's *deviations* are what each part (a block, a group of samples) moves it by, arranged so
that their squares add up to the variance. From them come the standard error, its degrees of
freedom, and Student's t for the interval: where few parts carry a score, the standard error is
itself uncertain, and the interval wider.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def left_out(scores: Tensor) -> Tensor:  # (k, ...) -> (k, ...)
    """The deviations of a jackknife: from the scores with each of k parts left out."""
    k = len(scores)  # of a single part nothing is left, whose score is NaN, as is its error
    return (scores - scores.mean(0)) * ((k - 1) / k) ** 0.5


def jackknife(scores: Tensor) -> Tensor:  # (k, ...) -> (...)
    """Standard error from the scores with each block left out."""
    return left_out(scores).square().sum(0).sqrt()


def standard_error(deviations: Sequence[Tensor]) -> tuple[Tensor, Tensor]:  # each (k, ...)
    """Standard error and degrees of freedom of a score, from one or more sets of deviations.

    Satterthwaite: 2V² / Var V, with the variance of a sum of k squares seen in their spread. For
    one set that is 2k / (kurtosis − 1), k for normal deviations and few where a few parts carry
    all. Two thirds of it are taken, as k parts show less of a heavy tail than there is; never more
    than k − 1, nor less than one.
    """
    squares = [x.square() for x in deviations]
    variance = torch.stack([x.sum(0) for x in squares]).sum(0)
    spread = torch.stack([len(x) * x.var(0, correction=0) for x in squares]).sum(0)
    most = max(1, max(len(x) for x in deviations) - 1)
    df = (2 / 3 * 2 * variance**2 / spread).nan_to_num(most).clamp(1, most)
    return variance.sqrt(), df


def replicates(score: Tensor, deviations: Sequence[Tensor]) -> Tensor:  # (m, ...)
    """Scores with a part left out, of which the jackknife makes the same standard error.

    Each set of deviations adds up to zero.
    """
    every = torch.cat(list(deviations))
    return score + every * (len(every) / max(1, len(every) - 1)) ** 0.5


def effective(shares: Tensor) -> Tensor:  # (k, ...) -> (...)
    """How many of k parts carry a sum: (Σ|x|)² / Σx², k for equal parts and 1 for a single one.

    >>> float(effective(torch.tensor([1.0, 1.0, 1.0, 0.0])))
    3.0
    """
    return shares.abs().sum(0) ** 2 / shares.square().sum(0)


class Carried:
    """How much of a kernel each sample carries; a sequence, all that its tokens do."""

    def __init__(self) -> None:
        self._windows: dict[int, Tensor] = {}  # (L, n)

    def add(self, windows: Sequence[int], diagonals: Tensor) -> None:  # (g, L, n)
        """Take in the diagonals of blocks, each of a window of samples."""
        for window, diagonal in zip(windows, diagonals, strict=True):
            self._windows[window] = self._windows.get(window, 0) + diagonal

    def n_eff(self) -> Tensor:  # (L,)
        """How many samples, or sequences, carry the kernels of all windows."""
        return effective(torch.cat(list(self._windows.values()), 1).T)


def student_t(level: float, df: np.ndarray) -> np.ndarray:
    """How many standard errors either side hold a share `level` of Student's t distribution.

    With t = √df tan φ the density is cos(φ)^(df − 1), which a sum over a grid integrates to five
    digits.

    >>> [round(float(t), 3) for t in student_t(0.95, np.array([1.0, 10.0, 63.0]))]
    [12.706, 2.228, 1.998]
    """
    angle = np.linspace(0, np.pi / 2, 4_001)
    out = np.full(np.shape(df), np.nan)
    for at in np.ndindex(out.shape):
        if np.isfinite(df[at]):
            density = np.cos(angle) ** (df[at] - 1)
            upto = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
            out[at] = df[at] ** 0.5 * np.tan(np.interp(level * upto[-1], upto, angle))
    return out


def student_tail(t: np.ndarray, df: np.ndarray) -> np.ndarray:
    """The share of Student's t distribution that lies above t, to four digits of it.

    The same integral as in `student_t`, from tan φ = t / √df on, over that from 0 in closed form.

    >>> [round(float(p), 4) for p in student_tail(np.array([0.0, 2.228, -1.0]), np.full(3, 10.0))]
    [0.5, 0.025, 0.8296]
    """
    out = np.full(np.shape(t), np.nan)
    for at in np.ndindex(out.shape):
        if np.isfinite(df[at]) and not np.isnan(t[at]):
            angle = np.linspace(np.arctan(abs(t[at]) / df[at] ** 0.5), np.pi / 2, 4_001)
            density = np.clip(np.cos(angle), 0.0, None) ** (df[at] - 1)
            above = (density[1:] + density[:-1]).sum() / 2 * (angle[1] - angle[0])
            half = math.exp(math.lgamma(df[at] / 2) - math.lgamma((df[at] + 1) / 2))
            share = above / (math.pi**0.5 * half)
            out[at] = share if t[at] > 0 else 1 - share
    return out
