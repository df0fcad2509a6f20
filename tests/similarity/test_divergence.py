"""Where networks part: found where they were damaged, in both directions, and seldom by chance."""

import copy
import itertools
import json
import pickle
from dataclasses import FrozenInstanceError, asdict, replace

import numpy as np
import pytest
import torch
from torch import nn

import resemblance as rs
from made_up import comparison, recorded
from resemblance.errors import DataError
from resemblance.similarity.comparison import Comparison
from resemblance.similarity.divergence import (
    FALSE_FINDING_RATE,
    LayerDivergence,
    divergence_if_tested,
)

VECTORS = torch.randn(240, 8, generator=torch.Generator().manual_seed(0))
WIDTHS = [8, 24, 24, 24, 24, 5]
LAYERS = [f"{2 * i}" for i in range(5)]  # the linear ones


def network(activation=nn.Tanh, seed=3):
    """Linear layers that keep the scale of what differs between samples, as trained ones do."""
    parts = ((nn.Linear(a, b), activation()) for a, b in itertools.pairwise(WIDTHS))
    model = nn.Sequential(*itertools.chain(*parts))[:-1]
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if name.endswith("weight"):
            nn.init.xavier_normal_(weight, generator=generator)
        else:
            nn.init.zeros_(weight)
    return model


def damaged(model, layer, by=0.3):
    out = copy.deepcopy(model)
    weight = out.get_parameter(f"{layer}.weight").data
    weight += by * weight.std() * torch.randn(weight.shape, generator=torch.Generator())
    return out


def record(model, data=VECTORS, **options):
    return rs.record(model, data, layers=LAYERS, data_id="vectors", **options)


def compared(a, b, kernel="features", **options):
    return rs.compare(record(a, **options), record(b, **options), kernel=kernel)


# replicates of made-up scores, each moved by its own pattern
def shaken(scores, errors, groups=20):
    scores, errors = np.array(scores), np.array(errors)
    noise = np.random.default_rng(0).normal(size=(groups, len(scores)))
    noise -= noise.mean(0)
    noise /= np.sqrt((noise**2).sum(0) * (groups - 1) / groups)
    rows = tuple(f"r{i}" for i in range(len(scores)))
    table = np.full((len(scores), len(scores)), 0.1)
    np.fill_diagonal(table, scores)
    return comparison(table, rows=rows, columns=rows, replicates=scores + errors * noise)


# -- what is found ---------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(5))
def test_features_part_at_the_layer_that_was_damaged(at):
    model = network()
    found = compared(model, damaged(model, LAYERS[at]))
    score = found.by_layer()[0]
    np.testing.assert_allclose(score[:at], 1.0, rtol=0, atol=1e-9)  # nothing moved before it
    parting = found.parting()
    assert parting.found
    assert (parting.layer, parting.position) == (LAYERS[at], at)
    assert parting.counterpart == parting.layer == LAYERS[at]
    assert parting.before == (LAYERS[at - 1] if at else None)
    assert parting.direction == "from the input on"
    assert parting.fall == pytest.approx(1 - score[at], abs=1e-9)
    assert 0 < parting.low < parting.fall < parting.high < 1
    assert [fall.layer for fall in parting.tested] == LAYERS
    assert [fall.p < FALSE_FINDING_RATE for fall in parting.tested[: at + 1]] == [False] * at + [
        True
    ]


@pytest.mark.parametrize("at", [1, 2, 4])
def test_gradients_part_behind_the_damage_and_are_read_from_the_output_back(at):
    # without activations a damage changes gradients at the layers before it alone
    model = network(nn.Identity)
    other = damaged(model, LAYERS[at])

    def target(outputs, batch):
        return (outputs * batch[:, :5]).sum(1)  # linear: the same gradient at both outputs

    found = compared(model, other, "gradients", target=target)
    parting = found.parting()
    assert parting.direction == "from the output back"
    assert (parting.layer, parting.before) == (LAYERS[at - 1], LAYERS[at])
    assert parting.position == at - 1
    assert [fall.layer for fall in parting.tested] == LAYERS[::-1]
    assert "Going back from the output, gradients first diverge at" in parting.sentence
    features = compared(model, other, target=target).parting()
    assert (features.layer, features.direction) == (LAYERS[at], "from the input on")


def test_changed_outputs_part_at_the_output_by_gradients():
    model = network()
    parting = compared(model, damaged(model, LAYERS[1], 1.0), "gradients").parting()
    assert (parting.layer, parting.before) == (LAYERS[-1], None)
    assert parting.sentence.startswith("Gradients differ from the last layer compared on:")


def test_networks_of_other_weights_part_at_once():
    parting = compared(network(), network(seed=4)).parting()
    assert (parting.position, parting.before) == (0, None)
    assert parting.sentence.startswith("Features differ from the first layer compared on: the")


