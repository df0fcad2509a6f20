"""Merging: `merge` makes one Representation from parts of a pass recorded separately.

Accumulators add up and blocks are concatenated; bucket kernels do neither and are recomputed from
the merged accumulators. Shards, the ranks of a distributed job and the parts of a resumed pass are
all combined with `join_parts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, astuple, replace
from typing import TypeVar

import torch
from torch import Tensor

from .._ops.count_sketch import bucket_kernel
from ..errors import MismatchError
from .embeddings import Embeddings, join_embeddings
from .layer import Blocks, Buckets, Layer, Products, Recorded, Sketch
from .outputs import join_outputs
from .representation import (
    Representation,
    RepresentationLike,
    TokenRows,
    as_representations,
    settings_agree,
)

T = TypeVar("T")
U = TypeVar("U")


def merge(parts: Iterable[RepresentationLike], *, keep_sums: bool = False) -> Representation:
    """One Representation from shards recorded apart, or from their files, in any order.

    Accumulators add and blocks concatenate, so the result is what one pass over all of the data
    gives, to float round-off; but for up to 1,024 samples, of which one pass keeps the whole
    kernel. It keeps the accumulators while shards are missing.

    Args:
        parts: Representations of shards, or paths of their files.
        keep_sums: keep the accumulators of a complete result as well.

    Returns:
        The Representation of all samples in the shards.

    Raises:
        MismatchError: if shards overlap, belong to different passes, or hold other blocks or
            numbers of samples than shards of this data set do.
    """
    shards = sorted(as_representations(parts), key=lambda part: part.data.shards)
    if not shards:
        raise MismatchError("nothing to merge: expected at least one shard")
    taken = sorted(shard for part in shards for shard in part.data.shards)
    twice = {shard for shard in taken if taken.count(shard) > 1}
    if twice and len({number for _, number in taken}) == 1:
        raise MismatchError(
            f"shards overlap: {sorted(twice)} appear more than once; remove the duplicates"
        )
    for part in shards:
        _refuse_miscounted(part)
    whole = join_parts(shards)
    whole = replace(whole, data=replace(whole.data, shards=tuple(taken)))
    if whole.complete:  # which it was kept for
        whole = replace(whole, data=replace(whole.data, first=None))
    return whole if keep_sums or not whole.complete else whole.without_sums()


def join_parts(parts: Sequence[Representation]) -> Representation:
    """What one pass over the blocks of all parts gives, with the accumulators.

    Which shards are in is said as the first part says it.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    for other in parts[1:]:
        _refuse_unmergeable(first, other)
    numbers = [number for part in parts for number in part.block_numbers]
    if len(set(numbers)) < len(numbers):
        twice = next(number for number in numbers if numbers.count(number) > 1)
        raise MismatchError(
            f"block {twice} of {first.name!r} is in more than one shard; merge every block once"
        )
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    sizes = [size for part in parts for size in part.block_sizes]
    samples = sum(part.samples for part in parts)
    with_blocks = [part for part in parts if part.block_sizes] or parts[:1]
    rows = torch.arange(sum(sizes)).split(sizes)

    def by_block(each: Sequence[Sequence[T]]) -> tuple[T, ...]:
        flat = [one for part in each for one in part]
        return tuple(flat[i] for i in order)

    def token_rows(each: Sequence[TokenRows]) -> TokenRows:
        sequence, position = ([getattr(x, name) for x in each] for name in ("sequence", "position"))
        return TokenRows(torch.cat(sequence)[order], torch.cat(position)[order])

    return replace(
        first,
        layers=tuple(_merge_layer(same, order, samples) for same in zip(*parts, strict=True)),
        samples=samples,
        data=replace(
            first.data,
            fingerprint=_add_hashes([part.data.fingerprint for part in parts]),
            content=_if_all([part.data.content for part in parts], _add_hashes),
            labels=_if_all([part.data.labels for part in parts], _add_hashes),
            skipped=sum(part.data.skipped for part in parts),
        ),
        block_sizes=by_block([part.block_sizes for part in parts]),
        block_numbers=by_block([part.block_numbers for part in parts]),
        block_hashes=_if_all([part.block_hashes for part in parts], by_block),
        label_hashes=_if_all([part.label_hashes for part in parts], by_block),
        rows=_if_all([part.rows for part in with_blocks], token_rows),
        outputs=_join_embeddings(with_blocks)
        or join_outputs(
            [part.predictions for part in with_blocks],
            torch.cat([torch.arange(0), *by_block([rows])]),
        ),
    )


def _join_embeddings(parts: Sequence[Representation]) -> Embeddings | None:
    """The embeddings of all parts; None if one of them has none."""
    known = [part.embeddings for part in parts if part.embeddings is not None]
    if len(known) < len(parts):
        return None
    numbers, sizes = [part.block_numbers for part in parts], [part.block_sizes for part in parts]
    return join_embeddings(known, numbers, sizes, parts[0].settings.block)


def _if_all(parts: Sequence[T | None], join: Callable[[Sequence[T]], U]) -> U | None:
    """What the parts have, joined; None if one of them does not have it, as older files may."""
    known = [part for part in parts if part is not None]
    return join(known) if len(known) == len(parts) else None


