"""Devices: their choice, copies between them (on a GPU: tests/test_cuda.py), and memory."""

from __future__ import annotations

import ctypes
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from resemblance._ops import devices
from resemblance._ops.devices import (
    HostToDevice,
    MemoryWatch,
    available_host_memory,
    check_device,
    concat_bytes,
    copy_all_to_host,
    copy_all_to_host_async,
    copy_to_device_async,
    free_gpu_memory,
    free_shared_pages,
    gather_rows,
    split_bytes,
    zeros_in_own_pages,
)
from resemblance.errors import DataError


@pytest.mark.parametrize(("rows", "width"), [(3, 5), (128, 8192)])
def test_zeros_can_be_added_to_and_carried_about(rows, width):
    table = zeros_in_own_pages(rows, width)
    assert table.shape == (rows, width)
    assert table.dtype == torch.float32
    assert not table.any()
    table += 1
    table[-1, -1] = 7
    again = pickle.loads(pickle.dumps(table))
    assert torch.equal(again, table)
    assert float(table.sum()) == rows * width + 6


def test_large_tables_share_no_memory():
    one, two = zeros_in_own_pages(128, 8192), zeros_in_own_pages(128, 8192)
    one += 1
    assert not two.any()
    view = one[5:]
    del one
    assert view.all()  # which keeps the pages


MAPPED = """
import ctypes, sys
import torch
from resemblance._ops.devices import retain_freed_memory

class Information(ctypes.Structure):  # of glibc's heap
    _fields_ = [(f"_{i}", ctypes.c_size_t) for i in range(10)]

ask = ctypes.CDLL(None).mallinfo2
ask.restype = Information
if sys.argv[1] == "keep":
    retain_freed_memory()
before = ask()._4  # bytes in blocks that are mapped one by one, and given back when freed
block = torch.empty(24 * 2**20, dtype=torch.uint8)
print(ask()._4 - before)
"""


def mapped(which: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", MAPPED, which], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="is about glibc, since version 2.33"
)
def test_large_blocks_come_from_a_heap_that_is_kept():
    assert mapped("as it is") >= 24 * 2**20
    assert mapped("keep") == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads what Linux says")
def test_available_memory_is_some_of_what_the_machine_has():
    found = available_host_memory()
    assert found is not None
    assert 0 < found <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_device_may_be_given_by_name_or_as_itself():
    assert check_device("cpu") == check_device(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "GPU", "tpu", "", None, 3, 0.5])
def test_an_unknown_name_lists_the_known(name):
    with pytest.raises(
        DataError, match="device must be cpu, cuda, cuda:1 or mps; found"
    ) as refusal:
        check_device(name)
    assert str(refusal.value).endswith(repr(name))


def test_a_device_that_is_not_here_says_why():
    with pytest.raises(DataError, match=r"device 'cuda:99' cannot be used here \(.+\); use cpu"):
        check_device("cuda:99")


def test_on_a_cpu_nothing_is_copied():
    x = torch.arange(6.0).reshape(2, 3).t()
    found = copy_to_device_async(x, torch.device("cpu"))
    assert found.data_ptr() == x.data_ptr()
    assert torch.equal(found, x)


def test_values_shapes_and_dtypes_go_along():
    for dtype in (torch.uint8, torch.int32, torch.float64):
        x = torch.arange(5).to(dtype)
        found = copy_to_device_async(x, torch.device("meta"))
        assert (found.dtype, found.shape, found.device.type) == (dtype, (5,), "meta")


def test_what_is_on_the_host_stays_where_it_is():
    tensors = [torch.arange(6.0).reshape(2, 3).t(), torch.zeros(0), torch.tensor(3)]
    for found in (copy_all_to_host(tensors), copy_all_to_host_async(tensors)()):
        assert [x.data_ptr() for x in found] == [x.data_ptr() for x in tensors]
        assert all(map(torch.equal, found, tensors))
    assert copy_all_to_host([]) == []


def test_tensors_of_any_kind_come_back_from_their_bytes_in_memory_of_their_own():
    g = torch.Generator().manual_seed(0)
    tensors = [torch.randn(3, 5, generator=g).t(), torch.zeros(0), torch.tensor(2.5)]
    tensors += [torch.arange(3, dtype=torch.uint8), torch.randn(7, generator=g).double()]
    tensors += [torch.tensor([True, False]), torch.randn(2, 3, generator=g).bfloat16()]
    row = concat_bytes(tensors)
    found = split_bytes(row, tensors)
    row.zero_()
    for x, y in zip(tensors, found, strict=True):
        assert torch.equal(x, y)
        assert x.dtype == y.dtype
        assert y.untyped_storage().nbytes() == y.nbytes


CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_without_a_gpu_nothing_is_allocated_on_it():
    for device in (None, torch.device("cpu")):
        watch = MemoryWatch(device)
        watch.look()
        assert watch.bound == watch.estimate == 0


