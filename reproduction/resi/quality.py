"""How well scores follow a ground truth, as ReSi defines it, for many resamples of the networks.

A resample gives every network a weight, the number of times it was drawn; a pair of networks has
the product of theirs. Pairs of a network with itself do not count.
"""

from __future__ import annotations

import itertools

import numpy as np


def network_weights(groups: np.ndarray, draws: int, seed: int = 0) -> np.ndarray:  # (draws + 1, M)
    """Weights of networks, drawn with replacement within each group; the first row is of ones."""
    generator = np.random.default_rng(seed)
    out = np.ones((draws + 1, len(groups)))
    for group in np.unique(groups):
        here = np.flatnonzero(groups == group)
        out[1:, here] = generator.multinomial(
            len(here), np.full(len(here), 1 / len(here)), size=draws
        )
    return out


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
    """AUPRC of pairs inside a group among all its networks' pairs, averaged over groups."""
    out = []
    for group in np.unique(groups):
        inside, outside = np.flatnonzero(groups == group), np.flatnonzero(groups != group)
        pairs = [*itertools.combinations(inside, 2), *itertools.product(inside, outside)]
        i, j = np.array(pairs).T
        positive = groups[i] == groups[j]
        out.append(average_precision(scores[i, j], positive, weights[:, i] * weights[:, j]))
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
