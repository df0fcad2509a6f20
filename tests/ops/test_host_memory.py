"""Memory on a CPU: tables apart from a network's tensors, a heap that is kept between batches."""

from __future__ import annotations

import ctypes
import pickle
import subprocess
import sys

import pytest
import torch

from resemblance._ops.host_memory import zeros_apart


@pytest.mark.parametrize(("rows", "width"), [(3, 5), (128, 8192)])
def test_zeros_can_be_added_to_and_carried_about(rows, width):
    table = zeros_apart(rows, width)
    assert table.shape == (rows, width)
    assert table.dtype == torch.float32
    assert not table.any()
    table += 1
    table[-1, -1] = 7
    again = pickle.loads(pickle.dumps(table))
    assert torch.equal(again, table)
    assert float(table.sum()) == rows * width + 6


def test_large_tables_share_no_memory():
    one, two = zeros_apart(128, 8192), zeros_apart(128, 8192)
    one += 1
    assert not two.any()
    view = one[5:]
    del one
    assert view.all()  # which keeps the pages


MAPPED = """
import ctypes, sys
import torch
from resemblance._ops.host_memory import keep_between_batches

class Information(ctypes.Structure):  # of glibc's heap
    _fields_ = [(f"_{i}", ctypes.c_size_t) for i in range(10)]

ask = ctypes.CDLL(None).mallinfo2
ask.restype = Information
if sys.argv[1] == "keep":
    keep_between_batches()
before = ask()._4  # bytes in blocks that are mapped one by one, and given back when freed
block = torch.empty(24 * 2**20, dtype=torch.uint8)
print(ask()._4 - before)
"""


def mapped(which: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", MAPPED, which], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="is about glibc, since version 2.33"
)
def test_large_blocks_come_from_a_heap_that_is_kept():
    assert mapped("as it is") >= 24 * 2**20
    assert mapped("keep") == 0
