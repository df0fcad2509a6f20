"""Merging: shards of one pass, recorded apart, become what one pass over all of the data gives.

Accumulators add and blocks concatenate; bucket kernels do neither and are formed anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, replace

import torch

from .._ops.count_sketch import bucket_kernel
from ..errors import MismatchError
from .layer import Blocks, Buckets, Layer, Products, Recorded, Sums
from .representation import Representation


def merge(parts: Iterable[Representation], *, keep_sums: bool = False) -> Representation:
    """One Representation from shards recorded apart, in any order.

    Accumulators add and blocks concatenate, so the result is what one pass over all of the data
    gives, to float round-off. It keeps the accumulators while shards are missing.
    """
    shards = sorted(parts, key=lambda part: part.data.shards)
    if not shards:
        raise MismatchError("nothing to merge: expected at least one shard")
    first = shards[0]
    if len(shards) == 1:
        return first if keep_sums or not first.complete else first.without_sums()
    for other in shards[1:]:
        _refuse_unmergeable(first, other)
    taken = sorted(shard for part in shards for shard in part.data.shards)
    twice = {shard for shard in taken if taken.count(shard) > 1}
    if twice:
        raise MismatchError(f"shards overlap: {sorted(twice)} came more than once; drop the copies")
    numbers = [number for part in shards for number in part.block_numbers]
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    sizes = [size for part in shards for size in part.block_sizes]
    samples = sum(part.samples for part in shards)
    whole = replace(
        first,
        layers=tuple(_merged(same, order, samples) for same in zip(*shards, strict=True)),
        samples=samples,
        data=replace(
            first.data,
            fingerprint=f"{sum(int(p.data.fingerprint, 16) for p in shards) % 2**64:016x}",
            skipped=sum(part.data.skipped for part in shards),
            shards=tuple(taken),
        ),
        block_sizes=tuple(sizes[i] for i in order),
        block_numbers=tuple(numbers[i] for i in order),
    )
    return whole if keep_sums or not whole.complete else whole.without_sums()


def _merged(same: Sequence[Layer], order: Sequence[int], samples: int) -> Layer:
    """One layer from its shards; `order` is that of their blocks, one shard after the other."""
    first = same[0]
    kinds = {
        kind: _merged_kind([layer.recorded(kind) for layer in same], order, samples)
        for kind in first.kinds
    }
    each = [astuple(layer.products) for layer in same if layer.products is not None]
    signs = [layer.signs for layer in same if layer.signs is not None]
    return replace(
        first,
        products=Products(*(sum(values) for values in zip(*each, strict=True))) if each else None,
        signs=torch.stack(signs).sum(0) if signs else None,
        **kinds,  # type: ignore[arg-type]
    )


def _merged_kind(parts: Sequence[Recorded], order: Sequence[int], samples: int) -> Recorded:
    out = Recorded(sum(part.trace for part in parts))
    blocks = [(x.triangle, x.diagonal) for x in (part.blocks for part in parts) if x is not None]
    sums = [(x.buckets, x.total) for x in (part.sums for part in parts) if x is not None]
    if blocks:
        joined = (torch.cat(values)[list(order)] for values in zip(*blocks, strict=True))
        out = replace(out, blocks=Blocks(*joined))
    if sums:
        table, total = (torch.stack(values).sum(0) for values in zip(*sums, strict=True))
        *kernel, norm = bucket_kernel(table, total, samples)
        out = replace(out, sums=Sums(table, total), buckets=Buckets(*kernel, mean_norm=float(norm)))
    return out


def _refuse_unmergeable(a: Representation, b: Representation) -> None:
    """An error that names the first difference between two would-be shards of one pass."""
    for part in (a, b):
        if part.settings.buckets and not part.mergeable:
            raise MismatchError(
                f"{part.name!r} dropped its accumulators; record it with shard=(i, n) or "
                "keep_sums=True"
            )
    settings = zip(asdict(a.settings).items(), asdict(b.settings).values(), strict=True)
    pairs = [(f"setting {name}", left, right) for (name, left), right in settings]
    pairs += [
        ("model weights", a.model.fingerprint, b.model.fingerprint),
        ("layers", a.layer_names, b.layer_names),
        ("shapes of layers", [layer.shape for layer in a], [layer.shape for layer in b]),
        ("number of shards", a.data.shards[0][1], b.data.shards[0][1]),
        ("samples in all", a.data.total, b.data.total),
        ("data_id", a.data.id, b.data.id),
        ("order", a.data.order, b.data.order),
    ]
    for what, left, right in pairs:
        if left != right:
            raise MismatchError(
                f"these are not shards of one pass: {what} differs, {left!r} and {right!r}; "
                "record them again with the same model, data and settings"
            )
