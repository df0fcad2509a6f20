"""Procrustes: 1 − 2θ/π, with θ the angular shape distance, a metric.

θ = arccos of NBS of centred kernels is the angle between the features of two networks, once one is
rotated onto the other. It obeys the triangle inequality, so 1 − score is a distance between 0 and 1
by which networks can be clustered. NBS of centred kernels is itself the Procrustes similarity, a
cosine. Samples of a block would read too alike (see `nbs`), so it needs the full Gram matrix. The
rounding of stored kernels moves NBS by up to 2e-4, and so small angles by more than large ones: a
score of 0.99 by 1e-4, and scores beyond that by up to 0.01.

Reference: Williams et al. 2021.
"""

from __future__ import annotations

import numpy as np

from .nbs import NUCLEAR_COSINE
from .registry import SimilarityIndex


def _angle_similarity(cosine: np.ndarray) -> np.ndarray:
    return 1 - 2 / np.pi * np.arccos(cosine)


INDEX = SimilarityIndex(
    "procrustes", **NUCLEAR_COSINE, blocks=False, centre=True, transform=_angle_similarity
)
