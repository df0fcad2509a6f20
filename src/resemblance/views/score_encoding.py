"""Compact encoding of the report page's scores and standard errors.

For every pair of layers the page holds the score and the 95 % chance level to three decimals (above
0.9995, the distance from 1 to 1.2 %), and the standard error in steps of 6 % (so to within 3 %,
between 1e-6 and 1). Neighbours in a map are alike, so each number is stored as the difference from
the one before it, low bytes and high bytes apart, deflated.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence

import numpy as np

THOUSANDTHS = 1000
MISSING_CODE = -30_000  # stands for NaN among scores; among errors 255 does
NEAR_ONE = 5e-4  # below 1: from here on, steps of the logarithm of the distance from 1
NEAR_ONE_CODE, PER_DECADE, ONE_CODE = (
    2000,
    100,
    2700,
)  # their first, how many for a power of ten, and 1 itself
_ONE_TOLERANCE = 1e-9  # 1 less a score: what float32 and packing leave of a layer and itself
SMALLEST_ERROR = 1e-6  # standard error that is told from zero
ERROR_STEPS = 253  # of the logarithm of errors, from `SMALLEST_ERROR` to 1


def encode_scores(values: np.ndarray) -> np.ndarray:  # -> int16
    """Scores in thousandths; closer to 1, steps of the logarithm of the distance; NaN as `MISSING`.

    >>> encode_scores(np.array([0.1234, 1 - 5e-5, 1.0, np.nan])).tolist()
    [123, 2100, 2700, -30000]
    """
    known = np.nan_to_num(np.asarray(values, float))
    below = 1 - known
    with np.errstate(divide="ignore", invalid="ignore"):
        near = NEAR_ONE_CODE + np.rint(PER_DECADE * np.log10(NEAR_ONE / below))
    out = np.rint(np.clip(known, -20, NEAR_ONE_CODE / THOUSANDTHS - 0.001) * THOUSANDTHS)
    out = np.where((below < NEAR_ONE) & (below > _ONE_TOLERANCE), near, out)
    out = np.where(np.abs(below) <= _ONE_TOLERANCE, ONE_CODE, out)
    return np.where(np.isnan(values), MISSING_CODE, out).astype(np.int16)


def encode_errors(errors: np.ndarray) -> np.ndarray:  # -> uint8
    """Standard errors as steps of their logarithm: 0 for none, 1 to 254 from 1e-6 to 1.

    >>> encode_errors(np.array([0.0, 1e-6, 1.0, np.nan])).tolist()
    [0, 1, 254, 255]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = 1 + np.rint(ERROR_STEPS * (1 - np.log(errors) / np.log(SMALLEST_ERROR)))
    known = np.where(errors > SMALLEST_ERROR / 2, np.clip(steps, 1, 254), 0)
    return np.where(np.isnan(errors), 255, known).astype(np.uint8)


def pack_tables(tables: Sequence[np.ndarray]) -> str:
    """Tables of int16 or uint8, one after the other, as text.

    Differences of all numbers of a type in one run: low bytes of 16-bit ones, their high bytes,
    then 8-bit ones.
    """
    wide, narrow = (
        np.concatenate([np.zeros(0, kind), *(t.ravel() for t in tables if t.dtype == kind)])
        for kind in (np.int16, np.uint8)
    )
    # zigzag: small differences of either sign are small numbers
    steps = np.diff(wide.astype(np.int32), prepend=np.int32(0)).astype(np.int32)
    folded = ((steps << 1) ^ (steps >> 31)).astype(np.uint32)
    planes = [(folded >> shift & 0xFF).astype(np.uint8) for shift in (0, 8)]
    short = np.diff(narrow, prepend=np.uint8(0))
    data = b"".join(plane.tobytes() for plane in (*planes, short))
    return base64.b64encode(zlib.compress(data, 9)).decode()
