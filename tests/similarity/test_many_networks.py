"""`compare_all`: the same numbers as `compare`, pair by pair."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import resemblance as rs
from resemblance.errors import DataError, LayerError, MismatchError, ResemblanceWarning
from resemblance.similarity import many_networks as many


def recorded(net, *, layers=3, n=330, mean=0.0, **options):
    cause = np.random.default_rng(5).normal(size=(n, 4))
    rng = np.random.default_rng(net)
    f, g = (
        {f"l{i}": cause @ rng.normal(size=(4, 6)) + rng.normal(size=(n, 6)) for i in range(layers)}
        for _ in range(2)
    )
    f = {name: x + mean for name, x in f.items()}
    options = {"data_id": "x", "buckets": 0, "elementwise": True, "name": f"net{net}", **options}
    return rs.record_arrays(f, g, **options)


@pytest.fixture(scope="module")
def zoo():
    return [recorded(net) for net in range(4)]


@pytest.mark.parametrize("index", ["cka", "cka-debiased"])
@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("kernel", ["features", "gradients", "product", "sum", "elementwise"])
def test_each_pair_scores_as_compare_has_it(zoo, kernel, centre, index):
    options = {"kernel": kernel, "centre": centre, "index": index}
    found = rs.compare_all(zoo, **options)
    assert len(zoo[0].block_sizes) == 16  # all blocks are in
    for i, a in enumerate(zoo):
        for j, b in enumerate(zoo):
            one = rs.compare(a, b, **options)
            assert found.scores[i, j] == pytest.approx(np.diag(one.scores).mean(), abs=1e-5)
    np.testing.assert_allclose(np.diag(found.scores), 1, atol=1e-6)
    np.testing.assert_allclose(found.scores, found.scores.T, atol=1e-6)


def test_how_many_blocks_are_read_at_a_time_does_not_matter(zoo, monkeypatch):
    expected = rs.compare_all(zoo)
    for rows in (1, 12):
        monkeypatch.setattr(many, "_ROWS", rows)
        found = rs.compare_all(zoo)
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-6)
        np.testing.assert_allclose(found.stderr, expected.stderr, atol=1e-6)
        assert found.samples == expected.samples == 330


def test_standard_errors_at_one_layer_are_those_of_compare(zoo):
    found = rs.compare_all(zoo, layer="l1")
    one = rs.compare(zoo[0], zoo[2])
    assert found.stderr[0, 2] == pytest.approx(one.stderr[1, 1], abs=1e-5)
    assert found.layers[0] == ("l1",)
    assert found.heading == "cka of product at l1, 330 samples"
    by_position = rs.compare_all(zoo, layer=1)
    np.testing.assert_array_equal(by_position.scores, found.scores)


def test_a_block_too_short_to_centre_is_passed_over_wherever_it_stands():
    # as when samples were skipped: the third block lost all but two
    zoo = [recorded(net) for net in range(2)]
    sizes = (*zoo[0].block_sizes[:2], 2, *zoo[0].block_sizes[3:])
    zoo = [replace(rep, block_sizes=sizes) for rep in zoo]
    one = rs.compare(*zoo, kernel="features")
    found = rs.compare_all(zoo, kernel="features", layer=0)
    assert found.scores[0, 1] == pytest.approx(one.scores[0, 0], abs=1e-5)
    assert found.stderr[0, 1] == pytest.approx(one.stderr[0, 0], abs=1e-5)


def test_a_large_mean_does_not_hurt_float32():
    zoo = [recorded(net, mean=20.0) for net in range(3)]
    found = rs.compare_all(zoo, kernel="features", layer=0)
    one = rs.compare(zoo[0], zoo[1], kernel="features")
    assert found.scores[0, 1] == pytest.approx(one.scores[0, 0], abs=1e-4)


def test_fewer_blocks_estimate_the_same(zoo):
    all_of_them, few = (rs.compare_all(zoo, blocks=k) for k in (16, 8))
    assert few.samples < all_of_them.samples
    assert np.abs(few.scores - all_of_them.scores).max() < 5 * few.stderr.max()
    assert np.isnan(rs.compare_all(zoo, blocks=1).stderr).all()


def test_networks_of_other_depth_are_matched_by_relative_depth(zoo):
    found = rs.compare_all([*zoo, recorded(9, layers=5)])
    assert found.layers[0] == ("l0", "l1", "l2")
    assert found.layers[-1] == ("l0", "l2", "l4")
    assert found.heading.startswith("cka of product at 3 layers")
    single = rs.compare_all([recorded(8, layers=1), zoo[0]])
    assert single.layers == (("l0",), ("l2",))  # a lone layer is matched with the last


def test_a_dead_layer_is_named_and_clusters_as_unlike(zoo):
    x = np.random.default_rng(0).normal(size=(330, 4))
    make = lambda f, name: rs.record_arrays(f, data_id="x", buckets=0, name=name)  # noqa: E731
    reps = [make(x, "a"), make(x**2, "b"), make(np.ones_like(x), "flat")]
    with pytest.warns(ResemblanceWarning, match="layer 'features' of 'flat' is constant") as w:
        found = rs.compare_all(reps, kernel="features")
    assert len(w) == 1
    assert w[0].filename == __file__
    assert np.isnan(found.scores[2]).all()
    assert np.isfinite(found.scores[:2, :2]).all()
    assert found.order()[-1] == 2 or found.order()[0] == 2
    assert found.to_dict()["scores"][2] == [None] * 3
    found.plot()


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"index": "nbs"}, "index must be cka or cka-debiased for many networks; found 'nbs'"),
        ({"kernel": "transport"}, "transport is not offered for many networks"),
        ({"kernel": "rbf"}, "kernel must be one of"),
        ({"blocks": 0}, "blocks must be at least 1; found 0"),
    ],
)
def test_what_is_not_offered_is_refused(zoo, options, message):
    with pytest.raises(DataError, match=message):
        rs.compare_all(zoo, **options)


def test_one_network_is_too_few(zoo):
    with pytest.raises(DataError, match="at least two networks to compare, found 1"):
        rs.compare_all(zoo[:1])


def test_other_data_are_refused_by_name(zoo):
    with pytest.raises(MismatchError, match="'net0' and 'net7' cannot be compared: they were rec"):
        rs.compare_all([*zoo, recorded(7, data_id="other")])
    other = replace(zoo[1], settings=replace(zoo[1].settings, pool="mean"))
    with pytest.raises(MismatchError, match="pool differs"):
        rs.compare_all([zoo[0], other])


def test_a_layer_that_is_not_there_is_refused(zoo):
    with pytest.raises(LayerError, match="no layer 'head'"):
        rs.compare_all(zoo, layer="head")


def test_the_symmetric_product_is_the_product():
    x = torch.randn(300, 7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(many.symmetric_product(x), x @ x.T)
