"""Drift of copies against plain float64: its table, its first drifting layer, its refusals."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import networks
import resemblance as rs
import small
from resemblance._data.load_data import load_digits_data
from resemblance.demo import digit_networks
from resemblance.errors import DataError, MismatchError
from resemblance.similarity.drift_of_copies import drift_of_copies

LAYERS = ("act1", "act2", "act3", "act4")
GOLDEN = Path(__file__).parent.parent / "golden"


def samples() -> torch.Tensor:
    return load_digits_data()[0][digit_networks.TRAIN_COUNT :][:300]


def exchanged(net: digit_networks.DigitNet, seed: int) -> digit_networks.DigitNet:
    """The same network with its units in another order."""
    net, rng = copy.deepcopy(net), np.random.default_rng(seed)
    layers = [net.conv1, net.conv2, net.conv3, net.conv4, net.head]
    for layer, after in itertools.pairwise(layers):
        order = torch.from_numpy(rng.permutation(len(layer.weight)))
        layer.weight.data, layer.bias.data = layer.weight.data[order], layer.bias.data[order]
        shape = after.weight.shape
        by_unit = after.weight.data.reshape(shape[0], len(order), -1)
        after.weight.data = by_unit[:, order].reshape(shape)
    return net


@pytest.fixture(scope="module")
def nets() -> dict[str, digit_networks.DigitNet]:
    images, labels = (x[:300] for x in load_digits_data())
    origin = digit_networks.train_digit_net(images, labels, seed=1)
    return {
        "origin": origin,
        **{f"int{bits}": digit_networks.quantised_copy(origin, bits) for bits in (8, 6, 4)},
        **{
            f"pruned {share}": digit_networks.pruned_copy(origin, share)
            for share in (0.2, 0.5, 0.8)
        },
        "tuned": digit_networks.train_digit_net(images, labels % 2, seed=6, start=origin),
        "twin": digit_networks.train_digit_net(images, labels, seed=2),
        "exchanged": exchanged(origin, 0),
    }


@functools.lru_cache(maxsize=16)
def record(net, seed=0):
    return rs.record(net, samples(), layers=list(LAYERS), seed=seed, data_id="digits")


def vectors(net) -> dict[str, list[torch.Tensor]]:
    """Features, and gradients of the tempered loss, in float64 by plain autograd."""
    net, value = copy.deepcopy(net).double(), samples().double()
    seen = []
    for i in (1, 2, 3, 4):
        value = getattr(net, f"act{i}")(getattr(net, f"conv{i}")(value))
        seen.append(value)
    logits = net.head(value.flatten(1))
    with torch.no_grad():
        wanted = torch.softmax(0.5 * logits, 1)
    loss = -(wanted * torch.log_softmax(logits, 1)).sum()
    gradients = torch.autograd.grad(loss, seen)
    return {
        "features": [x.detach().flatten(1) for x in seen],
        "gradients": [x.flatten(1) for x in gradients],
    }


def truth(a, b) -> dict[str, np.ndarray]:
    """Plain formulas, (kinds, layers) each."""
    one, two = vectors(a), vectors(b)
    rows = []
    for kind in ("features", "gradients"):
        for x, y in zip(one[kind], two[kind], strict=True):
            d = x - y
            total = d.square().sum()
            decibels = -10 * torch.log10(total / x.square().sum())
            share = len(d) * d.mean(0).square().sum() / total
            kernel = d @ d.T
            rank = kernel.trace() ** 2 / kernel.square().sum()
            if kind == "features":
                x, y = x - x.mean(0), y - y.mean(0)
            cosine = (x * y).sum() / (x.norm() * y.norm())
            rows.append([decibels, cosine, share, rank])
    table = np.array(rows, dtype=float).reshape(2, len(LAYERS), 4)
    return dict(zip(("decibels", "cosine", "mean_share", "rank"), np.moveaxis(table, -1, 0)))  # noqa: B905


@pytest.fixture(scope="module")
def errors(nets):
    """Of every change in one sketch: error, stated error and rank, each (n,)."""
    return gathered(nets, sketches=1)


def gathered(nets, sketches):
    found: dict[str, list[np.ndarray]] = {}
    true = {name: truth(nets["origin"], net) for name, net in nets.items() if name != "origin"}
    for seed in range(sketches):
        origin = record(nets["origin"], seed)
        for name, t in true.items():
            result = rs.coordinates(origin, record(nets[name], seed))
            for column in ("decibels", "cosine", "mean_share"):
                error, stated = result[column] - t[column], result[f"{column}_stderr"]
                one = np.stack([error, stated, t["rank"]]).reshape(3, -1)
                found.setdefault(column, []).append(one)
    return {column: np.concatenate(x, 1) for column, x in found.items()}


@pytest.mark.parametrize(("column", "limit"), [("decibels", 0.3), ("cosine", 0.03)])
def test_estimates_are_near_the_truth(errors, column, limit):
    """Within 0.3 dB and 0.03, though most of these changes have fewer than ten directions."""
    error, _, rank = errors[column]
    assert len(error) == 72
    assert (rank < 10).sum() > 50
    assert np.mean(error**2) ** 0.5 < limit
    assert np.abs(error).max() < 4 * limit


@pytest.mark.parametrize("column", ["decibels", "cosine", "mean_share"])
def test_stated_errors_are_as_large_as_errors_are(errors, column):
    """Errors in stated errors have a mean square of 1: of 72 values in one sketch, which go
    together, within a half and twice that."""
    error, stated, _ = errors[column]
    real = stated > 1e-5  # float32 has errors of its own, where a cosine is 1
    assert 0.5 < np.mean((error[real] / stated[real]) ** 2) < 2


@pytest.mark.slow
def test_two_stated_errors_cover_the_truth(nets):
    every = gathered(nets, sketches=12)
    for column, (error, stated, _) in every.items():
        covered = (np.abs(error) <= 2 * stated + 1e-6).mean()
        assert covered >= 0.93, (column, covered)
    error, stated, _ = every["decibels"]
    assert abs(error.mean()) < 0.1  # no bias to speak of
    assert np.mean(error**2) ** 0.5 < 0.3
    assert np.mean(every["cosine"][0] ** 2) ** 0.5 < 0.03


COPIES = ("int8", "int6", "int4", "pruned 0.2", "pruned 0.5", "pruned 0.8", "tuned")


def test_copies_share_coordinates_and_others_do_not(nets):
    origin = record(nets["origin"])
    for name in COPIES:
        found = rs.coordinates(origin, record(nets[name]))
        assert found.shared, name
        assert found.shared_layers[0], name
    for name in ("twin", "exchanged"):
        assert not rs.coordinates(origin, record(nets[name])).shared, name


@pytest.mark.slow
def test_exchanged_units_raise_no_alarm(nets):
    """At a rate of one in a thousand, forty pairs would raise one in 4 % of runs: none does."""
    alarms = 0
    for seed in range(4):
        origin = record(nets["origin"], seed)
        for other in range(10):
            alarms += rs.coordinates(origin, record(exchanged(nets["origin"], other), seed)).shared
    assert alarms == 0


def test_rounding_to_fewer_bits_changes_more(nets):
    origin = record(nets["origin"])
    by_bits = [rs.coordinates(origin, record(nets[f"int{n}"])).decibels[0] for n in (8, 6, 4)]
    assert (np.diff(by_bits, axis=0) < -9).all()  # two bits are 12 dB


def test_a_recording_and_itself():
    rep = small.record()
    found = rs.coordinates(rep, rep)
    assert np.isposinf(found.decibels).all()
    np.testing.assert_allclose(found.cosine, 1)
    assert np.isnan(found.mean_share).all()
    assert (found.cosine_stderr < 1e-6).all()


def test_a_shift_is_a_change_of_the_mean_alone():
    """And where all features have columns of their own, it is known exactly."""
    x = torch.randn(300, 30, generator=torch.Generator().manual_seed(0))
    a, b = (rs.record_arrays(y, data_id="x") for y in (x, x + 0.5))
    found = rs.coordinates(a, b)
    exact = -10 * np.log10(300 * 30 * 0.25 / float(x.square().sum()))
    assert found.decibels[0, 0] == pytest.approx(exact, abs=1e-3)
    assert found.mean_share[0, 0] == pytest.approx(1, abs=1e-6)
    assert found.decibels_stderr[0, 0] < 1e-3
    assert found.cosine[0, 0] == pytest.approx(1, abs=1e-6)


def test_files_are_taken_by_their_paths(tmp_path):
    a, b = (small.record(seed_of_model=i).save(tmp_path / f"{i}.rsm") for i in (0, 1))
    found = rs.coordinates(a, b)
    assert found == rs.coordinates(rs.load(a), rs.load(b))
    assert pickle.loads(pickle.dumps(found)) == found


def test_layers_of_another_shape_are_left_out_by_name():
    x, wide = torch.randn(80, 9), torch.randn(80, 12)
    a = rs.record_arrays({"h.0": x, "h.1": x}, data_id="x")
    b = rs.record_arrays({"h.0": x, "h.1": wide}, data_id="x")
    found = rs.coordinates(a, b)
    assert found.layers == found.counterparts == ("h.0",)
    assert found.left_out == ("h.1",)
    assert "h.1" in found.summary()


def test_gradients_are_there_where_both_have_them_of_one_loss():
    a = small.record()
    assert rs.coordinates(a, a).kinds == ("features", "gradients")
    assert rs.coordinates(a, small.record(gradients=False)).kinds == ("features",)
    other = rs.coordinates(a, small.record(beta=0.9))
    assert other.kinds == ("features",)
    assert "beta differs" in other.notes[0]


def test_tokens_of_sequences_are_samples_too():
    net = networks.seeded(networks.Transformer)
    ids = torch.randint(0, 11, (60, 7), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    changed = copy.deepcopy(net)
    for weight in changed.parameters():
        weight.data = weight.data * 1.01
    options = {"unit": "token", "tokens": 4, "data_id": "ids", "layers": ["embed", "layers.1"]}
    a, b = (rs.record(n, batch, **options) for n in (net, changed))
    found = rs.coordinates(a, b)
    assert found.samples == 240
    assert found.tokens == 4
    assert found.decibels[0, 0] == pytest.approx(40, abs=0.01 + 2 * found.decibels_stderr[0, 0])
    assert "240 tokens" in found.summary()


@pytest.mark.parametrize(
    ("change", "floor"), [({}, 147), ({"dtype": "bfloat16"}, 57), ({"autocast": "float16"}, 75)]
)
def test_the_floor_is_that_of_the_coarser_recording(change, floor):
    """Of one side in half precision: its squared step over 28 of its values' squares."""
    rep = small.record()
    other = replace(rep, made=replace(rep.made, **change))
    assert rs.coordinates(rep, other).floor == pytest.approx(floor, abs=1)


