"""Rounding and packing of the page's numbers."""

from __future__ import annotations

import numpy as np
import pytest

from page_numbers import decode_scores, unpack_tables
from resemblance.views.score_encoding import (
    ERROR_STEPS,
    MISSING_CODE,
    ONE_CODE,
    SMALLEST_ERROR,
    encode_errors,
    encode_scores,
    pack_tables,
)


def test_scores_come_back_to_three_decimals() -> None:
    values = np.array([[-1.0, -0.0004, 0.5], [0.12349, 1.0, np.nan]])
    found = encode_scores(values)
    assert found.tolist() == [[-1000, 0, 500], [123, ONE_CODE, MISSING_CODE]]
    above = decode_scores(encode_scores(np.array([1.002, 1.9991, 5.0])))  # debiased ones may be
    np.testing.assert_allclose(above, [1.002, 1.999, 1.999], rtol=0, atol=1e-12)


def test_scores_close_to_one_keep_their_distance_from_it() -> None:
    below = np.geomspace(2e-9, 0.9, 2000)
    back = 1 - decode_scores(encode_scores(1 - below))
    # half of a hundredth of a power of ten, or half of a thousandth
    error = np.where(below < 5e-4, 0.0117 * below, 5e-4)
    assert (np.abs(back - below) <= error + 1e-12).all()
    assert decode_scores(encode_scores(np.array([1.0, 1 - 1e-10]))).tolist() == [1.0, 1.0]
    assert (decode_scores(encode_scores(1 - below)) < 1).all()
    assert np.ptp(encode_scores(np.array([np.nan, 1.0]))) < 2**15  # differences that 16 bits hold


def test_errors_come_back_to_three_percent() -> None:
    errors = np.concatenate([np.geomspace(SMALLEST_ERROR, 1, 1000), [0.0, 1e-9, 4.0, np.nan]])
    steps = encode_errors(errors)
    back = 10.0 ** (-6 * (1 - (steps[:1000] - 1.0) / ERROR_STEPS))
    np.testing.assert_allclose(back, errors[:1000], rtol=0.028)
    assert steps[1000:].tolist() == [0, 0, 254, 255]


@pytest.mark.parametrize("sizes", [(0, 0), (1, 0), (7, 5), (4000, 3000)])
def test_what_is_packed_is_unpacked(sizes: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    wide = rng.integers(-1000, 1001, sizes[0]).astype(np.int16)
    wide[::5] = MISSING_CODE
    narrow = rng.integers(0, 256, sizes[1]).astype(np.uint8)
    half = sizes[0] // 2
    text = pack_tables([wide[:half], narrow[:2], wide[half:], narrow[2:]])
    assert text.isascii()
    found = unpack_tables(text, len(wide))
    np.testing.assert_array_equal(found[0], wide)
    np.testing.assert_array_equal(found[1], narrow)


def test_maps_that_are_smooth_take_less_than_a_byte_and_a_half_a_number() -> None:
    x = np.linspace(0, 1, 100)
    table = encode_scores(np.cos(x[:, None] - x) * 0.9)
    assert len(pack_tables([table])) < 1.5 * table.size
