"""Neighbours, rank correlations and cosines of embeddings, spelt out in plain float64."""

from __future__ import annotations

import numpy as np


def cosine(x, y):
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def ranks(values):
    """Places from the smallest on; equal values have the mean of theirs."""
    return np.array([(values < x).sum() + ((values == x).sum() - 1) / 2 for x in values])


def behaviour(one, two, k):
    """Overlap and Spearman's correlation of each query, and the cosine of each sample.

    Every second sample is a query and the others are the pool.
    """
    pool, queries = range(0, len(one), 2), range(1, len(one), 2)
    overlap, correlation = [], []
    for q in queries:
        similar = [np.array([cosine(x[q], x[j]) for j in pool]) for x in (one, two)]
        near = [set(np.argsort(-x, kind="stable")[:k].tolist()) for x in similar]
        overlap.append(len(near[0] & near[1]) / k)
        correlation.append(np.corrcoef(*(ranks(x.round(10)) for x in similar))[0, 1])
    cosines = [cosine(x, y) for x, y in zip(one, two, strict=True)]
    return np.array(overlap), np.array(correlation), np.array(cosines)
