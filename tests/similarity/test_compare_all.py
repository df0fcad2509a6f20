"""`compare_all`: the same numbers as `compare`, pair by pair."""

import warnings
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import networks
import resemblance as rs
from resemblance.errors import DataError, LayerError, MismatchError, ResemblanceWarning
from resemblance.similarity import compare_all as many
from resemblance.similarity.comparison_matrix import ComparisonMatrix

# what `compare` says of so few samples is tested with it
pytestmark = pytest.mark.filterwarnings("ignore:.*standard errors may be too small")


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
    """Sixteen blocks of 16, which hold 256 of the samples."""
    return [recorded(net, block=16, blocks=16) for net in range(4)]


@pytest.fixture(scope="module")
def small():
    """So few samples that their kernels are kept whole."""
    return [recorded(net, n=70) for net in range(3)]


@pytest.mark.parametrize("kept", ["zoo", "small"])
@pytest.mark.parametrize("index", ["cka", "cka-debiased"])
@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("kernel", ["features", "gradients", "product", "sum", "elementwise"])
def test_each_pair_is_the_mean_of_compare_over_layers(request, kernel, centre, index, kept):
    reps = request.getfixturevalue(kept)
    options = {"kernel": kernel, "centre": centre, "index": index}
    found = rs.compare_all(reps, **options)
    assert found.samples == {"zoo": 256, "small": 70}[kept]  # all that are kept
    for i, j in ((0, 1), (1, 2), (2, 2)):
        one = rs.compare(reps[i], reps[j], estimator="blocks", **options)
        value, error = one.mean()
        assert found.scores[i, j] == pytest.approx(value, abs=1e-6)  # of float32 products
        assert found.stderr[i, j] == pytest.approx(error, abs=1e-6)
        np.testing.assert_allclose(found.n_eff[i], one.n_eff[0], rtol=1e-2)
    np.testing.assert_allclose(np.diag(found.scores), 1, atol=1e-6)
    np.testing.assert_allclose(found.scores, found.scores.T, atol=1e-6)
    assert (found.averaged == 3).all()


def test_scores_are_clipped_one_by_one_before_they_are_averaged():
    # unrelated layers: about half of their scores fall below zero, where none can lie
    reps = [
        rs.record_arrays(
            {f"l{i}": np.random.default_rng((net, i)).normal(size=(900, 3)) for i in range(8)},
            data_id="x",
            buckets=0,
            block=8,
            blocks=8,
        )
        for net in range(2)
    ]
    one = rs.compare(*reps, kernel="features", estimator="blocks")
    assert (np.diag(one.scores) == 0).any()
    found = rs.compare_all(reps, kernel="features")
    assert found.scores[0, 1] == pytest.approx(one.mean()[0], abs=1e-6)


def test_a_few_networks_use_all_blocks_and_many_as_many_as_hold_2048_samples(zoo):
    def enough(networks, sizes):
        return many._blocks_to_use([replace(zoo[0], block_sizes=sizes)] * networks, None)

    assert enough(32, (8,) * 512) == 512
    assert enough(33, (8,) * 512) == 256
    assert enough(33, (128,) * 64) == 16
    assert enough(33, (3000, 3000)) == 1
    assert enough(33, (8, 8)) == 2


def test_small_data_of_many_networks_are_read_as_blocks(small, monkeypatch):
    monkeypatch.setattr(many, "_FEW_NETWORKS", 2)
    found = rs.compare_all(small, kernel="product")
    assert found.samples == 70
    whole = rs.compare(small[0], small[1], kernel="product", estimator="blocks").mean()
    assert found.scores[0, 1] != pytest.approx(whole[0], abs=1e-6)
    assert found.scores[0, 1] == pytest.approx(whole[0], abs=4 * found.stderr[0, 1])
    asked = rs.compare_all(small, kernel="product", blocks=len(small[0].block_sizes))
    np.testing.assert_array_equal(found.scores, asked.scores)


@pytest.mark.filterwarnings("ignore:only .* below 50")
@pytest.mark.parametrize("n", [2, 3, 4])
def test_two_samples_are_centred_as_compare_has_it(n):
    reps = [recorded(net, n=n, layers=1) for net in range(2)]
    expected = rs.compare(*reps, kernel="features", estimator="blocks").scores[0, 0]
    for blocks in (None, 1):
        found = rs.compare_all(reps, kernel="features", blocks=blocks)
        assert found.scores[0, 1] == pytest.approx(expected, abs=1e-5)
    if n == 2:
        assert expected == pytest.approx(1)  # two samples have one direction


