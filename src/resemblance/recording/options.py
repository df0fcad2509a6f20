"""What to keep of each layer: the options that `record` and `record_arrays` share, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .._ops.count_sketch import CountSketch
from ..errors import DataError
from ..representation.settings import Settings

_BUCKET_BYTES = 64 * 2**20  # a layer's accumulators stay below this unless max_dim says otherwise


@dataclass(frozen=True)
class Keep:
    """Blocks, buckets and which samples; see `record` for what each means."""

    seed: int
    buckets: int
    per_sample: int
    block: int
    blocks: int
    max_dim: int | Literal["auto"] | None
    elementwise: bool
    shard: tuple[int, int] | None
    keep_sums: bool

    def __post_init__(self) -> None:
        if self.block < 1 or self.blocks < 0:
            found = f"{self.block}, {self.blocks}"
            raise DataError(f"block must be 1 or more and blocks 0 or more; found {found}")
        if self.buckets:
            CountSketch(self.buckets, self.seed, self.per_sample)  # refuses what does not fit
        width = self.max_dim
        if width not in ("auto", None) and (isinstance(width, str) or width < 1):
            raise DataError(f'max_dim must be "auto", None or a positive width; found {width!r}')
        i, n = self.share
        if not 0 <= i < n:
            raise DataError(f"shard must be (i, n) with 0 <= i < n; found {self.shard}")

    @property
    def share(self) -> tuple[int, int]:
        """The shard, (0, 1) for all."""
        i, n = self.shard or (0, 1)
        return int(i), int(n)

    @property
    def sums(self) -> bool:
        """Whether accumulators are kept: a shard needs them to be merged."""
        return self.keep_sums or self.share != (0, 1)

    def settings(self, block: int, pool: str, target: str, beta: float | None) -> Settings:
        """As plain numbers whatever the caller's types, with the block that fits the data."""
        if self.elementwise and target == "none":
            raise DataError("elementwise=True needs gradients; record with both or with neither")
        width = self.max_dim
        if width == "auto":  # room for features, gradients and elementwise: it never varies
            room = _BUCKET_BYTES // (3 * 4 * max(self.buckets, 1))
            width = 1 << (max(room, 1).bit_length() - 1)
        return Settings(
            seed=int(self.seed),
            buckets=int(self.buckets),
            per_sample=int(self.per_sample) if self.buckets else 1,
            block=int(block),
            blocks=int(self.blocks),
            max_dim=int(width) if self.buckets and width is not None else None,
            pool=pool,
            target=target,
            beta=float(beta) if target == "tempered" and beta is not None else None,
            elementwise=bool(self.elementwise),
        )


def check_batch_size(batch_size: int | str) -> None:
    """An error unless it is a number of samples or `"auto"`."""
    if batch_size != "auto" and (isinstance(batch_size, str) or batch_size < 1):
        raise DataError(f'batch_size must be 1 or more, or "auto"; found {batch_size!r}')
