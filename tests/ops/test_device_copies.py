"""Copies to a device. On a GPU they are seen in tests/test_cuda.py."""

from __future__ import annotations

import torch

from resemblance._ops.device_copies import _bytes, _parts, on_the_host, sent_home, without_waiting


def test_on_a_cpu_nothing_is_copied():
    x = torch.arange(6.0).reshape(2, 3).t()
    found = without_waiting(x, torch.device("cpu"))
    assert found.data_ptr() == x.data_ptr()
    assert torch.equal(found, x)


def test_values_shapes_and_dtypes_go_along():
    for dtype in (torch.uint8, torch.int32, torch.float64):
        x = torch.arange(5).to(dtype)
        found = without_waiting(x, torch.device("meta"))
        assert (found.dtype, found.shape, found.device.type) == (dtype, (5,), "meta")


def test_what_is_on_the_host_stays_where_it_is():
    tensors = [torch.arange(6.0).reshape(2, 3).t(), torch.zeros(0), torch.tensor(3)]
    for found in (on_the_host(tensors), sent_home(tensors)()):
        assert [x.data_ptr() for x in found] == [x.data_ptr() for x in tensors]
        assert all(map(torch.equal, found, tensors))
    assert on_the_host([]) == []


def test_tensors_of_any_kind_come_back_from_their_bytes_in_memory_of_their_own():
    g = torch.Generator().manual_seed(0)
    tensors = [torch.randn(3, 5, generator=g).t(), torch.zeros(0), torch.tensor(2.5)]
    tensors += [torch.arange(3, dtype=torch.uint8), torch.randn(7, generator=g).double()]
    tensors += [torch.tensor([True, False]), torch.randn(2, 3, generator=g).bfloat16()]
    row = _bytes(tensors)
    found = _parts(row, tensors)
    row.zero_()
    for x, y in zip(tensors, found, strict=True):
        assert torch.equal(x, y)
        assert x.dtype == y.dtype
        assert y.untyped_storage().nbytes() == y.nbytes
