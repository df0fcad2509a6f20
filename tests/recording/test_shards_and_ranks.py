"""What one process records: shards, ranks, checkpoints, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import resemblance as rs
from resemblance.errors import DataError
from resemblance.recording import record as recording

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
NET = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_a_key_is_only_made_for_a_checkpoint(tmp_path, monkeypatch):
    made = []
    key = recording._pass_key
    monkeypatch.setattr(
        recording, "_pass_key", lambda *given, **how: made.append(key(*given, **how)) or made[-1]
    )
    rs.record(NET, X)
    assert not made
    rs.record(NET, X, checkpoint=tmp_path / "c")
    assert len(made) == 1


def test_accumulators_are_not_kept_for_having_had_a_checkpoint(tmp_path):
    data = torch.randn(1100, 3, generator=torch.Generator().manual_seed(0))
    for keep_sums in (False, True):
        rep = rs.record(NET, data, checkpoint=tmp_path / f"{keep_sums}", keep_sums=keep_sums)
        assert all((layer.features.sums is not None) is keep_sums for layer in rep)


def test_more_shards_than_blocks_are_refused():
    with pytest.raises(DataError, match="too few for 9 shards"):
        rs.record(NET, X, block=10, shard=(3, 9))


@pytest.mark.parametrize(
    ("checkpoint", "what"),
    [
        (3, r"checkpoint` must be the path of a file, or \(path, seconds\); found 3"),
        (("c",), r"checkpoint` must be the path of a file, .* found \('c',\)"),
        (("c", 1, 2), r"checkpoint` must be the path of a file, .* found \('c', 1, 2\)"),
        (("c", -1), "seconds between checkpoints must be 0 or more; found -1"),
        (("c", "often"), "seconds between checkpoints must be 0 or more; found 'often'"),
        (("c", float("nan")), "seconds between checkpoints must be 0 or more; found nan"),
    ],
)
def test_what_is_no_checkpoint(checkpoint, what):
    with pytest.raises(DataError, match=what):
        rs.record(NET, X, checkpoint=checkpoint)


def test_nothing_recorded_is_an_error(monkeypatch):
    monkeypatch.setattr(recording._Recorder, "recorded", lambda self: None)
    with pytest.raises(DataError, match="nothing was recorded: the data contain no samples"):
        rs.record(NET, X)
