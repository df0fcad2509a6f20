"""The frozen summary: how it is read, and compared by content."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

import resemblance as rs
from resemblance.errors import LayerError, MismatchError
from resemblance.representation.representation import settings_difference
from small import record

# -- reading -------------------------------------------------------------------------------------


def test_access_by_name_number_and_iteration(rep):
    assert rep.layer_names == ["act1", "act2"]
    assert rep["act2"] is rep[1] is rep[-1] is list(rep)[1]
    assert len(rep) == 2
    assert rep.name == "net"
    assert rep.renamed("other").name == "other"
    assert rep["act1"].kinds == ("features", "gradients", "elementwise")
    assert (rep["act1"].shape, rep["act1"].dim) == ((7,), 7)
    assert repr(rep) == "Representation('net', 2 layers, 60 samples, 15 blocks of 4, 16 buckets)"


def test_missing_layers_and_kinds_say_what_to_do(rep):
    with pytest.raises(LayerError, match="no layer 'act3' in this Representation; nearest: act"):
        rep["act3"]
    features = record(gradients=False)["act1"]
    with pytest.raises(
        MismatchError, match=r"has no gradients.*record again with `gradients=True`"
    ):
        features.blocks("gradients")
    with pytest.raises(MismatchError, match=r"has no elementwise.*elementwise=True"):
        record()["act1"].buckets("elementwise")


def test_frozen(rep):
    with pytest.raises(dataclasses.FrozenInstanceError):
        rep.samples = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        rep.data.id = "other"
    with pytest.raises(dataclasses.FrozenInstanceError):
        rep["act1"].products.inner = 0.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        rep["act1"].features.trace = 0.0
    rep["act1"].blocks("features").zero_()  # what accessors give is a copy
    rep["act1"].buckets("features").zero_()
    assert rep["act1"].blocks("features").any()
    assert rep["act1"].buckets("features").any()


def test_representations_are_compared_by_content_and_cannot_be_hashed(rep, tmp_path):
    copies = {
        "file": rs.load(rep.save(tmp_path / "net.rsm")),
        "copy": copy.copy(rep),
        "deep copy": copy.deepcopy(rep),
        "pickle": pickle.loads(pickle.dumps(rep)),
    }
    for how, same in copies.items():
        assert same == rep, how
        assert list(same) == list(rep), how
    assert rep != record(elementwise=True, name="net", data_id="probe", seed_of_model=1)
    assert rep != rep.renamed("other")
    assert rep["act1"] != rep["act2"]
    for value in (rep, rep["act1"], rep["act1"].features):
        with pytest.raises(TypeError, match="unhashable"):
            hash(value)


def test_difference_names_the_first_setting():
    a, b = record(), record(seed=1)
    assert settings_difference(a, a, ["seed", "block"]) is None
    assert settings_difference(a, b, ["block", "seed"]) == "seed differs: 0 in 'MLP', 1 in 'MLP'"
