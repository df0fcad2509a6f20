"""The chance level over all permutations: mean, moments, quantile, unrelated features."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import gammaincc

import reference_compare as reference
import resemblance as rs
from made_up import permuted_sums, population, recorded, sums_of
from resemblance.similarity import pair_statistics
from resemblance.similarity.pair_statistics import (
    SKEWNESS_SAMPLES,
    ChanceLevels,
    PermutationWindow,
    gamma_tail,
    permutation_moments,
    permutation_window,
    row_effects,
    sum_weights,
)


@pytest.mark.parametrize("samples", [5, 40, np.inf])
@pytest.mark.parametrize("form", ["plain", "centred", "covariance"])
def test_permuted_sums_are_the_mean_over_all_permutations(form, samples):
    k1, k2 = (reference.kernel("product", *population(seed, n=5)) for seed in (0, 1))
    if form == "covariance":
        samples = 40

    def combine(sums):
        if form == "covariance":
            return float(pair_statistics.unbiased_covariance(sums, 5, samples))
        return float(
            pair_statistics.unbiased_inner_product(sums, 5, samples, centre=form == "centred")
        )

    every = [
        combine(sums_of(k1, k2[np.ix_(order, order)])) for order in itertools.permutations(range(5))
    ]
    expected = combine(permuted_sums(k1, k2))
    assert expected == pytest.approx(np.mean(every), rel=1e-9, abs=1e-9)
    if form == "centred" and samples == np.inf:
        assert expected == pytest.approx(0, abs=1e-9)  # the debiased index has no chance level


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


def kernels(seed: int, layers: int, n: int) -> list[torch.Tensor]:
    """Kernels of features with a mean and heavy samples, so that every part of T counts."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(layers, n, 3)) * rng.lognormal(0, 0.4, size=(layers, n, 1)) + 0.7
    return list(torch.from_numpy(x @ x.transpose(0, 2, 1)))


def window(blocks: list[list[torch.Tensor]], *, leading: int = 0) -> PermutationWindow:
    """Of blocks, each with the kernels of all layers."""
    every = torch.stack([torch.stack(block) for block in blocks], 1)  # (L, t, n, n)
    d = every.diagonal(dim1=2, dim2=3)
    off = every - torch.diag_embed(d)
    rows = off.sum(3)
    u = torch.stack([row_effects(rows[:, t]) for t in range(rows.shape[1])], 1)
    flat = off.flatten(2)
    few = off[:, 0, :leading, :leading].float() if leading else None
    return permutation_window(u, d, flat @ flat.mT, few)


@pytest.mark.parametrize("index", ["cka", "cka-debiased"])
@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize("n", [2, 3, 6])
def test_the_variance_is_that_of_all_permutations(index, centre, tokens, n):
    add_up = sum_weights(index, n, 40, centre=centre)
    one, two = ([kernels(10 * t + s, 2, n) for t in range(tokens)] for s in (1, 2))
    found = permutation_moments(
        [(0.5, add_up, window([a + b for a, b in zip(one, two, strict=True)]))]
    )
    draws = []
    for order in itertools.permutations(range(n)):
        at = np.ix_(order, order)
        sums = [
            [[add_up @ sums_of(x.numpy(), y.numpy()[at]) for y in b] for x in a]
            for a, b in zip(one, two, strict=True)
        ]
        draws.append(
            0.5 * torch.tensor(sums, dtype=torch.float64).mean(0)
        )  # blocks of a window are permuted alike
    exact = torch.stack(draws).var(0, correction=0)
    variance = (found.mine @ found.theirs.T)[:2, 2:]
    torch.testing.assert_close(variance, exact, rtol=1e-9, atol=1e-20)


TAILS = {  # of the samples' scales, and the shares between which the level lies
    "normal": (0.0, 0.94, 0.96),
    "heavy": (0.75, 0.91, 0.975),
    "very heavy": (1.5, 0.85, 0.99),  # one sample may carry a kernel, which n_eff warns of
}


