"""Settings: what must agree."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import resemblance as rs
from small import record


def test_settings_from_numpy_numbers_can_be_saved(tmp_path):
    rep = record(seed=np.int64(3), beta=np.float32(0.25), block=np.int32(4), shard=(np.int64(0), 2))
    assert rs.load(rep.save(tmp_path / "a.rsm")).settings == rep.settings


def test_settings_are_plain_numbers_that_say_whether_there_are_gradients():
    both, alone = record(seed=np.int64(3), beta=np.float32(0.25)), record(gradients=False)
    assert type(both.settings.seed) is int
    assert type(both.settings.beta) is float
    assert both.settings.gradients
    assert not alone.settings.gradients
    assert (alone.settings.target, alone.settings.beta) == ("none", None)


def test_settings_compare_and_hash_by_value():
    a, b, c = (record(seed=seed).settings for seed in (0, 0, 1))
    assert a == b != c
    assert len({a, b, c}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        a.seed = 1
