"""What `compare` returns without a kernel: both kernels, drift, predictions, and each note once."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import made_up
import resemblance as rs
from resemblance._utils.formatting import join_names
from resemblance.errors import DataError, FormatError, MismatchError, ResemblanceWarning
from resemblance.similarity.comparison import FullComparison, KernelComparison

GOLDEN = Path(__file__).parents[1] / "golden"
KEYS = {"features", "gradients", "parting", "behaviour", "coordinates", "notes", "same_function"}


def network(seed, classes=4):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, classes))


@pytest.fixture(scope="module")
def recorded():
    """A network, a copy that moved a little, one with other classes, and one without gradients."""
    x = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
    copied = network(0)
    with torch.no_grad():
        copied[0].weight.add_(0.01 * torch.randn(40, 6, generator=torch.Generator().manual_seed(1)))
    return {
        "net": rs.record(network(0), x, name="net"),
        "copy": rs.record(copied, x, name="copy"),
        "other": rs.record(network(3, 2), x, name="other"),
        "plain": rs.record(network(0), x, name="plain", gradients=False),
        "sharp": rs.record(network(0), x, name="sharp", beta=0.25),
    }


@pytest.fixture(scope="module")
def full(recorded):
    return rs.compare(recorded["net"], recorded["copy"])


def test_it_holds_what_each_kernel_the_drift_and_the_predictions_are(recorded, full):
    one, two = recorded["net"], recorded["copy"]
    assert isinstance(full, rs.Comparison)
    for kernel in ("features", "gradients"):
        alone = rs.compare(one, two, kernel=kernel)
        assert isinstance(alone, rs.Comparison)
        assert full[kernel] == alone
        assert alone[kernel] is alone
    assert full.coordinates == rs.coordinates(one, two)
    assert full.behaviour == rs.behaviour(one, two)
    assert full.models == ("net", "copy")
    assert full.notes == ()


def test_another_kernel_is_a_key_error_that_names_what_there_is(recorded, full):
    with pytest.raises(
        KeyError, match="no comparison for kernel 'product'; available: 'features' and 'grad"
    ):
        full["product"]
    alone = rs.compare(recorded["net"], recorded["copy"], kernel="product")
    with pytest.raises(KeyError, match="no comparison for kernel 'features'; available: 'product'"):
        alone["features"]
    without = rs.compare(recorded["net"], recorded["plain"])
    with pytest.raises(
        KeyError, match="no comparison for kernel 'gradients'; available: 'features'"
    ):
        without["gradients"]


@pytest.mark.parametrize("name", ["scores", "stderr", "kernel", "rows", "df", "mean", "by_layer"])
def test_what_belongs_to_one_kernel_says_where_it_is(full, name):
    with pytest.raises(AttributeError, match=rf"c\[\"features\"\]\.{name}"):
        getattr(full, name)
    assert not hasattr(full, name)
    assert hasattr(full["features"], name)


def test_a_name_that_nothing_has_is_an_ordinary_mistake(full):
    with pytest.raises(AttributeError, match="no 'skores'"):
        full.skores  # noqa: B018


@pytest.mark.parametrize("of", [copy.deepcopy, lambda found: pickle.loads(pickle.dumps(found))])
def test_copies_are_whole(full, of):
    assert of(full) == full


def test_one_line_has_both_scores(full):
    line = repr(full)
    assert line.startswith("FullComparison('net', 'copy', features 0.99")
    assert ", gradients 0." in line


def test_the_table_has_both_kernels(full):
    frame = full.to_frame()
    assert list(frame.columns) == ["kernel", *full["features"].to_frame().columns]
    for kernel in ("features", "gradients"):
        part = frame[frame.kernel == kernel].drop(columns="kernel").reset_index(drop=True)
        assert part.equals(full[kernel].to_frame())


def test_files_hold_everything(recorded, full, tmp_path):
    for other in ("copy", "plain", "other"):
        found = rs.compare(recorded["net"], recorded[other])
        path = found.save(tmp_path / "c.json")
        for kind in (rs.Comparison, FullComparison):
            assert kind.load(path) == found
    alone = full["features"]
    path = alone.save(tmp_path / "one.json")
    for kind in (rs.Comparison, KernelComparison):
        assert kind.load(path) == alone
    with pytest.raises(FormatError, match="features is missing"):
        FullComparison.load(path)


def test_layers_that_did_not_change_are_read_as_such(recorded, tmp_path):
    same = rs.compare(recorded["net"], recorded["net"])
    assert np.isinf(same.coordinates.decibels).all()
    again = rs.Comparison.load(same.save(tmp_path / "c.json"))
    assert again == same
    path = same.coordinates.save(tmp_path / "d.json")
    assert rs.Coordinates.load(path) == same.coordinates
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "decibels": [[1.0], [2.0], [3.0]]}))
    with pytest.raises(FormatError):
        rs.Coordinates.load(path)


def test_a_figure_has_a_map_for_each_kernel(full):
    assert len(full.plot().axes) == 4  # two maps, the curves and the colour bar


def test_json_has_the_same_keys_whatever_was_recorded(recorded, full):
    content = full.to_dict()
    assert set(content) == KEYS
    assert content["gradients"] == full["gradients"].to_dict()
    assert set(content["parting"]["features"]) == {
        "found", "kernel", "direction", "layer", "counterpart", "position", "before", "fall",
        "low", "high", "unit",
    }  # fmt: skip
    assert content["behaviour"]["classes"] == 4
    assert content["coordinates"]["shared"] is True
    little = rs.compare(GOLDEN / "a.rsm", GOLDEN / "b.rsm").to_dict()
    assert set(little) == KEYS
    assert (little["behaviour"], little["coordinates"]) == (None, None)
    plain = rs.compare(recorded["plain"], recorded["net"]).to_dict()
    assert set(plain) == KEYS
    assert (plain["gradients"], plain["parting"]["gradients"]) == (None, None)


def test_sentences_say_means_where_networks_part_and_what_they_predict(recorded, full):
    heading, means, *partings, predicted = full.summary().split("\n")
    assert heading == (
        "net and copy: cka of centred features and gradients, from blocks, 300 samples."
    )
    assert means.startswith("Mean over 1 layer matched by name: features 0.99")
    assert partings == [found.parting().sentence for found in full.parts]
    assert predicted == rs.behaviour(recorded["net"], recorded["copy"]).summary()


def test_what_cannot_be_compared_is_a_note(recorded):
    """Which is not warned of: warnings are errors here."""
    net = recorded["net"]
    (note,) = rs.compare(net, recorded["other"]).notes
    assert note.code == "no-predictions"
    assert note == "predictions are not compared: they have 4 and 2 classes"
    found = rs.compare(net, recorded["plain"])
    (note,) = found.notes
    assert (note.code, found.gradients) == ("no-gradients", None)
    assert note == "gradients are not compared: plain was recorded without them"
    assert f"Note: {note}." in found.summary()
    assert found.parts == (found["features"],)
    (note,) = rs.compare(net, recorded["sharp"]).notes
    assert note.code == "no-gradients"
    assert "beta differs: 0.5 in 'net', 0.25 in 'sharp'" in note
    (note,) = rs.compare(GOLDEN / "a.rsm", GOLDEN / "b.rsm").notes
    assert note == "predictions are not compared: small was recorded without them"


def test_features_that_cannot_be_compared_are_refused(recorded):
    with pytest.raises(MismatchError, match="different samples"):
        rs.compare(recorded["net"], made_up.recorded(1, 60), estimator="blocks")
    with pytest.raises(DataError, match="index"):
        rs.compare(recorded["net"], recorded["copy"], index="none")


def test_options_are_those_of_both_kernels(recorded):
    one, two = recorded["net"], recorded["copy"]
    how = {"index": "cka-debiased", "centre": True}
    found = rs.compare(one, two, **how)
    for kernel in ("features", "gradients"):
        assert found[kernel] == rs.compare(one, two, kernel=kernel, **how)


def test_each_warning_comes_once_and_names_the_kernel_that_it_is_of():
    f = np.random.default_rng(0).normal(size=(200, 8))
    heavy = f * (10.0 ** np.random.default_rng(1).normal(size=(200, 1)))
    pair = [rs.record_arrays(f, g, data_id="x") for g in (heavy, heavy[:, ::-1].copy() ** 3)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = rs.compare(*pair)
    said = [each for each in caught if each.category is ResemblanceWarning]
    assert len(said) == 1
    assert said[0].message.code == "unreliable-errors"
    assert said[0].filename == __file__
    assert str(said[0].message).startswith("gradients: 1 of 1 standard errors may be too small")
    note = made.notes[0]
    assert str(said[0].message) == note
    assert note.values["kernel"] == "gradients"
    assert "kernel" not in made["gradients"].notes[0].values


def test_a_warning_of_both_kernels_comes_once():
    pair = [made_up.recorded(0, n, name=f"of {n}") for n in (60, 64)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = rs.compare(*pair, unpaired=True)
    said = [str(each.message) for each in caught]
    assert sum("used different samples" in text for text in said) == 1
    assert any(text.startswith("the two recordings used different samples") for text in said)
    assert [note.code for note in found.notes].count("unpaired") == 1


def test_kernels_from_different_estimators_have_a_heading_each():
    features = made_up.comparison([[0.5]])
    gradients = made_up.comparison([[0.5]], kernel="gradients", centre=False, estimator="ratio")
    assert FullComparison(features, gradients).heading == (
        "cka of centred features, from blocks, 100 samples; cka of gradients, from ratio, 100 "
        "samples"
    )


def test_layers_without_a_counterpart_or_a_score_are_named_or_counted():
    features = made_up.comparison([[0.9, 0.1], [0.5, 0.6], [0.2, 0.8]], columns=("r0", "r2"))
    assert FullComparison(features).summary().split("\n")[1:] == [
        "Mean over 3 layers matched by name: features 0.850 (of 2 layers).",
        "Layers of one without a counterpart: r1.",
    ]
    assert join_names(tuple("abcdefghij")) == "a, b, c, d, e, f, g, h and 2 more"
