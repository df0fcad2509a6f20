"""Coordinates as a result: its table, what it says, and what it holds back."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import resemblance as rs
from resemblance.errors import DataError

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
    assert "They share coordinates, as 2 of 2 layers show (false alarms: 0.001)" in text
    assert "not at all at h.0" in text
    assert "dB at h.1" in text
    assert "share no coordinates" in apart.summary()
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
    assert "no layer has any to compare" in type(shared)(**{**vars(shared), **blank}).summary()


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
    assert repr(shared) == "Coordinates('origin', 'copy', 2 layers, shared)"
    assert repr(apart) == "Coordinates('net', 'net', 1 layers, none shared)"
