"""`record_arrays`: a Representation of features and gradients that come from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .._data.batches import refuse_masked
from .._data.shares import Share
from .._data.sources import source
from .._given_words import check_words
from .._ops.device_choice import refuse_other_default
from .._whole_numbers import whole_number
from ..errors import DataError
from ..representation.provenance import DataInfo, Made, ModelInfo
from ..representation.representation import Representation
from .options import Keep
from .pass_sums import Handling, PassSums


def record_arrays(
    features: Mapping[str, Any] | Any,
    gradients: Mapping[str, Any] | Any | None = None,
    *,
    data_id: str,
    name: str = "arrays",
    target: str = "arrays",
    elementwise: bool = False,
    seed: int = 0,
    buckets: int = 512,
    per_sample: int = 1,
    block: int | Literal["auto"] = "auto",
    blocks: int = 64,
    max_dim: int | Literal["auto"] | None = "auto",
    batch_size: int = 128,
    shard: tuple[int, int] | None = None,
    keep_sums: bool = False,
    on_bad: Literal["raise", "skip"] = "raise",
) -> Representation:
    """A Representation from features and gradients that come from elsewhere (JAX, NumPy, disk).

    Args:
        features: one array (N, ...) or a mapping from layer names to such arrays, in order.
        gradients: the same for the gradients of each sample's loss at those features.
        data_id: names the samples: recordings with equal names and N are taken as made on the same
            samples, row by row.
        name, target: of the model and of the loss, for the provenance.

    The rest is as in `record`. Rows are read in chunks, so a memory-mapped file is never loaded
    whole.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(100, 5))
    >>> record_arrays(x, data_id="noise").layer_names
    ['features']
    """
    refuse_other_default()
    check_words(data_id=data_id, name=name, target=target)
    f = _by_layer(features)
    g = None if gradients is None else _by_layer(gradients)
    lengths = {key: len(value) for part in (f, g or {}) for key, value in part.items()}
    if not f or len(set(lengths.values())) != 1:
        raise DataError(f"expected arrays of one length, found {lengths or 'none'}")
    shapes = [{key: tuple(value.shape) for key, value in part.items()} for part in (f, g or f)]
    if list(shapes[0].items()) != list(shapes[1].items()):
        raise DataError(
            "expected gradients of the same layers and shapes as the features, found "
            f"{shapes[1]} for {shapes[0]}"
        )
    total = next(iter(lengths.values()))
    batch_size = whole_number("batch_size", batch_size, 1)
    keep = Keep(seed, buckets, per_sample, block, blocks, max_dim, elementwise, shard, keep_sums)
    aim = "none" if g is None else target
    rows, share = source(np.arange(total), seed=keep.seed, block=keep.block), Share(keep.share)
    rows.check(share)
    settings = keep.settings(rows.block, "flatten", aim, None)
    few = keep.few(total, rows.block)
    sums = PassSums(settings, list(f), Handling(on_bad=on_bad, data_id=data_id), few=few)
    for batch in rows.batches(batch_size, share):
        sums.begin(batch, batch.samples)
        for i, key in enumerate(f):
            at = batch.samples
            sums.consume(i, _rows(f[key], at), None if g is None else _rows(g[key], at))
        sums.end()
    return sums.result(
        model=ModelInfo(name, fingerprint=None, parameters=None),
        data=DataInfo(data_id, total, "seeded", (keep.share,)),
        made=Made.now(dtype=str(next(iter(f.values())).dtype)),
        keep_sums=keep.sums,
    )


def _by_layer(given: Any) -> dict[str, Any]:
    """Arrays by the name of their layer, each of real numbers, with a row a sample."""
    named = given if isinstance(given, Mapping) else {"features": given}
    check_words(**{f"the name of layer {i}": name for i, name in enumerate(named)})
    return {name: _real(name, array) for name, array in named.items()}


def _real(name: str, array: Any) -> Any:
    if not hasattr(array, "dtype") or hasattr(array, "to_numpy"):  # a list, or a table of pandas
        try:
            array = np.asarray(array)
        except ValueError as error:
            raise DataError(f"{name!r}: expected rows of one length ({error})") from error
    refuse_masked(array)
    dtype, shape = array.dtype, tuple(array.shape)
    if getattr(dtype, "kind", "") in tuple("cOSUMm") or getattr(dtype, "is_complex", False):
        raise DataError(
            f"{name!r}: expected real numbers, found {dtype}; convert them, complex ones to pairs "
            "of real and imaginary parts"
        )
    sparse = hasattr(array, "toarray") or getattr(array, "is_sparse", False)
    if not shape or 0 in shape[1:] or sparse:
        what = f"a sparse {type(array).__name__}" if sparse else f"shape {shape}"
        raise DataError(f"{name!r}: expected a dense array (N, ...) with features, found {what}")
    return array


def _rows(array: Any, rows: Tensor) -> Tensor:  # -> (n, d) in float32
    """Some rows of a NumPy, torch or JAX array, or of a memory-mapped file."""
    picked = array[rows] if isinstance(array, Tensor) else array[rows.numpy()]
    if not isinstance(picked, Tensor):
        picked = torch.from_numpy(np.array(picked, dtype=np.float32))
    picked = picked.detach().cpu().float()
    return picked.flatten(1) if picked.ndim > 1 else picked[:, None]
