"""Devices: validation, free memory, and asynchronous copies between host and GPU.

On a CPU, glibc returns the free end of its heap to the system when it is more than twice the
largest block mapped so far, and asks for it again, page by page, for the next batch.
`retain_freed_memory` and `zeros_in_own_pages` avoid that.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..errors import DataError, first_line

T = TypeVar("T")


def check_device(device: str | torch.device) -> torch.device:
    """The device, or an error that says which names there are, or why it cannot be used.

    >>> check_device("cpu")
    device(type='cpu')
    """
    try:
        if not isinstance(device, str | torch.device):
            raise TypeError
        found = torch.device(device)
    except (TypeError, RuntimeError) as error:
        raise DataError(f"device must be cpu, cuda, cuda:1 or mps; found {device!r}") from error
    try:
        torch.empty(1, dtype=torch.float32, device=found)
    except Exception as error:
        raise DataError(
            f"device {str(found)!r} cannot be used here ({first_line(error)}); use cpu, or a build "
            "of torch and a machine that have it"
        ) from error
    return found


def require_cpu_default_device() -> None:
    """An error where the caller has torch make tensors elsewhere than on the host."""
    device = torch.get_default_device()
    if device.type != "cpu":
        raise DataError(
            f"torch's default device is {str(device)!r}, and what is kept of a network is made on "
            'the host; call this inside `with torch.device("cpu"):` (networks and data may stay '
            "where they are)"
        )


def free_gpu_memory(device: torch.device) -> int:
    """Bytes of a GPU that nobody has, and those that torch keeps for this process, unused."""
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + held


class MemoryWatch:
    """What some work takes of a GPU's memory: 0 on other devices.

    torch's own record of the peak is the process's, and its users'. Instead, `look` now and then
    while the work goes on.
    """

    def __init__(self, device: torch.device | None) -> None:
        self._device = device if device is not None and device.type == "cuda" else None
        self._before = self._bytes()
        self._most = self._before["current"]

    def _bytes(self) -> dict[str, int]:
        if self._device is None:
            return {"current": 0, "allocated": 0}
        stats = torch.cuda.memory_stats(self._device)
        return {key: stats[f"allocated_bytes.all.{key}"] for key in ("current", "allocated")}

    def look(self) -> None:
        """Note what is held at the moment."""
        self._most = max(self._most, self._bytes()["current"])

    @property
    def bound(self) -> int:
        """Bytes that were surely enough: all that were allocated, freed or not."""
        return self._bytes()["allocated"] - self._before["allocated"]

    @property
    def estimate(self) -> int:
        """Twice what was held when it was looked at, or the bound if that is less."""
        return min(self.bound, 2 * (self._most - self._before["current"])) or self.bound


_MMAP_THRESHOLD_BYTES = 2**25 - 2**16  # the largest block whose freeing still teaches glibc
_OWN_PAGES_BYTES = 2**20  # bytes of a table


def retain_freed_memory() -> None:
    """Have glibc keep up to 64 MB at the end of its heap, for as long as the process lives.

    A block that nothing is written into takes no memory. Elsewhere this does nothing.
    """
    torch.empty(_MMAP_THRESHOLD_BYTES, dtype=torch.uint8, device="cpu")


def zeros_in_own_pages(rows: int, width: int, device: torch.device | None = None) -> Tensor:
    """Zeros in float32; a large table on the host lies in pages of its own.

    Among the tensors of a network, which come and go with every batch, it would keep the C library
    from using their memory again.
    """
    size = 4 * rows * width
    device = device or torch.device("cpu")
    if size < _OWN_PAGES_BYTES or device.type != "cpu":
        return torch.zeros(rows, width, dtype=torch.float32, device=device)
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}
    return torch.frombuffer(mmap.mmap(-1, size, **private), dtype=torch.float32).view(rows, width)


def available_host_memory() -> int | None:
    """Bytes that this process may still take without swapping; None where the system does not say.

    On Linux, what the system has available or, if less, what is left of the limit of the
    container.
    """
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    for limit, used in _CGROUP_LIMITS:
        try:
            most, taken = (Path(x).read_text(encoding="ascii").strip() for x in (limit, used))
        except OSError:
            continue
        if most != "max":
            found.append(max(0, int(most) - int(taken)))
    return min(found, default=None)


_CGROUP_LIMITS = (  # limit and use of memory, in versions 2 and 1 of control groups
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


_PINNED_BYTES = 2**28  # the most of a batch that is gathered in pinned memory
_PIECE_BYTES = 2**26  # bytes that go through pinned memory at a time, of tensors that are not
_BATCHES_AHEAD = 2  # whose work a device may still have to begin or end when the next is sent
SENT_BESIDE = {"cuda"}  # devices with streams, to which a `HostToDevice` sends


def gather_rows(x: Tensor, where: Tensor) -> Tensor:
    """`x[where]` of a host tensor, in pinned memory if there is a GPU, unless that would be a lot.

    Each sample's memory is in the order that it has in `x`. Pinned memory is torch's to reuse,
    which it does once all copies from it are over.

    >>> gather_rows(torch.tensor([[1], [2], [3]]), torch.tensor([2, 0]))
    tensor([[3],
            [1]])
    """
    x, one = x.detach(), torch.empty_like(x[0], device="meta")
    few = len(where) * one.nbytes <= _PINNED_BYTES
    with torch.inference_mode(False):
        rows = torch.empty_strided(
            (len(where), *one.shape),
            (one.numel(), *one.stride()),
            dtype=x.dtype,
            pin_memory=few and torch.cuda.is_available(),
        )
        # as `x[where]`, where index_select starts all threads anew for each large sample
        return torch.ops.aten.index.Tensor_out(x, [where], out=rows)


def free_shared_pages(x: Tensor) -> None:
    """Free the memory of a tensor that processes share, for all of them; its values become zeros.

    The tensor itself stays. Freeing 154 MB takes longer than copying them, and where a tensor is
    deleted, no other thread of Python can run meanwhile; here they can. On other systems than
    Linux this does nothing.
    """
    if sys.platform == "linux" and x.is_shared() and x.device.type == "cpu":
        storage = x.untyped_storage()
        start = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = (storage.data_ptr() + storage.nbytes()) // mmap.PAGESIZE * mmap.PAGESIZE
        if start < stop:  # where the system refuses, deleting the tensor frees it
            _libc().madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), _MADV_REMOVE)


_MADV_REMOVE = 9  # in Linux, on every processor that torch is built for


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None)  # whose functions run without Python's lock


class HostToDevice:
    """Sends host tensors to a GPU on a stream of its own, beside the work of the current stream.

    Kernels are launched long before they run. So while a device is at one batch, the host gathers
    the next and sends it. What was sent can be used like any other tensor of the current stream.
    `settle` after each batch: then whoever made the tensors may write into them again, and no more
    than a few batches wait on the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: Any = torch.get_device_module(device)
        self._sent: Any = None  # the event after the last copy
        self._under_way: deque[Any] = deque()  # an event after each of the latest batches

    def send(self, x: Tensor) -> Tensor:
        """A host tensor on the device; it may be on its way, and must stay as it is for now."""
        current, beside = self._streams.current_stream(self._device), _copy_stream(self._device)
        with self._streams.stream(beside):
            there = torch.empty_like(x, device=self._device)
            rows, rows_there = torch.atleast_1d(x), torch.atleast_1d(there)
            length = max(1, _PIECE_BYTES * len(rows) // max(1, rows.nbytes))
            for piece, out in zip(rows.split(length), rows_there.split(length), strict=True):
                if self._device.type == "cuda" and not piece.is_pinned():
                    piece = piece.pin_memory()
                out.copy_(piece, non_blocking=True)
            self._sent = self._streams.Event()
            self._sent.record(beside)
        current.wait_event(self._sent)
        if there.is_cuda:
            there.record_stream(current)  # its memory was taken for the stream beside
        return there

    def settle(self) -> None:
        """Wait until all that was sent has arrived, and for the batch before the one before."""
        if self._sent is None:
            return
        self._sent.synchronize()
        self._sent = None
        done = self._streams.Event()
        done.record(self._streams.current_stream(self._device))
        self._under_way.append(done)
        while len(self._under_way) > _BATCHES_AHEAD:
            self._under_way.popleft().synchronize()


@functools.cache  # as torch's allocator keeps memory for each stream apart
def _copy_stream(device: torch.device) -> Any:
    return torch.get_device_module(device).Stream(device)


_COPY_BYTES = 2**24  # bytes that are copied together


def copy_to_device_async(x: Tensor, device: torch.device) -> Tensor:
    """A host tensor on the device, copied in turn with its other work while the host goes on."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)


def copy_to_host_async(x: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """A tensor's copy on the host, and what to wait for before reading it."""
    if not x.is_cuda:
        return x.cpu(), None
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    host.copy_(x, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(x.device))  # which need not be the current device's
    return host, arrived


def copy_all_to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors on the host, those of a GPU in few copies: each would keep the host waiting.

    They share no memory, and what was there already is not copied.

    >>> copy_all_to_host([torch.arange(2)])
    [tensor([0, 1])]
    """
    return copy_all_to_host_async(tensors)()


def copy_all_to_host_async(tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    """Begin what `copy_all_to_host` does; the function returned waits for it."""
    out = [x if x.is_cuda else x.cpu() for x in tensors]
    sent: list[tuple[list[int], Tensor, torch.cuda.Event | None]] = []
    for device in {x.device for x in out if x.is_cuda}:
        there = [i for i, x in enumerate(out) if x.device == device]
        for some in group_by_size(there, [out[i].nbytes for i in there], _COPY_BYTES):
            sent.append((some, *copy_to_host_async(concat_bytes([out[i] for i in some]))))

    def arrived() -> list[Tensor]:
        for some, host, copied in sent:
            if copied is not None:
                copied.synchronize()
            for i, x in zip(some, split_bytes(host, [out[i] for i in some]), strict=True):
                out[i] = x
        sent.clear()
        return out

    return arrived


def concat_bytes(tensors: Sequence[Tensor]) -> Tensor:  # (n,) uint8
    """All of them in a row."""
    return torch.cat([x.detach().contiguous().view(-1).view(torch.uint8) for x in tensors])


def split_bytes(row: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Tensors like these from the bytes of `concat_bytes`, each in memory of its own."""
    parts = zip(row.split([x.nbytes for x in like]), like, strict=True)
    return [part.clone().view(x.dtype).view(x.shape) for part, x in parts]


def group_by_size(items: Sequence[T], sizes: Sequence[int], most: int) -> list[list[T]]:
    """Successive items in groups of so many bytes at most, or of one item that is larger.

    >>> group_by_size(["a", "b", "c"], [3, 5, 1], most=8)
    [['a', 'b'], ['c']]
    """
    groups: list[list[T]] = []
    room = 0
    for item, size in zip(items, sizes, strict=True):
        if not groups or size > room:
            groups.append([])
            room = most
        groups[-1].append(item)
        room -= size
    return groups
