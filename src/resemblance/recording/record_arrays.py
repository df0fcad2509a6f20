"""Array recording: `record_arrays` makes a Representation of what was computed elsewhere.

Features, gradients and outputs may come from JAX, NumPy or memory-mapped files, and outputs alone
are enough to compare and check predictions. Rows are those of all samples in the order of the data,
or with `like` those of another recording's blocks, in that recording's order.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from .._data.batches import check_unmasked
from .._data.load_data import load_named_arrays
from .._data.make_source import make_source
from .._data.sources import Batch, Piece, SampledTokens, Share, split_into_batches
from .._models.embeddings import EmbeddingsReader, find_embeddings_reader
from .._models.logits import Logits, LogitsCheck, LogitsReader
from .._models.runtimes.runtime import OUTPUTS
from .._ops.devices import require_cpu_default_device
from .._utils.validation import check_integer, check_nonempty_strings
from ..errors import DataError, TargetError
from ..representation.representation import (
    DataInfo,
    Made,
    ModelInfo,
    Representation,
    RepresentationLike,
    Settings,
    as_representation,
)
from .accumulators import Accumulators, Origin
from .config import RecordConfig
from .output_summary import EmbeddingSummary, OutputSummary


def record_arrays(
    features: Mapping[str, Any] | Any | None = None,
    gradients: Mapping[str, Any] | Any | None = None,
    *,
    outputs: Any = None,
    labels: Any = None,
    logits: Logits = "auto",
    data_id: str | None = None,
    like: RepresentationLike | None = None,
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
        outputs: what the network returned for each sample (N, classes), or for each label; or the
            embedding of each sample (N, d).
        labels: the right class of each sample (N,), or multi-hot rows (N, labels).
        logits: what the outputs are, as in `record`; embeddings need `"none"` unless they have
            length one.
        data_id: name of the samples: recordings with equal names and N count as made on the same
            samples, row by row. Either this or `like` is needed.
        like: a recording, or the path of its file, whose samples these are: row i is of the i-th
            sample, or token, of its `sample_numbers`. The numbers of rows and of classes are
            checked, and labels if both have them; that rows are in this order cannot be. Seed,
            blocks, buckets and target are those of that recording.
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
        DataError: if arrays differ in length or shape, do not hold real numbers, or are not as
            many as `like` has rows.
        TargetError: if outputs are not what `logits` says.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(100, 5))
        >>> record_arrays(x, data_id="noise").layer_names
        ['features']
    """
    options = dict(locals())
    require_cpu_default_device()
    check_nonempty_strings(name=name, target=target)
    if (data_id is None) == (like is None):
        raise DataError(
            "arrays need `data_id`, the name of their samples, or `like`, the recording whose "
            f"samples they are of; found {'neither' if like is None else 'both'}"
        )
    if features is None and outputs is None:
        raise DataError("expected features or outputs, found neither")
    f = _arrays_by_layer({OUTPUTS: outputs} if features is None else features)
    g = None if gradients is None else _arrays_by_layer(gradients)
    predicted = _Predictions(outputs, labels, LogitsReader(logits))
    total = _count_rows(f, g, predicted.arrays)
    batch_size = check_integer("batch_size", batch_size, 1)
    if like is None:
        assert data_id is not None
        config = RecordConfig(
            gradients=g is not None, elementwise=elementwise, seed=seed, buckets=buckets,
            per_sample=per_sample, block=block, blocks=blocks, max_dim=max_dim, shard=shard,
            keep_sums=keep_sums, on_bad=on_bad, data_id=data_id,
        )  # fmt: skip
        rows = _all_rows(total, config, "none" if g is None else target, batch_size)
    else:
        _refuse_beside_like(options)
        base = as_representation(like)
        rows = _rows_like(base, batch_size, gradients=g is not None, elementwise=elementwise)
        _check_like(base, total, predicted.arrays, only_outputs=features is None)
    origin = Origin(
        lambda: ModelInfo(name, fingerprint=None, parameters=None),
        rows.data,
        Made.now(
            dtype=str(next(iter(f.values())).dtype),
            logits=None if outputs is None else predicted.how_read,
        ),
    )
    sums = Accumulators(
        rows.config,
        rows.settings,
        list(f),
        origin,
        keep_sums=rows.config.sums,
        outputs=predicted.summary(rows.base, rows.settings),
    )
    for batch in rows.batches:
        chosen = batch.samples.reshape(len(batch.samples), -1).T.flatten()  # as `Rows` has them
        batch = replace(batch, samples=predicted.with_labels(batch))
        sums.begin(batch, chosen)
        if outputs is not None:
            sums.see(predicted.rows(batch.samples, chosen))
        for i, key in enumerate(f):
            gradient = None if g is None else _select_rows(g[key], chosen)
            sums.consume(i, _select_rows(f[key], chosen), gradient)
        sums.end()
    predicted.end()
    rep = sums.result()
    assert rep is not None  # each shard has a block
    return rep if rows.base is None else _as_if_recorded_with(rows.base, rep)


