"""Gram matrices inside blocks; the Triton kernel is run by its interpreter on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from interpreted_kernels import agrees
from optional_libraries import needs
from resemblance._ops.gram import block_grams, block_grams_without_mean, gram

GRAMS = """
import torch
from resemblance._ops.gram import launch_gram_kernel

generator = torch.Generator().manual_seed(0)
# The interpreter cannot multiply bfloat16. float32 is rounded to eleven bits: 2⁻¹² a factor.
exact, rounded = (torch.float16, 2e-6), (torch.float32, 5e-4)
for n, d, size, parts, (dtype, error) in (
    (32, 100, 16, 1, exact),
    (32, 96, 16, 1, rounded),
    (299, 401, 100, 3, rounded),  # blocks of an odd size, columns in shares of an odd one
    (11, 37, 5, 9, exact),  # fewer samples than a product takes, and a short last block
    (256, 300, 128, 2, exact),
    (1, 1, 1, 1, exact),
):
    f, g = (torch.randn(n, d, generator=generator).to(dtype) for _ in "fg")
    spans = [(i, min(i + size, n)) for i in range(0, n, size)]
    both = launch_gram_kernel([f, g], spans, size, parts)[0]
    assert both.shape == (2, len(spans), size, size)
    for x, kernels in zip((f.double(), g.double()), both):
        for (start, stop), kernel in zip(spans, kernels):
            expected = x[start:stop] @ x[start:stop].T
            scale = expected.diagonal().sqrt()
            length = stop - start
            off = (kernel[:length, :length] - expected).abs() / torch.outer(scale, scale)
            assert off.max() < error, (n, d, size, dtype, off.max())
            assert not kernel[length:].any() and not kernel[:, length:].any()
    assert torch.equal(launch_gram_kernel([f], spans, size, parts)[0][0], both[0])
    if dtype == torch.float32:
        f += 1000
        taken = torch.stack([f[start:stop].mean(0) for start, stop in spans])
        kernels, along = (x[0] for x in launch_gram_kernel([f], spans, size, parts, taken))
        for (start, stop), m, kernel, u in zip(spans, taken.double(), kernels, along):
            x, length = f[start:stop].double(), stop - start
            expected = (x - m) @ (x - m).T
            scale = expected.diagonal().sqrt()
            off = (kernel[:length, :length] - expected).abs() / torch.outer(scale, scale)
            assert off.max() < error, (n, d, size, off.max())
            assert not kernel[length:].any() and not kernel[:, length:].any()
            torch.testing.assert_close(u[:length].double(), x @ m - m @ m / 2, rtol=1e-6, atol=0)
            assert not u[length:].any()
bad = torch.ones(16, 40)
bad[3, 5] = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)  # a GPU's own NaN
bad[7, 0] = torch.inf
finite = launch_gram_kernel([bad], [(0, 16)], 16, 1)[0][0, 0].diagonal().isfinite()
assert finite.logical_not().nonzero().flatten().tolist() == [3, 7]
print("agree")
"""


@pytest.mark.slow
@needs("triton")
def test_the_kernel_agrees_with_plain_pytorch():
    agrees(GRAMS)


@pytest.mark.parametrize("spans", [[(0, 4), (4, 8), (8, 9)], [(0, 3), (3, 7)]])
def test_grams_of_blocks_without_a_gpu(spans):
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    found = block_grams([x, 2 * x], spans, 4)
    for (start, stop), one, two in zip(spans, *found, strict=True):
        expected = torch.zeros(4, 4)
        expected[: stop - start, : stop - start] = x[start:stop] @ x[start:stop].T
        torch.testing.assert_close(one, expected)
        torch.testing.assert_close(two, 4 * expected)


@pytest.mark.parametrize(
    ("size", "spans"),
    [
        (4, [(0, 4), (4, 8), (8, 9)]),
        (4, [(0, 3), (3, 7)]),
        (40, [(0, 40), (40, 80), (80, 120)]),
        (40, [(0, 40), (40, 80), (80, 93)]),
    ],
)
def test_what_a_large_mean_hides_is_kept_where_it_is_taken_off(size, spans):
    x = 1e4 + torch.randn(120, 500, generator=torch.Generator().manual_seed(0))
    kernels, offset = block_grams_without_mean(x, spans, size)
    for (start, stop), kernel, u in zip(spans, kernels, offset, strict=True):
        rows, length = x[start:stop].double(), stop - start
        apart = rows - rows.mean(0)
        inside = kernel[:length, :length].double()
        centred = reference.centred(reference.centred(inside.numpy()).T)
        assert np.abs(centred - (apart @ apart.T).numpy()).max() < 0.1  # of 500
        # what is taken off is the mean, give or take the eighth of a variance, and a single row's
        assert inside.trace() < (1.5 if length > 9 else 2) * 500 * length
        whole = inside + u[:length, None] + u[None, :length]
        torch.testing.assert_close(whole, rows @ rows.T, rtol=1e-6, atol=0)
        assert not kernel[length:].any()
        assert not kernel[:, length:].any()
        assert not u[length:].any()


@pytest.mark.parametrize("d", [5, 2048, 3001])
@pytest.mark.parametrize("n", [0, 1, 2, 63, 64, 65, 127, 128, 131, 300])
def test_the_kernel_of_rows_on_a_cpu_is_exact(n, d):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(n))
    found, exact = gram(x), x.double() @ x.double().T
    assert torch.allclose(found, found.T, atol=1e-6 * d)
    assert torch.allclose(found.double(), exact, atol=1e-6 * d)  # products of ones, summed up
    assert gram(x.to(torch.bfloat16)).dtype == torch.float32
