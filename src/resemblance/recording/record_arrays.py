"""Array recording: `record_arrays` makes a Representation of what was computed elsewhere.

Features, gradients and outputs may come from JAX, NumPy or memory-mapped files, and outputs alone
are enough to compare and check predictions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from .._data.batches import check_unmasked
from .._data.load_data import load_named_arrays
from .._data.make_source import make_source
from .._data.sources import Share
from .._models.logits import Logits, LogitsCheck, LogitsReader
from .._models.runtimes.runtime import OUTPUTS
from .._ops.devices import require_cpu_default_device
from .._utils.validation import check_integer, check_nonempty_strings
from ..errors import DataError, TargetError
from ..representation.representation import DataInfo, Made, ModelInfo, Representation
from .accumulators import Accumulators, Origin
from .config import RecordConfig
from .output_summary import OutputSummary


def record_arrays(
    features: Mapping[str, Any] | Any | None = None,
    gradients: Mapping[str, Any] | Any | None = None,
    *,
    outputs: Any = None,
    labels: Any = None,
    logits: Logits = "auto",
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
    """Record features, gradients or outputs that were computed elsewhere (JAX, NumPy, files).

    Rows are read in chunks, so a memory-mapped file is never loaded as a whole. Outputs alone
    are enough for `behaviour`, `flips`, `copies` and the thresholds of `check` on predictions; they
    are then the one layer of the recording as well, named `outputs`.

    Args:
        features: an array (N, ...), or a mapping from layer names to such arrays, in order.
        gradients: the same for the gradients of each sample's loss at those features.
        outputs: what the network returned for each sample (N, classes), or for each label.
        labels: the right class of each sample (N,), or multi-hot rows (N, labels).
        logits: what the outputs are, as in `record`.
        data_id: name of the samples: recordings with equal names and N count as made on the same
            samples, row by row.
        name: name of the model.
        target: name of the loss that gradients are of.
        elementwise: whether to record the kernel of f ∘ g as well.
        seed: seed of the order, the sketch and the fold; only recordings of one seed are compared.
        buckets: number of buckets of the CountSketch; 0 records none.
        per_sample: number of buckets that each sample is added to.
        block: samples per block, as in `record`.
        blocks: largest number of blocks; 0 records none.
        max_dim: layers wider than this are folded before they are sketched, as in `record`.
        batch_size: rows read at a time.
        shard: `(i, n)` records every n-th block from the i-th on, for `merge`.
        keep_sums: whether to keep the accumulators, as a shard does.
        on_bad: `"raise"` stops at the first row with NaN or Inf; `"skip"` skips such rows.

    Returns:
        The recording.

    Raises:
        DataError: if arrays differ in length or shape, or do not hold real numbers.
        TargetError: if outputs are not what `logits` says.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(100, 5))
        >>> record_arrays(x, data_id="noise").layer_names
        ['features']
    """
    require_cpu_default_device()
    check_nonempty_strings(data_id=data_id, name=name, target=target)
    if features is None and outputs is None:
        raise DataError("expected features or outputs, found neither")
    f = _arrays_by_layer({OUTPUTS: outputs} if features is None else features)
    g = None if gradients is None else _arrays_by_layer(gradients)
    predicted = _Predictions(outputs, labels, LogitsReader(logits))
    parts = (f, g or {}, predicted.arrays)
    lengths = {key: len(value) for part in parts for key, value in part.items()}
    if not f or len(set(lengths.values())) != 1:
        raise DataError(f"expected arrays of one length, found {lengths or 'none'}")
    shapes = [{key: tuple(value.shape) for key, value in part.items()} for part in (f, g or f)]
    if list(shapes[0].items()) != list(shapes[1].items()):
        raise DataError(
            "expected gradients of the same layers and shapes as the features, found "
            f"{shapes[1]} for {shapes[0]}"
        )
    total = next(iter(lengths.values()))
    batch_size = check_integer("batch_size", batch_size, 1)
    config = RecordConfig(
        gradients=g is not None, elementwise=elementwise, seed=seed, buckets=buckets,
        per_sample=per_sample, block=block, blocks=blocks, max_dim=max_dim, shard=shard,
        keep_sums=keep_sums, on_bad=on_bad, data_id=data_id,
    )  # fmt: skip
    share = Share(config.share)
    rows = make_source(np.arange(total), seed=config.seed, block=config.block)
    rows.check(share)
    settings = config.settings(rows.block, "none" if g is None else target)
    settings = replace(settings, beta=None)  # of the arrays' own loss nothing is known
    origin = Origin(
        lambda: ModelInfo(name, fingerprint=None, parameters=None),
        DataInfo(data_id, total, "seeded", (config.share,)),
        Made.now(
            dtype=str(next(iter(f.values())).dtype),
            logits=None if outputs is None else predicted.reader.name,
        ),
    )
    sums = Accumulators(
        config,
        settings,
        list(f),
        origin,
        keep_sums=config.sums,
        outputs=predicted.summary(config.seed),
    )
    for batch in rows.batches(batch_size, share):
        chosen = batch.samples
        batch = replace(batch, samples=predicted.with_labels(chosen))
        sums.begin(batch, chosen)
        if outputs is not None:
            sums.see(predicted.logits(batch.samples, chosen))
        for i, key in enumerate(f):
            gradient = None if g is None else _select_rows(g[key], chosen)
            sums.consume(i, _select_rows(f[key], chosen), gradient)
        sums.end()
    predicted.end()
    rep = sums.result()
    assert rep is not None  # each shard has a block
    return rep


def arrays_in_file(path: Path) -> dict[str, Any]:
    """What `record_arrays` takes, from an .npz or .safetensors file.

    Its arrays are named `outputs`, `labels`, `features` or `features.LAYER`, and likewise of
    gradients.
    """
    found: dict[str, Any] = {}
    for name, array in load_named_arrays(path).items():
        kind, _, layer = name.partition(".")
        if kind in ("features", "gradients"):
            found.setdefault(kind, {})[layer or "features"] = array
        elif name in ("outputs", "labels"):
            found[name] = array
        else:
            raise DataError(
                f"{path} holds {name!r}; expected outputs, labels, features.LAYER and "
                "gradients.LAYER"
            )
    return found


class _Predictions:
    """Outputs and labels of arrays, read batch by batch and checked as those of a network are."""

    def __init__(self, outputs: Any, labels: Any, reader: LogitsReader) -> None:
        given = {"outputs": outputs, "labels": labels}
        self.arrays = {key: _check_array(key, x) for key, x in given.items() if x is not None}
        self.reader = reader
        self._check: LogitsCheck | None = None
        self._began = False

    def summary(self, seed: int) -> Callable[[], OutputSummary] | None:
        """What makes the store of predictions; None if there are no outputs."""
        if "outputs" not in self.arrays:
            return None
        return functools.partial(OutputSummary, independent=self.reader.independent, seed=seed)

    def with_labels(self, rows: Tensor) -> Any:
        """A batch of these rows, with their labels if there are any."""
        return (rows, _pick(self.arrays["labels"], rows)) if "labels" in self.arrays else rows

    def logits(self, batch: Any, rows: Tensor) -> Tensor:  # (n, classes)
        """The logits of some rows, or an error if they are not what the option says."""
        outputs = _pick(self.arrays["outputs"], rows)
        z = self.reader(outputs)
        if z.shape[1] > 1:
            raise DataError(
                "'outputs': expected one prediction for each sample, (N, classes), found shape "
                f"{tuple(self.arrays['outputs'].shape)}"
            )
        if not self._began:
            self._began = True
            objection = self.reader.objection(nn.Module(), batch, outputs, (), final=False)
            if objection is not None:
                raise TargetError(objection.message)
            self._check = self.reader.check(outputs, ())
        if self._check is not None:
            self._check.judge(len(z), [self._check.evidence(z[:, 0])])
        return z[:, 0]

    def end(self) -> None:
        if self._check is not None:
            self._check.end()


def _arrays_by_layer(given: Any) -> dict[str, Any]:
    """Arrays by the name of their layer, each of real numbers, with a row a sample."""
    named = given if isinstance(given, Mapping) else {"features": given}
    check_nonempty_strings(**{f"the name of layer {i}": name for i, name in enumerate(named)})
    return {name: _check_array(name, array) for name, array in named.items()}


def _check_array(name: str, array: Any) -> Any:
    if not hasattr(array, "dtype") or hasattr(array, "to_numpy"):  # a list, or a table of pandas
        try:
            array = np.asarray(array)
        except ValueError as error:
            raise DataError(f"{name!r}: expected rows of one length ({error})") from error
    check_unmasked(array)
    dtype, shape = array.dtype, tuple(array.shape)
    if getattr(dtype, "kind", "") in tuple("cOSUMm") or getattr(dtype, "is_complex", False):
        raise DataError(
            f"{name!r}: expected real numbers, found {dtype}; convert them, complex ones to pairs "
            "of real and imaginary parts"
        )
    tensor = isinstance(array, Tensor)
    sparse = hasattr(array, "toarray") or (tensor and array.layout != torch.strided)
    meta = tensor and array.is_meta
    if not shape or 0 in shape[1:] or sparse or meta:
        what = f"a sparse {type(array).__name__}" if sparse else f"shape {shape}"
        what = "a tensor on the meta device, which holds no values" if meta else what
        raise DataError(f"{name!r}: expected a dense array (N, ...) with features, found {what}")
    return array


def _pick(array: Any, rows: Tensor) -> Tensor:  # -> (n, ...) in its own precision
    if isinstance(array, Tensor):
        return array[rows].detach().cpu()
    picked = np.array(array[rows.numpy()])
    known = picked.dtype.kind in "biuf" and picked.dtype.itemsize <= 8 and picked.dtype.isnative
    return torch.from_numpy(picked if known else picked.astype(np.float32))


def _select_rows(array: Any, rows: Tensor) -> Tensor:  # -> (n, d) in float32
    """Some rows of a NumPy, torch or JAX array, or of a memory-mapped file."""
    picked = _pick(array, rows).float()
    return picked.flatten(1) if picked.ndim > 1 else picked[:, None]
