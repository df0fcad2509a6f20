"""Which positions of a sequence are recorded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import networks
from resemblance._data.sources import Batch, Piece
from resemblance._models.language_models import (
    TokenSampler,
    move_padding_last,
    sample_positions,
    token_ids,
)
from resemblance.errors import DataError

SPECIAL = frozenset({0, 1, 2, 3})


def batch(samples, indices):
    return Batch([Piece(0, np.asarray(indices))], samples)


def taken(found):
    """The tokens at the positions, sequence by sequence."""
    ids = np.asarray(token_ids(found.samples)[1])
    return np.take_along_axis(ids, found.drawn.positions, 1)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    tokens=st.integers(1, 20),
    longer=st.integers(0, 9),
    rows=st.permutations(range(8)),
)
def test_neither_padding_nor_company_moves_what_is_drawn(seed, tokens, longer, rows):
    draw = TokenSampler(tokens, seed, SPECIAL)
    right = networks.texts(8)
    expected = taken(draw(batch(right, range(8))))
    left = networks.texts(8, side="left")
    more = {key: torch.nn.functional.pad(x, (longer, longer)) for key, x in left.items()}
    some = {key: x[list(rows[:5])] for key, x in more.items()}
    found = draw(batch(some, rows[:5]))
    assert np.array_equal(taken(found), expected[list(rows[:5])])
    assert found.drawn.length == int(some["attention_mask"].sum(1).max())


def test_padding_and_special_tokens_are_never_drawn():
    found = TokenSampler(30, 0, SPECIAL)(batch(networks.texts(), range(20)))
    assert not np.isin(taken(found), list(SPECIAL)).any()
    # what is real and not special is drawn, all of it, before anything comes again
    ids = np.asarray(found.samples["input_ids"])
    for row, at in zip(ids, found.drawn.positions, strict=True):
        real = np.flatnonzero(~np.isin(row, list(SPECIAL)))
        assert sorted(at[: len(real)]) == sorted(real)
        assert np.array_equal(
            at[len(real) : 2 * len(real)], at[: max(0, 30 - len(real))][: len(real)]
        )


def test_every_position_is_drawn_equally_often():
    allowed = np.ones((6000, 5), bool)
    first = sample_positions(allowed, np.arange(6000), 2, seed=3)
    pairs = np.bincount(first[:, 0] * 5 + first[:, 1], minlength=25).reshape(5, 5)
    assert not pairs.diagonal().any()
    expected = 6000 / 20
    others = pairs[~np.eye(5, dtype=bool)]
    assert ((others - expected) ** 2 / expected).sum() < 43.8  # χ² of 19 at 0.1 %


def test_the_mask_of_a_tokenizer_is_honoured():
    samples = networks.texts()
    mask = (samples["input_ids"] % 2 == 0).long()
    found = TokenSampler(6, 0)(batch({**samples, "special_tokens_mask": mask}, range(20)))
    assert (taken(found) % 2 == 1).all()


def test_drawn_tokens_are_masked_and_nothing_else_is():
    samples = networks.texts()
    before = move_padding_last(samples)["input_ids"]
    found = TokenSampler(3, 0, SPECIAL, mask_token=9)(batch(samples, range(20)))
    after, at = found.samples["input_ids"], torch.from_numpy(found.drawn.positions)
    assert (after.gather(1, at) == 9).all()
    changed = torch.zeros_like(after).scatter_(1, at, 1).bool()
    assert torch.equal(after[~changed], before[~changed])
    assert torch.equal(samples["input_ids"], networks.texts()["input_ids"])  # a copy was changed


def test_ids_alone_are_sequences_without_padding():
    ids = torch.randint(4, 20, (6, 7))
    for samples in (ids, (ids, torch.zeros(6)), ids.numpy()):
        found = TokenSampler(7, 0)(batch(samples, range(6)))
        assert (np.sort(found.drawn.positions, 1) == np.arange(7)).all()


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (torch.randn(4, 3), "needs sequences of token ids"),
        ({"pixels": torch.zeros(4, 3, 2, 2)}, "found a dict of pixels"),
        ({"input_ids": torch.arange(9)}, r"input_ids has the wrong shape.*found a 1-D Tensor.*\[N"),
        ({"input_ids": [1, 2, 3]}, "input_ids has the wrong shape.*found a 1-D list"),
        (torch.arange(9), r"token ids must be \(sequences, length\), found a 1-D Tensor"),
        (torch.zeros(4, 3, dtype=torch.long), "sequence 10 has no token to record"),
    ],
)
def test_what_has_no_tokens_says_so(samples, message):
    with pytest.raises(DataError, match=message):
        TokenSampler(2, 0, frozenset({0}))(batch(samples, range(10, 14)))


@pytest.mark.parametrize("first", [0, 2**22, 2**62])
def test_large_indices_draw_as_freely_as_small_ones(first):
    """Sums with a rank must be whole numbers: as floats, all ranks of a large index are one."""
    found = sample_positions(np.ones((200, 12), bool), np.arange(first, first + 200), 12, seed=0)
    assert all(sorted(row) == list(range(12)) for row in found.tolist())
    assert len({tuple(row) for row in found.tolist()}) == 200