def test_the_error_of_a_fall_is_the_jackknife_of_the_difference():
    model = network()
    found = compared(model, damaged(model, LAYERS[0]))
    left_out = found.replicates[:, 1] - found.replicates[:, 2]
    k = len(left_out)
    expected = np.sqrt((k - 1) / k * ((left_out - left_out.mean()) ** 2).sum())
    tested = found.parting().tested[2]
    assert (tested.layer, tested.before) == (LAYERS[2], LAYERS[1])
    assert tested.stderr == pytest.approx(expected)
    assert tested.fall == pytest.approx(-np.diff(found.by_layer()[0])[1])
    assert 1 <= tested.df <= k - 1
    apart = found.by_layer()[1][1:3]
    assert tested.stderr < np.sqrt((apart**2).sum())  # neighbours move together


def test_p_values_and_the_interval_are_students_of_all_layers_together():
    stats = pytest.importorskip("scipy.stats")
    parting = shaken([0.9, 0.85, 0.4], [0.02, 0.03, 0.05]).parting()
    for each in parting.tested:
        t = (each.fall - each.least) / each.stderr
        assert each.p == pytest.approx(min(1, 3 * stats.t.sf(t, each.df)), rel=1e-3)
    first = parting.tested[0]
    wide = stats.t.isf(FALSE_FINDING_RATE / 3, first.df) * first.stderr
    assert (parting.low, parting.high) == pytest.approx((0.1 - wide, 0.1 + wide), rel=1e-3)


def test_a_doubtful_fall_is_passed_over_for_the_first_that_is_not():
    parting = shaken([0.9, 0.88, 0.4, 0.1], [0.08, 0.08, 0.03, 0.03]).parting()
    assert [fall.p < FALSE_FINDING_RATE for fall in parting.tested] == [False, False, True, True]
    assert (parting.layer, parting.before, parting.position) == ("r2", "r1", 2)


def test_an_interval_ends_in_the_range_of_the_index():
    parting = shaken([0.05], [0.15]).parting()
    assert (parting.found, parting.high) == (True, 1.0)


def test_a_layer_without_a_score_is_read_past():
    found = shaken([1.0, np.nan, 0.5], [0.0, 0.1, 0.02])
    parting = found.parting()
    assert [(fall.layer, fall.before) for fall in parting.tested] == [("r0", None), ("r2", "r0")]
    assert (parting.layer, parting.position) == ("r2", 2)


# -- what is not -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["features", "gradients"])
@pytest.mark.parametrize("samples", [240, 1200])
def test_a_network_does_not_part_from_itself(kernel, samples):
    data = torch.randn(samples, 8, generator=torch.Generator().manual_seed(1))
    one, two = (record(network(), data, batch_size=n) for n in (16, 128))
    found = rs.compare(one, two, kernel=kernel)
    parting = found.parting()
    assert not parting.found
    assert parting.layer is parting.position is parting.fall is parting.low is parting.high is None
    assert all(fall.p == 1 for fall in parting.tested)
    assert parting.sentence.startswith("No significant drop of ")
    assert divergence_if_tested(found) == parting


@pytest.mark.parametrize("kernel", ["features", "gradients"])
def test_a_network_does_not_part_from_itself_in_16_bits(kernel):
    model = network()
    plain = record(model)
    short = record(copy.deepcopy(model).bfloat16(), VECTORS.bfloat16())
    found = rs.compare(plain, short, kernel=kernel)
    assert not found.parting().found
    assert found.parting(least=0.0).found  # though it differs, and is known to


def test_without_an_error_there_is_no_doubt():
    sure = shaken([1.0, 0.9, 0.9], [0.0, 0.0, 0.0]).parting()
    assert (sure.layer, sure.fall, sure.low, sure.high) == ("r1", *[pytest.approx(0.1)] * 3)
    assert [fall.p for fall in sure.tested] == [1, 0, 1]
    assert not shaken([1.0, 1.0], [0.0, 0.0]).parting().found
    assert not shaken([1.0, 1.0], [0.0, 0.0]).parting(least=0.0).found


def test_small_falls_count_after_layers_that_are_exactly_alike():
    assert shaken([1.0, 1 - 1e-6], [0.0, 1e-8]).parting().layer == "r1"
    assert not shaken([1 - 1e-6, 1 - 2e-6], [1e-8, 1e-8]).parting().found
    assert shaken([1 - 1e-6, 1 - 2e-6], [1e-8, 1e-8]).parting(least=1e-7).layer == "r0"
    assert not shaken([1.0, 0.99], [0.0, 1e-4]).parting(least=0.02).found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*standard errors may be too small")
