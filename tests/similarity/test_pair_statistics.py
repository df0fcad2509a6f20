"""Sums over pairs in a block: unbiased, by enumeration of all blocks."""

import itertools

import numpy as np
import pytest
import torch

import reference_compare as reference
from made_up import packed, permuted_sums, population, sums_of
from resemblance._ops import packing
from resemblance.similarity import pair_statistics


def subsets(n, size):
    return [list(chosen) for chosen in itertools.combinations(range(n), size)]


@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("name", ["features", "gradients", "product", "sum", "elementwise"])
@pytest.mark.parametrize("size", [4, 5, 7])
def test_inner_product_over_all_blocks_averages_to_the_exact_one(name, size, centre):
    k1, k2 = (reference.kernel(name, *population(seed)) for seed in (0, 1))
    found = [
        float(
            pair_statistics.unbiased_inner_product(
                sums_of(k1[np.ix_(at, at)], k2[np.ix_(at, at)]), size, 7, centre=centre
            )
        )
        for at in subsets(7, size)
    ]
    assert np.mean(found) == pytest.approx(reference.inner(k1, k2, centred=centre), rel=1e-9)


@pytest.mark.parametrize("centre", [False, True])
def test_debiased_inner_product_is_a_u_statistic(centre):
    k1, k2 = (reference.kernel("product", *population(seed)) for seed in (0, 1))
    form = reference.hsic if centre else reference.pairs
    for size in (4, 6, 7):
        found = []
        for at in subsets(7, size):
            one, two = k1[np.ix_(at, at)], k2[np.ix_(at, at)]
            value = float(
                pair_statistics.unbiased_inner_product(
                    sums_of(one, two), size, np.inf, centre=centre
                )
            )
            assert value == pytest.approx(form(one, two), rel=1e-9)
            found.append(value)
        assert np.mean(found) == pytest.approx(form(k1, k2), rel=1e-9)


@pytest.mark.parametrize("size", [4, 5, 7])
def test_covariance_over_all_blocks_averages_to_the_exact_one(size):
    x, y = (reference.distances(reference.kernel("features", *population(s))) for s in (0, 1))
    rows, columns = np.tril_indices(7, -1)
    square1, square2 = np.zeros((7, 7)), np.zeros((7, 7))
    for square, values in ((square1, x), (square2, y)):
        square[rows, columns] = square[columns, rows] = values
    found = [
        float(
            pair_statistics.unbiased_covariance(
                sums_of(square1[np.ix_(at, at)], square2[np.ix_(at, at)]), size, 7
            )
        )
        for at in subsets(7, size)
    ]
    assert np.mean(found) == pytest.approx(np.mean(x * y) - x.mean() * y.mean(), rel=1e-9)


