"""Workers on a Ray cluster: every pair is a task of Ray's, which says where and when it runs.

The cluster is the one that RAY_ADDRESS names or that `ray start` began on this machine; else one is
started here for this sweep. Ray runs a task again whose worker died. A worker keeps its data open
for the tasks that come after.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..errors import DataError, first_line, optional
from .outcomes import Began, Event, Outcome, lost
from .pairs import Pair
from .worker import Place, Worker

_MOMENT = 1.0  # seconds between looks at what has begun
_PATIENCE = 10.0  # seconds that a cluster is given to answer
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
_HAS_ITS_OWN = (
    "--workers is for a cluster that the sweep starts itself, and this one runs already and has as "
    "many as it has; leave --workers out, or set RAY_ADDRESS=local"
)
_NO_ANSWER = (
    "no Ray cluster answers at RAY_ADDRESS={} ({}); correct it, or unset it to have one started "
    "here"
)
_NOT_SEEN = (
    "it was recorded on another machine, and {} is not seen on this one; a sweep over several "
    "machines needs a file system that all of them have"
)


def run(
    pairs: Sequence[Pair], place: Place, *, workers: int | None, retries: int
) -> Generator[Event, None, None]:
    """Record pairs as tasks of Ray's, each with a GPU where the cluster has any."""
    ray = optional("ray", "Ray", "ray")
    with _cluster(ray, workers) as cores:
        board = ray.remote(num_cpus=0)(_Board).remote()
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        task = ray.remote(
            num_cpus=cores,
            num_gpus=gpus,
            max_calls=0,  # a worker stays, and its data with it, on a GPU as well
            max_retries=retries,
        )(_done)
        place_there = ray.put(place)
        failures: Counter[str] = Counter()
        under_way = {task.remote(pair, place_there, False, board): pair for pair in pairs}
        while under_way:
            ended, _ = ray.wait(list(under_way), timeout=_MOMENT)
            with contextlib.suppress(ray.exceptions.RayError):  # its machine left: the rest goes on
                yield from (Began(*begun) for begun in ray.get(board.taken.remote()))
            for reference in ended:
                pair = under_way.pop(reference)
                outcome = _outcome(ray, reference, pair, place)
                failures[pair.name] += outcome.state == "failed"
                if outcome.state == "failed" and outcome.again and failures[pair.name] <= retries:
                    outcome = replace(outcome, state="again")
                if outcome.state in ("busy", "again"):
                    wait = outcome.state == "busy"
                    under_way[task.remote(pair, place_there, wait, board)] = pair
                yield outcome


class _Board:
    """An actor on which workers note what they begin, for the table of the sweep."""

    def __init__(self) -> None:
        self._begun: list[tuple[str, str]] = []

    def began(self, name: str, where: str) -> None:
        self._begun.append((name, where))

    def taken(self) -> list[tuple[str, str]]:
        begun, self._begun = self._begun, []
        return begun


_WORKERS: dict[Place, Worker] = {}  # of this process: one, which lives as long as Ray keeps it


def _done(pair: Pair, place: Place, wait: bool, board: Any) -> Outcome:
    """The task: what any worker does, in one of Ray's processes."""
    board.began.remote(pair.name, f"{socket.gethostname()}, process {os.getpid()}")
    return _WORKERS.setdefault(place, Worker(place)).done(pair, wait=wait)


def _outcome(ray: Any, reference: Any, pair: Pair, place: Place) -> Outcome:
    try:
        outcome: Outcome = ray.get(reference)
    except ray.exceptions.RayError as error:  # every attempt ended with its worker
        return replace(lost(pair.name, first_line(error)), again=False)
    path = place.results.result(pair.name)
    if outcome.state == "recorded" and not _is_seen(path):
        return Outcome(pair.name, "failed", outcome.seconds, _NOT_SEEN.format(path))
    return outcome


def _is_seen(path: Path) -> bool:
    """Whether a file is there for this machine too; listing its folder makes networks look anew."""
    with contextlib.suppress(OSError):
        os.listdir(path.parent)
    return path.exists()


@contextlib.contextmanager
def _cluster(ray: Any, workers: int | None) -> Iterator[int]:
    """Connected to a cluster: how many cores a task has there."""
    with contextlib.redirect_stdout(sys.stderr):  # Ray's words are no part of a command's output
        try:
            yield _connected(ray, workers)
        finally:
            ray.shutdown()  # which ends what this sweep still has under way


def _connected(ray: Any, workers: int | None) -> int:
    """Join the cluster that there is, or start one."""
    address = os.environ.get("RAY_ADDRESS") or None
    if address in (None, "local"):
        count = workers or max(1, torch.cuda.device_count())
        cores = max(1, (os.cpu_count() or 1) // count)
        own: dict[str, Any] = {"num_cpus": cores * count, "include_dashboard": False}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody agreed to tell
        with contextlib.suppress(ValueError):  # `ray start` began one here, which has its own cores
            ray.init(address=address, **own, **_QUIET)
            return cores
    elif not _answers(address):
        raise DataError(_NO_ANSWER.format(address, "nothing listens there"))
    if workers is not None:
        raise DataError(_HAS_ITS_OWN)
    try:
        ray.init(address=address, **_QUIET)
    except ConnectionError as error:
        raise DataError(_NO_ANSWER.format(address, first_line(error))) from error
    return 1


def _answers(address: str) -> bool:
    """Whether anything listens at HOST:PORT, where Ray would go on trying for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():  # a name that means something to Ray
        return True
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()
    except (OSError, OverflowError):
        return False
    return True
