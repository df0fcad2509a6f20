"""What a GPU has free; where there is none, nothing was ever allocated."""

from __future__ import annotations

import pytest
import torch

from resemblance._ops.device_memory import allocated, free

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_without_a_gpu_nothing_is_allocated_on_it():
    assert allocated(None) == allocated(torch.device("cpu")) == 0


@CUDA
def test_what_torch_keeps_unused_is_free():
    device = torch.device("cuda")
    before = free(device)
    taken = torch.empty(2**28, dtype=torch.uint8, device=device)
    assert free(device) <= before - 2**28
    del taken  # which torch keeps
    assert torch.cuda.memory_reserved(device) >= 2**28
    assert abs(free(device) - before) < 2**26  # others may use the device as well


@CUDA
def test_what_was_freed_was_allocated_all_the_same():
    device = torch.device("cuda")
    before = allocated(device)
    for _ in range(3):
        torch.empty(2**20, dtype=torch.uint8, device=device)
    assert allocated(device) - before >= 3 * 2**20