@CUDA
def test_what_torch_keeps_unused_is_free():
    device = torch.device("cuda")
    before = free_gpu_memory(device)
    taken = torch.empty(2**28, dtype=torch.uint8, device=device)
    assert free_gpu_memory(device) <= before - 2**28
    del taken  # which torch keeps
    assert torch.cuda.memory_reserved(device) >= 2**28
    assert abs(free_gpu_memory(device) - before) < 2**26  # others may use the device as well


@CUDA
def test_what_was_freed_was_allocated_all_the_same():
    device = torch.device("cuda")
    watch = MemoryWatch(device)
    for _ in range(8):
        held = torch.empty(2**20, dtype=torch.uint8, device=device)
        watch.look()
    assert watch.bound >= 8 * held.nbytes
    assert 2 * 2**20 <= watch.estimate <= 4 * 2**20  # of one or two at a time


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is freed")
def test_pages_that_processes_share_are_freed_for_all_of_them():
    def shared_pages():
        status = Path("/proc/self/status").read_text()
        return int(re.search(r"RssShmem:\s*(\d+) kB", status)[1])

    x = torch.empty(2**22).share_memory_().fill_(1)
    part, before = x[3:], shared_pages()
    free_shared_pages(part)
    assert before - shared_pages() > 0.9 * x.nbytes / 1024
    assert part[5] == 0  # of the part's storage, all of it
    assert x[0] == 0
    x.fill_(2)  # there as ever
    assert x.sum() == 2**23


@pytest.mark.parametrize("x", [torch.ones(2**20), torch.ones(()), torch.ones(0), torch.ones(3)])
def test_other_memory_stays_as_it_is(x):
    free_shared_pages(x)
    assert (x == 1).all()
    free_shared_pages(torch.ones(3).share_memory_())  # less than a page


X = torch.arange(6 * 4 * 2 * 8, dtype=torch.float32).reshape(6, 4, 2, 8)
LAYOUTS = {
    "contiguous": X,
    "channels last": X.to(memory_format=torch.channels_last),
    "samples inside": X.movedim(0, 2).contiguous().movedim(2, 0),
    "strided": X[..., ::2],
    "every other": torch.cat([X, X])[::2],
    "one value": X[:, :1].expand(-1, 3, -1, -1),
    "uint8": X.to(torch.uint8),
    "float8": X.to(torch.float8_e4m3fn),
    "conjugated": torch.complex(X, X + 1).conj(),
    "needs gradients": torch.nn.Parameter(X),
    "labels": X[:, 0, 0, 0].long(),
    "no values": X[..., :0],
}


def same_bytes(x, y):
    """Equal bit for bit, whatever their layout; torch compares no numbers of eight bits."""
    one, two = (a.resolve_conj().contiguous().view(-1).view(torch.uint8) for a in (x, y))
    return x.shape == y.shape and x.dtype == y.dtype and torch.equal(one, two)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_that_are_gathered_are_those_of_indexing(layout):
    x, where = LAYOUTS[layout], torch.tensor([4, 0, 5])
    found = gather_rows(x, where)
    assert same_bytes(found, x.detach()[where])
    assert found.stride() == x.detach()[where].stride() or not x.numel()
    assert not found.requires_grad
    with torch.inference_mode():
        assert not gather_rows(x, where).is_inference()


@pytest.mark.parametrize("piece", [1, 600, 2**26])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_sent_arrives_whole_in_memory_of_its_own(layout, piece, monkeypatch):
    monkeypatch.setattr(devices, "_PIECE_BYTES", piece)
    x, sender = LAYOUTS[layout].detach(), HostToDevice(torch.device("cpu"))
    found = sender.send(x)
    assert same_bytes(found, x)
    assert found.stride() == torch.empty_like(x).stride()
    assert found.data_ptr() != x.data_ptr() or not x.numel()
    assert sender.send(torch.tensor(2.5)) == 2.5
    sender.settle()


class LoggingStreams:
    """Streams that note who waits for what."""

    def __init__(self):
        self.log = log = []
        self.stream, self.current = torch.cpu.stream, "current"

        class Event:
            made = 0

            def __init__(self):
                Event.made += 1
                self.number = Event.made

            def record(self, stream):
                log.append(("record", self.number, "current" if stream == "current" else "beside"))

            def synchronize(self):
                log.append(("host waits", self.number))

        class Current:
            def wait_event(self, event):
                log.append(("current waits", event.number))

            def __eq__(self, other):
                return other == "current"

            __hash__ = None

        self.Event, self.current_stream = Event, lambda device: Current()


def test_a_batch_is_waited_for_by_the_stream_and_its_copy_by_the_host():
    sender = HostToDevice(torch.device("cpu"))
    sender._streams = streams = LoggingStreams()
    sender.settle()
    assert streams.log == []  # nothing was sent
    for _ in range(4):
        sender.send(X)
        sender.settle()
    copied = [("record", 1, "beside"), ("current waits", 1), ("host waits", 1)]
    assert streams.log[:4] == [*copied, ("record", 2, "current")]
    # by then the first batch's work is over, and the second's need not be
    assert streams.log[8:13] == [
        ("record", 5, "beside"),
        ("current waits", 5),
        ("host waits", 5),
        ("record", 6, "current"),
        ("host waits", 2),
    ]
    assert streams.log[-1] == ("host waits", 4)
