"""What compare answers of both kernels: keys that stay, sentences, and each warning once."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import made_up
import resemblance as rs
from resemblance.cli import two_kernels
from resemblance.errors import MismatchError, ResemblanceWarning

GOLDEN = Path(__file__).parents[1] / "golden"
KEYS = ["features", "gradients", "parting", "behaviour", "coordinates"]


def network(seed, classes=4):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, classes))


@pytest.fixture(scope="module")
def recorded():
    """A network, a copy that moved a little, one with other classes, and one without gradients."""
    x = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
    copy = network(0)
    with torch.no_grad():
        copy[0].weight.add_(0.01 * torch.randn(40, 6, generator=torch.Generator().manual_seed(1)))
    return {
        "net": rs.record(network(0), x, name="net"),
        "copy": rs.record(copy, x, name="copy"),
        "other": rs.record(network(3, 2), x, name="other"),
        "plain": rs.record(network(0), x, name="plain", gradients=False),
        "sharp": rs.record(network(0), x, name="sharp", beta=0.25),
    }


def test_both_kernels_are_those_of_compare(recorded):
    one, two = recorded["net"], recorded["copy"]
    made = two_kernels.both(one, two)
    assert made.found == tuple(rs.compare(one, two, kernel=k) for k in ("features", "gradients"))
    assert made.coordinates == made.shared == rs.coordinates(one, two)


def test_json_has_the_same_keys_whatever_was_recorded(recorded):
    full = two_kernels.both(recorded["net"], recorded["copy"]).to_dict()
    assert list(full) == KEYS
    assert (
        full["gradients"]
        == rs.compare(recorded["net"], recorded["copy"], kernel="gradients").to_dict()
    )
    assert set(full["parting"]["features"]) == {
        "found", "kernel", "direction", "layer", "counterpart", "position", "before", "fall",
        "low", "high", "unit",
    }  # fmt: skip
    assert full["behaviour"]["classes"] == 4
    assert full["coordinates"]["shared"] is True
    old = two_kernels.both(rs.load(GOLDEN / "a.rsm"), rs.load(GOLDEN / "b.rsm"))
    little = old.to_dict()
    assert list(little) == KEYS
    assert (little["behaviour"], little["coordinates"]) == (None, None)
    plain = two_kernels.both(recorded["plain"], recorded["net"]).to_dict()
    assert list(plain) == KEYS
    assert (plain["gradients"], plain["parting"]["gradients"]) == (None, None)


def test_sentences_say_means_where_networks_part_and_what_they_predict(recorded):
    one, two = recorded["net"], recorded["copy"]
    made = two_kernels.both(one, two)
    means, *partings, predicted = made.sentences()
    assert means.startswith("Mean over 1 layer matched by name: features 0.99")
    assert partings == [found.parting().sentence for found in made.found]
    assert predicted == rs.behaviour(one, two).summary()
    assert made.heading() == (
        "net and copy: cka of centred features and gradients, from blocks, 300 samples"
    )


def test_what_cannot_be_compared_is_said_in_a_line(recorded):
    said = list(two_kernels.both(recorded["net"], recorded["other"]).sentences())
    assert said[-1] == "What they predict cannot be compared: they have 4 and 2 classes."
    said = list(two_kernels.both(recorded["net"], recorded["plain"]).sentences())
    assert "Gradients are not compared: plain was recorded without them." in said
    said = list(two_kernels.both(recorded["net"], recorded["sharp"]).sentences())
    assert (
        "Gradients are not compared: beta differs: 0.5 in 'net', 0.25 in 'sharp'; record both with "
        "the same setting."
    ) in said
    assert not any("Note" in sentence for sentence in said)
    old = two_kernels.both(rs.load(GOLDEN / "a.rsm"), rs.load(GOLDEN / "b.rsm"))
    assert list(old.sentences())[-1] == (
        "What they predict cannot be compared: 'small' has none of its outputs."
    )


def test_features_that_cannot_be_compared_are_refused(recorded):
    with pytest.raises(MismatchError, match="different samples"):
        two_kernels.both(recorded["net"], made_up.recorded(1, 60), estimator="blocks")


def test_each_warning_comes_once_and_names_the_kernel_that_it_is_of():
    f = np.random.default_rng(0).normal(size=(200, 8))
    heavy = f * (10.0 ** np.random.default_rng(1).normal(size=(200, 1)))
    pair = [rs.record_arrays(f, g, data_id="x") for g in (heavy, heavy[:, ::-1].copy() ** 3)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = two_kernels.both(*pair)
    said = [str(each.message) for each in caught if each.category is ResemblanceWarning]
    assert len(said) == 1
    assert said[0].startswith("gradients: 1 of 1 error bars cannot be trusted")
    assert not any("Note" in sentence for sentence in made.sentences())  # it went to standard error


def test_a_warning_of_both_kernels_comes_once():
    pair = [made_up.recorded(0, n, name=f"of {n}") for n in (60, 64)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        two_kernels.both(*pair)
    said = [str(each.message) for each in caught]
    assert sum("saw different samples" in text for text in said) == 1
    assert any(text.startswith("the two networks saw different samples") for text in said)


def test_kernels_from_different_estimators_have_a_heading_each():
    features = made_up.comparison([[0.5]])
    gradients = made_up.comparison([[0.5]], kernel="gradients", centre=False, estimator="ratio")
    assert two_kernels.Compared((features, gradients)).heading() == (
        "one and two: cka of centred features, from blocks, 100 samples; cka of gradients, from "
        "ratio, 100 samples"
    )


def test_layers_without_a_counterpart_or_a_score_are_named_or_counted():
    features = made_up.comparison([[0.9, 0.1], [0.5, 0.6], [0.2, 0.8]], columns=("r0", "r2"))
    assert list(two_kernels.Compared((features,)).sentences()) == [
        "Mean over 3 layers matched by name: features 0.850 (of 2 layers).",
        "Without a counterpart, of one: r1.",
    ]
    assert two_kernels.listed(tuple("abcdefghij")) == "a, b, c, d, e, f, g, h and 2 more"
