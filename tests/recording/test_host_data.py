"""Data on the host of a network on a GPU, sent beside its work; on a CPU through its streams.

What only a GPU can show is in tests/test_cuda.py.
"""

from __future__ import annotations

import multiprocessing
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import networks
import resemblance as rs
import stored
from resemblance._data import make_source
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


# -- what worker processes send, pinned by the loader's own thread ---------------------------------

SHARED = torch.arange(4096.0).share_memory_()


class Large(Dataset):
    """Samples of several pages."""

    error = None

    def __len__(self):
        return 24

    def __getitem__(self, i):
        if self.error is not None and i == 7:
            raise self.error
        return torch.full((4096,), float(i)), i


@pytest.fixture
def pinned(monkeypatch):
    """Torch's thread runs as if there were a GPU; the threads that pinned something."""
    threads, pin = [], torch.Tensor.clone

    def pin_memory(x, device=None):
        threads.append(threading.current_thread())
        return pin(x)

    for name, value in {
        "is_available": True,
        "current_accelerator": torch.device("cuda"),
        "current_device_index": 0,
        "set_device_index": None,
    }.items():
        monkeypatch.setattr(torch.accelerator, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    return threads


def threads_left():
    """How many threads there are once those of queues to workers, which are closed, have ended."""
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(timeout=10)
    return threading.active_count()


GROUPS = [np.arange(i, i + 6) for i in range(0, 24, 6)]


def fetched(loader):
    return make_source._fetch_from_loader(loader, pin_memory=True)(GROUPS)


def test_batches_of_workers_are_pinned_beside_the_callers_thread(pinned):
    before, threads = threading.active_count(), torch.get_num_threads()
    for (x, labels), group in zip(fetched(DataLoader(Large(), num_workers=2)), GROUPS, strict=True):
        assert torch.equal(x, torch.tensor(group, dtype=torch.float32)[:, None].expand(6, 4096))
        assert labels.tolist() == group.tolist()
        assert not x.is_shared()
    assert len(pinned) == 8
    assert threading.current_thread() not in pinned
    assert threads_left() == before
    found = []
    later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert found == [threads]  # torch's thread takes a single one for itself


def test_memory_of_batches_is_freed_beside_the_thread_that_copies_them(pinned, monkeypatch):
    threads, free = [], make_source.free_shared_pages

    def free_shared_pages(x):
        free(x)
        threads.append((threading.current_thread(), x.is_shared() and float(x.sum())))

    monkeypatch.setattr(make_source, "free_shared_pages", free_shared_pages)
    before, batches = threading.active_count(), fetched(DataLoader(Large(), num_workers=1))
    next(batches)  # the first may come before there is a thread
    assert sum(len(x) for x, _ in batches) == 18
    assert 6 <= len(threads) <= 8  # images and labels of three or four batches
    assert not {thread for thread, _ in threads} & {*pinned, threading.current_thread()}
    assert {left for _, left in threads[::2]} == {0}  # labels take less than a page and stay
    assert threads_left() == before


def test_memory_that_others_have_too_is_not_freed(pinned):
    def collate(samples):
        return SHARED[: len(samples)], torch.tensor([i for _, i in samples])

    for x, _ in fetched(DataLoader(Large(), num_workers=1, collate_fn=collate)):
        assert x.tolist() == [0, 1, 2, 3, 4, 5]
    assert SHARED.tolist() == list(range(4096))


def test_large_batches_and_those_of_this_process_are_left_as_they_are(pinned, monkeypatch):
    monkeypatch.setattr(make_source, "_PINNED_BYTES", 2**16)
    for loader in (DataLoader(Large(), num_workers=1), DataLoader(Large())):
        samples = [x for x, _ in fetched(loader)]
        assert torch.cat(samples)[:, 0].tolist() == list(range(24))
    assert not pinned


@pytest.mark.parametrize("end", ["error", "interrupt", "abandoned"])
def test_the_end_of_a_pass_leaves_no_thread_of_the_loader(end, pinned):
    data, kept = Large(), None
    if end == "error":
        data.error = ZeroDivisionError("as it is")
    before, batches = threading.active_count(), fetched(DataLoader(data, num_workers=2))
    next(batches)
    assert threading.active_count() > before
    if end == "abandoned":
        batches.close()
    elif end == "interrupt":
        with pytest.raises(KeyboardInterrupt) as kept:
            batches.throw(KeyboardInterrupt)
    else:
        with pytest.raises(ZeroDivisionError, match="as it is") as kept:
            list(batches)
    assert threads_left() == before
    del kept  # until here, with all that the frames held


def test_an_error_of_the_network_ends_the_workers(beside):
    def call(net, batch):
        if len(batch[0]) > 2:
            raise ZeroDivisionError("as it is")
        return net(batch[0])

    children = len(multiprocessing.active_children())
    with pytest.raises(ZeroDivisionError) as kept:
        rs.record(
            networks.seeded(networks.MLP), DataLoader(Rows(), num_workers=1), call=call, **OPTIONS
        )
    assert kept.tb is not None
    assert len(multiprocessing.active_children()) == children
