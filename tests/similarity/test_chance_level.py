"""The chance level: the mean over all permutations, drawn ones, and features that are unrelated."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

import reference_compare as reference
import resemblance as rs
from made_up import packed, population, recorded, sums_of
from resemblance.similarity import chance_level as chance
from resemblance.similarity import pair_sums


@pytest.mark.parametrize("samples", [5, 40, np.inf])
@pytest.mark.parametrize("form", ["plain", "centred", "covariance"])
def test_permuted_sums_are_the_mean_over_all_permutations(form, samples):
    k1, k2 = (reference.kernel("product", *population(seed, n=5)) for seed in (0, 1))
    if form == "covariance":
        samples = 40

    def combine(sums):
        if form == "covariance":
            return float(pair_sums.covariance(sums, 5, samples))
        return float(pair_sums.inner_product(sums, 5, samples, centre=form == "centred"))

    every = [
        combine(sums_of(k1, k2[np.ix_(order, order)])) for order in itertools.permutations(range(5))
    ]
    expected = combine(chance.permuted_sums(sums_of(k1, k2), 5))
    assert expected == pytest.approx(np.mean(every), rel=1e-9, abs=1e-9)
    if form == "centred" and samples == np.inf:
        assert expected == pytest.approx(0, abs=1e-9)  # the debiased index has no chance level


def test_drawn_permutations_permute_rows_and_columns_alike():
    """Two blocks of three layers in four orders, each against the permuted square matrix."""
    kernels = [reference.kernel("product", *population(seed, n=5)) for seed in range(6)]
    triangles, diagonals = (torch.cat(x) for x in zip(*map(packed, kernels), strict=True))
    orders = chance.orders(2, 4, 5, torch.Generator().manual_seed(0))
    found = chance.permuted(pair_sums.side(triangles, diagonals), orders)
    assert [len(x) for x in found] == [24] * 5
    expected = [
        packed(kernels[3 * block + layer][np.ix_(order, order)])
        for block in range(2) for order in orders[block].numpy() for layer in range(3)
    ]  # fmt: skip
    again = pair_sums.side(*(torch.cat(x) for x in zip(*expected, strict=True)))
    for one, two in zip(found, again, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("draws", [2, 4, 16])
def test_the_spread_of_few_draws_a_block_is_that_of_all(draws):
    """The 95 % quantile of a weighted mean of independent normal blocks is 1.645 √Σw²."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(60, 20, 20, draws, generator=generator).double() + 3
    share = torch.linspace(1, 2, 60).double()
    share /= share.sum()
    found = chance.spread(values, share, generator)
    expected = 1.645 * float(share.square().sum().sqrt())
    assert float(found.mean()) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("kernel", ["features", "product"])
@pytest.mark.parametrize("n", [64, 512, 4096])
def test_independent_features_sit_at_the_stated_chance_level(n, kernel):
    layers = 16  # 256 pairs of layers, nearly independent of each other
    rng = np.random.default_rng(n)
    make = lambda: {f"l{i}": rng.normal(size=(n, 6)).astype(np.float32) for i in range(layers)}  # noqa: E731
    a, b = (rs.record_arrays(make(), make(), data_id="x", buckets=0) for _ in range(2))
    found = rs.compare(a, b, kernel=kernel, centre=True)
    # a mean of 256 scores: three of its standard errors, and what cutting at zero adds to it
    tolerance = 3 * found.scores.std() / layers + 5e-4
    assert abs((found.scores - found.chance).mean()) < tolerance
    above = (found.scores > found.chance_high).mean()
    assert 0.015 < above < 0.095  # 5 % of 256, give or take three standard errors


def test_the_chance_level_of_a_pair_of_layers_is_its_own():
    """The same permutations are drawn for any number of layers, so each pair may stand alone."""
    a, b = recorded(0, 200, block=20), recorded(1, 200, block=20)
    b = replace(b, layers=(*b.layers, replace(a.layers[0], name="third")))  # 2 × 3 layers
    whole = rs.compare(a, b, kernel="features")
    for i, one in enumerate(a.layers):
        for j, other in enumerate(b.layers):
            alone = rs.compare(
                replace(a, layers=(one,)), replace(b, layers=(other,)), kernel="features"
            )
            assert whole.chance_high[i, j] == pytest.approx(alone.chance_high[0, 0], abs=1e-6)


def test_the_debiased_index_has_no_chance_level():
    rng = np.random.default_rng(0)
    a, b = (rs.record_arrays(rng.normal(size=(400, 30)), data_id="x", buckets=0) for _ in "ab")
    found = rs.compare(a, b, kernel="features", index="cka-debiased")
    assert found.chance[0, 0] == pytest.approx(0, abs=1e-9)
    assert abs(found.scores[0, 0]) < 4 * found.stderr[0, 0]
    plain = rs.compare(a, b, kernel="features")
    assert plain.chance[0, 0] > 0.05  # 30 directions and 400 samples


def test_drawn_products_are_those_of_each_permuted_kernel():
    one, two = (reference.kernel("product", *population(seed, n=5)) for seed in (0, 1))
    orders = chance.orders(1, 40, 5, torch.Generator().manual_seed(0))  # more than go at a time
    factors = pair_sums.factors("cka", 5, 40, centre=False)
    sides = (pair_sums.side(*packed(k)) for k in (one, two))
    found = chance.drawn(*sides, orders, factors)
    expected = [
        float(pair_sums.inner_product(sums_of(one, two[np.ix_(at, at)]), 5, 40, centre=False))
        for at in orders[0].numpy()
    ]
    assert found.shape == (1, 1, 1, 40)
    np.testing.assert_allclose(found.flatten(), expected, rtol=1e-5)  # products in float32
