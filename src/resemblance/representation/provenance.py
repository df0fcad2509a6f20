"""Where a recording came from: which network, which samples, made with what."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Literal

import torch

from .. import __version__

Order = Literal["seeded", "stream", "keyed"]


@dataclass(frozen=True)
class ModelInfo:
    """The network."""

    name: str
    fingerprint: str | None  # of some of each weight; None for arrays
    parameters: int | None
    weights: str | None = None  # hash of all weights
    address: str | None = None  # what loads it again, such as hf:NAME, and its weights' file
    tokenizer: str | None = None  # hash of what made tokens of its text


@dataclass(frozen=True)
class DataInfo:
    """The samples."""

    id: str | None  # the caller's name for them
    total: int | None  # in the whole data set; None for a stream
    order: Order  # ours, or the stream's, whose samples may have keys
    shards: tuple[tuple[int, int], ...]  # (i, n): which of n shares are in
    skipped: int = 0  # as not finite
    fingerprint: str = ""  # of samples and their order
    content: str | None = None  # of what they hold, in whatever order and under whatever name
    labels: str | None = None  # of their labels, if they have any
    first: str | None = None  # in a shard: of the first of all samples, by which shards are alike

    @property
    def complete(self) -> bool:
        """Whether every shard is in."""
        return len(self.shards) == self.shards[0][1]


@dataclass(frozen=True)
class Made:
    """The circumstances."""

    dtype: str  # of the weights
    autocast: str | None
    device: str
    torch: str  # version
    resemblance: str  # version
    date: str  # in UTC

    @classmethod
    def now(cls, *, dtype: str, autocast: str | None = None, device: str = "cpu") -> Made:
        """With the versions and the date of this moment."""
        date = datetime.datetime.now(datetime.timezone.utc).isoformat("T", "seconds")
        kind = dtype.removeprefix("torch.")
        return cls(kind, autocast, device, torch.__version__, __version__, date)
