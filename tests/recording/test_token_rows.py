"""Which tokens the rows of blocks are."""

from __future__ import annotations

import numpy as np

from resemblance.recording.token_rows import RowsOfBlocks


def test_rows_of_a_window_come_token_by_token():
    rows = RowsOfBlocks(block=4)
    rows.add(np.array([9, 5]), np.array([[1, 2], [3, 4]]))
    rows.add(np.array([7]), np.array([[5, 6]]))
    rows.end()
    found = rows.result()
    assert found.sequence.tolist() == [[9, 5, 7, -1], [9, 5, 7, -1]]
    assert found.position.tolist() == [[1, 3, 5, -1], [2, 4, 6, -1]]


def test_samples_that_are_no_tokens_have_none():
    assert RowsOfBlocks(block=4).result() is None