def test_rounding_of_features_lies_at_the_floor():
    x = torch.randn(400, 50, generator=torch.Generator().manual_seed(0))
    a, b = (rs.record_arrays(y, data_id="x") for y in (x, x.bfloat16()))
    found = rs.coordinates(a, b)
    assert found.decibels[0, 0] == pytest.approx(found.floor, abs=1.5)


def test_files_without_a_sketch_are_refused():
    old = rs.load(GOLDEN / "a.rsm")
    with pytest.raises(MismatchError, match=r"no drift sketches.*0\.1.*record it again"):
        rs.coordinates(old, old)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"data": torch.zeros(60, 6)}, "the same samples"),
        ({"data": small.VECTORS[:50]}, "the same samples"),
        ({"seed": 5}, "seed differs: 0 in .* 5 in"),
        ({"pool": "mean"}, "pool differs"),
    ],
)
def test_what_cannot_be_subtracted_is_refused(options, why):
    with pytest.raises(MismatchError, match=why):
        rs.coordinates(small.record(), small.record(**options))


def test_samples_in_another_order_under_one_name_are_refused():
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    a, b = (small.record(x, data_id="x") for x in (small.VECTORS, small.VECTORS[order]))
    with pytest.raises(MismatchError, match="a different order"):
        rs.coordinates(a, b)