def _count_rows(
    f: Mapping[str, Any], g: Mapping[str, Any] | None, predicted: Mapping[str, Any]
) -> int:
    """How many rows all arrays have, or an error if they do not belong together."""
    parts = (f, g or {}, predicted)
    lengths = {key: len(value) for part in parts for key, value in part.items()}
    if not f or len(set(lengths.values())) != 1:
        raise DataError(f"expected arrays of equal length, found {lengths or 'none'}")
    shapes = [{key: tuple(value.shape) for key, value in part.items()} for part in (f, g or f)]
    if list(shapes[0].items()) != list(shapes[1].items()):
        raise DataError(
            "expected gradients of the same layers and shapes as the features, found "
            f"{shapes[1]} for {shapes[0]}"
        )
    return next(iter(lengths.values()))


@dataclass(frozen=True)
class _Rows:
    """Which rows are read when, and what the recording says of them."""

    config: RecordConfig
    settings: Settings
    data: DataInfo
    batches: Iterable[Batch]  # whose samples are numbers of rows: (n,), or (n, tokens)
    base: Representation | None = None  # whose rows they are


def _all_rows(total: int, config: RecordConfig, target: str, batch_size: int) -> _Rows:
    """All rows, in the seeded order."""
    source = make_source(np.arange(total), seed=config.seed, block=config.block)
    share = Share(config.share)
    source.check(share)
    settings = replace(config.settings(source.block, target), beta=None)  # the loss is not known
    data = DataInfo(config.data_id, total, "seeded", (config.share,))
    return _Rows(config, settings, data, source.batches(batch_size, share))


# -- the rows of another recording ----------------------------------------------------------------

_FROM_BASE = (
    "seed", "buckets", "per_sample", "block", "blocks", "max_dim", "shard", "keep_sums", "on_bad",
    "target",
)  # fmt: skip


def _refuse_beside_like(options: Mapping[str, Any]) -> None:
    defaults = inspect.signature(record_arrays).parameters
    for option in _FROM_BASE:
        if options[option] != defaults[option].default:
            raise DataError(f"`{option}` is taken from the recording in `like`; omit it")


def _check_like(
    base: Representation, total: int, arrays: Mapping[str, Any], *, only_outputs: bool
) -> None:
    """What can be checked of arrays that are said to be of a recording's samples."""
    expected = sum(base.block_sizes)
    if total != expected:
        raise DataError(
            f"expected {expected:,} rows, one for each {base.settings.unit} that `resemblance "
            f"samples` lists of {base.name!r}; found {total:,}"
        )
    if base.samples > expected and not only_outputs:
        raise DataError(
            f"{base.name!r} was recorded on {base.samples:,} {base.settings.unit}s, of which its "
            f"blocks contain {expected:,}: enough for outputs, but not for features; record it on "
            "fewer samples"
        )
    known = base.predictions
    if known is not None and "outputs" in arrays:
        columns = math.prod(arrays["outputs"].shape[1:])
        if columns != known.classes:
            raise DataError(
                f"'outputs': expected {known.classes:,} columns, as {base.name!r} has as many "
                f"classes; found {columns:,}"
            )
    if "labels" not in arrays:
        return
    if known is None or known.labels is None:
        if base.settings.unit == "token":
            raise DataError(f"labels of tokens are taken from `like`, and {base.name!r} has none")
        return
    labels = _pick(arrays["labels"], torch.arange(total)).reshape(known.labels.shape)
    if wrong := int(((labels != known.labels) & (known.labels >= 0)).sum()):
        raise DataError(
            f"{wrong:,} of {known.labels.numel():,} labels differ from those of {base.name!r}: "
            "rows must come in the order that `resemblance samples` lists"
        )


def _rows_like(
    base: Representation, batch_size: int, *, gradients: bool, elementwise: bool
) -> _Rows:
    """The rows of a recording's blocks, in their order."""
    check_known_samples(base)
    settings = base.settings
    target = settings.target if settings.gradients else "arrays"
    settings = replace(
        settings,
        target=target if gradients else "none",
        beta=settings.beta if gradients else None,
        elementwise=elementwise,
    )
    if base.samples > sum(base.block_sizes):  # buckets are of all samples
        settings = replace(settings, buckets=0, per_sample=1, max_dim=None)
    config = RecordConfig(
        gradients=gradients, elementwise=elementwise, seed=settings.seed, data_id=base.data.id
    )
    return _Rows(config, settings, base.data, _batches_like(base, batch_size), base)


