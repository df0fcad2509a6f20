"""A stream shuffled in a buffer: of so many samples that wait, a random one goes on.

The order is a function of the seed and of the stream alone. A buffer that holds all samples
shuffles them fully; a smaller one leaves a share of the order, which falls as it grows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from .._seeded_random import BUFFER, bits

T = TypeVar("T")

_DRAWN = 4096  # random numbers that are made at a time
_ROOM = 2**30  # bytes that may wait


def shuffled_in_buffer(
    items: Iterable[T],
    seed: int,
    size: int,
    weight: Callable[[T], int] = lambda _: 0,  # bytes
    room: int = _ROOM,
) -> Iterator[T]:
    """The items in another order, of which `size`, and `room` bytes, wait at most.

    >>> sorted(shuffled_in_buffer("abcdef", seed=0, size=3))
    ['a', 'b', 'c', 'd', 'e', 'f']
    """
    draws = _draws(seed)
    held: list[T] = []
    bytes_held = 0

    def let_go() -> T:
        nonlocal bytes_held
        at = next(draws) * len(held) >> 32
        held[at], held[-1] = held[-1], held[at]
        bytes_held -= weight(held[-1])
        return held.pop()

    for item in items:
        held.append(item)
        bytes_held += weight(item)
        while held and (len(held) >= size or bytes_held > room):
            yield let_go()
    while held:
        yield let_go()


def _draws(seed: int) -> Iterator[int]:
    """Random numbers of 32 bits."""
    for start in itertools.count(0, _DRAWN):
        yield from (bits(seed, BUFFER, np.arange(start, start + _DRAWN)) >> np.uint64(32)).tolist()
