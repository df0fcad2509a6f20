"""Tiny recordings for zoos, and what processes that share a zoo do with them."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os

import numpy as np

import resemblance as rs

STORES = ("folder", "lance")


def tiny(number, *, name=None, n=32, layers=2, data_id="tiny", **options):
    """A recording of few samples and little else: about 6 kB."""
    rng = np.random.default_rng(number)
    arrays = {f"l{i}": rng.normal(size=(n, 4)).astype(np.float32) for i in range(layers)}
    options = {"buckets": 0, "block": 16, **options}
    rep = rs.record_arrays(
        arrays, name=f"net {number}" if name is None else name, data_id=data_id, **options
    )
    return dataclasses.replace(
        rep,
        layers=tuple(
            dataclasses.replace(
                layer,
                sketch_signs=None,
                features=dataclasses.replace(layer.features, sketch=None),
            )
            for layer in rep
        ),
    )


def context():
    """Processes that are forked off a server which has loaded what is slow to load, and no more."""
    found = multiprocessing.get_context("forkserver")
    ours = ["resemblance.zoo.zoo", "resemblance.recording.record_arrays"]
    found.set_forkserver_preload([*ours, "lancedb"])
    return found


def writes(place, worker, count, shared, environment, pipe):
    """Add own and shared recordings, tag some, remove one; tell the ids that must be there."""
    import torch

    torch.set_num_threads(1)
    os.environ.update(environment)  # which the server that it was forked off began without
    zoo = rs.Zoo(place)
    own = [zoo.add(tiny(1000 * (worker + 1) + i)).id for i in range(count)]
    for seed in shared:
        zoo.add(tiny(seed), tags=[f"by {worker}"])
    zoo.tag(own[0], "first", "of its writer")
    zoo.remove(own.pop())
    pipe.send(own)
    pipe.close()


def adds_until_killed(place, first, pipe):
    """Add one recording after the other, and tell each id once it is promised to be there."""
    import torch

    torch.set_num_threads(1)
    zoo = rs.Zoo(place)
    pipe.send_bytes(b"begun")
    for seed in range(first, first + 1000):
        pipe.send_bytes(zoo.add(tiny(seed), tags=["killed"]).id.encode())


def adds_with_little_room(place, room, pipe):
    """Add a recording where no file may have more than so many bytes; tell what came of it."""
    import resource

    zoo = rs.Zoo(place)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        pipe.send(zoo.add(tiny(1)).id)
    except rs.ResemblanceError as error:
        pipe.send(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    pipe.send(zoo.add(tiny(2)).id)
    pipe.send(zoo.verify(sweep=True))
