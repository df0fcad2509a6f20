"""Copies to and from a device that keep nobody waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_AT_ONCE = 2**24  # bytes that are copied together


def without_waiting(x: Tensor, device: torch.device) -> Tensor:
    """A host tensor on the device, copied in turn with its other work while the host goes on."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)


def on_the_way(x: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """A tensor's copy on the host, and what to wait for before reading it."""
    if not x.is_cuda:
        return x.cpu(), None
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    host.copy_(x, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(x.device))  # which need not be the current device's
    return host, arrived


def on_the_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors on the host, those of a GPU in few copies: each would keep the host waiting.

    They share no memory, and what was there already is not copied.

    >>> on_the_host([torch.arange(2)])
    [tensor([0, 1])]
    """
    return sent_home(tensors)()


def sent_home(tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    """Begin what `on_the_host` does; the function returned waits for it."""
    out = [x if x.is_cuda else x.cpu() for x in tensors]
    sent: list[tuple[list[int], Tensor, torch.cuda.Event | None]] = []
    for device in {x.device for x in out if x.is_cuda}:
        there = [i for i, x in enumerate(out) if x.device == device]
        for some in _groups(there, [out[i].nbytes for i in there]):
            sent.append((some, *on_the_way(_bytes([out[i] for i in some]))))

    def arrived() -> list[Tensor]:
        for some, host, copied in sent:
            if copied is not None:
                copied.synchronize()
            for i, x in zip(some, _parts(host, [out[i] for i in some]), strict=True):
                out[i] = x
        sent.clear()
        return out

    return arrived


def _bytes(tensors: Sequence[Tensor]) -> Tensor:  # (n,) uint8
    """All of them in a row."""
    return torch.cat([x.contiguous().view(-1).view(torch.uint8) for x in tensors])


def _parts(row: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Tensors like these from the bytes of `_bytes`, each in memory of its own."""
    parts = zip(row.split([x.nbytes for x in like]), like, strict=True)
    return [part.clone().view(x.dtype).view(x.shape) for part, x in parts]


def _groups(items: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Items in a row, as many in a group as are copied together, or one that is larger.

    >>> _groups([3, 5, 8], [2**23, 2**23, 1])
    [[3, 5], [8]]
    """
    groups: list[list[int]] = []
    room = 0
    for item, size in zip(items, sizes, strict=True):
        if not groups or size > room:
            groups.append([])
            room = _AT_ONCE
        groups[-1].append(item)
        room -= size
    return groups
