"""Behaviour of embeddings: neighbours, ranks and cosines against plain float64, and the basis."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reference_embeddings
import resemblance as rs
from resemblance.errors import MismatchError
from resemblance.similarity.neighbours import (
    NeighbourLists,
    embedding_behaviour,
    sample_cosines,
    share_basis,
)

GENERATOR = torch.Generator().manual_seed(0)


def noise(*shape):
    return torch.randn(*shape, generator=GENERATOR)


def recorded(vectors, name="arrays", **how):
    return rs.record_arrays(outputs=vectors, logits="none", data_id="x", name=name, **how)


@pytest.fixture(scope="module")
def pair():
    """Embeddings of 160 samples in 24 dimensions, and changed ones: arrays and recordings."""
    one = noise(160, 24) @ noise(24, 24) * 3
    two = one + 0.8 * noise(160, 24)
    return one, two, recorded(one, "one"), recorded(two, "two")


def test_neighbours_ranks_and_cosines_are_those_of_the_formulas(pair):
    """Of what the files keep exactly; rounding to float16 moves the last digits alone."""
    found = rs.behaviour(*pair[2:])
    kept = [rep.embeddings.vectors.double().numpy() for rep in pair[2:]]
    overlap, correlation, cosines = reference_embeddings.behaviour(*kept, k=10)
    assert (found.samples, found.queries, found.k, found.dimensions) == (160, 80, 10, (24, 24))
    assert found.neighbours == pytest.approx(overlap.mean(), abs=1e-12)
    assert found.rank_correlation == pytest.approx(correlation.mean(), abs=1e-9)
    assert found.cosine == pytest.approx(cosines.mean(), abs=1e-12)
    for name, x in (
        ("neighbours", overlap),
        ("rank_correlation", correlation),
        ("cosine", cosines),
    ):
        expected = x.std(ddof=1) / len(x) ** 0.5
        assert getattr(found, f"{name}_stderr") == pytest.approx(expected, rel=1e-6)
    quantiles = [found.cosine_p01, found.cosine_p10, found.cosine_p50]
    assert quantiles == pytest.approx(np.quantile(cosines, [0.01, 0.1, 0.5]).tolist())


def test_half_precision_hardly_moves_what_is_found(pair):
    found, order = rs.behaviour(*pair[2:]), torch.from_numpy(rs_order(pair[2]))
    exact = [x[order].double().numpy() for x in pair[:2]]
    overlap, correlation, cosines = reference_embeddings.behaviour(*exact, k=10)
    assert found.neighbours == pytest.approx(overlap.mean(), abs=0.01)
    assert found.rank_correlation == pytest.approx(correlation.mean(), abs=1e-4)
    assert found.cosine_p01 == pytest.approx(np.quantile(cosines, 0.01), abs=1e-4)


def rs_order(rep):
    """The seeded order of samples."""
    from resemblance._utils.hashing import seeded_permutation

    return np.asarray(seeded_permutation(rep.samples, seed=rep.settings.seed))


def test_equal_vectors_tie_alike_in_both_networks():
    """A pool with many equal samples: the order of equal similarities does not depend on sums."""
    few = noise(12, 16)
    x = few[torch.randint(12, (200,), generator=GENERATOR)]
    rotation = torch.linalg.qr(noise(16, 16))[0]
    found = rs.behaviour(recorded(x), recorded(x @ rotation))
    assert found.neighbours > 0.97  # but for cosines that float16 rounds apart
    assert rs.behaviour(recorded(x), recorded(3 * x)).neighbours == 1
    kept = recorded(x).embeddings.vectors.double().numpy()
    lists = NeighbourLists(*(torch.from_numpy(y) for y in (kept, kept)))
    assert lists.correlation == pytest.approx(np.ones(100))


def test_ties_have_the_mean_of_their_ranks():
    x, y = noise(60, 2).sign(), noise(60, 2)  # four directions
    kept = [recorded(z).embeddings.vectors for z in (x, y)]
    found = NeighbourLists(*kept)
    expected = reference_embeddings.behaviour(*(z.double().numpy() for z in kept), k=6)[1]
    assert found.k == 6  # of a pool of 30
    assert found.correlation == pytest.approx(expected, abs=1e-9)


def test_constant_embeddings_agree_with_themselves_alone():
    constant, other = torch.ones(40, 8), noise(40, 8)
    assert rs.behaviour(recorded(constant), recorded(constant)).rank_correlation == 1
    assert rs.behaviour(recorded(constant), recorded(other)).rank_correlation == 0
    zero = torch.zeros(3, 4)
    assert sample_cosines(zero, zero).tolist() == [1, 1, 1]
    assert sample_cosines(zero, torch.ones(3, 4)).tolist() == [0, 0, 0]


def test_the_chance_level_is_that_of_other_queries():
    one, two = noise(400, 10), noise(400, 10)
    found = rs.behaviour(recorded(one), recorded(two))
    assert found.chance == pytest.approx(10 / 200, abs=0.01)  # as without hubs
    assert found.neighbours == pytest.approx(found.chance, abs=0.02)
    hubs = torch.cat([one + 3, 3 * one], 1)  # a common direction makes some samples near to all
    lists = NeighbourLists(*(recorded(x).embeddings.vectors for x in (hubs, hubs + 0.1)))
    plain = [
        len(set(lists.neighbours[0, i]) & set(lists.neighbours[1, j])) / 10
        for i in range(200)
        for j in range(200)
        if i != j
    ]
    assert lists.chance == pytest.approx(np.mean(plain))


def test_a_basis_is_shared_by_copies_and_by_no_others():
    """Twins have the same embeddings but for the order of units, and 999 orders are tried."""
    base = noise(300, 32) @ noise(32, 32)
    assert share_basis(base, base + 2 * noise(300, 32))
    assert share_basis(base, 0.5 * base + 3)
    assert not share_basis(base, base[:, :31])
    order = torch.randperm(32, generator=GENERATOR)
    assert not share_basis(base, base[:, order])
    assert not share_basis(base, base @ torch.linalg.qr(noise(32, 32))[0])
    assert not share_basis(base, torch.ones(300, 32))
    assert not share_basis(base[:, :3], base[:, :3])  # of so few units there are six orders
    alarms = sum(share_basis(noise(60, 12), noise(60, 12)) for _ in range(200))
    assert alarms <= 2  # of 0.2


def test_a_rotated_copy_has_the_same_neighbours_and_no_cosines(pair):
    one, _, base, _ = pair
    rotated = recorded(one @ torch.linalg.qr(noise(24, 24))[0], "rotated")
    found = rs.behaviour(base, rotated)
    assert found.neighbours > 0.99
    assert found.rank_correlation > 0.9999
    assert found.cosine is found.cosine_stderr is found.cosine_p01 is None
    assert "do not appear to share a basis" in found.summary()


def test_networks_of_different_dimensions_have_neighbours(pair):
    found = rs.behaviour(pair[2], recorded(torch.cat(pair[:2], 1)))
    assert found.dimensions == (24, 48)
    assert found.neighbours > 0.5
    assert found.cosine is None
    assert found.turned().dimensions == (48, 24)


def test_the_result_is_in_the_comparison_its_file_and_its_table(pair, tmp_path):
    compared = rs.compare(*pair[2:])
    assert compared.behaviour == rs.behaviour(*pair[2:])
    assert "nearest neighbours in common" in compared.summary()
    assert rs.FullComparison.load(compared.save(tmp_path / "c.json")) == compared
    assert rs.EmbeddingBehaviour.load(compared.behaviour.save(tmp_path / "b.json"))
    assert compared.to_dict()["behaviour"]["neighbours"] == compared.behaviour.neighbours
    assert compared.behaviour.to_frame()["measure"].tolist() == [
        "neighbours",
        "rank_correlation",
        "cosine",
    ]


def test_a_report_tells_it_in_words(pair, tmp_path):
    from resemblance.views.report import report_contents

    content, _ = report_contents([*pair[2:], recorded(noise(160, 5), "other")])
    assert len(content["behaviour"]) == 3
    for entry in content["behaviour"]:
        assert all("nearest neighbours in common" in words for words in entry["words"])
        assert entry["words"][0] != entry["words"][1]  # the networks in the other order


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (lambda x: recorded(x).without_outputs(), "has none"),
        (lambda x: rs.record_arrays(outputs=x, data_id="x"), "predicts classes or labels"),
        (lambda x: recorded(x, shard=(0, 2)), "1 of 2 shards"),
        (lambda x: recorded(x[:80]), "different samples"),
        (lambda x: recorded(x, seed=1), "seed differs"),
    ],
)
def test_what_cannot_be_compared_says_why(pair, other, why):
    with pytest.raises(MismatchError, match=why):
        rs.behaviour(pair[2], other(pair[0]))


def test_a_single_sample_has_no_neighbours(pair):
    one = recorded(pair[0][:1])
    with pytest.raises(MismatchError, match="single sample"):
        rs.behaviour(one, one)
    with pytest.raises(MismatchError, match="returns embeddings"):
        rs.flips(*pair[2:])


def test_other_rows_are_refused(pair):
    from dataclasses import replace

    short = replace(pair[2], outputs=rs.Embeddings(pair[2].embeddings.vectors[:-1]))
    with pytest.raises(MismatchError, match="different samples"):
        embedding_behaviour(short, pair[3])
    lone = [
        replace(rep, outputs=rs.Embeddings(rep.embeddings.vectors[:1])) for rep in (pair[2], short)
    ]
    with pytest.raises(MismatchError, match="a single sample has no neighbours"):
        embedding_behaviour(*lone)


def test_many_networks_compare_predictions_alone(pair):
    found = rs.compare_all(pair[2:])
    assert any("embeddings" in sentence for sentence in found.behaviour_missing)
