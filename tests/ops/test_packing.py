"""Packed kernels: what a block loses by being stored small."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resemblance._ops.gram import gram
from resemblance._ops.packing import (
    _correlation_triangle,
    pack16,
    pack24,
    subtract_block_mean,
    symmetric_matrices,
    unpack16,
    unpack24,
)


def random_kernel(n, d, seed, offset=0.0):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    scales = torch.logspace(-6, 6, n, dtype=torch.float64)[:, None]
    x = (x + offset) * scales
    return x @ x.T


def errors(kernel, found):
    """|found − kernel| in units of √(K_ii K_jj)."""
    scale = kernel.diagonal().sqrt()
    return (found - kernel).abs() / torch.outer(scale, scale)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 20), d=st.integers(1, 8), seed=st.integers(0, 999))
def test_int16_blocks_are_within_half_a_step(n, d, seed):
    kernel = random_kernel(n, d, seed)
    triangle, diagonal = pack16(kernel, 20)
    found = symmetric_matrices(unpack16(triangle[None], diagonal[None]), diagonal[None].double())[0]
    # half a step of 1/32767, and the diagonal's float32
    assert float(errors(kernel, found[:n, :n]).max()) < 0.5 / 32767 + 2e-7
    assert not found[n:].any()
    assert not found[:, n:].any()


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 20), d=st.integers(1, 8), seed=st.integers(0, 999))
def test_24_bit_kernels_are_within_half_a_step(n, d, seed):
    kernel = random_kernel(n, d, seed)
    # half a step of 1/(2²³ − 1), and the diagonal's float32
    assert float(errors(kernel, unpack24(*pack24(kernel))).max()) < 0.5 / (2**23 - 1) + 1.3e-7


def test_both_ends_of_the_range_are_exact():
    x = torch.tensor([[1.0], [-1.0], [2.0]], dtype=torch.float64)
    kernel = x @ x.T
    assert torch.equal(unpack24(*pack24(kernel)), kernel)
    triangle, diagonal = pack16(kernel, 3)
    assert triangle.tolist() == [-32767, 32767, -32767]
    assert torch.equal(
        symmetric_matrices(unpack16(triangle[None], diagonal[None]), diagonal[None])[0], kernel
    )


@pytest.mark.parametrize("pack", [lambda k: pack16(k, 4), pack24])
def test_a_zero_sample_stays_zero(pack):
    x = torch.tensor([[0.0, 0.0], [1.0, 2.0], [0.0, 0.0], [3.0, 1.0]])
    assert _correlation_triangle(gram(x))[0].isfinite().all()
    triangle, diagonal = pack(gram(x))
    assert diagonal.tolist() == [0.0, 5.0, 0.0, 10.0]
    assert triangle.reshape(6, -1).any(1).tolist() == [False, False, False, False, True, False]


def test_smaller_blocks_are_prefixes_of_larger_ones():
    kernel = random_kernel(6, 4, 1)
    small, _ = pack16(kernel[:4, :4], 4)
    large, _ = pack16(kernel, 6)
    assert torch.equal(small, large[:6])


def test_blocks_can_be_unpacked_in_single_precision():
    kernel = random_kernel(5, 3, 2)
    triangle, diagonal = pack16(kernel, 5)
    single = unpack16(triangle[None], diagonal[None].float())
    assert single.dtype == torch.float32
    double = unpack16(triangle[None], diagonal[None].double())
    assert double.dtype == torch.float64
    assert torch.allclose(single.double(), double, rtol=1e-6)


def test_unpacking_does_not_depend_on_how_blocks_lie_in_memory():
    triangle, diagonal = (
        torch.stack(x)
        for x in zip(*(pack16(random_kernel(5, 3, seed), 5) for seed in (1, 2)), strict=True)
    )
    expected = unpack16(triangle, diagonal.double())
    turned = unpack16(triangle.T.contiguous().T, diagonal.double())
    assert torch.equal(turned, expected)
    rows, columns = np.tril_indices(5, -1)
    roots = diagonal.double().sqrt()
    by_hand = triangle.double() / 32767 * roots[:, rows] * roots[:, columns]
    assert torch.allclose(expected, by_hand, rtol=1e-12)


@pytest.mark.parametrize("n", [5, 32, 33, 128])
@pytest.mark.parametrize("d", [100, 3000])
def test_gram_is_the_product_of_the_rows(n, d):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(n))
    torch.testing.assert_close(gram(x), x @ x.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gram_sums_in_single_precision(dtype):
    x = torch.full((2, 5000), 0.1).to(dtype)
    exact = float((x[0].double() ** 2).sum())
    assert gram(x).dtype == torch.float32
    assert float(gram(x)[0, 1]) == pytest.approx(exact, rel=1e-5)


def vectors_with_mean(count, mean, seed=0):  # -> (9, 5), of which some rows are in use
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + mean
    return x * (torch.arange(9) < count)[:, None]


@pytest.mark.parametrize("count", [9, 4])
def test_a_mean_that_is_most_of_a_kernel_is_taken_off(count):
    x = vectors_with_mean(count, 2.0)
    (found,), (offset,), (share,) = subtract_block_mean((x @ x.T)[None], torch.tensor([count]))
    mean = x[:count].mean(0)
    less = x[:count] - mean
    torch.testing.assert_close(found[:count, :count], less @ less.T)
    torch.testing.assert_close(offset[:count], x[:count] @ mean - mean @ mean / 2)
    assert not found[count:].any()
    assert not found[:, count:].any()
    assert not offset[count:].any()
    trace = x.square().sum() / count
    assert float(share) == pytest.approx(float(mean @ mean / trace))


def test_a_mean_is_left_where_it_is_less_or_the_only_sample():
    pairs = [(vectors_with_mean(9, 0.3), 9), (vectors_with_mean(1, 2.0), 1)]
    kernels = torch.stack([x @ x.T for x, _ in pairs])
    found, offset, share = subtract_block_mean(kernels, torch.tensor([n for _, n in pairs]))
    assert torch.equal(found, kernels)
    assert not offset.any()
    assert 0 < float(share[0]) < 0.5
    assert float(share[1]) == pytest.approx(1)
    nothing = subtract_block_mean(torch.zeros(1, 9, 9), torch.tensor([9]))
    assert not any(x.any() for x in nothing)
