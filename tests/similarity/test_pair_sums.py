"""Sums over pairs in a block: unbiased, by enumeration of all blocks."""

import itertools

import numpy as np
import pytest
import torch

import reference_compare as reference
from made_up import packed, population, sums_of
from resemblance.similarity import pair_sums


def subsets(n, size):
    return [list(chosen) for chosen in itertools.combinations(range(n), size)]


@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("name", ["features", "gradients", "product", "sum", "elementwise"])
@pytest.mark.parametrize("size", [4, 5, 7])
def test_inner_product_over_all_blocks_averages_to_the_exact_one(name, size, centre):
    k1, k2 = (reference.kernel(name, *population(seed)) for seed in (0, 1))
    found = [
        float(
            pair_sums.inner_product(
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
            value = float(pair_sums.inner_product(sums_of(one, two), size, np.inf, centre=centre))
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
            pair_sums.covariance(sums_of(square1[np.ix_(at, at)], square2[np.ix_(at, at)]), size, 7)
        )
        for at in subsets(7, size)
    ]
    assert np.mean(found) == pytest.approx(np.mean(x * y) - x.mean() * y.mean(), rel=1e-9)


def test_own_sums_are_pair_sums_with_oneself():
    k = reference.kernel("product", *population(0))
    own = pair_sums.own_sums(pair_sums.side(*packed(k)))
    torch.testing.assert_close(own[:, 0], sums_of(k, k)[:, 0, 0, 0])


@pytest.mark.parametrize("samples", [6, 50, np.inf])
def test_levelling_changes_no_centred_estimate(samples):
    k1, k2 = (reference.kernel("product", *population(seed, n=6)) for seed in (0, 1))
    one, two = packed(k1), packed(k2)
    plain = pair_sums.pair_sums(pair_sums.side(*one), pair_sums.side(*two))
    level = [pair_sums.level(*x) for x in (one, two)]
    again = pair_sums.side(*level[0][:2])
    assert max(float((x - y).abs().max()) for x, y in zip(level[0], again, strict=True)) < 1e-9
    expected = pair_sums.inner_product(plain, 6, samples, centre=True)
    found = pair_sums.inner_product(pair_sums.pair_sums(*level), 6, samples, centre=True)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("n", [3, 6])
def test_levelling_in_place_is_levelling(n):
    kernels = [reference.kernel("product", *population(seed, n)) for seed in (0, 1)]
    triangles, diagonals = (torch.cat(x) for x in zip(*map(packed, kernels), strict=True))
    expected = pair_sums.level(triangles, diagonals)
    found = pair_sums.level_in_place(triangles, diagonals)
    torch.testing.assert_close(triangles, expected[0])
    torch.testing.assert_close(found, expected[1])


@pytest.mark.parametrize("n", [1, 2])
def test_fewer_than_three_samples_are_left_as_they_are(n):
    k = packed(reference.kernel("product", *population(0, n)))
    for one, two in zip(pair_sums.level(*k), pair_sums.side(*k), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_sums_of_several_blocks_are_those_of_each():
    """Two blocks, of two layers on one side and of three on the other."""
    one = [reference.kernel("product", *population(seed)) for seed in range(4)]
    two = [reference.kernel("sum", *population(seed)) for seed in range(4, 10)]
    sides = [
        pair_sums.side(*(torch.cat(x) for x in zip(*map(packed, kernels), strict=True)))
        for kernels in (one, two)
    ]
    found = pair_sums.pair_sums(*sides, blocks=2)
    assert found.shape == (9, 2, 2, 3)
    for block, i, j in itertools.product(range(2), range(2), range(3)):
        alone = sums_of(one[2 * block + i], two[3 * block + j])
        torch.testing.assert_close(found[:, block, i, j], alone.flatten())


@pytest.mark.parametrize("index", ["cka", "rsa"])
@pytest.mark.parametrize("centre", [False, True])
def test_factors_are_the_estimate_which_is_linear(index, centre):
    sums = sums_of(*(reference.kernel("product", *population(seed)) for seed in (0, 1)))
    expected = (
        pair_sums.covariance(sums, 7, 30)
        if index == "rsa"
        else pair_sums.inner_product(sums, 7, 30, centre=centre)
    )
    found = torch.tensordot(pair_sums.factors(index, 7, 30, centre=centre), sums, 1)
    torch.testing.assert_close(found, expected)


def test_rounding_to_16_bits_is_not_visible_and_one_percent_is():
    rng = np.random.default_rng(0)
    for spread, visible in ((0.5 / 32767, False), (0.01, True)):
        noise = rng.uniform(-spread, spread, size=(40, 40))
        triangle, diagonal = packed(1 + np.tril(noise, -1) + np.tril(noise, -1).T)
        own = pair_sums.own_sums(pair_sums.level(triangle, diagonal.fill_(1.0)))
        value = pair_sums.inner_product(own, 40, np.inf, centre=True)
        assert bool(value > pair_sums.least_visible(diagonal)) is visible
