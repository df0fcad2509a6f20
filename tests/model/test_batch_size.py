"""The batch size that `record` chooses."""

from __future__ import annotations

import pytest
import torch

import networks
import resemblance as rs
from resemblance._model.batch_size import chosen, fitting

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
    assert fitting(block, each, free) == expected


def test_128_on_a_cpu_and_where_bits_must_not_vary():
    assert chosen(None, 16, 0, False) == chosen(torch.device("cpu"), 16, 0, False) == 128
    assert chosen(torch.device("cuda"), 16, 1, True) == 128
    assert chosen(None, 128, 0, False, length=512) == 8  # sequences of 4,096 tokens
    assert chosen(None, 128, 0, False, length=10_000) == 1


def test_record_runs_batches_of_128_on_a_cpu():
    seen = []

    def call(model, batch):
        seen.append(len(batch))
        return model(batch)

    rs.record(networks.seeded(networks.MLP), torch.randn(300, 6), call=call)
    assert max(seen) == 114  # six blocks of 19: 300 samples are cut into sixteen blocks
