"""Sums of mixed words: against plain integers, and the Triton kernel against plain PyTorch."""

from __future__ import annotations

import pytest
import torch

from interpreted_kernels import agrees
from optional_libraries import needs
from resemblance._ops.mixed_words import mixed_sum

WORDS = torch.randint(-(2**63), 2**63 - 1, (9000,), generator=torch.Generator().manual_seed(0))


def plainly(words, place):
    """In integers of any length, as the method is published."""
    total = 0
    for i, word in enumerate(words):
        x = (word + (place + i) * 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        total += x ^ (x >> 31)
    return total % 2**64


@pytest.mark.parametrize("place", [0, 5, 2**40])
def test_it_is_the_sum_of_mixed_integers(place):
    before = WORDS.clone()
    assert int(mixed_sum(WORDS, place)) % 2**64 == plainly(WORDS.tolist(), place)
    assert torch.equal(WORDS, before)  # weights are read, not written


def test_parts_add_up():
    whole = int(mixed_sum(WORDS, 3))
    parts = int(mixed_sum(WORDS[:100], 3)) + int(mixed_sum(WORDS[100:], 103))
    assert (whole - parts) % 2**64 == 0
    assert int(mixed_sum(WORDS[:0], 0)) == 0


CHECK = """
import torch
from resemblance._ops.mixed_words import launch, mixed_sum

words = torch.randint(-(2**63), 2**63 - 1, (9000,))
for some, place in ((words, 0), (words[:1], 2**40), (words[:4096], 7)):
    assert int(launch(some, place)) == int(mixed_sum(some, place))
print("agree")
"""


@needs("triton")
def test_the_kernel_agrees_with_plain_pytorch():
    agrees(CHECK)
