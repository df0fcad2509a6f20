"""Sweep workers on a Ray cluster: every pair is a Ray task, and Ray schedules it.

The cluster is the one that RAY_ADDRESS names or that `ray start` began on this machine. Otherwise
one is started here for this sweep. Ray retries a task whose worker died. A worker keeps its data
open for the tasks that follow.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch

from ..errors import DataError, first_line, import_optional
from .job_file import Pair
from .progress import Attempts, Event, Outcome, PairStarted
from .run_sweep import SweepLocation
from .worker import Worker

_POLL_SECONDS = 1.0  # seconds between looks at what has begun
_CONNECT_SECONDS = 10.0  # seconds that a cluster is given to answer
_QUIET_OPTIONS: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
_MSG_WORKERS_FIXED = (
    "--workers applies only to a cluster that the sweep starts, and a cluster is already running; "
    "omit --workers, or set RAY_ADDRESS=local"
)
_MSG_NO_CLUSTER = (
    "no Ray cluster at RAY_ADDRESS={} ({}); correct it, or unset it to start a local cluster"
)
_MSG_NOT_VISIBLE = (
    "it was recorded on a different machine, and {} is not visible on this one; a sweep over "
    "several machines needs a shared file system"
)


def run_ray(
    pairs: Sequence[Pair], place: SweepLocation, *, workers: int | None, retries: int
) -> Generator[Event, None, None]:
    """Record pairs as tasks of Ray's, each with a GPU where the cluster has any."""
    ray = import_optional("ray", "Ray", "ray")
    with _ray_session(ray, workers) as cores:
        board = ray.remote(num_cpus=0)(_ProgressActor).remote()
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        task = ray.remote(
            num_cpus=cores,
            num_gpus=gpus,
            max_calls=0,  # a worker stays, and its data with it, on a GPU as well
            max_retries=retries,
        )(_record_task)
        place_there = ray.put(place)
        attempts = Attempts(retries)
        under_way = {task.remote(pair, place_there, False, board): pair for pair in pairs}
        while under_way:
            ended, _ = ray.wait(list(under_way), timeout=_POLL_SECONDS)
            with contextlib.suppress(ray.exceptions.RayError):  # its machine left: the rest goes on
                yield from (PairStarted(*begun) for begun in ray.get(board.taken.remote()))
            for reference in ended:
                pair = under_way.pop(reference)
                outcome = attempts.judged(_task_outcome(ray, reference, pair, place))
                if outcome.state in ("busy", "again"):
                    wait = outcome.state == "busy"
                    under_way[task.remote(pair, place_there, wait, board)] = pair
                yield outcome


class _ProgressActor:
    """An actor on which workers note what they begin, for the table of the sweep."""

    def __init__(self) -> None:
        self._begun: list[tuple[str, str]] = []

    def began(self, name: str, where: str) -> None:
        self._begun.append((name, where))

    def taken(self) -> list[tuple[str, str]]:
        begun, self._begun = self._begun, []
        return begun


_WORKERS: dict[
    SweepLocation, Worker
] = {}  # of this process: one, which lives as long as Ray keeps it


def _record_task(pair: Pair, place: SweepLocation, wait: bool, board: Any) -> Outcome:
    """The task: what any worker does, in one of Ray's processes."""
    board.began.remote(pair.name, f"{socket.gethostname()}, process {os.getpid()}")
    return _WORKERS.setdefault(place, Worker(place)).done(pair, wait=wait)


def _task_outcome(ray: Any, reference: Any, pair: Pair, place: SweepLocation) -> Outcome:
    try:
        outcome: Outcome = ray.get(reference)
    except ray.exceptions.RayError as error:  # every attempt ended with its worker
        return Outcome(pair.name, "failed", error=f"its worker died: {first_line(error)}")
    path = place.results.result(pair.name)
    with contextlib.suppress(OSError):
        os.listdir(path.parent)  # network file systems look anew
    if outcome.state == "recorded" and not path.exists():
        return Outcome(pair.name, "failed", outcome.seconds, _MSG_NOT_VISIBLE.format(path))
    return outcome


@contextlib.contextmanager
def _ray_session(ray: Any, workers: int | None) -> Iterator[int]:
    """Connected to a cluster: how many cores a task has there."""
    with contextlib.redirect_stdout(sys.stderr):  # Ray's words are no part of a command's output
        try:
            yield _connect(ray, workers)
        finally:
            ray.shutdown()  # which ends what this sweep still has under way


def _connect(ray: Any, workers: int | None) -> int:
    """Join the cluster that there is, or start one."""
    address = os.environ.get("RAY_ADDRESS") or None
    if address in (None, "local"):
        count = workers or max(1, torch.cuda.device_count())
        cores = max(1, (os.cpu_count() or 1) // count)
        own: dict[str, Any] = {"num_cpus": cores * count, "include_dashboard": False}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody agreed to tell
        with contextlib.suppress(ValueError):  # `ray start` began one here, which has its own cores
            ray.init(address=address, **own, **_QUIET_OPTIONS)
            return cores
    elif not _is_listening(address):
        raise DataError(_MSG_NO_CLUSTER.format(address, "nothing listens there"))
    if workers is not None:
        raise DataError(_MSG_WORKERS_FIXED)
    try:
        ray.init(address=address, **_QUIET_OPTIONS)
    except ConnectionError as error:
        raise DataError(_MSG_NO_CLUSTER.format(address, first_line(error))) from error
    return 1


def _is_listening(address: str) -> bool:
    """Whether anything listens at HOST:PORT, where Ray would go on trying for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():  # a name that means something to Ray
        return True
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError):
        return False
    return True