def test_other_samples_left_out_are_refused():
    bad = small.VECTORS.clone(), small.VECTORS.clone()
    bad[0][3], bad[1][7] = torch.nan, torch.nan
    a, b = (small.record(x, on_bad="skip", data_id="x", blocks=0) for x in bad)
    with pytest.raises(MismatchError, match="different samples"):
        rs.coordinates(a, b)
    signs = tuple(replace(x, sketch_signs=-x.sketch_signs) for x in a)
    with pytest.raises(MismatchError, match="skipped as not finite"):
        rs.coordinates(a, replace(a, layers=signs))


def test_other_architectures_are_sent_to_compare():
    x = torch.randn(80, 9)
    a = rs.record_arrays({"one": x}, data_id="x")
    with pytest.raises(MismatchError, match=r"expected copies.*use compare"):
        rs.coordinates(a, rs.record_arrays({"two": x, "three": x}, data_id="x"))
    with pytest.raises(MismatchError, match=r"equal shape.*\(9,\).*\(8,\).*use compare"):
        rs.coordinates(a, rs.record_arrays({"one": x[:, :8]}, data_id="x"))


X = torch.randn(200, 40, generator=torch.Generator().manual_seed(0))
OTHER = torch.randn(200, 40, generator=torch.Generator().manual_seed(1))
COLUMNS = ["decibels", "cosine", "mean_share"]


def found(y, name="copy"):
    a = rs.record_arrays({"h.0": X, "h.1": X}, data_id="x", name="origin")
    b = rs.record_arrays({"h.0": X, "h.1": y}, data_id="x", name=name)
    return rs.coordinates(a, b)


@pytest.fixture(scope="module")
def shared():
    return found(0.9 * X)


@pytest.fixture(scope="module")
def apart():
    a, b = (rs.record_arrays(x, data_id="x", name="net") for x in (X, OTHER))
    return rs.coordinates(a, b)


