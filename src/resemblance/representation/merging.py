"""Merging: parts of one pass, recorded apart, become what one pass over all of them gives.

Accumulators add and blocks concatenate; bucket kernels do neither and are formed anew. Shards,
processes of one job and what a checkpoint holds are all `joined` so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, replace

import torch
from torch import Tensor

from .._ops.count_sketch import bucket_kernel
from ..errors import MismatchError
from . import outputs
from .as_given import Given, recordings
from .layer import Blocks, Buckets, Layer, Products, Recorded, Sketch, Sums
from .representation import Representation, TokenRows


def merge(parts: Iterable[Given], *, keep_sums: bool = False) -> Representation:
    """One Representation from shards recorded apart, or from their files, in any order.

    Accumulators add and blocks concatenate, so the result is what one pass over all of the data
    gives, to float round-off; but for up to 1,024 samples, of which one pass keeps the whole
    kernel. It keeps the accumulators while shards are missing.
    """
    shards = sorted(recordings(parts), key=lambda part: part.data.shards)
    if not shards:
        raise MismatchError("nothing to merge: expected at least one shard")
    taken = sorted(shard for part in shards for shard in part.data.shards)
    twice = {shard for shard in taken if taken.count(shard) > 1}
    if twice and len({number for _, number in taken}) == 1:
        raise MismatchError(f"shards overlap: {sorted(twice)} came more than once; drop the copies")
    whole = joined(shards)
    whole = replace(whole, data=replace(whole.data, shards=tuple(taken)))
    if whole.complete:  # which it was kept for
        whole = replace(whole, data=replace(whole.data, first=None))
    return whole if keep_sums or not whole.complete else whole.without_sums()


def joined(parts: Sequence[Representation]) -> Representation:
    """What one pass over the blocks of all parts gives, with the accumulators.

    Which shards are in is said as the first part says it.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    for other in parts[1:]:
        _refuse_unmergeable(first, other)
    numbers = [number for part in parts for number in part.block_numbers]
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    sizes = [size for part in parts for size in part.block_sizes]
    samples = sum(part.samples for part in parts)
    with_blocks = [part for part in parts if part.block_sizes] or parts[:1]
    return replace(
        first,
        layers=tuple(_merged(same, order, samples) for same in zip(*parts, strict=True)),
        samples=samples,
        data=replace(
            first.data,
            fingerprint=_added([part.data.fingerprint for part in parts]) or "",
            content=_added([part.data.content for part in parts]),
            labels=_added([part.data.labels for part in parts]),
            skipped=sum(part.data.skipped for part in parts),
        ),
        block_sizes=tuple(sizes[i] for i in order),
        block_numbers=tuple(numbers[i] for i in order),
        block_hashes=_in_order([part.block_hashes for part in parts], order),
        label_hashes=_in_order([part.label_hashes for part in parts], order),
        rows=_rows([part.rows for part in with_blocks], order),
        outputs=outputs.joined(
            [part.outputs for part in with_blocks], _order_of_rows(sizes, order)
        ),
    )


def _merged(same: Sequence[Layer], order: Sequence[int], samples: int) -> Layer:
    """One layer from its shards; `order` is that of their blocks, one shard after the other."""
    first = same[0]
    kinds = {
        kind: _merged_kind([layer.recorded(kind) for layer in same], order, samples)
        for kind in first.kinds
    }
    each = [astuple(layer.products) for layer in same if layer.products is not None]
    return replace(
        first,
        products=Products(*(sum(values) for values in zip(*each, strict=True))) if each else None,
        signs=_total([layer.signs for layer in same]),
        sketch_signs=_total([layer.sketch_signs for layer in same]),
        **kinds,  # type: ignore[arg-type]
    )


def _folds(rep: Representation) -> str:
    """In which of two ways: recordings without sketches are from before they changed."""
    return "as in version 0.1" if rep[0].features.sketch is None else "as since version 0.2"