@pytest.mark.parametrize("kernel", ["gradients", "product", "sum"])
@pytest.mark.parametrize("options", [{}, {"block": 16, "blocks": 16}])
def test_a_layer_of_zeros_is_named_and_left_out(kernel, options):
    rng = np.random.default_rng(0)
    f, g = ({name: rng.normal(size=(300, 4)) for name in ("u", "v")} for _ in range(2))
    make = {"data_id": "x", "buckets": 0, **options}
    a = rs.record_arrays(f, g, name="a", **make)
    b = rs.record_arrays(f, {**g, "v": np.zeros((300, 4))}, name="b", **make)
    if kernel == "sum":  # what is left is the kernel of features
        found = rs.compare_all([a, b], kernel=kernel)
        assert np.isfinite(found.scores).all()
        assert (found.averaged == 2).all()
    else:
        with pytest.warns(ResemblanceWarning, match="layer 'v' of 'b' is constant") as w:
            found = rs.compare_all([a, b], kernel=kernel)
        assert len(w) == 1
        assert found.averaged.tolist() == [[2, 1], [1, 1]]
        assert found.scores[0, 1] == pytest.approx(1)  # the layer that is left is the same
    with pytest.warns(ResemblanceWarning) if kernel != "sum" else nullcontext():
        one = rs.compare(a, b, kernel=kernel, estimator="blocks").mean()
    assert found.scores[0, 1] == pytest.approx(one[0], abs=1e-6)


def test_a_mean_that_drowns_differences_does_not_change_centred_scores():
    far = [recorded(net, layers=1, mean=300.0, block=16, blocks=16) for net in range(3)]
    near = [recorded(net, layers=1, block=16, blocks=16) for net in range(3)]
    found, expected = (rs.compare_all(reps, kernel="features") for reps in (far, near))
    np.testing.assert_allclose(found.scores, expected.scores, atol=2e-3)


def test_how_many_blocks_are_read_at_a_time_does_not_matter(zoo, monkeypatch):
    expected = rs.compare_all(zoo, kernel="product")
    for rows in (1, 12):
        monkeypatch.setattr(many, "_KERNELS_AT_ONCE", rows)
        found = rs.compare_all(zoo, kernel="product")
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-6)
        np.testing.assert_allclose(found.stderr, expected.stderr, atol=1e-6)
        assert found.samples == expected.samples == 256


def test_standard_errors_at_one_layer_are_those_of_compare(zoo):
    found = rs.compare_all(zoo, kernel="product", layer="l1")
    one = rs.compare(zoo[0], zoo[2], kernel="product", estimator="blocks")
    assert found.stderr[0, 2] == pytest.approx(one.stderr[1, 1], abs=1e-5)
    assert found.layers[0] == ("l1",)
    assert found.heading == "cka of product at l1, 256 samples"
    by_position = rs.compare_all(zoo, kernel="product", layer=1)
    np.testing.assert_array_equal(by_position.scores, found.scores)


def test_a_block_too_short_to_centre_is_passed_over_wherever_it_stands():
    # as when samples were skipped: the third block lost all but two
    zoo = [recorded(net, block=16, blocks=16) for net in range(2)]
    sizes = (*zoo[0].block_sizes[:2], 2, *zoo[0].block_sizes[3:])
    zoo = [replace(rep, block_sizes=sizes) for rep in zoo]
    one = rs.compare(*zoo, kernel="features")
    found = rs.compare_all(zoo, kernel="features", layer=0)
    assert found.scores[0, 1] == pytest.approx(one.scores[0, 0], abs=1e-5)
    assert found.stderr[0, 1] == pytest.approx(one.stderr[0, 0], abs=1e-5)


def test_a_large_mean_does_not_hurt_float32():
    zoo = [recorded(net, mean=20.0, block=16, blocks=16) for net in range(3)]
    found = rs.compare_all(zoo, kernel="features", layer=0)
    one = rs.compare(zoo[0], zoo[1], kernel="features")
    assert found.scores[0, 1] == pytest.approx(one.scores[0, 0], abs=1e-4)


@pytest.mark.filterwarnings("ignore:only .* below 50")
def test_fewer_blocks_estimate_the_same(zoo):
    all_of_them, few = (rs.compare_all(zoo, kernel="product", blocks=k) for k in (16, 8))
    assert few.samples < all_of_them.samples
    assert np.abs(few.scores - all_of_them.scores).max() < 5 * few.stderr.max()
    assert np.isnan(rs.compare_all(zoo, kernel="product", blocks=1).stderr).all()