@pytest.mark.parametrize("samples", [6, 50, np.inf])
def test_levelling_changes_no_centred_estimate(samples):
    k1, k2 = (reference.kernel("product", *population(seed, n=6)) for seed in (0, 1))
    level = [pair_statistics.u_centred_block(*packed(k)) for k in (k1, k2)]
    again = pair_statistics.kernel_block(*level[0][:2])
    assert max(float((x - y).abs().max()) for x, y in zip(level[0], again, strict=True)) < 1e-9
    squares = [packing.symmetric_matrices(*x[:2])[0].numpy() for x in level]
    found, expected = (
        pair_statistics.unbiased_inner_product(sums_of(*pair), 6, samples, centre=True)
        for pair in (squares, (k1, k2))
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("n", [3, 6])
def test_levelling_in_place_is_levelling(n):
    kernels = [reference.kernel("product", *population(seed, n)) for seed in (0, 1)]
    triangles, diagonals = (torch.cat(x) for x in zip(*map(packed, kernels), strict=True))
    expected = pair_statistics.u_centred_block(triangles, diagonals)
    found = pair_statistics.u_centre_in_place(triangles, diagonals)
    torch.testing.assert_close(triangles, expected[0])
    torch.testing.assert_close(found, expected[1])


@pytest.mark.parametrize("n", [1, 2])
def test_fewer_than_three_samples_are_left_as_they_are(n):
    k = packed(reference.kernel("product", *population(0, n)))
    for one, two in zip(
        pair_statistics.u_centred_block(*k), pair_statistics.kernel_block(*k), strict=True
    ):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


def blocks_of(kernels, blocks):  # [(n, n)] -> (blocks, L, t) and (blocks, L, n)
    """Kernels block by block, packed, and their diagonals and row sums."""
    parts = (torch.cat(x) for x in zip(*map(packed, kernels), strict=True))
    side = [x.unflatten(0, (blocks, -1)) for x in pair_statistics.kernel_block(*parts)]
    return side[0], pair_statistics.RowSums(*side[1:])


@pytest.mark.parametrize("index", ["cka", "cka-debiased", "rsa"])
@pytest.mark.parametrize("centre", [False, True])
def test_products_of_several_blocks_are_the_weighted_sums_of_each(index, centre):
    """Two blocks, of two layers on one side and of three on the other."""
    one = [reference.kernel("product", *population(seed)) for seed in range(4)]
    two = [reference.kernel("sum", *population(seed)) for seed in range(4, 10)]
    (k1, rows), (k2, columns) = blocks_of(one, 2), blocks_of(two, 2)
    pairs = pair_statistics.PairSums(
        2 * k1 @ k2.mT, 2 * k1.square().sum(-1), 2 * k2.square().sum(-1)
    )
    weights = pair_statistics.sum_weights(index, 7, 30, centre=centre)
    found = pair_statistics.inner_products(weights, pairs, rows, columns)
    permuted = pair_statistics.permuted_products(weights, rows, columns)
    assert found.both.shape == permuted.shape == (2, 2, 3)
    for block, i, j in itertools.product(range(2), range(2), range(3)):
        x, y = one[2 * block + i], two[3 * block + j]
        for value, pair in (
            (found.both[block, i, j], (x, y)),
            (found.one[block, i], (x, x)),
            (found.two[block, j], (y, y)),
        ):
            torch.testing.assert_close(value, weights @ sums_of(*pair))
        torch.testing.assert_close(permuted[block, i, j], weights @ permuted_sums(x, y))
    some = pair_statistics.cross_products(
        weights, pairs.both[..., 1:, :2], rows.of(slice(1, 2)), columns.of(slice(0, 2))
    )
    torch.testing.assert_close(some, found.both[:, 1:, :2])


@pytest.mark.parametrize("index", ["cka", "rsa"])
@pytest.mark.parametrize("centre", [False, True])
def test_factors_are_the_estimate_which_is_linear(index, centre):
    sums = sums_of(*(reference.kernel("product", *population(seed)) for seed in (0, 1)))
    expected = (
        pair_statistics.unbiased_covariance(sums, 7, 30)
        if index == "rsa"
        else pair_statistics.unbiased_inner_product(sums, 7, 30, centre=centre)
    )
    found = pair_statistics.sum_weights(index, 7, 30, centre=centre) @ sums
    torch.testing.assert_close(found, expected)


def test_rounding_to_16_bits_is_not_visible_and_one_percent_is():
    rng = np.random.default_rng(0)
    for spread, visible in ((0.5 / 32767, False), (0.01, True)):
        noise = rng.uniform(-spread, spread, size=(40, 40))
        triangle, diagonal = packed(1 + np.tril(noise, -1) + np.tril(noise, -1).T)
        level = pair_statistics.u_centred_block(triangle, diagonal.fill_(1.0))
        square = packing.symmetric_matrices(*level[:2])[0].numpy()
        own = sums_of(square, square)
        value = pair_statistics.unbiased_inner_product(own, 40, np.inf, centre=True)
        assert bool(value > pair_statistics.INT16_ROUND_OFF) is visible
