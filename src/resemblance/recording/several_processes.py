"""One recording made by several processes: each takes a share of the blocks, and all get the whole.

The processes are those of torch's default group, as torchrun or accelerate start them. What they
recorded is joined in pairs, so that each sends its sums once and holds two at most; the result goes
back to all of them. Whatever goes wrong in one is told to all: none waits for ever, and none takes
a part for the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ..errors import DataError, ResemblanceError, first_line
from ..representation.merging import joined
from ..representation.representation import Representation

_NO_GROUP = (
    'shard="ranks" shares a pass among the processes of torch.distributed, and no group of them '
    "is initialised; start with torchrun and call torch.distributed.init_process_group, or record "
    "shards with shard=(i, n)"
)


def rank_and_count() -> tuple[int, int]:
    """Which process this is, of how many."""
    if not dist.is_available() or not dist.is_initialized():
        raise DataError(_NO_GROUP)
    return dist.get_rank(), dist.get_world_size()


class OtherFailedError(DataError):
    """Another process could not do its part, as all of them know by now."""


def agree(trouble: Exception | None = None) -> None:
    """Wait for all processes, and raise this one's trouble, or that another has some."""
    count = rank_and_count()[1]
    told: list[Any] = [None] * count
    said = None if trouble is None else f"{type(trouble).__name__}: {first_line(trouble)}"
    try:
        _spoken(dist.all_gather_object, told, said)
    except ResemblanceError:
        if trouble is None:
            raise
    if trouble is not None:
        raise trouble
    for rank, theirs in enumerate(told):
        if theirs is not None:
            raise OtherFailedError(
                f"process {rank} of {count} failed, so nothing was recorded ({theirs}); mend that "
                "and start all of them again"
            )


def in_all(work: Callable[[], Representation | None], *, keep_sums: bool) -> Representation:
    """What the processes' parts are together, in each of them; None is the part of no block."""
    rank, count = rank_and_count()
    part = None
    try:
        part = work()
    except OtherFailedError:
        raise
    except Exception as error:
        agree(error)
    agree()
    whole = [_told_upwards(part, rank, count)]
    if isinstance(whole[0], Representation) and not keep_sums:
        whole[0] = whole[0].without_sums()  # most of its bytes, which nobody needs any more
    _spoken(dist.broadcast_object_list, whole, src=0)
    if isinstance(whole[0], str):
        raise DataError(f"what the processes recorded does not fit together: {whole[0]}")
    if whole[0] is None:
        raise DataError("nothing was recorded: no process had a sample")
    return whole[0]


def _told_upwards(
    part: Representation | None, rank: int, count: int
) -> Representation | str | None:
    """In process 0 all parts joined, or why they cannot be; the others send theirs on."""
    found: Representation | str | None = part
    step = 1
    while step < count and rank % (2 * step) == 0:
        if rank + step < count:
            sent: list[Any] = [None]
            _spoken(dist.recv_object_list, sent, src=rank + step)
            found = _both(found, sent[0])
        step *= 2
    if rank:
        _spoken(dist.send_object_list, [found], dst=rank - step)
    return found


def _both(
    one: Representation | str | None, two: Representation | str | None
) -> Representation | str | None:
    for part in (one, two):
        if isinstance(part, str):
            return part
    parts = [part for part in (one, two) if isinstance(part, Representation)]
    try:
        return joined(parts) if parts else None
    except ResemblanceError as error:
        return str(error)


def _spoken(talk: Callable[..., Any], *words: Any, **more: Any) -> None:
    """Talk to the other processes, or say that one is gone."""
    try:
        talk(*words, **more)
    except RuntimeError as error:  # of which torch's own errors are kinds
        raise DataError(
            f"another process of the job is gone ({first_line(error)}); nothing was recorded: see "
            "what it said, and start all of them again"
        ) from error
