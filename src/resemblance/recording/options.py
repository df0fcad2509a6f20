"""What to keep of each layer: the options that `record` and `record_arrays` share, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .._ops.count_sketch import CountSketch
from .._whole_numbers import checked_seed, is_whole, whole_number
from ..errors import DataError
from ..representation.settings import Settings

FEW = 1024  # samples whose kernels are kept whole
_BUCKET_BYTES = 64 * 2**20  # a layer's accumulators stay below this unless max_dim says otherwise


@dataclass(frozen=True)
class Keep:
    """Blocks, buckets and which samples; see `record` for what each means."""

    seed: int
    buckets: int
    per_sample: int
    block: int | Literal["auto"]
    blocks: int
    max_dim: int | Literal["auto"] | None
    elementwise: bool
    shard: tuple[int, int] | None
    keep_sums: bool
    tokens: int | None = None  # of each sequence, where these are the samples

    def __post_init__(self) -> None:
        plain = {"seed": checked_seed(self.seed)}  # of Python's own kind, whatever was given
        for name, least in (("blocks", 0), ("buckets", 0), ("per_sample", 1)):
            plain[name] = whole_number(name, getattr(self, name), least)
        if self.block != "auto":
            plain["block"] = whole_number("block", self.block, 1, also=', or "auto"')
        if self.tokens is not None:
            plain["tokens"] = whole_number("tokens", self.tokens, 1)
        if self.max_dim not in ("auto", None):
            plain["max_dim"] = whole_number("max_dim", self.max_dim, 1, also=', or "auto" or None')
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        if self.buckets:
            CountSketch(self.buckets, self.seed, self.per_sample)  # refuses what does not fit
        given: Any = (0, 1) if self.shard is None else self.shard
        pair = isinstance(given, tuple | list) and len(given) == 2 and all(map(is_whole, given))
        if not pair or not 0 <= given[0] < given[1]:
            raise DataError(f"shard must be (i, n) with 0 <= i < n; found {self.shard!r}")

    @property
    def share(self) -> tuple[int, int]:
        """The shard, (0, 1) for all."""
        i, n = self.shard or (0, 1)
        return int(i), int(n)

    @property
    def sums(self) -> bool:
        """Whether accumulators are kept: a shard needs them to be merged."""
        return self.keep_sums or self.share != (0, 1)

    def few(self, total: int | None, block: int) -> int:
        """How many samples there are, if their kernels are to be kept whole; else 0.

        Of tokens they are not: those of one sequence are no pairs to be compared.
        """
        if self.tokens is not None:
            return 0
        all_kept = total is not None and self.share == (0, 1) and total <= self.blocks * block
        return total if all_kept and total is not None and total <= FEW else 0

    def settings(
        self, block: int | Literal["auto"], pool: str, target: str, beta: float | None
    ) -> Settings:
        """With the block that fits the data."""
        if self.elementwise and target == "none":
            raise DataError("elementwise=True needs gradients; record with both or with neither")
        width = self.max_dim
        if width == "auto":  # room for features, gradients and elementwise: it never varies
            room = _BUCKET_BYTES // (3 * 4 * max(self.buckets, 1))
            width = 1 << (max(room, 1).bit_length() - 1)
        return Settings(
            seed=self.seed,
            buckets=self.buckets,
            per_sample=self.per_sample if self.buckets else 1,
            block=0 if block == "auto" else int(block),
            blocks=self.blocks,
            max_dim=width if self.buckets else None,
            pool=pool,
            target=target,
            beta=float(beta) if target == "tempered" and beta is not None else None,
            elementwise=bool(self.elementwise),
            unit="sample" if self.tokens is None else "token",
            tokens=self.tokens or 1,
        )


def checked_batch_size(batch_size: int | Literal["auto"]) -> int | Literal["auto"]:
    """A number of samples or `"auto"`, or an error."""
    if batch_size == "auto":
        return "auto"
    return whole_number("batch_size", batch_size, 1, also=', or "auto"')
