"""Moments over all permutations: exact for few samples, where every order can be tried."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from resemblance.similarity.chance_moments import Window, moments
from resemblance.similarity.kernel_strips import effects
from resemblance.similarity.pair_sums import Side, factors, pair_sums, side


def kernels(seed: int, layers: int, n: int) -> list[torch.Tensor]:
    """Kernels of features with a mean and heavy samples, so that every part of T counts."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(layers, n, 3)) * rng.lognormal(0, 0.4, size=(layers, n, 1)) + 0.7
    return list(torch.from_numpy(x @ x.transpose(0, 2, 1)))


def sides(of: list[torch.Tensor], order: torch.Tensor) -> Side:
    n = len(order)
    i, j = torch.tril_indices(n, n, -1)
    turned = [k[order][:, order] for k in of]
    return side(torch.stack([k[i, j] for k in turned]), torch.stack([k.diagonal() for k in turned]))


def window(blocks: list[list[torch.Tensor]], *, few: bool = False) -> Window:
    """Of blocks, each with the kernels of all layers."""
    every = torch.stack([torch.stack(block) for block in blocks], 1)  # (L, t, n, n)
    d = every.diagonal(dim1=2, dim2=3)
    off = every - torch.diag_embed(d)
    rows = off.sum(3)
    u = torch.stack([effects(rows[:, t]) for t in range(rows.shape[1])], 1)
    flat = off.flatten(2)
    return Window(u, d, flat @ flat.mT, off[:, 0].float() if few else None)


@pytest.mark.parametrize("index", ["cka", "cka-debiased"])
@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("tokens", [1, 2])
def test_the_variance_is_that_of_all_permutations(index, centre, tokens):
    n, add_up = 6, factors(index, 6, 40, centre=centre)
    one, two = ([kernels(10 * t + s, 2, n) for t in range(tokens)] for s in (1, 2))
    found = moments([(0.5, add_up, window([a + b for a, b in zip(one, two, strict=True)]))])
    draws = []
    for order in itertools.permutations(range(n)):
        same, moved = torch.arange(n), torch.tensor(order)
        sums = [
            torch.tensordot(add_up, pair_sums(sides(a, same), sides(b, moved))[:, 0], 1)
            for a, b in zip(one, two, strict=True)
        ]
        draws.append(0.5 * torch.stack(sums).mean(0))  # blocks of a window are permuted alike
    exact = torch.stack(draws).var(0, correction=0)
    variance = (found.mine @ found.theirs.T)[:2, 2:]
    torch.testing.assert_close(variance, exact, rtol=1e-9, atol=0)


@pytest.mark.parametrize("centre", [True, False])
def test_the_level_holds_95_percent_of_permutations(centre):
    n, add_up = 60, factors("cka", 60, 60, centre=centre)
    one, two = kernels(1, 2, n), kernels(2, 2, n)
    found = moments([(1.0, add_up, window([one + two], few=True))])
    generator = torch.Generator().manual_seed(0)
    still = sides(one, torch.arange(n))
    draws = torch.stack(
        [
            torch.tensordot(
                add_up, pair_sums(still, sides(two, torch.randperm(n, generator=generator))), 1
            )[0]
            for _ in range(1500)
        ]
    )
    high = draws.mean(0) + found.above_mean(slice(0, 2), slice(2, 4))
    share = (draws < high).double().mean(0)
    # 1,500 draws tell the share to 0.006, and the third moment is one to first order in 1/n
    assert ((share - 0.95).abs() < 0.02).all(), share


def test_blocks_too_small_to_permute_add_nothing():
    add_up = factors("cka", 3, 40, centre=False)
    found = moments([(1.0, add_up, window([kernels(0, 2, 3)]))])
    assert not found.above_mean(slice(0, 2), slice(0, 2)).any()
