"""A map of a zoo: networks as points on a plane, near each other if they are alike.

The cosine of two signatures is about the CKA of two networks, so the distance of signatures of
length one is √(2 − 2 CKA). Classical scaling (Torgerson 1952) finds the plane that keeps most of
these distances: that of the first two principal components. It is the same every time, for the same
networks in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LANDMARKS = 1000  # networks that the plane is laid through; others are put onto it


@dataclass(frozen=True)
class Layout:
    """Points, and how much of the differences between networks the plane shows."""

    points: np.ndarray  # (n, 2)
    share: float  # of squared distances, in [0, 1]


def laid_out(signatures: np.ndarray) -> Layout:  # (n, d)
    """The plane through signatures.

    Of more than 1,000 networks, those that lie evenly among them make the plane (landmarks: de
    Silva and Tenenbaum 2004). Cost: O(n d) beyond those.

    >>> laid_out(np.array([[1, 0], [1, 0], [0, 1]])).points.round(3).tolist()
    [[-0.471, 0.0], [-0.471, 0.0], [0.943, 0.0]]
    """
    rows = np.asarray(signatures, np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows / np.maximum(lengths, np.finfo(np.float32).tiny)
    chosen = rows[np.unique(np.linspace(0, len(rows) - 1, LANDMARKS).round().astype(int))]
    middle = chosen.mean(0)
    axes, share = _axes((chosen - middle).astype(np.float64))
    return Layout(((rows - middle) @ axes).astype(np.float64), share)


def _axes(rows: np.ndarray) -> tuple[np.ndarray, float]:  # (n, d) -> (d, 2)
    """The two directions in which rows differ most; each points to its longest row."""
    values, vectors = np.linalg.eigh(rows @ rows.T)
    total, out = float(values.clip(0).sum()), np.zeros((rows.shape[1], 2))
    if total <= len(rows) * 1e-9:  # all are the same, up to round-off
        return out, 1.0
    shown = 0.0
    for k in range(min(2, len(rows))):
        value = float(values[-1 - k])
        if value <= total * 1e-9:
            break
        side = vectors[:, -1 - k]
        out[:, k] = rows.T @ (side * np.sign(side[np.abs(side).argmax()])) / value**0.5
        shown += value
    return out, shown / total