def test_false_findings_are_rarer_than_promised_and_intervals_hold():
    # layers of two networks that share a cause, the same at every layer, with noise of their own:
    # the fall from 1 to the first is real, and none after it
    rng, layers, draws = np.random.default_rng(0), 5, 120
    false, falls = 0, []
    for _ in range(draws):
        nets = []
        cause = {f"l{i}": rng.normal(size=(120, 4)) for i in range(layers)}
        for name in "ab":
            noisy = {k: np.hstack([x, 0.5 * rng.normal(size=x.shape)]) for k, x in cause.items()}
            nets.append(rs.record_arrays(noisy, name=name, data_id="noise", buckets=0))
        parting = rs.compare(*nets, kernel="features").parting()
        assert parting.position == 0
        false += any(fall.p < FALSE_FINDING_RATE for fall in parting.tested[1:])
        falls.append((parting.fall, parting.low, parting.high))
    # 5 % promised of all five: 12 of 120 come by chance in one run of a hundred and fifty
    assert false <= 11
    fall, low, high = np.array(falls).T
    truth = fall.mean()  # scores are exact, and each is of as many samples
    # each end holds with 95 % or more: both with 90 %, less two and a half binomial errors
    assert ((low < truth) & (truth < high)).mean() > 0.9 - 2.5 * np.sqrt(0.9 * 0.1 / draws)
    # and they are not so wide as to hold whatever: ends lie within seven spreads of the truth
    assert np.median(high - low) < 7 * fall.std()


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*standard errors may be too small")
@pytest.mark.parametrize("kernel", ["product", "sum", "elementwise", "transport"])
def test_kernels_that_mix_both_directions_are_refused(kernel):
    found = rs.compare(recorded(0, 160), recorded(1, 160), kernel=kernel)
    with pytest.raises(
        DataError, match=rf"the {kernel} kernel .* `kernel='features'` or `kernel='gradients'"
    ):
        found.parting()
    assert divergence_if_tested(found) is None
    assert "first diverge" not in found.summary()


def test_an_older_file_is_refused(tmp_path):
    model = network()
    found = compared(model, damaged(model, LAYERS[2]))
    path = found.save(tmp_path / "c.json")
    assert Comparison.load(path).parting() == found.parting()
    content = json.loads(path.read_text())
    del content["replicates"]
    path.write_text(json.dumps(content))
    again = Comparison.load(path)
    with pytest.raises(
        DataError, match=r"version 0\.1 did not save them\); compare the recordings again"
    ):
        again.parting()
    assert "first diverge" not in again.summary()


def test_different_samples_are_refused():
    found = replace(shaken([0.9], [0.01]), paired=False)
    with pytest.raises(
        DataError, match=r"different samples, .* record both networks on the same samples"
    ):
        found.parting()


def test_too_little_to_test_is_refused():
    found = shaken([0.9, 0.5], [0.01, 0.01])
    with pytest.raises(
        DataError, match="two groups of samples to leave out, found 1; record more samples"
    ):
        replace(found, replicates=found.replicates[:1]).parting()
    with pytest.raises(DataError, match="no layer has a score with a standard error"):
        replace(found, replicates=np.full_like(found.replicates, np.nan)).parting()


@pytest.mark.parametrize("least", [-0.1, 1.0, float("nan")])
def test_a_least_fall_out_of_range_is_refused(least):
    with pytest.raises(DataError, match="`least` must be between 0 and 1"):
        shaken([0.9], [0.01]).parting(least=least)


# -- the result ------------------------------------------------------------------------------------


def test_a_result_is_frozen_plain_and_equal_to_its_copy():
    found = shaken([0.9, 0.4], [0.01, 0.01])
    parting = found.parting()
    again = pickle.loads(pickle.dumps(parting))
    assert isinstance(again, LayerDivergence)
    assert again == parting == found.parting()
    assert hash(again) == hash(parting)
    assert parting != shaken([0.9, 0.4], [0.01, 0.02]).parting()
    assert json.loads(json.dumps(asdict(parting)))["tested"][0]["layer"] == "r0"
    with pytest.raises(FrozenInstanceError):
        parting.layer = "r1"


def test_the_summary_says_where_they_part_only_if_they_do():
    found = shaken([1.0, 0.5], [0.0, 0.02])
    sentence = found.parting().sentence
    assert sentence.startswith("Features first diverge at r1: the score drops by 0.5 from r0 (0.4")
    assert " from r0 (" in sentence
    assert found.summary().splitlines().count(sentence) == 1
    assert "stand" not in shaken([1.0, 1.0], [0.0, 0.0]).summary()


def test_a_name_cannot_move_the_cursor_in_a_sentence():
    found = replace(shaken([0.5], [0.01]), rows=("\x1b[2J",), columns=("\x1b[2J",))
    assert "\x1b" not in found.parting().sentence


def test_a_ring_marks_where_they_part():
    axes = shaken([1.0, 0.5, 0.4], [0.0, 0.02, 0.02]).plot().axes[1]
    (ring,) = [line for line in axes.lines if line.get_label() == "first divergence"]
    assert (ring.get_xdata().tolist(), ring.get_ydata().tolist()) == ([1], [0.5])
    assert axes.get_legend().get_texts()[0].get_text() == "first divergence"
    alike = shaken([1.0, 1.0], [0.0, 0.0]).plot().axes[1]
    assert alike.get_legend() is None