def check_known_samples(base: Representation) -> None:
    """An error if it is not known which samples a recording's blocks hold."""
    if not base.complete or not base.block_sizes or (base.sample_numbers()["index"] < 0).any():
        raise DataError(
            f"it is not known which samples {base.name!r} holds: it was recorded without blocks, "
            "with samples skipped or known by keys, or in shards that are not merged"
        )


def _batches_like(base: Representation, batch_size: int) -> Iterator[Batch]:
    """Batches of a recording's blocks; of tokens those of one run of sequences together."""
    tokens, start = base.settings.tokens, 0
    numbers = base.sample_numbers()
    for number, size in zip(base.block_numbers[::tokens], base.block_sizes[::tokens], strict=True):
        rows = np.arange(start, start + tokens * size).reshape(tokens, size).T  # (n, tokens)
        start += rows.size
        window = Piece(number // tokens, np.arange(size))
        for (piece,) in split_into_batches([window], max(1, batch_size // tokens)):
            some, drawn = rows[piece.indices], None
            if base.rows is not None:
                positions = numbers["position"][some]
                drawn = SampledTokens(positions, int(positions.max()) + 1)
            piece = replace(piece, indices=numbers["index"][some[:, 0]])
            yield Batch([piece], torch.from_numpy(some), drawn)


def _as_if_recorded_with(base: Representation, rep: Representation) -> Representation:
    """A recording of another's rows with that one's samples, labels and number of samples."""
    outputs, known = rep.outputs, base.predictions
    if rep.predictions is not None and known is not None and known.labels is not None:
        outputs = replace(rep.predictions, labels=known.labels)
    if base.samples > rep.samples:  # sums are of all samples, of which the rows are a random part
        scale = base.samples / rep.samples
        layers = (
            replace(
                layer,
                features=replace(
                    layer.features, trace=layer.features.trace * scale, norms=None, sketch=None
                ),
                sketch_signs=None,
            )
            for layer in rep.layers
        )
        rep = replace(rep, layers=tuple(layers), samples=base.samples)
    return replace(
        rep,
        data=base.data,
        block_hashes=base.block_hashes,
        label_hashes=base.label_hashes,
        outputs=outputs,
    )


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
        self._embeddings = None if outputs is None else self._embeddings_reader()

    def _embeddings_reader(self) -> EmbeddingsReader | None:
        """What reads embeddings, by the first rows; None if the outputs are predictions."""
        few = self._vectors(torch.arange(min(_FIRST_ROWS, len(self.arrays["outputs"]))))
        reader = find_embeddings_reader(self.reader, few, len(few), "flatten")
        if reader is None and self.reader.option == "none":
            raise DataError(
                '`logits="none"` treats outputs as embeddings: expected an array (N, d) of two '
                f"dimensions or more, found shape {tuple(self.arrays['outputs'].shape)}; omit the "
                "outputs, or set `logits` to what they are"
            )
        return reader

    def _vectors(self, rows: Tensor) -> Tensor:  # (n, d)
        found = _pick(self.arrays["outputs"], rows)
        return found if found.is_floating_point() else found.float()

    @property
    def how_read(self) -> str:
        """The option `logits` as files keep it."""
        return self.reader.name if self._embeddings is None else "none"

    def summary(
        self, base: Representation | None, settings: Settings
    ) -> Callable[[], OutputSummary | EmbeddingSummary] | None:
        """What makes the store of outputs; None if there are none."""
        if "outputs" not in self.arrays:
            return None
        if self._embeddings is not None:
            return functools.partial(EmbeddingSummary, settings.block)
        flags: dict[str, Any] = {"independent": self.reader.independent, "seed": settings.seed}
        return functools.partial(OutputSummary, base, **flags)

    def with_labels(self, batch: Batch) -> Any:
        """The numbers of a batch's rows, with their labels if there are any."""
        rows = batch.samples
        if "labels" not in self.arrays or batch.drawn is not None:
            return rows
        return rows, _pick(self.arrays["labels"], rows.flatten())

    def rows(self, batch: Any, rows: Tensor) -> Tensor:  # (n, classes) or (n, d)
        """Embeddings or logits of some rows, or an error if they are not what the option says."""
        if self._embeddings is not None:
            return self._vectors(rows)
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


_FIRST_ROWS = 32  # which show whether outputs are embeddings


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
