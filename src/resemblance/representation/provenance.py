"""Where a recording came from: which network, which samples, made with what."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Literal

import torch

from .. import __version__

Order = Literal["seeded", "stream"]


@dataclass(frozen=True)
class ModelInfo:
    """The network."""

    name: str
    fingerprint: str | None  # of its weights; None for arrays
    parameters: int | None


@dataclass(frozen=True)
class DataInfo:
    """The samples."""

    id: str | None  # the caller's name for them
    total: int | None  # in the whole data set; None for a stream
    order: Order  # ours, or the stream's
    shards: tuple[tuple[int, int], ...]  # (i, n): which of n shares are in
    skipped: int = 0  # as not finite
    fingerprint: str = ""  # of samples and their order

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
