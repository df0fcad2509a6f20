"""A pass that is shared out: by torchrun among its processes, or by hand in shards; and resumed."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import DataError

if TYPE_CHECKING:
    from ..representation.representation import Representation

_LONG = datetime.timedelta(days=7)  # that one may be ahead of another; torchrun ends the dead


def is_launched() -> bool:
    """Whether torchrun, or what sets the same variables, started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def shard(text: str) -> tuple[int, int] | Literal["ranks"] | None:
    """What `--shard` says, or that torchrun's processes share the data; None for all of them.

    >>> shard("2/8")
    (2, 8)
    """
    if not text:
        return "ranks" if is_launched() else None
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    i, n = (int(found[1]), int(found[2])) if found else (0, 0)
    if not i < n:
        raise DataError(f"--shard takes I/N with I from 0 to N - 1, as 0/8; found {text!r}")
    if is_launched():
        raise DataError(
            "torchrun's processes share all of the data; leave --shard out, or start one process"
        )
    return i, n


def checkpoint(path: Path | None, every: float) -> tuple[Path, float] | None:
    """Where and how often progress is saved."""
    return None if path is None else (path, every)


def refuse_few(rep: Representation, blocks: int) -> None:
    """An error if a shard is of so few samples that their kernels are kept whole, in one pass."""
    from ..recording.options import FEW

    total, kept = rep.data.total, blocks * rep.settings.block
    sharded = rep.data.shards[0][1] > 1 and rep.settings.unit == "sample"
    if sharded and total is not None and total <= min(FEW, kept):
        raise DataError(
            f"{total:,} samples are too few to be recorded in shards: up to {FEW:,} their kernels "
            "are kept whole, which takes one pass; leave --shard out"
        )


@contextlib.contextmanager
def together(device: str) -> Iterator[tuple[int, str]]:
    """This process's rank and device, with a group of all of them in the block."""
    import torch
    import torch.distributed as dist

    if not is_launched():
        yield 0, device
        return
    cuda = device.startswith("cuda") if device else torch.cuda.is_available()
    own = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if cuda and ":" not in device else device
    if cuda:
        torch.cuda.set_device(own)
    try:
        _begin_group("nccl" if cuda else "gloo")
    except (RuntimeError, ValueError) as error:
        raise DataError(
            "the variables RANK and WORLD_SIZE say that this is one of several processes, but they "
            f"do not find each other ({error}); start them with torchrun, or unset the variables"
        ) from error
    try:
        yield dist.get_rank(), own or "cpu"
    finally:
        dist.destroy_process_group()


def _begin_group(backend: str) -> None:
    """The group of all processes, under a name for each start of torchrun's."""
    import torch._dynamo  # noqa: F401 - if it came after the group, the group's threads would outlive its end
    from torch.distributed.distributed_c10d import PrefixStore, init_process_group
    from torch.distributed.rendezvous import rendezvous

    store, rank, count = next(rendezvous("env://"))
    # where torchrun restarts them, its store still has the addresses of the dead
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    own = PrefixStore(f"start {start}", store)
    init_process_group(backend, store=own, rank=rank, world_size=count, timeout=_LONG)
