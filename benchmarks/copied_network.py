"""A copy of a network as `copies` knows it: what became of it, and how the command loads it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Copied:
    """`at_home` and `elsewhere` say how good it is on unseen data like the base's, and on other
    data: of digits the share that is right (turned by a quarter elsewhere), of the language model
    the loss of a token in nats (on the manual instead of source code)."""

    network: str  # digits or language
    section: str
    name: str
    story: str
    at_home: float
    elsewhere: float
    model: tuple[str, ...]  # words of `resemblance record` that name it
