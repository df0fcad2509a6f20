"""Where a recording came from, and which settings must agree."""

from __future__ import annotations

import dataclasses
import datetime
from dataclasses import replace

import numpy as np
import pytest
import torch

import networks
import resemblance as rs
from resemblance._models.hashes import hash_all_weights, hash_sampled_weights
from resemblance.representation.representation import DataInfo, Made, ModelInfo
from small import record


def test_settings_of_precision_are_in_the_provenance():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rep = rs.record(networks.MLP().eval(), torch.randn(20, 6))
    assert rep.made.autocast == "bfloat16"
    assert rep.made.dtype == "float32"


def test_data_are_complete_once_every_shard_is_in():
    whole = DataInfo("x", 8, "seeded", ((0, 1),))
    assert whole.complete
    assert not replace(whole, shards=((1, 3), (2, 3))).complete
    assert replace(whole, shards=((0, 3), (1, 3), (2, 3))).complete


def test_the_circumstances_are_those_of_this_moment():
    before = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    made = Made.now(dtype="torch.float64", autocast="bfloat16", device="cuda:1")
    assert (made.dtype, made.autocast, made.device) == ("float64", "bfloat16", "cuda:1")
    assert (made.torch, made.resemblance) == (torch.__version__, rs.__version__)
    assert before <= datetime.datetime.fromisoformat(made.date)
    assert made.date.endswith("+00:00")


def test_a_recording_names_its_network_and_samples():
    net, x = networks.seeded(networks.MLP), torch.randn(20, 6)
    rep = rs.record(net, x, name="mine", data_id="noise", shard=(1, 2))
    parameters = sum(p.numel() for p in net.parameters())
    assert rep.model == ModelInfo(
        "mine", hash_sampled_weights(net), parameters, hash_all_weights(net)
    )
    assert (rep.data.id, rep.data.total, rep.data.order) == ("noise", 20, "seeded")
    assert rep.data.shards == ((1, 2),)
    assert not rep.complete
    stream = rs.record(net, [x])
    assert (stream.data.total, stream.data.order) == (None, "stream")
    arrays = rs.record_arrays(x, data_id="noise")
    assert arrays.model == ModelInfo("arrays", None, None)


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
