"""Data on the host of a network on a GPU, sent beside its work; on a CPU through its streams.

What only a GPU can show is in tests/test_cuda.py.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import networks
import resemblance as rs
import stored
from resemblance._models import run
from resemblance.errors import DataError

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(200, 6, generator=G), torch.arange(200) % 5
OPTIONS = {"block": 16, "batch_size": 32, "data_id": "x"}


class Rows(Dataset):
    """A data set of ours, which notes who reads it."""

    def __init__(self):
        self.threads, self.read = set(), 0

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        self.threads.add(threading.get_ident())
        self.read += 1
        return X[i], Y[i]


SOURCES = {
    "tensors": lambda path: (X, Y),
    "arrays": lambda path: (X.numpy(), Y.numpy()),
    "columns of an array": lambda path: (np.asfortranarray(X.numpy()), Y),
    "read-only": lambda path: (np.load(path, mmap_mode="r"), Y),
    "memory-mapped": lambda path: (np.load(path, mmap_mode="r+"), Y),
    "other byte order": lambda path: (X.numpy().astype(">f4"), Y),
    "a loader over tensors": lambda path: DataLoader(TensorDataset(X, Y), batch_size=7),
    "a loader": lambda path: DataLoader(Rows(), batch_size=7),
    "workers": lambda path: DataLoader(Rows(), batch_size=7, num_workers=1),
}


@pytest.fixture
def beside(monkeypatch):
    """Batches are sent as to a GPU."""
    monkeypatch.setattr(run, "SENT_BESIDE", {"cpu"})


@pytest.mark.parametrize("kind", SOURCES)
def test_recordings_are_the_same_from_every_source(kind, tmp_path, beside):
    np.save(tmp_path / "x.npy", X.numpy())
    net, before = networks.seeded(networks.MLP), threading.active_count()
    found = rs.record(net, SOURCES[kind](tmp_path / "x.npy"), **OPTIONS)
    stored.assert_same(found, rs.record(net, (X, Y), **OPTIONS))
    assert found.data.labels == rs.record(net, (X, Y), **OPTIONS).data.labels is not None
    assert threading.active_count() == before


def test_nested_batches_and_dicts_are_sent(beside):
    class Nested(networks.MLP):
        def forward(self, x, scale, names):
            assert len(names) == len(x)
            return super().forward(x * scale["by"][:, None])

    net = networks.seeded(Nested)
    data = {"x": X, "scale": {"by": torch.ones(200)}, "names": [str(i) for i in range(200)]}
    batches = [
        {"x": data["x"][i : i + 50], "scale": {"by": torch.ones(50)}, "names": data["names"][:50]}
        for i in range(0, 200, 50)
    ]
    plain = networks.seeded(networks.MLP)
    expected = rs.record(plain, iter(X.split(50)), **OPTIONS)
    stored.assert_same(rs.record(net, iter(batches), **OPTIONS), expected)


def test_a_buffer_that_a_stream_fills_again_is_read_before(beside):
    def refilled():
        buffer = torch.empty(32, 6)
        for part in X[:192].split(32):
            yield buffer.copy_(part)

    net = networks.seeded(networks.MLP)
    expected = rs.record(net, iter(X[:192].split(32)), **{**OPTIONS, "block": 32})
    stored.assert_same(rs.record(net, refilled(), **{**OPTIONS, "block": 32}), expected)


def test_users_code_runs_on_the_callers_thread_and_no_further_than_is_recorded(beside):
    rows = Rows()
    asked = []

    def call(net, batch):
        asked.append(rows.read)
        if len(asked) == 5:
            raise ZeroDivisionError
        return net(batch[0])

    loader = DataLoader(rows, batch_size=7)
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        rs.record(networks.seeded(networks.MLP), loader, call=call, **OPTIONS)
    assert rows.threads == {threading.get_ident()}
    assert threading.active_count() == before
    # two for the trial, which is run twice, then batches of 32 as each is recorded
    assert asked == [2, 2, 34, 66, 98]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, DataError])
def test_an_error_of_the_data_surfaces_as_it_is(error, beside):
    class Ends(Rows):
        def __getitem__(self, i):
            if self.read > 100:
                raise error("as it is")
            return super().__getitem__(i)

    before = threading.active_count()
    with pytest.raises(error, match="as it is"):
        rs.record(networks.seeded(networks.MLP), DataLoader(Ends(), batch_size=7), **OPTIONS)
    assert threading.active_count() == before
