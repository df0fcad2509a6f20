"""Which rows of a layer's output are recorded."""

from __future__ import annotations

import numpy as np
import torch

from resemblance._data.sources import Batch, Drawn, Piece
from resemblance._model.picked_tokens import Rows

POSITIONS = np.array([[4, 0], [1, 2], [3, 3], [0, 4], [2, 1]])


def test_rows_come_window_by_window_and_in_each_block_by_block():
    pieces = [Piece(0, np.array([7, 8, 9])), Piece(1, np.array([3, 4]))]
    rows = Rows(Batch(pieces, None, Drawn(POSITIONS, 5)))
    assert rows.sample.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert rows.token.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    x = torch.randn(5, 5, 3)
    found = rows.pick(x)
    for row, sample, token in zip(found, rows.sample, rows.token, strict=True):
        assert torch.equal(row, x[sample, POSITIONS[sample, token]])


def test_samples_that_are_whole_stay_as_they_are():
    rows = Rows(Batch([Piece(0, np.arange(4))], None))
    x = torch.randn(4, 2, 2)
    assert rows.pick(x) is x
    assert rows.sample.tolist() == [0, 1, 2, 3]


def test_an_output_without_such_positions_has_no_rows():
    rows = Rows(Batch([Piece(0, np.arange(5))], None, Drawn(POSITIONS, 5)))
    assert all(rows.pick(torch.zeros(shape)) is None for shape in [(5, 5), (5, 6, 2), (4, 5, 2)])
