"""`record`: one streaming pass over a model makes a Representation.

The pass draws samples in a seeded random order, runs one forward and one activation-only backward
for each batch, and adds every layer's features and gradients to blocks, buckets and moments.
`record_arrays` does the same for features and gradients that come from elsewhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._data import sources
from .._data.batches import is_padded, run_by_convention, size, to_device
from .._model import batch_size as batch_sizes
from .._model import losses as targets
from .._model import pooling
from .._model.call_trace import trace
from .._model.capture import Capture
from .._model.layer_choice import select
from .._model.left_as_found import untouched, unwrap
from .._model.weight_hash import of_weights
from .._ops.count_sketch import CountSketch
from .._progress_bar import progress as progress_bar
from ..errors import DataError, ResemblanceWarning, TargetError
from ..representation.representation import Representation, Settings
from .pass_sums import PassState

_BUCKET_BYTES = 64 * 2**20  # a layer's accumulators stay below this unless max_dim says otherwise
_SORTED = 0.02  # of the variance between blocks: a stream above this is warned about


def record(
    model: nn.Module,
    data: Any,
    *,
    layers: str | Sequence[str] = "auto",
    pool: pooling.Pool = "flatten",
    target: targets.Target = "tempered",
    beta: float = 0.5,
    logits: Callable[[Any], Tensor] | None = None,
    gradients: bool = True,
    elementwise: bool = False,
    seed: int = 0,
    buckets: int = 512,
    per_sample: int = 1,
    block: int = 128,
    blocks: int = 64,
    max_dim: int | str | None = "auto",
    batch_size: int | str = "auto",
    shard: tuple[int, int] | None = None,
    keep_sums: bool = False,
    on_bad: str = "raise",
    call: Callable[[nn.Module, Any], Any] | None = None,
    name: str | None = None,
    data_id: str | None = None,
    progress: bool | None = None,
    deterministic: bool = False,
) -> Representation:
    """Represent a network on a data set by its features and gradients, layer by layer.

    Per layer, with f the features of a sample and g the gradient of the loss at them, the result
    holds exact kernels [f_i·f_j] and [g_i·g_j] inside blocks of samples in seeded random order,
    CountSketch kernels of all samples, and moments. The model is run in evaluation mode and comes
    back exactly as it was.

    Args:
        model: any `nn.Module`; run as it stands, on its own device, under the caller's autocast.
        data: a data set, a DataLoader, arrays, or an iterable of batches. A batch is a tensor,
            `(inputs, labels)` or a dict of the model's keyword arguments. An iterable is taken in
            its own order; everything else is visited in a seeded random order, whatever the
            loader's batch size or shuffling.
        layers: `"auto"`, names, globs, or a list of them; `name:in` is a module's input, and
            `name#2` what a module gives the second time it runs.
        pool: how a layer's output becomes a vector: flatten, mean, first, last, or a function.
        target: `"tempered"` (no labels), `"labels"`, or a function (outputs, batch) -> losses (n,).
        beta: the temperature of the tempered prediction, q ∝ p^beta.
        logits: finds the logits in the model's output where convention does not.
        gradients: False records features alone: half the cost, any model.
        elementwise: also the kernel of f ∘ g.
        seed: of the order, the sketch and the fold: Representations compare only if it agrees.
        buckets, per_sample: the CountSketch; buckets=0 leaves it out.
        block, blocks: samples in a block, and blocks kept; blocks=0 leaves them out. Small data
            are cut into at least sixteen blocks of equal size.
        max_dim: layers wider than this are folded to it before the buckets; `"auto"` keeps a
            layer's accumulators under 64 MiB, None folds nothing. Blocks are always exact.
        batch_size: samples in a forward pass, rounded to whole blocks (and at least one). `"auto"`
            is 128, and on a GPU as many as fit into half of its free memory, up to 4,096.
        shard: (i, n): only every n-th block, from the i-th on, for `merge`.
        keep_sums: keep the accumulators, as a shard does.
        on_bad: `"raise"` names the first NaN or Inf; `"skip"` leaves such samples out and counts.
        call: how to run the model on a batch, instead of `model(inputs)`.
        name: of the model, in files and figures.
        data_id: names the samples: recordings with equal names count as made on the same samples,
            though preprocessing made their inputs differ.
        progress: True or False; None shows a bar on a terminal.
        deterministic: recording adds in a fixed order, so that runs on one device agree bit for
            bit as far as the network itself does; on a GPU it is slower.

    Cost: one forward and one activation-only backward, plus about 2·block·d multiplications a
    sample and layer. Memory does not grow with the data (but for 8 bytes a sample for its order).

    Reference: Tang, Maddox, Dickens, Diethe, Damianou 2020, arXiv 2003.11498.
    """
    model = unwrap(model)
    if not isinstance(model, nn.Module):
        raise DataError(f"expected a torch.nn.Module, found {type(model).__name__}")
    weights = [*model.parameters(), *model.buffers()]
    if any(weight.is_inference() for weight in weights):
        raise DataError(
            "the model's weights were made inside torch.inference_mode, and autograd cannot use "
            "them; build or load the model outside of it"
        )
    device = next((weight.device for weight in weights), None)
    losses = targets.losses(target, beta, logits) if gradients else None
    settings = _settings(
        seed=seed,
        buckets=buckets,
        per_sample=per_sample,
        block=block,
        blocks=blocks,
        max_dim=max_dim,
        pool=pooling.check(pool),
        target=_target_name(target) if gradients else "none",
        beta=beta,
        elementwise=elementwise,
    )
    shard = _check_choices(1 if batch_size == "auto" else batch_size, on_bad, shard)
    run, called = call or run_by_convention, name or type(model).__name__
    with untouched(model, frozen=gradients):
        source = sources.source(data, seed=seed, block=settings.block, shard=shard)
        settings = replace(settings, block=source.block)
        first = to_device(source.first, device)
        taps = select(model, layers, trace(model, lambda: run(model, first)))
        state = PassState(
            settings,
            [tap.name for tap in taps],
            pool,
            on_bad,
            device,
            watch_order=not source.ordered,
            deterministic=deterministic,
        )
        capture = Capture(model, taps, state.consume, gradients=gradients)

        def one_batch(batch: Any, check: Callable[[Any], None] | None = None) -> None:
            def losses_of(outputs: Any) -> Tensor:
                assert losses is not None
                if check is not None:
                    check(outputs)
                return _per_sample(losses(outputs, batch), size(batch))

            capture.run(lambda: run(model, batch), losses_of, size(batch))

        with capture, progress_bar(progress, source.expected, f"recording {called}") as advance:
            before = batch_sizes.allocated(device)
            with state.trial() as reached:  # what cannot work fails now and says why
                one_batch(first, None if callable(target) else _refuse_probabilities(logits))
            if gradients and not any(reached):
                raise TargetError(
                    "the gradient of the loss is zero at every layer: nothing but zeros would be "
                    "recorded; check the target, or record features alone with gradients=False"
                )
            if isinstance(batch_size, str):  # "auto"
                each = (batch_sizes.allocated(device) - before) // size(first)
                batch_size = batch_sizes.chosen(device, source.block, each, deterministic)
            if pool == "flatten" and is_padded(first):
                warnings.warn(_PADDED, ResemblanceWarning, stacklevel=2)
            for chunks, batch in source.batches(batch_size):
                state.begin(chunks, batch, data_id)  # reads the samples where they lie
                one_batch(to_device(batch, device))
                state.end()
                advance(size(batch))
    share = state.order.share_between() if state.order else 0.0
    if share > _SORTED:
        warnings.warn(_SORTED_STREAM.format(share, taps[-1].name), ResemblanceWarning, stacklevel=2)
    dtype = next((str(p.dtype).removeprefix("torch.") for p in model.parameters()), "none")
    return state.result(
        model={
            "name": called,
            "fingerprint": of_weights(model),
            "parameters": sum(p.numel() for p in model.parameters()),
        },
        data={
            "id": data_id,
            "total": source.total,
            "order": "seeded" if source.ordered else "stream",
            "shards": [list(shard)],
        },
        made={
            "dtype": dtype,
            "autocast": _autocast(device),
            "device": str(device or "cpu"),
            "torch": torch.__version__,
        },
        keep_sums=keep_sums or shard != (0, 1),
    )


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
    block: int = 128,
    blocks: int = 64,
    max_dim: int | str | None = "auto",
    batch_size: int = 128,
    shard: tuple[int, int] | None = None,
    keep_sums: bool = False,
    on_bad: str = "raise",
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
    f = features if isinstance(features, Mapping) else {"features": features}
    g = (
        gradients
        if isinstance(gradients, Mapping) or gradients is None
        else {"features": gradients}
    )
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
    settings = _settings(
        seed=seed,
        buckets=buckets,
        per_sample=per_sample,
        block=block,
        blocks=blocks,
        max_dim=max_dim,
        pool="flatten",
        target="none" if g is None else target,
        beta=None,
        elementwise=elementwise,
    )
    shard = _check_choices(batch_size, on_bad, shard)
    source = sources.source(np.arange(total), seed=seed, block=settings.block, shard=shard)
    settings = replace(settings, block=source.block)
    state = PassState(settings, list(f), "flatten", on_bad)
    for chunks, rows in source.batches(batch_size):
        state.begin(chunks, rows, data_id)
        for i, key in enumerate(f):
            state.consume(i, _rows(f[key], rows), None if g is None else _rows(g[key], rows))
        state.end()
    return state.result(
        model={"name": name, "fingerprint": None, "parameters": None},
        data={"id": data_id, "total": total, "order": "seeded", "shards": [list(shard)]},
        made={
            "dtype": str(next(iter(f.values())).dtype).removeprefix("torch."),
            "autocast": None,
            "device": "cpu",
            "torch": torch.__version__,
        },
        keep_sums=keep_sums or shard != (0, 1),
    )


_PADDED = (
    'sequences are padded and pool="flatten" records the padding as well; use pool="mean", "first" '
    'or "last", which honour the attention mask'
)
_SORTED_STREAM = (
    "the stream looks sorted: {:.0%} of the variance at {!r} lies between blocks of successive "
    "samples, where random order gives none. Scores from blocks will be biased; shuffle the "
    "stream, or pass a data set, which is visited in random order"
)


def _per_sample(losses: Any, count: int) -> Tensor:
    if not isinstance(losses, Tensor) or losses.shape != (count,):
        found = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses)
        raise TargetError(
            f"expected one loss for each of {count} samples, a tensor of shape ({count},), found "
            f"{found}; do not average over the batch"
        )
    return losses


def _refuse_probabilities(logits: targets.FindLogits | None) -> Callable[[Any], None]:
    return lambda outputs: targets.refuse_probabilities(outputs, logits)


def _target_name(target: targets.Target) -> str:
    return pooling.called(target) if callable(target) else target


def _autocast(device: torch.device | None) -> str | None:
    """The dtype that the caller's autocast computes in, if one is on."""
    kind = device.type if device else "cpu"
    if not torch.is_autocast_enabled(kind):
        return None
    return str(torch.get_autocast_dtype(kind)).removeprefix("torch.")