def test_networks_of_other_depth_are_matched_by_relative_depth(zoo):
    found = rs.compare_all([*zoo, recorded(9, layers=5, block=16, blocks=16)], kernel="product")
    assert found.layers[0] == ("l0", "l1", "l2")
    assert found.layers[-1] == ("l0", "l2", "l4")
    assert found.heading.startswith("cka of product at 3 layers")
    single = rs.compare_all([recorded(8, layers=1, block=16, blocks=16), zoo[0]], kernel="product")
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


def test_predictions_are_compared_where_there_are_as_many_classes(tmp_path):
    x = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
    nets = [networks.seeded(networks.MLP, seed=i) for i in range(3)]
    nets.append(networks.seeded(lambda: networks.MLP(classes=4)))
    reps = [rs.record(net, x, name=f"net{i}") for i, net in enumerate(nets)]
    found = rs.compare_all(reps, kernel="product")
    for i, j in ((0, 1), (2, 1)):
        one = rs.behaviour(reps[i], reps[j])
        assert found.behaviour.disagreement[i, j] == pytest.approx(one.disagreement)
        assert found.behaviour.js_stderr[i, j] == pytest.approx(one.js_stderr)
    assert np.isnan(found.behaviour.disagreement[3, 0])
    assert found.behaviour_missing[0].endswith(
        "same number of classes: 5 classes (net0, net1, net2); 4 classes (net3)."
    )
    assert found.behaviour_missing[0] in found.summary()
    assert ComparisonMatrix.load(found.save(tmp_path / "m.json")) == found


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"index": "nbs"}, "index` must be cka or cka-debiased for many networks; found 'nbs'"),
        ({"kernel": "transport"}, "transport is not available for many networks"),
        ({"kernel": "rbf"}, "one of features, gradients, product, sum, elementwise; found 'rbf'"),
        ({"index": "cca"}, "index` must be cka or cka-debiased for many networks; found 'cca'"),
        ({"blocks": 0}, "blocks` must be a whole number, 1 or more; found 0"),
    ],
)
def test_what_is_not_offered_is_refused(zoo, options, message):
    with pytest.raises(DataError, match=message):
        rs.compare_all(zoo, **options)


def test_one_network_is_too_few(zoo):
    with pytest.raises(DataError, match="at least two networks to compare, found 1"):
        rs.compare_all(zoo[:1], kernel="product")


def test_other_data_are_refused_by_name(zoo):
    with pytest.raises(MismatchError, match="'net0' and 'net7' were recorded on different s"):
        rs.compare_all([*zoo, recorded(7, data_id="other")], kernel="product")
    other = replace(zoo[1], settings=replace(zoo[1].settings, pool="mean"))
    with pytest.raises(MismatchError, match="pool differs"):
        rs.compare_all([zoo[0], other], kernel="product")


def test_a_layer_that_is_not_there_is_refused(zoo):
    with pytest.raises(LayerError, match="no layer 'head'"):
        rs.compare_all(zoo, kernel="product", layer="head")


def test_the_symmetric_product_is_the_product():
    x = torch.randn(300, 7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(many.symmetric_product(x), x @ x.T)


@pytest.mark.filterwarnings("ignore:only .* below 50")
@pytest.mark.parametrize("samples", [2, 3])
def test_centred_and_debiased_takes_four_samples(samples):
    a, b = (recorded(net, n=samples) for net in range(2))
    for compare in (
        lambda **how: rs.compare(a, b, **{"kernel": "product", **how}),
        partial(rs.compare_all, [a, b]),
    ):
        with pytest.raises(MismatchError, match=f"needs at least 4 samples, found {samples}; rec"):
            compare(kernel="features", index="cka-debiased")
        compare(kernel="features", index="cka-debiased", centre=False)


@pytest.mark.filterwarnings("default:.*standard errors may be too small")
def test_a_warning_says_that_few_samples_carry_kernels():
    rng = np.random.default_rng(0)
    f = rng.normal(size=(1100, 12))
    few = np.arange(1100)[:, None] < 20
    gradients = [rng.normal(size=f.shape) * scale for scale in (1, few, few)]
    nets = [rs.record_arrays(f, g, data_id="x", name=f"net{i}") for i, g in enumerate(gradients)]
    said = r"scores of 'net1', 'net2'\. The effective sample size \(n_eff\) is \d+ of 1,100 samples"
    with pytest.warns(ResemblanceWarning, match=said) as w:
        rs.compare_all(nets, kernel="gradients")
    assert w[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rs.compare_all(nets, kernel="features")
        rs.compare_all([nets[1], nets[1].renamed("copy")], kernel="gradients")  # which are the same
