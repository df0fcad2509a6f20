"""Distributed recording: one pass shared among the ranks of torch.distributed.

With `shard="ranks"`, each process of torch's default group (as torchrun or accelerate start them)
records a share of the blocks. The parts are merged in a binary tree, so that each process sends its
sums once and holds two parts at most, and the result is broadcast to all of them. An exception in
one process is raised in all: none waits forever, and none mistakes a part for the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import nn

from .._models.wrappers import is_sharded
from ..errors import DataError, ResemblanceError, first_line
from ..representation.merge import join_parts
from ..representation.representation import Representation


def rank_and_count() -> tuple[int, int]:
    """Which process this is, of how many."""
    if not dist.is_available() or not dist.is_initialized():
        raise DataError(
            '`shard="ranks"` splits the data among the processes of torch.distributed, but no '
            "process group is initialised; start with torchrun and call "
            "torch.distributed.init_process_group, or record shards with `shard=(i, n)`"
        )
    return dist.get_rank(), dist.get_world_size()


class OtherRankFailedError(DataError):
    """Another process could not do its part, as all of them know by now."""


def raise_if_any_failed(trouble: Exception | None = None) -> None:
    """Wait for all processes, and raise this one's trouble, or that another has some."""
    count = rank_and_count()[1]
    told: list[Any] = [None] * count
    said = None if trouble is None else f"{type(trouble).__name__}: {first_line(trouble)}"
    try:
        _communicate(dist.all_gather_object, told, said)
    except ResemblanceError:
        if trouble is None:
            raise
    if trouble is not None:
        raise trouble
    for rank, theirs in enumerate(told):
        if theirs is not None:
            raise OtherRankFailedError(
                f"process {rank} of {count} failed, so nothing was recorded ({theirs}); fix the "
                "error and restart all processes"
            )


def record_in_all_ranks(
    work: Callable[[], Representation | None], *, keep_sums: bool
) -> Representation:
    """What the processes' parts are together, in each of them; None is the part of no block."""
    rank, count = rank_and_count()
    part = None
    try:
        part = work()
    except OtherRankFailedError:
        raise
    except Exception as error:
        raise_if_any_failed(error)
    raise_if_any_failed()
    whole = [_reduce_to_rank_0(part, rank, count)]
    if isinstance(whole[0], Representation) and not keep_sums:
        whole[0] = whole[0].without_sums()  # most of its bytes, which nobody needs any more
    _communicate(dist.broadcast_object_list, whole, src=0)
    if isinstance(whole[0], str):
        raise DataError(f"the recordings of the processes are inconsistent: {whole[0]}")
    if whole[0] is None:
        raise DataError("nothing was recorded: no process had a sample")
    return whole[0]


def _reduce_to_rank_0(
    part: Representation | None, rank: int, count: int
) -> Representation | str | None:
    """In process 0 all parts joined, or why they cannot be; the others send theirs on."""
    found: Representation | str | None = part
    step = 1
    while step < count and rank % (2 * step) == 0:
        if rank + step < count:
            sent: list[Any] = [None]
            _communicate(dist.recv_object_list, sent, src=rank + step)
            found = _join_two(found, sent[0])
        step *= 2
    if rank:
        _communicate(dist.send_object_list, [found], dst=rank - step)
    return found


def _join_two(
    one: Representation | str | None, two: Representation | str | None
) -> Representation | str | None:
    """Two parts joined, or why they cannot be: the first reason."""
    if isinstance(one, str) or two is None:
        return one
    if isinstance(two, str) or one is None:
        return two
    try:
        return join_parts([one, two])
    except ResemblanceError as error:
        return str(error)


def _communicate(talk: Callable[..., Any], *words: Any, **more: Any) -> None:
    """Talk to the other processes, or say that one is gone."""
    try:
        talk(*words, **more)
    except RuntimeError as error:  # of which torch's own errors are kinds
        raise DataError(
            f"a different process of the job has exited ({first_line(error)}), so nothing was "
            "recorded; see its output, and restart all processes"
        ) from error


def refuse_sharded_weights(model: nn.Module) -> None:
    """Refuse to share the data of a network that runs in all processes at once."""
    if any(map(is_sharded, model.parameters())):
        raise DataError(
            '`shard="ranks"` gives every process a shard of the data, but the network\'s weights '
            "are sharded over the processes, which must all run every sample; omit `shard`"
        )
