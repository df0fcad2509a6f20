"""One network with many: what `compare` gives, with a level of chance that is not drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import made_up
import resemblance as rs
from resemblance.similarity.doubtful_errors import are_doubtful
from resemblance.zoo import exact_scores
from resemblance.zoo.exact_scores import one_with_many

KERNELS = ("features", "gradients", "product")


def made(seed, samples, **options):
    f, g = made_up.related(seed, samples, layers=3)
    options = {"buckets": 0, "data_id": "probe", "name": f"net {seed}", **options}
    return rs.record_arrays(f, g, **options)


def of_tokens(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Embedding(40, 6), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    ids = torch.randint(40, (40, 6), generator=torch.Generator().manual_seed(1))
    kept = {"layers": ["1", "2"], "buckets": 0, "block": 16}
    return rs.record(net, ids, unit="token", tokens=3, data_id="text", name=f"t{seed}", **kept)


SETS = {
    "whole": lambda: [made(i, 90) for i in range(4)],
    "one layer": lambda: [replace(x, layers=x.layers[:1]) for x in (made(1, 90), made(2, 90))],
    "blocks": lambda: [made(i, 300, block=16, blocks=8) for i in range(3)],
    "norms": lambda: [made(i, 1300, block=32, blocks=30) for i in range(3)],
    "one layer of norms": lambda: [
        replace(x, layers=x.layers[:1])
        for x in (made(i, 1300, block=32, blocks=30) for i in (1, 2))
    ],
    "tokens": lambda: [of_tokens(i) for i in range(3)],
}


def by_itself(query, other, kernel):
    """Score, standard error, chance and doubt of two networks, by `compare`."""
    found = rs.compare(query, other, kernel=kernel)
    mean, error = found.mean() if len(query) > 1 else (found.scores[0, 0], found.stderr[0, 0])
    chance = [x.diagonal().mean() for x in (found.chance, found.chance_high)]
    return mean, error, *chance, are_doubtful(query, found).diagonal().any()


@pytest.mark.filterwarnings("ignore:.*error bars cannot be trusted")
@pytest.mark.parametrize("which", SETS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_scores_are_those_of_compare(which, kernel, monkeypatch):
    query, *others = SETS[which]()
    truth = [by_itself(query, other, kernel) for other in others]
    monkeypatch.setattr(exact_scores, "compare", None)  # none of these is compared by itself
    found = one_with_many(query, others, kernel)
    for one, (score, error, chance, high, doubtful) in zip(found, truth, strict=True):
        assert (one.score, one.stderr) == pytest.approx((score, error), abs=1e-6)
        # 256 draws know a standard deviation to 4 %; skewness moves the level as much again
        assert one.chance_high - chance == pytest.approx(high - chance, rel=0.25)
        assert one.doubtful == doubtful


def test_the_level_of_chance_is_that_of_permutations():
    """Which 5 % of permuted pairings exceed, on kernels computed plainly."""
    n, rng = 60, np.random.default_rng(0)
    x, y = rng.normal(size=(n, 3)), rng.exponential(size=(n, 4))
    reps = [rs.record_arrays({"l": v}, data_id="x", buckets=0) for v in (x, y)]
    (found,) = one_with_many(reps[0], reps[1:], "features")
    k, other = ((v - v.mean(0)) @ (v - v.mean(0)).T for v in (x, y))
    norms = np.linalg.norm(k) * np.linalg.norm(other)
    drawn = []
    for _ in range(4000):
        order = rng.permutation(n)
        drawn.append((k * other[np.ix_(order, order)]).sum() / norms)
    above = np.mean(np.array(drawn) > found.chance_high)
    assert 0.035 < above < 0.065  # 4,000 draws have a standard error of 0.0035


def test_what_shares_no_sums_is_compared_by_itself(monkeypatch):
    """Here, a network that holds the kernel of all samples at one of its layers alone."""
    query, one, two = (made(i, 90, block=16) for i in range(3))
    blocks = replace(two[1].features, whole=None, blocks=two[1].packed_blocks("features"))
    mixed = replace(two, layers=(two[0], replace(two[1], features=blocks), two[2]))
    asked = []
    compare = exact_scores.compare
    monkeypatch.setattr(
        exact_scores, "compare", lambda a, b, **x: asked.append(b.name) or compare(a, b, **x)
    )
    found = one_with_many(query, [one, mixed], "features")
    assert asked == ["net 2"]
    truth = rs.compare(query, mixed, kernel="features")
    assert (found[1].score, found[1].stderr) == pytest.approx(truth.mean())
    assert found[1].chance_high == pytest.approx(truth.chance_high.diagonal().mean())
    assert found[0] == one_with_many(query, [one], "features")[0]


def test_samples_that_do_not_match_have_no_score():
    query, other = made(0, 90), made(1, 90)
    target = replace(other, settings=replace(other.settings, target="another"))
    assert one_with_many(query, [other, made(2, 80)], "features")[1] is None
    assert one_with_many(query, [target], "features")[0] is not None
    assert one_with_many(query, [target], "gradients") == [None]
    assert one_with_many(query, [], "features") == []
