"""Rounding and packing of the page's numbers."""

from __future__ import annotations

import numpy as np
import pytest

from resemblance.views.packed_scores import (
    MISSING,
    SMALLEST,
    STEPS,
    logarithmic,
    packed,
    thousandths,
    unpacked,
)


def test_scores_come_back_to_three_decimals() -> None:
    values = np.array([[-1.0, -0.0004, 0.5], [0.12349, 1.0, np.nan]])
    found = thousandths(values)
    assert found.tolist() == [[-1000, 0, 500], [123, 1000, MISSING]]


def test_errors_come_back_to_three_percent() -> None:
    errors = np.concatenate([np.geomspace(SMALLEST, 1, 1000), [0.0, 1e-9, 4.0, np.nan]])
    steps = logarithmic(errors)
    back = 10.0 ** (-6 * (1 - (steps[:1000] - 1.0) / STEPS))
    np.testing.assert_allclose(back, errors[:1000], rtol=0.028)
    assert steps[1000:].tolist() == [0, 0, 254, 255]


@pytest.mark.parametrize("sizes", [(0, 0), (1, 0), (7, 5), (4000, 3000)])
def test_what_is_packed_is_unpacked(sizes: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    wide = rng.integers(-1000, 1001, sizes[0]).astype(np.int16)
    wide[::5] = MISSING
    narrow = rng.integers(0, 256, sizes[1]).astype(np.uint8)
    half = sizes[0] // 2
    text = packed([wide[:half], narrow[:2], wide[half:], narrow[2:]])
    assert text.isascii()
    found = unpacked(text, len(wide))
    np.testing.assert_array_equal(found[0], wide)
    np.testing.assert_array_equal(found[1], narrow)


def test_maps_that_are_smooth_take_less_than_a_byte_and_a_half_a_number() -> None:
    x = np.linspace(0, 1, 100)
    table = thousandths(np.cos(x[:, None] - x) * 0.9)
    assert len(packed([table])) < 1.5 * table.size
