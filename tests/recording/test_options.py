"""Options that `record` and `record_arrays` share, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import networks
import resemblance as rs
from resemblance.errors import DataError
from resemblance.recording.options import Keep, checked_batch_size

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
        ({"on_bad": "ignore"}, 'on_bad must be "raise" or "skip"; found \'ignore\''),
        ({"batch_size": 0}, 'batch_size must be a whole number, 1 or more, or "auto"; found 0'),
        ({"batch_size": "large"}, "batch_size must be .*, or \"auto\"; found 'large'"),
        ({"shard": (2, 2)}, r"shard must be \(i, n\) with 0 <= i < n; found \(2, 2\)"),
        ({"block": 0}, "block must be a whole number, 1 or more, .*; found 0"),
        ({"blocks": -1}, "blocks must be a whole number, 0 or more; found -1"),
        ({"buckets": 10, "per_sample": 3}, "positive multiple of per_sample"),
        ({"max_dim": 0}, 'max_dim must be .* 1 or more, or "auto" or None; found 0'),
        ({"max_dim": "wide"}, "found 'wide'"),
        ({"elementwise": True, "gradients": False}, "elementwise=True needs gradients"),
        ({"pool": "max"}, "pool must be one of"),
    ],
)
def test_settings_that_cannot_be(options, message):
    with pytest.raises(DataError, match=message):
        rs.record(mlp(), VECTORS, **options)


def keep(**changes):
    values = {
        "seed": 0,
        "buckets": 16,
        "per_sample": 1,
        "block": 8,
        "blocks": 4,
        "max_dim": "auto",
        "elementwise": False,
        "shard": None,
        "keep_sums": False,
    }
    return Keep(**{**values, **changes})


def test_a_shard_keeps_its_sums_whether_asked_to_or_not():
    assert (keep().share, keep().sums) == ((0, 1), False)
    assert keep(keep_sums=True).sums
    assert keep(shard=(1, 3)).sums
    assert not keep(shard=(0, 1)).sums


def test_settings_hold_plain_numbers_and_nothing_that_has_no_meaning():
    odd = keep(seed=np.int64(3), block=np.int32(8), shard=(np.int64(1), 2), buckets=0, per_sample=2)
    found = odd.settings(np.int64(7), "flatten", "labels", np.float32(0.5))
    assert (found.per_sample, found.max_dim) == (1, None)  # there are no buckets
    assert found.beta is None  # of the tempered target alone
    assert found.block == 7
    for name in ("seed", "buckets", "block", "blocks"):
        assert type(getattr(found, name)) is int
    assert odd.share == (1, 2)
    assert type(odd.share[0]) is int


@pytest.mark.parametrize("size", [1, 128, "auto"])
def test_batch_sizes_that_can_be(size):
    checked_batch_size(size)


@pytest.mark.parametrize("size", [0, -1, "large", ""])
def test_batch_sizes_that_cannot_be(size):
    with pytest.raises(DataError, match=r'batch_size must be .* 1 or more, or "auto"; found'):
        checked_batch_size(size)
    with pytest.raises(DataError, match=r"batch_size must be .* 1 or more; found"):
        rs.record_arrays(VECTORS, data_id="x", batch_size=size)
