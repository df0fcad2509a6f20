"""A resumed recording refuses data that changed since its checkpoint was written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

import resemblance as rs
from resemblance._data.make_source import make_source
from resemblance._data.sources import Share
from resemblance.errors import MismatchError
from resemblance.recording import checkpoints
from resemblance.recording.checkpoints import choose_verified_blocks, with_verification

TOTAL, BLOCK = 1100, 50
X = torch.randn(TOTAL, 12, generator=torch.Generator().manual_seed(0))
Y = torch.arange(TOTAL) % 3
OPTIONS = {"block": BLOCK, "blocks": 9, "buckets": 128, "name": "net", "progress": False}


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))


class CutError(Exception):
    pass


class Pairs(Dataset):
    """Samples with labels, of which so many can be had."""

    def __init__(self, x=X, y=Y, limit=10**9):
        self.x, self.y, self.left = x, y, limit

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self.left -= 1
        if self.left < 0:
            raise CutError
        return self.x[i], self.y[i]


class Stream(IterableDataset):
    def __init__(self, x=X, y=Y, limit=10**9):
        self.x, self.y, self.limit = x, y, limit

    def __iter__(self):
        for i, pair in enumerate(zip(self.x, self.y, strict=True)):
            if i >= self.limit:
                raise CutError
            yield pair


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """A checkpoint after every block, whatever it costs."""
    monkeypatch.setattr(checkpoints, "_MIN_PASS_TO_WRITE_TIME", 0)


def cut_short(kind, file, limit=800, **options):
    with pytest.raises(CutError):
        rs.record(net(), kind(limit=limit), checkpoint=(file, 0), **OPTIONS, **options)


def changed(share, values):
    """The values with this share of them made others, none of them among the first two visited."""
    out, which = values.clone(), torch.randperm(TOTAL, generator=torch.Generator().manual_seed(3))
    visited = make_source(X, seed=0, block=BLOCK).batches(2, Share())
    first = next(visited).indices
    which = torch.tensor([int(i) for i in which if int(i) not in first][: int(share * TOTAL)])
    out[which] = (out[which] + 1) % 3 if out.ndim == 1 else out[which] + 1
    return out


@pytest.mark.parametrize("batch_size", [20, 50, 130])
@pytest.mark.parametrize("what", ["samples", "labels"])
@pytest.mark.parametrize("share", [1.0, 0.05])
def test_a_data_set_that_changed_is_refused(tmp_path, what, share, batch_size):
    cut_short(Pairs, tmp_path / "c")
    x, y = (changed(share, X), Y) if what == "samples" else (X, changed(share, Y))
    wanted = r"data changed .*: block \d+, which contains sample \d+, now has different samples"
    with pytest.raises(MismatchError, match=wanted):
        rs.record(
            net(), Pairs(x, y), checkpoint=(tmp_path / "c", 0), batch_size=batch_size, **OPTIONS
        )


def test_one_sample_that_changed_is_noticed_in_arrays(tmp_path):
    cut_short(Pairs, tmp_path / "c")
    visited = [
        i
        for batch in make_source(X, seed=0, block=BLOCK).batches(1, Share())
        for i in batch.indices
    ]
    other = Y.clone()
    other[visited[333]] += 1  # in block 6
    with pytest.raises(MismatchError, match="block 6, which contains sample"):
        rs.record(net(), (X, other), checkpoint=(tmp_path / "c", 0), **OPTIONS)
    assert rs.record(net(), (X, Y), checkpoint=(tmp_path / "c", 0), **OPTIONS).samples == TOTAL


@pytest.mark.filterwarnings("ignore:a stream cannot be resumed")
def test_one_sample_that_changed_is_noticed_in_a_stream(tmp_path):
    cut_short(Stream, tmp_path / "c")
    other = X.clone()
    other[333] += 1
    with pytest.raises(MismatchError, match="block 6, which contains sample 300,"):
        rs.record(net(), Stream(other), checkpoint=(tmp_path / "c", 0), **OPTIONS)
    with pytest.raises(MismatchError, match="the stream ends before block 8, which was recorded"):
        rs.record(net(), Stream(X[:400], Y[:400]), checkpoint=(tmp_path / "c", 0), **OPTIONS)
    found = rs.record(net(), Stream(), checkpoint=(tmp_path / "c", 0), **OPTIONS)
    whole = rs.record(net(), Stream(), **OPTIONS)
    assert (found.data, found.block_hashes) == (whole.data, whole.block_hashes)


@pytest.mark.filterwarnings("ignore:a stream cannot be resumed")
def test_a_keyed_stream_that_changed_is_refused(tmp_path):
    """Though its blocks are known by their keys, in a recording."""

    def images(offset, limit=10**9):
        for i in range(TOTAL):
            if i >= limit:
                raise CutError
            yield {"__key__": [f"image{i}"], "input": X[i : i + 1] + offset * (i > 1)}

    options = {**OPTIONS, "call": lambda model, batch: model(batch["input"])}
    file = (tmp_path / "c", 0)
    with pytest.raises(CutError):
        rs.record(net(), images(0, limit=800), checkpoint=file, **options)
    with pytest.raises(MismatchError, match="block 0, which contains sample image0,"):
        rs.record(net(), images(1), checkpoint=file, **options)
    assert rs.record(net(), images(0), checkpoint=file, **options).samples == TOTAL


def test_skipped_samples_are_compared_as_well(tmp_path):
    x = X.clone()
    x[::7] = torch.nan
    with pytest.raises(CutError):
        rs.record(
            net(), Pairs(x, limit=800), checkpoint=(tmp_path / "c", 0), on_bad="skip", **OPTIONS
        )
    found = rs.record(net(), (x, Y), checkpoint=(tmp_path / "c", 0), on_bad="skip", **OPTIONS)
    assert found.data.skipped == len(x[::7])


def test_processes_read_different_blocks_again_and_all_of_them_together():
    rows = make_source(X, seed=0, block=BLOCK)
    hashes = np.ones(22, np.uint32)
    hashes[[3, 8, 9]] = 0
    share = Share(done=hashes != 0)
    seen = []

    def noted(batch):
        seen.extend(piece.block for piece in batch.pieces)
        raise CutError

    new = []
    for rank in range(3):
        own = replace(share, process=(rank, 3))
        reread = with_verification(rows, hashes, noted, 0)
        with pytest.raises(CutError):
            new.extend(piece.block for b in reread.batches(50, own) for piece in b.pieces)
    assert len(set(seen)) == 3  # each process began with one of its own
    undone = with_verification(rows, hashes * 0, noted, 0)
    assert undone is rows


def test_the_sample_is_of_blocks_that_are_done():
    done = np.arange(500) % 3 == 0
    found = choose_verified_blocks(done, seed=4)
    assert found.sum() == 8
    assert done[found].all()
    assert (choose_verified_blocks(done, seed=4) == found).all()
    assert (choose_verified_blocks(done, seed=5) != found).any()
    assert (choose_verified_blocks(done, seed=4, all_of_them=True) == done).all()
