"""The batch size that `record` chooses, and batches split in half when out of memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import networks
import resemblance as rs
from resemblance._data.make_source import make_source
from resemblance._data.sources import Batch, Piece, SampledTokens, Share
from resemblance._models.batch_size import (
    BatchSplitter,
    choose_batch_size,
    count_cells,
    largest_batch_size,
    split_in_half,
)
from resemblance._models.language_models import TokenSampler
from resemblance.errors import DataError, ResemblanceWarning

GIB = 2**30


@pytest.mark.parametrize(
    ("block", "each", "free", "expected"),
    [
        (128, GIB // 16, 64 * GIB, 512),  # 512 samples take half of the memory
        (100, GIB // 16, 64 * GIB, 500),
        (128, 1, 64 * GIB, 4096),
        (300, 1, 64 * GIB, 3900),  # whole blocks below the limit
        (128, GIB, 4 * GIB, 2),  # a part of a block
        (128, GIB, GIB, 1),  # one, though it may not fit
        (2000, 1, 64 * GIB, 4000),
        (128, 0, 0, 1),
    ],
)
def test_whole_blocks_in_half_of_the_memory(block, each, free, expected):
    assert largest_batch_size(block, each, free) == expected


@pytest.mark.parametrize(
    ("inputs", "expected"), [(4 * 3 * 224**2, 384), (4 * 3 * 32**2, 4096), (2**27, 2), (2**30, 1)]
)
def test_inputs_that_are_sent_together_have_a_limit(inputs, expected):
    assert largest_batch_size(128, 1, 64 * GIB, inputs) == expected


def test_128_on_a_cpu_and_where_bits_must_not_vary():
    assert (
        choose_batch_size(None, 16, 0, False)
        == choose_batch_size(torch.device("cpu"), 16, 0, False)
        == 128
    )
    assert choose_batch_size(torch.device("cuda"), 16, 1, True) == 128
    assert choose_batch_size(None, 128, 0, False, length=512) == 8  # sequences of 4,096 tokens
    assert choose_batch_size(None, 128, 0, False, length=10_000) == 1


@pytest.mark.parametrize(
    ("values", "length", "expected"),
    [(1000, 1, 128), (2**20, 1, 64), (16 * 250_000, 1, 16), (16 * 250_000, 16, 16), (2**30, 1, 1)],
)
def test_fewer_where_the_outputs_of_a_batch_are_large(values, length, expected):
    """2²⁶ values at most: of a vocabulary of 250,000, those of 268 positions."""
    assert (
        choose_batch_size(torch.device("cpu"), 16, 0, False, length=length, values=values)
        == expected
    )


def test_record_runs_smaller_batches_of_a_network_with_large_outputs():
    seen = []

    class Wide(networks.MLP):
        def forward(self, x):
            seen.append(len(x))
            return super().forward(x)[:, :1].expand(-1, 2**20)  # a view, which takes no memory

    rs.record(networks.seeded(Wide), torch.randn(1100, 6), gradients=False, outputs=False)
    assert 2 < max(seen) <= 64


def test_record_runs_batches_of_128_on_a_cpu():
    seen = []

    def call(model, batch):
        seen.append(len(batch))
        return model(batch)

    rs.record(networks.seeded(networks.MLP), torch.randn(300, 6), call=call)
    assert max(seen) == 114  # six blocks of 19: 300 samples are cut into sixteen blocks


X = torch.arange(40.0)[:, None]


def opened(block, batch_size):
    return make_source(X, seed=0, block=block).batches(batch_size, Share())


@given(block=st.integers(1, 40), batch_size=st.integers(2, 40))
def test_halves_hold_what_the_whole_did_in_its_order(block, batch_size):
    for batch in opened(block, batch_size):
        if len(batch.indices) == 1:
            continue
        parts = split_in_half(batch)
        assert np.array_equal(np.concatenate([x.indices for x in parts]), batch.indices)
        for part in parts:
            assert part.samples[:, 0].tolist() == part.indices.tolist()
            # whole blocks, or one that is a part
            assert len(part.pieces) == 1 or all(x.starts and x.ends for x in part.pieces)
        edges = [(x.block, x.starts, x.ends) for part in parts for x in part.pieces]
        whole = [(x.block, x.starts, x.ends) for x in batch.pieces]
        assert (edges[0][1], edges[-1][2]) == (whole[0][1], whole[-1][2])


@given(block=st.integers(1, 40), batch_size=st.integers(1, 40), fits=st.integers(1, 12))
@pytest.mark.filterwarnings("ignore:out of memory")
def test_every_sample_comes_once_however_little_fits(block, batch_size, fits):
    halving = BatchSplitter(None, lambda batch: batch)
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
        return Batch(
            batch.pieces, batch.samples, SampledTokens(np.zeros((len(batch.indices), 1)), 10)
        )

    found = list(BatchSplitter(50, draw).batches(opened(40, 40)))
    assert max(map(count_cells, found)) <= 50
    assert len(found) == 8


def test_what_is_too_large_alone_says_what_to_do():
    halving = BatchSplitter(None, lambda batch: batch)
    two = Batch([Piece(0, np.arange(2))], X[:2])
    found = halving.batches(iter([two]))
    with pytest.warns(ResemblanceWarning, match="batch of 2 samples; continuing with 1 per batch"):
        halving.did_not_fit(next(found), RuntimeError())
    with pytest.raises(DataError, match=r"out of memory with a single sample.*use shorter samples"):
        halving.did_not_fit(next(found), RuntimeError())


PAD, MASK, SPECIAL = 0, 1, frozenset({0, 1, 2})


def masked_language(lengths):
    """Sequences [2, token, …, 2] of these lengths, padded, as a masked model's data."""
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for i, length in enumerate(lengths):
        ids[i, :length] = torch.arange(3, 3 + length)
        ids[i, 0] = ids[i, length - 1] = 2
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def shown(data, batch_size, limit, fits):
    """By index of a sequence, the tokens that a model is shown and the positions recorded."""
    halving = BatchSplitter(limit, TokenSampler(3, 0, SPECIAL, mask_token=MASK))
    out = {}
    for batch in halving.batches(make_source(data, seed=0, block=8).batches(batch_size, Share())):
        if count_cells(batch) > fits and len(batch.indices) > 1:  # as if memory ran out
            halving.did_not_fit(batch, RuntimeError())
            continue
        ids, mask = batch.samples["input_ids"], batch.samples["attention_mask"]
        rows = zip(batch.indices.tolist(), ids, mask, batch.drawn.positions, strict=True)
        out |= {i: (x[m.bool()].tolist(), at.tolist()) for i, x, m, at in rows}
    return out


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(3, 9), min_size=2, max_size=40).map(sorted),  # which grow
    batch_size=st.integers(1, 40),
    limit=st.none() | st.integers(1, 200),
    fits=st.integers(1, 300),
)
@pytest.mark.filterwarnings("ignore:out of memory")
def test_splitting_never_changes_which_tokens_are_drawn_or_masked(lengths, batch_size, limit, fits):
    data = masked_language(lengths)
    alone = shown(data, 1, None, 10**6)
    assert all(ids.count(MASK) == min(3, len(ids) - 2) for ids, _ in alone.values())
    assert shown(data, batch_size, limit, fits) == alone
