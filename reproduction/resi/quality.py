"""How well scores follow a ground truth, as ReSi defines it, with all networks and without each.

Weights of networks say which are there; a pair of networks has the product of theirs. Standard
errors are those of a jackknife over networks. `reproduction.resi.coverage` shows why: intervals
from a bootstrap of five networks a group miss the true AUPRC too often.
"""

from __future__ import annotations

import itertools

import numpy as np
from scipy.stats import t as student_t


def leave_one_out(count: int) -> np.ndarray:  # (1 + M, M)
    """Weights of networks: all of them, then all but each in turn."""
    return np.vstack([np.ones(count), 1 - np.eye(count)])


def jackknife_variance(values: np.ndarray, groups: np.ndarray) -> tuple[float, int]:
    """The variance of an estimate, (1 + M,) with each network left out, and degrees of freedom.

    Networks are drawn within groups, so deviations are from the mean of each group.
    """
    variance = 0.0
    for group in np.unique(groups):
        without = values[1:][groups == group]
        variance += (len(without) - 1) / len(without) * np.square(without - without.mean()).sum()
    return float(variance), len(groups) - len(np.unique(groups))


def interval_of_mean(
    estimates: list[np.ndarray], groups: list[np.ndarray]
) -> tuple[float, float, float]:
    """The mean of independent estimates and its 95 % interval (Welch and Satterthwaite)."""
    value = float(np.mean([x[0] for x in estimates]))
    each = [jackknife_variance(x, g) for x, g in zip(estimates, groups, strict=True)]
    total = sum(variance for variance, _ in each)
    if total == 0:
        return value, value, value
    freedom = total**2 / sum(variance**2 / df for variance, df in each)
    half = float(student_t.ppf(0.975, freedom)) * total**0.5 / len(each)
    return value, value - half, value + half


def average_precision(
    score: np.ndarray, positive: np.ndarray, weights: np.ndarray
) -> np.ndarray:  # (P,), (P,), (B, P) -> (B,)
    """The area under the precision-recall curve as a sum of steps; NaN scores are left out.

    Σ_k (R_k − R_{k−1}) P_k over the thresholds k, from the highest score on: scikit-learn's
    `average_precision_score`.
    """
    known = np.isfinite(score)
    score, positive, weights = score[known], positive[known], weights[:, known]
    if not len(score):
        return np.full(len(weights), np.nan)
    order = np.argsort(-score, kind="stable")
    score, positive, weights = score[order], positive[order], weights[:, order]
    ends = np.append(score[1:] != score[:-1], True)
    true = np.cumsum(weights * positive, 1)[:, ends]
    every = np.cumsum(weights, 1)[:, ends]
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = np.where(every > 0, true / every, 0)
        gain = np.diff(true, axis=1, prepend=0) / true[:, -1:]
        return (gain * precision).sum(1)  # NaN where no pair of a group was drawn


def group_separation(
    scores: np.ndarray, groups: np.ndarray, weights: np.ndarray
) -> np.ndarray:  # (M, M), (M,), (B, M) -> (B,)
    """AUPRC of pairs inside a group among all its networks' pairs, averaged over groups.

    Where a network is left out, pairs inside the group keep their share of all pairs, on which
    AUPRC depends.
    """
    out = []
    for group in np.unique(groups):
        inside, outside = np.flatnonzero(groups == group), np.flatnonzero(groups != group)
        pairs = [*itertools.combinations(inside, 2), *itertools.product(inside, outside)]
        i, j = np.array(pairs).T
        positive = groups[i] == groups[j]
        w = weights[:, i] * weights[:, j]
        for side in (positive, ~positive):
            total = w[:, side].sum(1, keepdims=True)
            w[:, side] *= side.sum() / np.where(total > 0, total, 1)
        out.append(average_precision(scores[i, j], positive, w))
    return _known_mean(np.array(out))


