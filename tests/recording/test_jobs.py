"""What a process does of a pass: shards, ranks, checkpoints, and what cannot be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import resemblance as rs
from resemblance._data.sources import source
from resemblance.errors import DataError
from resemblance.recording.jobs import Job

X = torch.zeros(40, 3)


def key():
    return {"seed": 0}


def test_a_plain_pass_is_all_of_it():
    job = Job.of((0, 1), False, None)
    share, files, before = job.share(source(X, seed=0, block=10), key, whole=False)
    assert share.of(4).tolist() == [0, 1, 2, 3]
    assert (files, before, job.joins) == (None, None, False)


def test_a_key_is_only_made_for_a_checkpoint(tmp_path):
    asked = []

    def noted():
        asked.append(1)
        return {"seed": 0, "shard": (0, 1)}  # which JSON has as a list

    rows = source(X, seed=0, block=10)
    Job().share(rows, noted, whole=False)
    assert not asked
    _, files, _ = Job.of((0, 1), False, tmp_path / "c").share(rows, noted, whole=False)
    assert asked
    assert files is not None


def test_small_data_have_no_checkpoint(tmp_path):
    job = Job.of((0, 1), False, tmp_path / "c")
    assert job.share(source(X, seed=0, block=10), key, whole=True)[1] is None


def test_more_shards_than_blocks_are_refused():
    with pytest.raises(DataError, match="too few for 9 shards"):
        Job.of((3, 9), False, None).share(source(X, seed=0, block=10), key, whole=False)


@pytest.mark.parametrize(
    ("checkpoint", "what"),
    [
        (3, r"checkpoint must be the path of a file, or \(path, seconds\); found 3"),
        (("c",), r"checkpoint must be the path of a file, .* found \('c',\)"),
        (("c", 1, 2), r"checkpoint must be the path of a file, .* found \('c', 1, 2\)"),
        (("c", -1), "seconds between checkpoints must be 0 or more; found -1"),
        (("c", "often"), "seconds between checkpoints must be 0 or more; found 'often'"),
        (("c", float("nan")), "seconds between checkpoints must be 0 or more; found nan"),
    ],
)
def test_what_is_no_checkpoint(checkpoint, what):
    with pytest.raises(DataError, match=what):
        rs.record(nn.Linear(3, 2), X, checkpoint=checkpoint)


def test_nothing_recorded_is_an_error():
    with pytest.raises(DataError, match="nothing was recorded: there was no sample"):
        Job().result(lambda: None, keep_sums=False)


def test_what_is_done_is_not_in_the_share(tmp_path):
    rows = source(X, seed=0, block=10)
    job = Job.of((0, 1), False, tmp_path / "c")
    part = rs.record_arrays(X + torch.arange(40.0)[:, None], data_id="x", block=10, shard=(2, 4))
    from resemblance.recording.checkpoint_files import Progress

    _, files, _ = job.share(rows, key, whole=False)
    files.write(Progress(part, np.array([False, False, True])))
    share, _, before = job.share(rows, key, whole=False)
    assert share.of(4).tolist() == [0, 1, 3]
    assert before.part.samples == 10
