"""The numbers of the report page: rounded to what it shows, and packed small.

Of every pair of layers the page holds the score and the 95 % level of chance to three decimals, and
the standard error in steps of 6 % (so to 3 % of itself, between 1e-6 and 1). Neighbours in a map
are alike, so what is stored of each number is the difference from the one before it, low bytes and
high bytes apart, deflated.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence

import numpy as np

THOUSANDTHS = 1000
MISSING = -30_000  # stands for NaN among thousandths; among errors 255 does
SMALLEST = 1e-6  # standard error that is told from zero
STEPS = 253  # of the logarithm of errors, from `SMALLEST` to 1


def thousandths(values: np.ndarray) -> np.ndarray:  # -> int16
    """Scores in thousandths, NaN as `MISSING`.

    >>> thousandths(np.array([0.1234, 1.0, np.nan])).tolist()
    [123, 1000, -30000]
    """
    return np.where(np.isnan(values), MISSING, np.rint(np.nan_to_num(values) * THOUSANDTHS)).astype(
        np.int16
    )


def logarithmic(errors: np.ndarray) -> np.ndarray:  # -> uint8
    """Standard errors as steps of their logarithm: 0 for none, 1 to 254 from 1e-6 to 1.

    >>> logarithmic(np.array([0.0, 1e-6, 1.0, np.nan])).tolist()
    [0, 1, 254, 255]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = 1 + np.rint(STEPS * (1 - np.log(errors) / np.log(SMALLEST)))
    known = np.where(errors > SMALLEST / 2, np.clip(steps, 1, 254), 0)
    return np.where(np.isnan(errors), 255, known).astype(np.uint8)


def packed(tables: Sequence[np.ndarray]) -> str:
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


def unpacked(text: str, wide: int) -> tuple[np.ndarray, np.ndarray]:
    """The 16-bit numbers, of which there are `wide`, and the 8-bit ones."""
    data = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    low, high, short = np.split(data, [wide, 2 * wide])
    folded = low.astype(np.int32) | high.astype(np.int32) << 8
    steps = (folded >> 1) ^ -(folded & 1)
    return np.cumsum(steps).astype(np.int16), np.cumsum(short, dtype=np.uint8)
