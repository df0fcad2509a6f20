"""`compare`: which estimator, which notes and warnings, and what is refused."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import resemblance as rs
from resemblance.errors import DataError, MismatchError, ResemblanceWarning


def arrays(net, n=160, d=6, layers=("a", "b", "c")):
    cause = np.random.default_rng(5).normal(size=(n, 4))
    rng = np.random.default_rng(net)
    return {
        name: cause @ rng.normal(size=(4, d)) + 0.5 * rng.normal(size=(n, d)) for name in layers
    }


def recorded(net, *, n=160, layers=("a", "b", "c"), gradients=True, **options):
    f = arrays(net, n, layers=layers)
    g = arrays(net + 100, n, layers=layers) if gradients else None
    options = {"data_id": "shared", "buckets": 64, "name": f"net{net}", **options}
    return rs.record_arrays(f, g, **options)


@pytest.fixture(scope="module")
def pair():
    return recorded(0), recorded(1)


def with_settings(rep, **changes):
    return replace(rep, settings=replace(rep.settings, **changes))


# -- what is computed ------------------------------------------------------------------------------


def test_rows_are_the_layers_of_the_first(pair):
    a, b = recorded(0, layers=("x", "y")), pair[1]
    found = rs.compare(a, b, kernel="product")
    assert found.rows == ("x", "y")
    assert found.columns == ("a", "b", "c")
    assert found.scores.shape == found.stderr.shape == found.chance.shape == (2, 3)
    turned = rs.compare(b, a, kernel="product")
    np.testing.assert_allclose(turned.scores, found.scores.T, atol=1e-12)
    np.testing.assert_allclose(turned.stderr, found.stderr.T, atol=1e-12)


def test_the_papers_kernel_is_compared_from_blocks(pair):
    found = rs.compare(*pair, kernel="product")
    assert (found.kernel, found.index, found.estimator) == ("product", "cka", "blocks")
    assert found.centre is False
    assert rs.compare(*pair, kernel="features").centre is True
    assert found.samples == (160, 160)
    assert found.paired
    assert found.notes == ()
    start = (
        "KernelComparison('net0', 'net1', 0.450 ± 0.043, cka of product, from blocks, 160 samples)"
    )
    assert repr(found) == start


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), scale=st.floats(0.01, 100))
def test_rotating_scaling_and_permuting_features_changes_no_score(seed, scale):
    rng = np.random.default_rng(seed)
    f, h = arrays(0, 64, layers=("a",))["a"], arrays(1, 64, layers=("a",))["a"]
    turn, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    a, b, turned = (
        rs.record_arrays(x, data_id="x", buckets=0) for x in (f, h, scale * f[:, ::-1] @ turn)
    )
    for index in ("cka", "cka-debiased", "nbs", "spectral", "rsa"):
        before, after = (
            rs.compare(x, b, kernel="features", index=index).scores[0, 0] for x in (a, turned)
        )
        assert after == pytest.approx(before, abs=1e-3)  # 16-bit entries round otherwise


def test_unpaired_data_go_to_buckets_with_one_warning_in_words():
    a, b = recorded(0), recorded(1, n=120, data_id="other")
    with pytest.warns(ResemblanceWarning, match="Record both networks on the same") as caught:
        found = rs.compare(a, b, kernel="features", unpaired=True)
    assert len(caught) == 1
    assert caught[0].filename == __file__  # the caller's line, not the library's
    assert found.estimator == "buckets"
    assert not found.paired
    assert found.chance is None
    assert found.samples == (160, 120)
    assert "160 and 120 unpaired samples" in found.heading
    assert "paired by position only" in found.summary()


def test_different_samples_are_refused_and_both_data_named():
    a, b = recorded(0), recorded(1, n=120, data_id="other")
    said = rf"160 of '{a.data.id}' and 120 of 'other'\. Record both on the same .*`unpaired=True`"
    with pytest.raises(MismatchError, match=said):
        rs.compare(a, b, kernel="features")
    with pytest.raises(MismatchError, match=r"120 of 'other'.* two at a time with `unpaired=True`"):
        rs.compare_all([a, b], kernel="features")


def test_different_samples_without_a_name_are_told_apart_by_fingerprint():
    net, x = torch.nn.Sequential(torch.nn.Linear(6, 5)), torch.randn(60, 6)
    a, b = (rs.record(net, y, gradients=False) for y in (x, x + 1))
    said = f"60 samples .fingerprint {a.data.fingerprint[:8]}.* {b.data.fingerprint[:8]}"
    with pytest.raises(MismatchError, match=said):
        rs.compare(a, b, kernel="features")


def test_permission_changes_nothing_for_the_same_samples(pair):
    expected = rs.compare(*pair, kernel="features")
    assert rs.compare(*pair, kernel="features", unpaired=True) == expected


def test_few_samples_are_warned_of_once_and_noted():
    reps = [recorded(i, n=49) for i in (0, 1)]
    for compared in (
        lambda: rs.compare(*reps, kernel="features"),
        lambda: rs.compare_all(reps, kernel="features"),
    ):
        with pytest.warns(ResemblanceWarning, match="only 49 samples: .*record more") as caught:
            compared()
        assert sum("only 49" in str(w.message) for w in caught) == 1
    with pytest.warns(ResemblanceWarning, match="only 49 samples"):
        assert any("only 49" in note for note in rs.compare(*reps, kernel="features").notes)


def test_spectra_need_no_pairing_and_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = rs.compare(
            recorded(0), recorded(1, data_id="other"), kernel="product", index="spectral"
        )
    assert found.estimator == "blocks"
    assert not found.paired


def test_nbs_prefers_buckets_when_there_are_more_of_them(pair):
    nbs = {"kernel": "gradients", "index": "nbs"}
    exact = rs.compare(*pair, **nbs)
    assert exact.estimator == "blocks"  # which are whole, of so few samples
    assert exact.notes == ()
    pair = [recorded(net, blocks=12) for net in (0, 1)]
    assert rs.compare(*pair, **nbs).estimator == "buckets"  # 64 buckets, blocks of 10
    without = [with_settings(rep, buckets=0) for rep in pair]
    assert rs.compare(*without, **nbs).estimator == "blocks"
    apart = pair[0], with_settings(pair[1], buckets=32)
    assert rs.compare(*apart, **nbs).estimator == "blocks"
    assert any("NBS" in note for note in rs.compare(*pair, **nbs).notes)


@pytest.mark.parametrize(
    "options",
    [{}, {"index": "nbs"}, {"index": "spectral"}, {"estimator": "buckets", "kernel": "features"}],
    ids=str,
)
def test_every_estimator_computes_on_the_device_asked_for(pair, options):
    """What a GPU gives is in test_cuda.py; here is only that none is passed over."""
    with pytest.raises(RuntimeError, match=r"meta|Meta"):  # a device without any numbers
        rs.compare(*pair, device="meta", **options)
    with pytest.raises(RuntimeError, match="meta"):
        rs.compare_all(pair, kernel="product", device="meta")


def test_nbs_of_the_product_is_taken_from_blocks_which_alone_hold_it(pair):
    assert rs.compare(*pair, kernel="product", index="nbs").estimator == "blocks"


def test_notes_say_what_to_know(pair):
    found = rs.compare(*pair, kernel="product", estimator="buckets")
    assert any("not a sketch of the product kernel" in note for note in found.notes)
    found = rs.compare(*pair, kernel="transport")
    assert any("transport inverts K_f" in note for note in found.notes)
    assert "Note: transport inverts" in found.summary()


def test_scores_stay_in_their_range(pair):
    for kernel in ("features", "gradients", "product", "sum", "transport"):
        for estimator in ("blocks", "buckets", "paper"):
            scores = (
                rs.compare(*pair, kernel=kernel, estimator=estimator).scores
                if (kernel != "transport" or estimator != "buckets")
                else rs.compare(*pair, kernel=kernel, estimator=estimator, centre=False).scores
            )
            assert np.all((scores >= 0) & (scores <= 1))


def test_a_dead_layer_is_nan_and_named_once():
    f = arrays(0)
    dead = {**f, "b": np.zeros_like(f["b"])}
    a = rs.record_arrays(dead, data_id="x", buckets=64, name="net")
    b = rs.record_arrays(f, data_id="x", buckets=64, name="other")
    for options in ({}, {"estimator": "buckets"}, {"centre": False}, {"index": "spectral"}):
        with pytest.warns(ResemblanceWarning, match="layer 'b' of 'net' is constant") as caught:
            found = rs.compare(a, b, kernel="features", **options)
        assert len(caught) == 1
        assert np.isnan(found.scores[1]).all()
        assert np.isfinite(found.scores[[0, 2]]).all()
        assert "is constant on these data" in found.summary()
        assert "nan" not in found.summary()
        assert found.plot() is not None


def test_all_layers_dead_is_said_plainly():
    x = np.ones((64, 3))
    a = rs.record_arrays(x, data_id="x", buckets=0)
    b = rs.record_arrays(np.random.default_rng(0).normal(size=(64, 3)), data_id="x", buckets=0)
    with pytest.warns(ResemblanceWarning, match="layer 'features' of 'arrays' is constant") as w:
        found = rs.compare(a, b, kernel="features")
    assert len(w) == 1
    assert "No layer has a defined score." in found.summary()
    found.plot()
    assert np.isnan(found.match().nearest_scores[0])


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"seed": 1}, {"estimator": "blocks"}, "seed differs: 0 in 'net0', 1 in 'net1'"),
        ({"seed": 1}, {"estimator": "buckets"}, "buckets cannot be compared: seed differs"),
        ({"block": 99}, {"estimator": "blocks"}, "block differs"),
        ({"buckets": 32}, {"estimator": "buckets"}, "buckets differs: 64 in 'net0', 32 in 'net1'"),
        ({"per_sample": 2}, {"estimator": "buckets"}, "per_sample differs"),
        ({"max_dim": 3}, {"estimator": "paper"}, "max_dim differs"),
        ({"buckets": 0}, {"estimator": "buckets"}, "none were recorded"),
        ({"pool": "mean"}, {}, "pool differs: .* record both with the same setting"),
        ({"pool": "mean"}, {"kernel": "features"}, "pool differs"),
        ({"target": "labels"}, {"kernel": "product"}, "target differs"),
        ({"beta": 0.25}, {"kernel": "gradients"}, "beta differs"),
    ],
)
def test_settings_that_differ_are_named(pair, change, options, message):
    with pytest.raises(MismatchError, match=message):
        rs.compare(pair[0], with_settings(pair[1], **change), **options)


def test_targets_do_not_matter_to_features(pair):
    other = with_settings(pair[1], target="labels", beta=None)
    found = rs.compare(pair[0], other, kernel="features")
    expected = rs.compare(*pair, kernel="features")
    assert np.array_equal(found.scores, expected.scores)
    assert np.array_equal(found.stderr, expected.stderr)


@pytest.mark.parametrize("index", ["cka", "nbs"])
def test_unpaired_data_have_no_blocks_to_compare(index):
    pair = recorded(0), recorded(1, data_id="other")
    with pytest.raises(MismatchError, match="recorded on different samples; record both with the"):
        rs.compare(*pair, kernel="product", index=index, estimator="blocks", unpaired=True)


@pytest.mark.parametrize("index", ["rsa", "cka-debiased"])
def test_indices_of_blocks_alone_say_why_they_cannot(pair, index):
    with pytest.raises(MismatchError, match=f"{index} needs blocks of shared samples: they were"):
        rs.compare(
            recorded(0), recorded(1, data_id="other"), kernel="product", index=index, unpaired=True
        )
    with pytest.raises(MismatchError, match="estimator is 'buckets'"):
        rs.compare(*pair, kernel="product", index=index, estimator="buckets")


def test_neither_blocks_nor_buckets():
    a, b = (recorded(i, buckets=0, data_id=f"x{i}") for i in range(2))
    with pytest.raises(MismatchError, match=r"none were recorded; .* \(nor can blocks: they were"):
        rs.compare(a, b, kernel="product", unpaired=True)


def test_recordings_without_blocks_are_named():
    a, b = recorded(0, blocks=0), recorded(1, blocks=0)
    with pytest.raises(MismatchError, match="no blocks were recorded"):
        rs.compare(a, b, kernel="product", estimator="blocks")
    assert rs.compare(a, b, kernel="product").estimator == "buckets"


def test_a_single_sample_has_no_pairs():
    a = recorded(0, n=1)
    with pytest.raises(MismatchError, match="a single sample has no pairs"):
        rs.compare(a, a, kernel="product", estimator="blocks")


def test_blocks_that_hold_other_samples_are_refused(pair):
    b = replace(pair[1], block_numbers=tuple(reversed(pair[1].block_numbers)))
    with pytest.raises(MismatchError, match="their blocks contain different samples"):
        rs.compare(pair[0], b, kernel="product", estimator="blocks")


def test_spectra_of_blocks_of_other_size_are_refused(pair):
    with pytest.raises(MismatchError, match="block differs: 10 and 20 samples"):
        rs.compare(
            pair[0],
            recorded(1, n=320, data_id="other"),
            kernel="product",
            index="spectral",
            estimator="blocks",
        )


def test_what_was_not_recorded_is_named(pair):
    bare = recorded(2, gradients=False)
    with pytest.raises(MismatchError, match="'product' needs gradients, which 'net2' lacks; use"):
        rs.compare(pair[0], bare, kernel="product")
    with pytest.raises(
        MismatchError, match=r"needs elementwise, which 'net0' lacks; .*elementwise="
    ):
        rs.compare(*pair, kernel="elementwise")


def test_nan_never_gets_as_far_as_a_score():
    x = np.ones((20, 3))
    x[3, 1] = np.nan
    with pytest.raises(DataError, match="NaN or Inf"):
        rs.record_arrays(x, data_id="x")


def test_torch_and_numpy_arrays_are_recorded_alike():
    x = arrays(0)["a"]
    a = rs.record_arrays(x, data_id="x", buckets=0)
    b = rs.record_arrays(torch.from_numpy(x), data_id="x", buckets=0)
    assert rs.compare(a, b, kernel="features").scores[0, 0] == pytest.approx(1, abs=1e-9)


def test_the_same_samples_under_other_names_are_told_from_others():
    x = torch.randn(100, 6, generator=torch.Generator().manual_seed(0))
    net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).eval()
    named, other, plain, moved = (
        rs.record(net, data, data_id=name)
        for data, name in ((x, "d"), (x, "e"), (x, None), (x.flip(0), None))
    )
    for one, two, names in ((named, other, "'d' and 'e'"), (named, plain, "'d' and None")):
        with pytest.warns(ResemblanceWarning, match=rf"different names .*\(`data_id` {names}\)"):
            rs.compare(one, two, kernel="features", unpaired=True)
        with pytest.raises(MismatchError, match=r"hold the same samples: .* one `data_id`"):
            rs.compare(one, two, kernel="features")
    with pytest.warns(ResemblanceWarning, match="used different samples"):
        rs.compare(named, moved, kernel="features", unpaired=True)