def permuted_scores(add_up, k1, k2, orders):
    """Weighted sums over pairs of two kernels, the second in each of the orders (p, n)."""
    d1, d2 = k1.diagonal(), k2.diagonal()
    one, two = k1 - torch.diag(d1), k2 - torch.diag(d2)
    r1, r2, s1, s2, t1, t2 = one.sum(1), two.sum(1), one.sum(), two.sum(), d1.sum(), d2.sum()
    out = []
    for some in orders.split(max(1, 2**21 // len(d1) ** 2)):
        moved = two[some[:, :, None], some[:, None, :]]
        dd, dr, rd, rr = d2[some] @ d1, r2[some] @ d1, d2[some] @ r1, r2[some] @ r1
        pairs = torch.einsum("ij,pij->p", one, moved)
        fixed = [x.expand_as(dd) for x in (s1 * s2, t1 * t2, t1 * s2, s1 * t2)]
        out.append(add_up @ torch.stack([pairs, rr, dd, dr, rd, *fixed]))
    return torch.cat(out)


def test_tiny_p_values_are_neither_zero_nor_round_off():
    levels = ChanceLevels(*torch.tensor([[0.063], [0.08], [0.5]], dtype=torch.float64))
    scores = torch.tensor([0.08, 0.15, 0.17, 0.246], dtype=torch.float64)
    found = gamma_tail(scores, levels).log10()
    shape = 4 / 0.5**2  # of the gamma distribution of that skewness
    sigma = 0.017 / float(pair_statistics.gamma_quantile(torch.ones(1), torch.tensor([0.5])))
    exact = gammaincc(shape, shape + (scores.numpy() - 0.063) / sigma * shape**0.5)
    assert exact[3] < 1e-20  # which 1 - CDF in float64 rounds to zero
    # Wilson and Hilferty's approximation errs upwards
    assert (found.numpy() >= np.log10(exact) - 1e-3).all()
    assert found.numpy() == pytest.approx(np.log10(exact), rel=0.1)


def share_below_the_level(n, blocks, tokens, sigma, *, centre, draws):
    """Of drawn permutations of features with heavy tails: of one pair of layers."""
    rng, add_up = np.random.default_rng(n + blocks), sum_weights("cka", n, 10 * n, centre=centre)
    windows, total = [], torch.zeros(draws, dtype=torch.float64)
    for _ in range(blocks):
        scale = np.exp(sigma * rng.normal(size=(2, n, 1)))
        common = rng.normal(size=(2, n, 5)) + 0.5
        some = []
        for _ in range(tokens):
            x = (common + (tokens > 1) * rng.normal(size=common.shape)) * scale
            some.append(list(torch.from_numpy(x @ x.transpose(0, 2, 1))))
        leading = min(n, SKEWNESS_SAMPLES if blocks > 1 else 4 * SKEWNESS_SAMPLES)
        windows.append((1 / blocks, add_up, window(some, leading=leading * (tokens == 1))))
        orders = torch.from_numpy(rng.permuted(np.tile(np.arange(n), (draws, 1)), axis=1))
        for k1, k2 in some:
            total += permuted_scores(add_up, k1, k2, orders) / (blocks * tokens)
    null = permutation_moments(windows).null(slice(0, 1), slice(1, 2))
    levels = null.levels(total.mean()[None, None], torch.ones(1, 1, dtype=torch.float64))
    assert float(gamma_tail(levels.high, levels)) == pytest.approx(0.05, abs=1e-4)
    return float((total < levels.high).double().mean())


SIZES = [  # samples, blocks, tokens, draws
    (8, 1, 1, 2000), (32, 1, 1, 2000), (128, 1, 1, 2000), (1000, 1, 1, 200),
    (16, 12, 1, 2000), (64, 9, 1, 1000), (24, 1, 3, 2000), (24, 4, 3, 1000),
]  # fmt: skip
EVERY_PAIR = [  # all sizes with all tails, each of both centred and not
    (*sizes, tails, (i + j) % 2 == 0)
    for i, sizes in enumerate(SIZES)
    for j, tails in enumerate(TAILS)
]


@pytest.mark.parametrize(("n", "blocks", "tokens", "draws", "tails", "centre"), EVERY_PAIR)
def test_the_level_holds_95_percent_of_permutations(n, blocks, tokens, draws, tails, centre):
    """Of full Gram matrices, blocks, and tokens of one and several windows.

    The distribution has gaps where there are few samples or heavy tails; the level is that of a
    gamma distribution, which has none. Three standard errors of the share drawn are added.
    """
    sigma, low, high = TAILS[tails]
    unsure = 3 * (0.05 * 0.95 / draws) ** 0.5
    found = share_below_the_level(n, blocks, tokens, sigma, centre=centre, draws=draws)
    assert low - unsure < found < high + unsure


def test_samples_without_spread_have_no_spread_of_chance():
    add_up = sum_weights("cka", 6, 40, centre=True)
    found = permutation_moments([(1.0, add_up, window([[torch.zeros(6, 6).double()] * 2]))])
    assert not found.null(slice(0, 1), slice(1, 2)).sigma.any()
