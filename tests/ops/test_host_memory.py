"""Memory on a CPU: tables apart from a network's tensors, a heap that is kept between batches."""

from __future__ import annotations

import pickle
import platform
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


FAULTS = """
import resource, sys
import torch
from resemblance._ops.host_memory import keep_between_batches

def batch():
    tensors = [torch.ones(2**22) for _ in range(3)]  # 16 MB each

batch()
if sys.argv[1] == "keep":
    keep_between_batches()
for _ in range(8):
    batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(which: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, which], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about glibc")
def test_a_heap_that_is_kept_is_not_asked_for_again():
    pages = 5 * 3 * 2**24 // 4096  # of five batches
    assert faults("drop") > pages / 3
    assert faults("keep") < pages / 30
