"""The Triton kernels give what plain PyTorch gives, run by Triton's interpreter on the CPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from resemblance._ops import fused_sketch as fused
from resemblance._ops.gram_matrices import grams

CHECK = """
import torch
from resemblance._ops import fused_sketch as fused
from resemblance._ops.count_sketch import CountSketch, add_to_buckets
from resemblance._ops.feature_fold import Fold

fused._READ_AT_ONCE = 128  # so that a layer takes several readings
generator = torch.Generator().manual_seed(0)
for n, d, width, per_sample, dtype in (
    (13, 300, 64, 1, torch.float32),  # folded, with a short last chunk
    (5, 50, 50, 1, torch.float32),  # not folded, and no multiple of eight
    (9, 200, 72, 4, torch.bfloat16),
):
    f, g = (torch.randn(n, d, generator=generator).to(dtype) for _ in "fg")
    fold = Fold(d, width, seed=3)
    buckets = CountSketch(16, 1, per_sample).assign(range(n))
    new = [(torch.zeros(16, width), torch.zeros(width, dtype=torch.float64)) for _ in "fg"]
    found = fused.sketch(f, g, fold, buckets, new)
    x, y = f.float(), g.float()
    for (table, total), rows in zip(new, (x, y)):
        expected = torch.zeros(16, width)
        add_to_buckets(expected, fold(rows), *buckets)
        torch.testing.assert_close(table, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(total.float(), fold(rows).sum(0), rtol=1e-5, atol=1e-4)
    for one, two in zip(found, ((x * x).sum(1), (y * y).sum(1), (x * y).sum(1))):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-4)
    without = fused.sketch(f, g, None, None, []), (fused.sketch(f, None, None, None, [])[0],)
    for one, two in zip((*without[0], *without[1]), (*found, found[0])):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-4)
print("agree")
"""


GRAMS = """
import torch
from resemblance._ops.gram_matrices import launch

generator = torch.Generator().manual_seed(0)
# The interpreter cannot multiply bfloat16. float32 is rounded to eleven bits: 2⁻¹² a factor.
exact, rounded = (torch.float16, 2e-6), (torch.float32, 5e-4)
for n, d, size, parts, (dtype, error) in (
    (32, 100, 16, 1, exact),
    (32, 96, 16, 1, rounded),
    (300, 401, 100, 3, rounded),  # blocks of an odd size, columns in shares of an odd one
    (11, 37, 5, 9, exact),  # fewer samples than a product takes, and a short last block
    (256, 300, 128, 2, exact),
    (1, 1, 1, 1, exact),
):
    f, g = (torch.randn(n, d, generator=generator).to(dtype) for _ in "fg")
    spans = [(i, min(i + size, n)) for i in range(0, n, size)]
    both = launch([f, g], spans, size, parts)
    assert both.shape == (2, len(spans), size, size)
    for x, kernels in zip((f.double(), g.double()), both):
        for (start, stop), kernel in zip(spans, kernels):
            expected = x[start:stop] @ x[start:stop].T
            scale = expected.diagonal().sqrt()
            length = stop - start
            off = (kernel[:length, :length] - expected).abs() / torch.outer(scale, scale)
            assert off.max() < error, (n, d, size, dtype, off.max())
            assert not kernel[length:].any() and not kernel[:, length:].any()
    assert torch.equal(launch([f], spans, size, parts)[0], both[0])
bad = torch.ones(16, 40)
bad[3, 5] = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)  # a GPU's own NaN
bad[7, 0] = torch.inf
finite = launch([bad], [(0, 16)], 16, 1)[0, 0].diagonal().isfinite()
assert finite.logical_not().nonzero().flatten().tolist() == [3, 7]
print("agree")
"""


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs triton, which is not installed"
)
@pytest.mark.parametrize("check", [CHECK, GRAMS], ids=["buckets", "grams"])
def test_a_kernel_agrees_with_plain_pytorch(check):
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    words = [sys.executable, "-c", check]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.stdout == "agree\n", done.stderr


def test_the_plain_path_is_taken_without_a_gpu():
    assert not fused.available(torch.ones(2, 2))


@pytest.mark.parametrize("spans", [[(0, 4), (4, 8), (8, 9)], [(0, 3), (3, 7)]])
def test_grams_of_blocks_without_a_gpu(spans):
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    found = grams([x, 2 * x], spans, 4)
    for (start, stop), one, two in zip(spans, *found, strict=True):
        expected = torch.zeros(4, 4)
        expected[: stop - start, : stop - start] = x[start:stop] @ x[start:stop].T
        torch.testing.assert_close(one, expected)
        torch.testing.assert_close(two, 4 * expected)
