"""Every block is somebody's, once, however it is dealt out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resemblance._data.sources import Share


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(0, 40),
    shards=st.integers(1, 4),
    processes=st.integers(1, 5),
    done=st.lists(st.booleans(), max_size=50),
)
def test_what_is_not_done_is_dealt_out_once(count, shards, processes, done):
    mask = np.array(done, bool)
    taken = []
    for i in range(shards):
        for rank in range(processes):
            share = Share((i, shards), (rank, processes), mask)
            own = share.of(count).tolist()
            assert all(number % shards == i for number in own)
            assert own == [number for number, _ in share.of_stream(range(count))]
            taken += own
    left = [n for n in range(count) if not (n < len(done) and done[n])]
    assert sorted(taken) == left


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_share_what_is_left_evenly(processes):
    done = np.arange(20) < 11
    sizes = [len(Share(process=(rank, processes), done=done).of(20)) for rank in range(processes)]
    assert max(sizes) - min(sizes) <= 1


def test_a_stream_passes_on_its_items():
    assert list(Share((1, 2)).of_stream("abcd")) == [(1, "b"), (3, "d")]
