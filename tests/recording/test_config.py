"""Options that `record` and `record_arrays` share, and what is refused."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest
import torch

import networks
import resemblance as rs
from resemblance._models.eval_mode import PRECISIONS
from resemblance._models.layer_outputs import POOLINGS
from resemblance._models.logits import LOGITS_MODES
from resemblance.errors import DataError
from resemblance.recording.config import RecordConfig

G = torch.Generator().manual_seed(0)
VECTORS = torch.randn(40, 6, generator=G)


def mlp(seed=0):
    return networks.seeded(networks.MLP, seed=seed)


def test_accumulators_of_any_layer_stay_below_64_mib_by_default():
    assert rs.record(mlp(), VECTORS).settings.max_dim == 8192
    for buckets in (100, 1000, 16):
        rep = rs.record(mlp(), VECTORS, buckets=buckets, elementwise=True)
        assert 3 * 4 * buckets * rep.settings.max_dim <= 64 * 2**20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_bad": "ignore"}, '`on_bad` must be "raise" or "skip"; found \'ignore\''),
        ({"batch_size": 0}, '`batch_size` must be a whole number, 1 or more, or "auto"; found 0'),
        ({"batch_size": "large"}, "`batch_size` must be .*, or \"auto\"; found 'large'"),
        ({"shard": (2, 2)}, r"`shard` must be \(i, n\) with 0 <= i < n; found \(2, 2\)"),
        ({"block": 0}, "`block` must be a whole number, 1 or more, .*; found 0"),
        ({"blocks": -1}, "`blocks` must be a whole number, 0 or more; found -1"),
        ({"buckets": 10, "per_sample": 3}, "positive multiple of `per_sample`"),
        ({"max_dim": 0}, '`max_dim` must be .* 1 or more, or "auto" or None; found 0'),
        ({"max_dim": "wide"}, "found 'wide'"),
        ({"elementwise": True, "gradients": False}, "`elementwise=True` needs gradients"),
        ({"pool": "max"}, "pool must be one of"),
        ({"unit": "word"}, '`unit` must be "auto", "sample" or "token"; found \'word\''),
        ({"unit": "token", "pool": "mean"}, "`pool='mean'` reduces a sequence to one vector"),
        ({"tokens": 0}, "`tokens` must be a whole number, 1 or more; found 0"),
        ({"shard": "rank"}, r"`shard` must be \(i, n\) with 0 <= i < n; found 'rank'"),
    ],
)
def test_settings_that_cannot_be(options, message):
    with pytest.raises(DataError, match=message):
        rs.record(mlp(), VECTORS, **options)


def test_a_shard_keeps_its_sums_whether_asked_to_or_not():
    config = RecordConfig(block=8)
    assert (config.share, config.sums) == ((0, 1), False)
    assert RecordConfig(keep_sums=True).sums
    assert RecordConfig(shard=(1, 3)).sums
    assert not RecordConfig(shard=(0, 1)).sums
    assert (RecordConfig(shard="ranks").share, RecordConfig(shard="ranks").sums) == ((0, 1), False)


def test_settings_hold_plain_numbers_and_nothing_that_has_no_meaning():
    odd = RecordConfig(
        seed=np.int64(3), block=np.int32(8), shard=(np.int64(1), 2), buckets=0, per_sample=2,
        beta=np.float32(0.25),
    )  # fmt: skip
    found = odd.settings(np.int64(7), "labels")
    assert (found.per_sample, found.max_dim) == (1, None)  # there are no buckets
    assert found.beta is None  # of the tempered target alone
    assert odd.settings(7, "tempered").beta == 0.25
    assert found.block == 7
    for name in ("seed", "buckets", "block", "blocks"):
        assert type(getattr(found, name)) is int
    assert odd.share == (1, 2)
    assert type(odd.share[0]) is int


def test_the_full_gram_matrix_is_stored_for_few_samples_of_a_whole_pass():
    def stored(total, block, tokens=None, **options):
        config = RecordConfig(**options)
        return config.full_gram_samples(total, config.settings(block, "none", tokens))

    assert [stored(total, 8, blocks=4) for total in (32, 33, None)] == [32, 0, 0]
    assert [stored(total, 128) for total in (1024, 1025)] == [1024, 0]
    assert stored(32, 8, shard=(0, 2)) == 0
    assert stored(32, 8, tokens=1) == 0


@pytest.mark.parametrize("size", [1, 128, "auto"])
def test_batch_sizes_that_can_be(size):
    assert RecordConfig(batch_size=size).batch_size == size


@pytest.mark.parametrize("size", [0, -1, "large", ""])
def test_batch_sizes_that_cannot_be(size):
    with pytest.raises(DataError, match=r'`batch_size` must be .* 1 or more, or "auto"; found'):
        RecordConfig(batch_size=size)
    with pytest.raises(DataError, match=r"`batch_size` must be .* 1 or more; found"):
        rs.record_arrays(VECTORS, data_id="x", batch_size=size)


def test_a_config_has_the_options_and_defaults_of_record():
    parameters = list(inspect.signature(rs.record).parameters.values())[2:]
    config = RecordConfig()
    assert [x.name for x in parameters] == [x.name for x in dataclasses.fields(config)]
    assert all(x.default == getattr(config, x.name) for x in parameters)
    arrays = inspect.signature(rs.record_arrays).parameters.values()
    shared = [x for x in arrays if hasattr(config, x.name) and x.default is not x.empty]
    own = {"gradients", "name", "outputs", "target", "batch_size"}  # with their own defaults
    assert all(x.default == getattr(config, x.name) for x in shared if x.name not in own)


def test_choices_are_those_of_the_functions_that_take_them():
    choices = {x.name: x.metadata["kinds"] for x in dataclasses.fields(RecordConfig)}
    assert choices["pool"] == POOLINGS
    assert choices["logits"] == LOGITS_MODES
    assert choices["dtype"] == (*PRECISIONS, None)


def test_a_config_can_be_changed_and_is_checked_again():
    config = RecordConfig(dtype="bfloat16", checkpoint=("c", 3), layers=["1"])
    again = dataclasses.replace(config, seed=np.int64(4))
    assert (again.dtype, type(again.seed), again.layers) == (torch.bfloat16, int, ["1"])
    assert again.checkpoint == ("c", 3)
    assert RecordConfig(checkpoint="c").checkpoint == ("c", 60)
    with pytest.raises(DataError, match="`seed` must be"):
        dataclasses.replace(config, seed=-1)