def _added(hashes: Sequence[str | None]) -> str | None:
    """The sum of hashes of samples; None if one is not known."""
    known = [int(one, 16) for one in hashes if one is not None]
    return f"{sum(known) % 2**64:016x}" if len(known) == len(hashes) else None


def _in_order(
    hashes: Sequence[tuple[str, ...] | None], order: Sequence[int]
) -> tuple[str, ...] | None:
    known = [one for part in hashes if part is not None for one in part]
    return None if any(part is None for part in hashes) else tuple(known[i] for i in order)


def _order_of_rows(sizes: Sequence[int], order: Sequence[int]) -> Tensor:
    """The rows of blocks one after the other, in another order of blocks."""
    blocks = torch.arange(sum(sizes)).split(list(sizes))
    return torch.cat([blocks[i] for i in order]) if blocks else torch.arange(0)


def _rows(parts: Sequence[TokenRows | None], order: Sequence[int]) -> TokenRows | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    sequence, position = (
        torch.cat([getattr(part, name) for part in known])[list(order)]
        for name in ("sequence", "position")
    )
    return TokenRows(sequence, position)


def _total(parts: Sequence[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.stack(known).sum(0) if len(known) == len(parts) else None


def _merged_kind(parts: Sequence[Recorded], order: Sequence[int], samples: int) -> Recorded:
    tables = _total([part.sketch.table if part.sketch else None for part in parts])
    totals = _total([part.sketch.total if part.sketch else None for part in parts])
    out = Recorded(
        sum(part.trace for part in parts),
        norms=_filled([part.norms for part in parts]),
        sketch=None if tables is None or totals is None else Sketch(tables, totals),
    )
    blocks = [x for x in (part.blocks for part in parts) if x is not None]
    sums = [(x.buckets, x.total) for x in (part.sums for part in parts) if x is not None]
    if blocks:
        offset = None
        if any(x.offset is not None for x in blocks):
            given = [torch.zeros_like(x.diagonal) if x.offset is None else x.offset for x in blocks]
            offset = torch.cat(given)[list(order)]
        triangle, diagonal = (
            torch.cat([getattr(x, name) for x in blocks])[list(order)]
            for name in ("triangle", "diagonal")
        )
        out = replace(out, blocks=Blocks(triangle, diagonal, offset))
    if sums:
        table, total = (torch.stack(values).sum(0) for values in zip(*sums, strict=True))
        *kernel, norm = bucket_kernel(table, total, samples)
        out = replace(out, sums=Sums(table, total), buckets=Buckets(*kernel, mean_norm=float(norm)))
    return out


def _filled(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Norms by place in the order, each from the shard that saw the sample."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    out = torch.full((max(map(len, known)),), torch.nan)
    for part in known:
        out[: len(part)] = torch.where(part.isnan(), out[: len(part)], part)
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
        ("dtype of the weights", a.made.dtype, b.made.dtype),
        ("autocast", a.made.autocast, b.made.autocast),
        ("model weights", a.model.fingerprint, b.model.fingerprint),
        ("layers", a.layer_names, b.layer_names),
        ("how wide layers were folded", _folds(a), _folds(b)),
        ("shapes of layers", [layer.shape for layer in a], [layer.shape for layer in b]),
        ("number of shards", a.data.shards[0][1], b.data.shards[0][1]),
        ("samples in all", a.data.total, b.data.total),
        ("data_id", a.data.id, b.data.id),
        ("order", a.data.order, b.data.order),
    ]
    if a.model.weights and b.model.weights:  # not in older files
        pairs.append(("model weights", a.model.weights, b.model.weights))
    if a.data.first and b.data.first:
        pairs.append(("the first samples of the data", a.data.first, b.data.first))
    if a.block_sizes and b.block_sizes:  # of which predictions are kept
        one, two = ("left out" if part.outputs is None else "kept" for part in (a, b))
        pairs.append(("what the network predicts", one, two))
    for what, left, right in pairs:
        if left != right:
            raise MismatchError(
                f"these are not shards of one pass: {what} differs, {left!r} and {right!r}; "
                "record them again with the same model, data and settings"
            )
