"""Sums of mixed words: against plain integers, and the Triton kernel against plain PyTorch."""

from __future__ import annotations

import pytest
import torch

from interpreted_kernels import agrees
from optional_libraries import needs
from resemblance._ops.tensor_hash import hash_row_sums, hash_sum

WORDS = torch.randint(-(2**63), 2**63 - 1, (9000,), generator=torch.Generator().manual_seed(0))


def plainly(words, place):
    """In integers of any length, as the method is published."""
    mixed = (finalised(word + (place + i) * 0x9E3779B97F4A7C15) for i, word in enumerate(words))
    return sum(mixed) % 2**64


def finalised(x):
    x %= 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


@pytest.mark.parametrize("place", [0, 5, 2**40])
def test_it_is_the_sum_of_mixed_integers(place):
    before = WORDS.clone()
    assert int(hash_sum(WORDS, place)) % 2**64 == plainly(WORDS.tolist(), place)
    assert torch.equal(WORDS, before)  # weights are read, not written


def test_parts_add_up():
    whole = int(hash_sum(WORDS, 3))
    parts = int(hash_sum(WORDS[:100], 3)) + int(hash_sum(WORDS[100:], 103))
    assert (whole - parts) % 2**64 == 0
    assert int(hash_sum(WORDS[:0], 0)) == 0


def test_rows_are_summed_with_keys_of_their_columns():
    rows, keys = WORDS[:20].view(4, 5), WORDS[100:105]
    found = hash_row_sums(rows, keys)
    for row, total in zip(rows.tolist(), found.tolist(), strict=True):
        each = zip(row, keys.tolist(), strict=True)
        assert total % 2**64 == sum(finalised(x ^ k) - finalised(k) for x, k in each) % 2**64
    assert hash_row_sums(torch.zeros_like(rows), keys).tolist() == [0] * 4


CHECK = """
import torch
from resemblance._ops.tensor_hash import (
    hash_row_sums, hash_sum, launch_hash_kernel, launch_row_hash_kernel
)

words = torch.randint(-(2**63), 2**63 - 1, (9000,))
for some, place in ((words, 0), (words[:1], 2**40), (words[:4096], 7)):
    assert int(launch_hash_kernel(some, place)) == int(hash_sum(some, place))
for rows, width in ((1, 1), (5, 3), (9, 256), (7, 300), (4, 1100)):
    some, keys = words[: rows * width].view(rows, width), words[-width:]
    assert torch.equal(launch_row_hash_kernel(some, keys), hash_row_sums(some, keys))
print("agree")
"""


@needs("triton")
def test_the_kernel_agrees_with_plain_pytorch():
    agrees(CHECK)