def _add_up(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([*tensors]).sum(0)


def _add_hashes(hashes: Sequence[str]) -> str:
    return f"{sum(int(one, 16) for one in hashes) % 2**64:016x}"


def _merge_layer(same: Sequence[Layer], order: Sequence[int], samples: int) -> Layer:
    """One layer from its shards; `order` is that of their blocks, one shard after the other."""
    first = same[0]
    kinds = {
        kind: _merge_kind([layer.recorded(kind) for layer in same], order, samples)
        for kind in first.kinds
    }
    each = [astuple(layer.products) for layer in same if layer.products is not None]
    return replace(
        first,
        products=Products(*(sum(values) for values in zip(*each, strict=True))) if each else None,
        signs=_if_all([layer.signs for layer in same], _add_up),
        sketch_signs=_if_all([layer.sketch_signs for layer in same], _add_up),
        **kinds,  # type: ignore[arg-type]
    )


def _merge_kind(parts: Sequence[Recorded], order: Sequence[int], samples: int) -> Recorded:
    def blocks(each: Sequence[Blocks]) -> Blocks:
        triangle, diagonal = ([getattr(x, name) for x in each] for name in ("triangle", "diagonal"))
        offset = [torch.zeros_like(x.diagonal) if x.offset is None else x.offset for x in each]
        return Blocks(
            torch.cat(triangle)[order],
            torch.cat(diagonal)[order],
            torch.cat(offset)[order] if any(x.offset is not None for x in each) else None,
        )

    sums = _if_all([part.sums for part in parts], _add_sketches)
    buckets = None
    if sums is not None:
        *kernel, norm = bucket_kernel(sums.table, sums.total, samples)
        buckets = Buckets(*kernel, mean_norm=float(norm))
    return Recorded(
        sum(part.trace for part in parts),
        blocks=_if_all([part.blocks for part in parts], blocks),
        norms=_if_all([part.norms for part in parts], _merge_norms),
        sketch=_if_all([part.sketch for part in parts], _add_sketches),
        buckets=buckets,
        sums=sums,
    )


def _add_sketches(parts: Sequence[Sketch]) -> Sketch:
    return Sketch(_add_up([part.table for part in parts]), _add_up([part.total for part in parts]))


def _merge_norms(parts: Sequence[Tensor]) -> Tensor:
    """Norms by place in the order, each from the shard that saw the sample."""
    out = parts[0].new_full((max(map(len, parts)),), torch.nan)
    for part in parts:
        out[: len(part)] = torch.where(part.isnan(), out[: len(part)], part)
    return out


def _fold_version(rep: Representation) -> str:
    """In which of two ways: recordings without sketches are from before they changed."""
    return "as in version 0.1" if rep[0].features.sketch is None else "as since version 0.2"


def _outputs_kept(part: Representation) -> str:
    if part.outputs is None:
        return "left out"
    return "predictions kept" if part.embeddings is None else "embeddings kept"


def _refuse_miscounted(part: Representation) -> None:
    """An error if a part holds other blocks, or more or fewer samples, than its shards do."""
    data, settings, count = part.data, part.settings, part.data.shards[0][1]
    own = {i for i, _ in data.shards}
    strange = [n for n in part.block_numbers if n // settings.tokens % count not in own]
    if strange:
        raise MismatchError(
            f"block {strange[0]} of {part.name!r} does not belong to shards {sorted(own)} of "
            f"{count}: the file was changed, or written with wrong numbers; record it again"
        )
    if data.total is None:
        return
    sizes = [min(settings.block, data.total - i) for i in range(0, data.total, settings.block)]
    expected = sum(size for n, size in enumerate(sizes) if n % count in own)
    found = part.samples // settings.tokens + data.skipped
    if found != expected:
        raise MismatchError(
            f"{part.name!r} holds {found} samples, and shards {sorted(own)} of {count} of a data "
            f"set of {data.total} hold {expected}: the file was changed, or written with wrong "
            "numbers; record it again"
        )


def _refuse_unmergeable(a: Representation, b: Representation) -> None:
    """An error that names the first difference between two would-be shards of one pass."""
    for part in (a, b):
        if part.settings.buckets and not part.mergeable:
            raise MismatchError(
                f"{part.name!r} has no accumulators; record it with `shard=(i, n)` or "
                "`keep_sums=True`"
            )
    settings = zip(asdict(a.settings).items(), asdict(b.settings).values(), strict=True)
    pairs = [(f"setting {name}", left, right) for (name, left), right in settings]
    pairs += [
        ("dtype of the weights", a.made.dtype, b.made.dtype),
        ("autocast", a.made.autocast, b.made.autocast),
        ("model weights", a.model.fingerprint, b.model.fingerprint),
        ("layers", a.layer_names, b.layer_names),
        ("how wide layers were folded", _fold_version(a), _fold_version(b)),
        ("shapes of layers", [layer.shape for layer in a], [layer.shape for layer in b]),
        ("number of shards", a.data.shards[0][1], b.data.shards[0][1]),
        ("samples in all", a.data.total, b.data.total),
        ("data_id", a.data.id, b.data.id),
        ("order", a.data.order, b.data.order),
    ]
    known = [  # not in all files
        ("how logits are read", a.made.logits, b.made.logits),
        ("model weights", a.model.weights, b.model.weights),
        ("samples of the data", a.data.first, b.data.first),
    ]
    pairs += [(what, left, right) for what, left, right in known if left and right]
    if a.block_sizes and b.block_sizes:  # of which predictions are kept
        pairs.append(("what the network returns", _outputs_kept(a), _outputs_kept(b)))
    for what, left, right in pairs:
        if not settings_agree(left, right):
            raise MismatchError(
                f"these are not shards of one recording: {what} differs ({left!r} and {right!r}); "
                "record them again with the same model, data and settings"
            )
