"""Where vectors wait."""

from __future__ import annotations

import pytest
import torch

import networks
import resemblance as rs
import stored
from resemblance._ops.device_memory import free
from resemblance.recording import waiting_vectors
from resemblance.recording.waiting_vectors import WaitingRoom

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_what_is_on_the_host_stays_there():
    x = torch.randn(3)
    room = WaitingRoom(0)
    assert room.taken_in(x) is x
    assert room.back(x, x.device) is x


def test_beyond_the_room_of_a_device_vectors_wait_on_the_host():
    """The meta device stands in for one with memory of its own: only sizes matter here."""
    room = WaitingRoom(100)
    first = torch.zeros(20, device="meta")
    assert room.taken_in(first) is first  # 80 bytes
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        room.taken_in(torch.zeros(6, device="meta"))  # would go to the host
    room.back(first, first.device)
    assert room.taken_in(torch.zeros(25, device="meta")).device.type == "meta"


def test_where_nothing_is_known_of_a_device_there_is_room_for_two_gib():
    room, x = WaitingRoom(), torch.zeros(2**28, device="meta")  # 1 GiB
    assert room.taken_in(x) is x
    assert room.taken_in(x) is x
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        room.taken_in(torch.zeros(1, device="meta"))


@CUDA
def test_on_a_gpu_a_quarter_of_what_is_free_may_wait():
    device = torch.device("cuda")
    room, some = WaitingRoom(), torch.empty(2**20, dtype=torch.uint8, device=device)
    quarter = max(2**31, free(device) // 4)
    kept = 0
    while room.taken_in(some).is_cuda:  # which takes no memory, as it is one tensor
        kept += some.nbytes
    assert abs(kept - quarter) < 2**26


@CUDA
@pytest.mark.parametrize("room", [0, 3000, 2**31])
def test_where_vectors_wait_does_not_show(room, monkeypatch):
    monkeypatch.setattr(waiting_vectors.WaitingRoom.__init__, "__defaults__", (room,))
    net, x = networks.seeded(networks.MLP).cuda(), torch.randn(300, 6)
    expected = rs.record(networks.seeded(networks.MLP).cuda(), x, block=64, batch_size=64)
    stored.assert_same(rs.record(net, x, block=64, batch_size=7), expected, tolerance=1e-4)