def test_the_frame_has_a_row_for_each_layer_and_kind(shared):
    pytest.importorskip("pandas")
    frame = shared.to_frame()
    assert list(frame["layer"]) == ["h.0", "h.1"]
    assert list(frame["kind"]) == ["features"] * 2
    for column in COLUMNS:
        assert {column, f"{column}_stderr"} <= set(frame.columns)
    assert frame["decibels"][1] == pytest.approx(20, abs=4 * frame["decibels_stderr"][1])
    assert frame["shared"].all()


def test_where_nothing_is_shared_the_frame_is_blank_unless_asked(apart):
    pytest.importorskip("pandas")
    assert not apart.shared
    assert apart.to_frame()[COLUMNS].isna().all().all()
    assert not apart.to_frame(always=True)[COLUMNS].isna().any().any()
    assert np.isfinite(apart.decibels).all()


def test_a_summary_says_whether_and_how_much(shared, apart):
    text = shared.summary()
    assert "origin and copy: 2 layers matched by name, 200 samples" in text
    assert (
        "Their units are in the same order, as 2 of 2 layers show (false-alarm rate: 0.001)" in text
    )
    assert "not at all at h.0" in text
    assert "dB at h.1" in text
    assert "do not appear to be in the same order" in apart.summary()
    assert "use compare" in apart.summary()
    assert "dB" not in apart.summary()


def test_a_change_beyond_the_floor_is_said_to_be():
    y = X.clone()
    y[0, 0] *= 1 + 2e-7  # one number by one step
    assert "beyond what rounding leaves" in found(y).summary()


def test_constant_layers_are_named_as_such():
    a, b = (rs.record_arrays(x, data_id="x", name="net") for x in (0 * X, 0 * X))
    result = rs.coordinates(a, b)
    assert not result.shared
    assert np.isnan(result.decibels).all()


def test_of_layers_with_nothing_to_compare_the_summary_says_so(shared):
    blank = {"decibels": np.full_like(shared.decibels, np.nan)}
    assert "no layer to compare" in type(shared)(**{**vars(shared), **blank}).summary()


def test_plain_values_go_to_json(shared):
    plain = json.loads(json.dumps(shared.to_dict(), allow_nan=False))
    assert plain["decibels"][0][0] is None
    assert plain["decibels"][0][1] == shared.decibels[0, 1]
    assert plain["shared"] is True


def test_columns_go_by_name(shared):
    assert shared["cosine"] is shared.cosine
    with pytest.raises(DataError, match="no column 'decibel'; there are decibels, decibels_stderr"):
        shared["decibel"]


def test_it_shows_itself_in_a_line(shared, apart):
    assert (
        repr(shared) == "Coordinates('origin', 'copy', 2 layers, same unit order, 20.1 dB or more)"
    )
    assert repr(apart) == "Coordinates('net', 'net', 1 layers, none shared)"


@pytest.fixture(scope="module")
def reps():
    def net(seed):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(10, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 5)
        )

    origin, other = net(0), net(1)
    moved = copy.deepcopy(origin)
    with torch.no_grad():
        moved[2].weight += 0.02 * torch.randn(40, 40, generator=torch.Generator().manual_seed(2))
    x = torch.randn(300, 10, generator=torch.Generator().manual_seed(3))
    nets = {"origin": origin, "moved": moved, "apart": other, "same": origin}
    return [
        rs.record(n, x, name=name, data_id="x", layers=["0", "1", "2", "3"])
        for name, n in nets.items()
    ]


def test_copies_are_found_and_moved_as_coordinates_says(reps):
    found = dict(drift_of_copies(reps))
    assert found.keys() == {(0, 1), (0, 3), (1, 3)}
    truth = rs.coordinates(reps[0], reps[1])
    assert truth.shared
    assert not rs.coordinates(reps[0], reps[2]).shared
    one = found[0, 1]
    assert tuple(reps[0].layer_names[i] for i in one.rows) == truth.layers
    assert one.kinds == truth.kinds
    np.testing.assert_allclose(one.decibels, truth.decibels, atol=1e-6)
    np.testing.assert_allclose(one.cosine, truth.cosine, atol=1e-9)
    back = rs.coordinates(reps[1], reps[0])
    assert tuple(reps[1].layer_names[i] for i in one.columns) == back.layers
    np.testing.assert_allclose(one.decibels_back, back.decibels, atol=1e-6)
    assert np.isinf(found[0, 3].decibels).all()  # nothing changed


def test_what_holds_no_sketches_or_other_samples_is_left_out(reps):
    x = torch.randn(300, 10, generator=torch.Generator().manual_seed(4))
    other = rs.record(nn.Sequential(nn.Linear(10, 40), nn.Tanh(), nn.Linear(40, 5)), x, data_id="y")
    assert dict(drift_of_copies([reps[0], other, reps[1]])).keys() == {(0, 2)}
    assert not dict(drift_of_copies([other]))
