"""The Triton kernel gives what plain PyTorch gives, run by Triton's interpreter on the CPU."""

from __future__ import annotations

import pytest
import torch

from interpreted_kernels import agrees
from optional_libraries import needs
from resemblance._ops import fused_sketch as fused

CHECK = """
import torch
from resemblance._ops import fused_sketch as fused
from resemblance._ops.count_sketch import CountSketch, add_to_buckets
from resemblance._ops.fold import Fold

fused._FEATURES_PER_READ = 128  # so that a layer takes several readings
generator = torch.Generator().manual_seed(0)
for n, d, width, per_sample, dtype, channels, last in (
    (13, 300, 64, 1, torch.float32, 1, False),  # folded, with a short last chunk
    (5, 50, 50, 1, torch.float32, 1, False),  # not folded, and no multiple of eight
    (9, 200, 72, 4, torch.bfloat16, 1, False),
    (9, 8 * 40, 8 * 16, 1, torch.float32, 8, False),  # images, in either order
    (9, 8 * 40, 8 * 16, 1, torch.float32, 8, True),
    (7, 6 * 49, 100, 1, torch.float32, 6, False),
    (7, 6 * 49, 100, 2, torch.float32, 6, True),
    (7, 6 * 9, 100, 1, torch.float32, 6, True),
):
    f, g = (torch.randn(n, d, generator=generator).to(dtype) for _ in "fg")
    fold = Fold(d, width, seed=3, channels=channels, channels_last=last)
    width = fold.width
    buckets = CountSketch(16, 1, per_sample).assign(range(n))
    new = [(torch.zeros(16, width), torch.zeros(width, dtype=torch.float64)) for _ in "fg"]
    found = fused.sketch_batch(f, g, fold, buckets, new)
    x, y = f.float(), g.float()
    for (table, total), rows in zip(new, (x, y)):
        expected = torch.zeros(16, width)
        add_to_buckets(expected, fold(rows), *buckets)
        torch.testing.assert_close(table, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(total.float(), fold(rows).sum(0), rtol=1e-5, atol=1e-4)
    for one, two in zip(found, ((x * x).sum(1), (y * y).sum(1), (x * y).sum(1))):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-4)
    alone = fused.sketch_batch(f, None, None, None, [])[:1]
    without = fused.sketch_batch(f, g, None, None, []), alone
    for one, two in zip((*without[0], *without[1]), (*found, found[0])):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-4)
print("agree")
"""


@pytest.mark.slow
@needs("triton")
def test_the_kernel_agrees_with_plain_pytorch():
    agrees(CHECK)


def test_the_plain_path_is_taken_without_a_gpu():
    assert not fused.can_fuse(torch.ones(2, 2))