def _check_choices(
    batch_size: int | str, on_bad: str, shard: tuple[int, int] | None
) -> tuple[int, int]:
    """The shard, (0, 1) for all; or an error about one of these."""
    if isinstance(batch_size, str) or batch_size < 1:
        raise DataError(f"batch_size must be 1 or more; found {batch_size!r}")
    if on_bad not in ("raise", "skip"):
        raise DataError(f'on_bad must be "raise" or "skip"; found {on_bad!r}')
    i, n = (int(part) for part in shard or (0, 1))
    if not 0 <= i < n:
        raise DataError(f"shard must be (i, n) with 0 <= i < n; found {shard}")
    return i, n


def _settings(
    *,
    seed: int,
    buckets: int,
    per_sample: int,
    block: int,
    blocks: int,
    max_dim: int | str | None,
    pool: str,
    target: str,
    beta: float | None,
    elementwise: bool,
) -> Settings:
    """Checked settings, as plain numbers whatever the caller's types."""
    if block < 1 or blocks < 0:
        raise DataError(f"block must be 1 or more and blocks 0 or more; found {block}, {blocks}")
    if elementwise and target == "none":
        raise DataError("elementwise=True needs gradients; record with both or with neither")
    if buckets:
        CountSketch(buckets, seed, per_sample)  # refuses what does not fit
    if max_dim == "auto":  # room for features, gradients and elementwise, so that it never varies
        room = _BUCKET_BYTES // (3 * 4 * max(buckets, 1))
        max_dim = 1 << (max(room, 1).bit_length() - 1)
    if max_dim is not None and (isinstance(max_dim, str) or max_dim < 1):
        raise DataError(f'max_dim must be "auto", None or a positive width; found {max_dim!r}')
    return Settings(
        seed=int(seed),
        buckets=int(buckets),
        per_sample=int(per_sample) if buckets else 1,
        block=int(block),
        blocks=int(blocks),
        max_dim=int(max_dim) if buckets and max_dim is not None else None,
        pool=pool,
        target=target,
        beta=float(beta) if target == "tempered" and beta is not None else None,
        elementwise=bool(elementwise),
    )


def _rows(array: Any, rows: Tensor) -> Tensor:  # -> (n, d) in float32
    """Some rows of a NumPy, torch or JAX array, or of a memory-mapped file."""
    picked = array[rows] if isinstance(array, Tensor) else array[rows.numpy()]
    if not isinstance(picked, Tensor):
        picked = torch.from_numpy(np.array(picked, dtype=np.float32))
    picked = picked.detach().cpu().float()
    return picked.flatten(1) if picked.ndim > 1 else picked[:, None]
