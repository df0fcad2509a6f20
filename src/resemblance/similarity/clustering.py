"""Clusters of networks: average linkage, and an order that puts like beside like."""

from __future__ import annotations

import numpy as np


def average_linkage(distance: np.ndarray) -> np.ndarray:  # (n, n) -> (n-1, 4)
    """Agglomerative clustering by mean distance, by chains of nearest neighbours, in O(n²).

    Reference: Müllner 2011, arXiv 1109.2378.

    >>> average_linkage(np.array([[0, 1, 4], [1, 0, 4], [4, 4, 0.0]])).tolist()
    [[0.0, 1.0, 1.0, 2.0], [2.0, 3.0, 4.0, 3.0]]
    """
    n = len(distance)
    d = np.array(distance, dtype=float)
    np.fill_diagonal(d, np.inf)
    size = np.ones(n)
    merges: list[tuple[int, int, float]] = []
    chain: list[int] = []
    while len(merges) < n - 1:
        if not chain:
            chain.append(int(np.flatnonzero(size)[0]))
        here = chain[-1]
        near = int(d[here].argmin())
        if len(chain) > 1 and d[here, chain[-2]] <= d[here, near]:
            near = chain[-2]  # mutual nearest neighbours: merge them
            del chain[-2:]
            merges.append((here, near, d[here, near]))
            total = size[here] + size[near]
            d[here] = d[:, here] = (size[here] * d[here] + size[near] * d[near]) / total
            size[here], size[near], d[here, here] = total, 0, np.inf
            d[near] = d[:, near] = np.inf
        else:
            chain.append(near)
    return _relabelled(merges, n)


def _relabelled(merges: list[tuple[int, int, float]], n: int) -> np.ndarray:
    """Merges sorted by height, clusters numbered n, n+1, … in that order."""
    cluster = np.arange(n)  # of each item
    out = np.empty((n - 1, 4))
    for i, (a, b, height) in enumerate(sorted(merges, key=lambda merge: merge[2])):
        left, right = sorted((cluster[a], cluster[b]))
        members = (cluster == left) | (cluster == right)
        cluster[members] = n + i
        out[i] = left, right, height, members.sum()
    return out


def leaf_order(links: np.ndarray) -> list[int]:
    """The leaves of a dendrogram from one end to the other."""
    n = len(links) + 1
    groups: dict[int, list[int]] = {i: [i] for i in range(n)}
    for i, (left, right, _, _) in enumerate(links):
        groups[n + i] = groups.pop(int(left)) + groups.pop(int(right))
    return next(iter(groups.values()))


def cut(links: np.ndarray) -> tuple[list[list[int]], tuple[float, float]]:
    """Groups of leaves, cut at the widest gap between successive heights of two merges or more.

    The heights on either side of the gap come with them. Groups stand in the order of their first
    leaves.

    >>> cut(np.array([[0, 1, 0.1, 2], [2, 3, 0.2, 2], [4, 5, 0.9, 4]]))
    ([[0, 1], [2, 3]], (0.2, 0.9))
    """
    n, heights = len(links) + 1, links[:, 2]
    merged = int(np.diff(heights).argmax()) + 1
    groups: dict[int, list[int]] = {i: [i] for i in range(n)}
    for i, (left, right, _, _) in enumerate(links[:merged]):
        groups[n + i] = groups.pop(int(left)) + groups.pop(int(right))
    found = sorted(sorted(group) for group in groups.values())
    return found, (float(heights[merged - 1]), float(heights[merged]))
