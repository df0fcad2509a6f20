"""Numbers of the report page, read back as its script does."""

from __future__ import annotations

import base64
import zlib

import numpy as np

from resemblance.views.score_encoding import (
    MISSING_CODE,
    NEAR_ONE,
    NEAR_ONE_CODE,
    ONE_CODE,
    PER_DECADE,
    THOUSANDTHS,
)


def decode_scores(codes: np.ndarray) -> np.ndarray:
    """The scores that `encode_scores` stands for, as the page reads them."""
    near = 1 - NEAR_ONE / 10.0 ** (
        (np.maximum(codes, NEAR_ONE_CODE) - float(NEAR_ONE_CODE)) / PER_DECADE
    )
    scores = np.where(codes >= NEAR_ONE_CODE, near, codes / THOUSANDTHS)
    return np.where(codes == MISSING_CODE, np.nan, np.where(codes == ONE_CODE, 1.0, scores))


def unpack_tables(text: str, wide: int) -> tuple[np.ndarray, np.ndarray]:
    """The 16-bit numbers, of which there are `wide`, and the 8-bit ones."""
    data = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    low, high, short = np.split(data, [wide, 2 * wide])
    folded = low.astype(np.int32) | high.astype(np.int32) << 8
    steps = (folded >> 1) ^ -(folded & 1)
    return np.cumsum(steps).astype(np.int16), np.cumsum(short, dtype=np.uint8)