def _known_mean(x: np.ndarray) -> np.ndarray:
    """The mean over the first axis of what is not NaN."""
    known = np.isfinite(x)
    return np.where(known, x, 0).sum(0) / np.where(known.any(0), known.sum(0), np.nan)


def spearman(
    x: np.ndarray, y: np.ndarray, weights: np.ndarray
) -> np.ndarray:  # (V, P), (P,), (B, P) -> (V, B)
    """Rank correlations; ties share their mean rank, weights say how often a pair occurs."""
    rx, ry = _ranks(x, weights), _ranks(y[None], weights)[0]
    total = weights.sum(1)

    def mean(values: np.ndarray) -> np.ndarray:
        return (values * weights).sum(-1) / total

    rx = rx - mean(rx)[..., None]
    ry = ry - mean(ry)[..., None]
    with np.errstate(invalid="ignore", divide="ignore"):
        found = mean(rx * ry) / np.sqrt(mean(rx * rx) * mean(ry * ry))
    found[~np.isfinite(x).all(1)] = np.nan
    return found


def _ranks(x: np.ndarray, weights: np.ndarray) -> np.ndarray:  # (V, P), (B, P) -> (V, B, P)
    below = (x[:, None, :] < x[:, :, None]) + 0.5 * (x[:, None, :] == x[:, :, None])
    return np.einsum("vpq,bq->vbp", below, weights, optimize=True) + 0.5


def correlation_with(
    scores: np.ndarray, differences: np.ndarray, weights: np.ndarray
) -> np.ndarray:  # (V, M, M), (M, M), (B, M) -> (V, B)
    """Spearman's correlation of dissimilarities with differences between two networks' outputs."""
    i, j = np.triu_indices(len(differences), 1)
    w = weights[:, i] * weights[:, j]
    parts = [
        spearman(-s[:, i, j], differences[i, j], w)
        for s in np.array_split(scores, max(1, len(scores) // 64))
    ]
    return np.concatenate(parts)


def chance_of_separation(
    scores: np.ndarray, groups: np.ndarray, draws: int
) -> np.ndarray:  # (M, M), (M,) -> (draws,)
    """Group separations with networks assigned to groups at random."""
    generator = np.random.default_rng(0)
    ones = np.ones((1, len(groups)))
    return np.array(
        [group_separation(scores, generator.permutation(groups), ones)[0] for _ in range(draws)]
    )


def chance_of_correlation(
    scores: np.ndarray, differences: np.ndarray, draws: int
) -> np.ndarray:  # (M, M), (M, M) -> (draws,)
    """Correlations with the networks of one side in random order: Mantel's test."""
    generator = np.random.default_rng(0)
    orders = [generator.permutation(len(scores)) for _ in range(draws)]
    shuffled = np.stack([scores[np.ix_(order, order)] for order in orders])
    return correlation_with(shuffled, differences, np.ones((1, len(scores))))[:, 0]


def monotonicity(scores: np.ndarray) -> np.ndarray:  # (..., layers, layers) -> (...)
    """Spearman's correlation of dissimilarity with distance, from each layer to either side.

    The mean over those with two or more layers on that side.
    """
    layers = scores.shape[-1]
    found = []
    for start in range(layers):
        for others in (range(start + 1, layers), range(start - 1, -1, -1)):
            if len(others) < 2:
                continue
            x = -scores[..., start, list(others)]
            flat = x.reshape(-1, len(others))
            ranks = spearman(flat, np.arange(len(others), dtype=float), np.ones((1, len(others))))
            found.append(ranks[:, 0].reshape(x.shape[:-1]))
    return _known_mean(np.stack(found))


def violations(scores: np.ndarray) -> np.ndarray:  # (..., layers, layers) -> (...)
    """The share of triples in which the farther layer is the more similar one."""
    layers = scores.shape[-1]
    broken = [
        scores[..., a, b] < scores[..., a, c]
        for a in range(layers)
        for side in (range(a + 1, layers), range(a - 1, -1, -1))
        for b, c in itertools.combinations(side, 2)
    ]
    return np.mean(broken, axis=0)
