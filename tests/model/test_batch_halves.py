"""Batches for which memory does not do come again in halves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from resemblance._data.shares import Share
from resemblance._data.sources import Batch, Drawn, Piece, source
from resemblance._model.batch_halves import Halving, cells, halves
from resemblance.errors import DataError, ResemblanceWarning

X = torch.arange(40.0)[:, None]


def opened(block, batch_size):
    return source(X, seed=0, block=block).batches(batch_size, Share())


@given(block=st.integers(1, 40), batch_size=st.integers(2, 40))
def test_halves_hold_what_the_whole_did_in_its_order(block, batch_size):
    for batch in opened(block, batch_size):
        if len(batch.indices) == 1:
            continue
        parts = halves(batch)
        assert np.array_equal(np.concatenate([x.indices for x in parts]), batch.indices)
        for part in parts:
            assert part.samples[:, 0].tolist() == part.indices.tolist()
            # whole blocks, or one that is a part
            assert len(part.pieces) == 1 or all(x.starts and x.ends for x in part.pieces)
        edges = [(x.block, x.starts, x.ends) for part in parts for x in part.pieces]
        whole = [(x.block, x.starts, x.ends) for x in batch.pieces]
        assert (edges[0][1], edges[-1][2]) == (whole[0][1], whole[-1][2])


@given(block=st.integers(1, 40), batch_size=st.integers(1, 40), fits=st.integers(1, 12))
@pytest.mark.filterwarnings("ignore:memory did not do")
def test_every_sample_comes_once_however_little_fits(block, batch_size, fits):
    halving = Halving(None, lambda batch: batch)
    seen, open_blocks = [], set()
    for batch in halving.batches(opened(block, batch_size)):
        if len(batch.indices) > fits:
            halving.did_not_fit(batch, RuntimeError())
            continue
        halving.ran(batch)
        seen += batch.indices.tolist()
        for piece in batch.pieces:
            assert piece.starts == (piece.block not in open_blocks)
            open_blocks.add(piece.block)
            if piece.ends:
                open_blocks.remove(piece.block)
    assert not open_blocks
    whole = [i for batch in opened(block, batch_size) for i in batch.indices]
    assert seen == whole
    assert halving.proven <= fits


def test_a_limit_counts_positions_of_sequences():
    def draw(batch):
        return Batch(batch.pieces, batch.samples, Drawn(np.zeros((len(batch.indices), 1)), 10))

    found = list(Halving(50, draw).batches(opened(40, 40)))
    assert max(map(cells, found)) <= 50
    assert len(found) == 8


def test_what_is_too_large_alone_says_what_to_do():
    halving = Halving(None, lambda batch: batch)
    one = Batch([Piece(0, np.arange(1))], X[:1])
    with pytest.raises(DataError, match="does not do for a single sample; use shorter samples"):
        halving.did_not_fit(one, RuntimeError())
    two = Batch([Piece(0, np.arange(2))], X[:2])
    with pytest.warns(ResemblanceWarning, match="a batch of 2 samples; going on with 1 at a time"):
        halving.did_not_fit(two, RuntimeError())
