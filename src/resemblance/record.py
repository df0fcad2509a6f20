"""`record`: one streaming pass over a model makes a Representation.

The pass draws samples in a seeded random order, runs one forward and one activation-only backward
for each batch, and adds every layer's features and gradients to blocks, buckets and moments.
`record_arrays` does the same for features and gradients that come from elsewhere.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from . import data as sources
from . import pooling, targets
from .accumulate import Accumulator, Plan
from .capture import Capture, select, trace, untouched, unwrap
from .errors import DataError, LayerError, ResemblanceWarning, TargetError
from .representation import Representation, Settings
from .sketch import CountSketch, mix

_BUCKET_BYTES = 64 * 2**20  # a layer's accumulators stay below this unless max_dim says otherwise


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
    batch_size: int = 128,
    shard: tuple[int, int] | None = None,
    keep_sums: bool = False,
    on_bad: str = "raise",
    call: Callable[[nn.Module, Any], Any] | None = None,
    name: str | None = None,
    data_id: str | None = None,
    progress: bool | None = None,
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
        layers: `"auto"`, names, globs, or a list of them; `name:in` is a module's input.
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
        batch_size: samples in a forward pass, rounded to whole blocks (and at least one).
        shard: (i, n): only every n-th block, from the i-th on, for `merge`.
        keep_sums: keep the accumulators, as a shard does.
        on_bad: `"raise"` names the first NaN or Inf; `"skip"` leaves such samples out and counts.
        call: how to run the model on a batch, instead of `model(inputs)`.
        name: of the model, in files and figures.
        data_id: names the samples: recordings with equal names count as made on the same samples,
            though preprocessing made their inputs differ.
        progress: True or False; None shows a bar on a terminal.

    Cost: one forward and one activation-only backward, plus about 2·block·d multiplications a
    sample and layer. Memory does not grow with the data (but for 8 bytes a sample for its order).

    Reference: Tang, Maddox, Dickens, Diethe, Damianou 2020, arXiv 2003.11498.
    """
    model = unwrap(model)
    if not isinstance(model, nn.Module):
        raise DataError(f"expected a torch.nn.Module, found {type(model).__name__}")
    if on_bad not in ("raise", "skip"):
        raise DataError(f'on_bad must be "raise" or "skip"; found {on_bad!r}')
    sketch = _sketch(buckets, seed, per_sample)
    shard = _check_shard(shard)
    pool_name = pooling.check(pool)
    losses = targets.losses(target, beta, logits) if gradients else None
    device = next((p.device for p in [*model.parameters(), *model.buffers()]), None)
    if any(p.is_inference() for p in model.parameters()):
        raise DataError(
            "the model's parameters were made inside torch.inference_mode, and autograd cannot use "
            "them; build or load the model outside of it"
        )
    with untouched(model):
        source = sources.source(data, seed=seed, block=block, batch_size=batch_size, shard=shard)
        settings = _settings(
            seed,
            sketch,
            source.block,
            blocks,
            max_dim,
            pool_name,
            target,
            beta,
            gradients,
            elementwise,
        )
        run = _runner(call)
        first = sources.to_device(source.first, device)
        calls = trace(model, lambda: run(model, first))
        taps = select(model, layers, calls)
        state = _Pass(settings, sketch, [tap.name for tap in taps], pool, on_bad, source.ordered)
        capture = Capture(model, taps, state.consume, gradients=gradients)
        with capture, _progress(progress, source.expected, model) as advance:
            _try_out(capture, state, model, run, losses, first, target, logits)
            for chunks in source.batches():
                batch = sources.to_device(sources.join([c.batch for c in chunks]), device)
                state.begin(chunks, batch, device, data_id)
                capture.run(
                    lambda batch=batch: run(model, batch),
                    lambda outputs, batch=batch: losses(outputs, batch),  # type: ignore[misc]
                    state.count,
                )
                state.end()
                advance(state.count)
    dtype = next((str(p.dtype).removeprefix("torch.") for p in model.parameters()), "none")
    return state.result(
        model={
            "name": name or type(model).__name__,
            "fingerprint": _model_fingerprint(model),
            "parameters": sum(p.numel() for p in model.parameters()),
        },
        data={"id": data_id, "total": source.total, "shards": [list(shard)]},
        made={"dtype": dtype, "device": str(device or "cpu"), "torch": torch.__version__},
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
    if g is not None and (
        list(g) != list(f) or any(np.shape(g[key]) != np.shape(f[key]) for key in f)
    ):
        raise DataError(
            "expected gradients of the same layers and shapes as the features, found "
            f"{ {k: np.shape(v) for k, v in g.items()} } for { {k: np.shape(v) for k, v in f.items()} }"
        )
    total = next(iter(lengths.values()))
    sketch = _sketch(buckets, seed, per_sample)
    source = sources.source(
        np.arange(total), seed=seed, block=block, batch_size=batch_size, shard=(0, 1)
    )
    settings = _settings(
        seed,
        sketch,
        source.block,
        blocks,
        max_dim,
        "flatten",
        target,
        0.0,
        g is not None,
        elementwise,
    )
    state = _Pass(settings, sketch, list(f), "flatten", "raise", ordered=True)
    for chunks in source.batches():
        rows = np.concatenate([chunk.indices for chunk in chunks])
        state.begin(chunks, torch.from_numpy(rows), None, data_id)
        for i, key in enumerate(f):
            pair = [f[key]] if g is None else [f[key], g[key]]
            taken = [_rows(array, rows) for array in pair]
            state.consume(i, taken[0], taken[1] if g is not None else None)
        state.end()
    return state.result(
        model={"name": name, "fingerprint": None, "parameters": None},
        data={"id": data_id, "total": total, "shards": [[0, 1]]},
        made={"dtype": str(np.asarray(next(iter(f.values()))[:1]).dtype), "device": "cpu"},
        keep_sums=False,
    )


class _Pass:
    """The state of one pass: an Accumulator a layer, and what is shared between layers."""

    def __init__(
        self,
        settings: Settings,
        sketch: CountSketch | None,
        names: list[str],
        pool: pooling.Pool,
        on_bad: str,
        ordered: bool,
    ) -> None:
        self.settings, self.sketch, self.names, self.pool = settings, sketch, names, pool
        self.on_bad, self.ordered = on_bad, ordered
        self.layers: dict[int, Accumulator] = {}
        self.samples = self.skipped = self.count = 0
        self.sizes: list[int] = []
        self.numbers: list[int] = []
        self.signs = torch.zeros(settings.buckets)
        self._sum_of_hashes = 0
        self._trial: set[int] | None = None

    def begin(
        self,
        chunks: Sequence[sources.Chunk],
        batch: Any,
        device: torch.device | None,
        data_id: str | None,
    ) -> None:
        """Fix what is common to all layers of the next batch."""
        self._indices = np.concatenate([chunk.indices for chunk in chunks])
        self._lengths = [(chunk.number, len(chunk.indices)) for chunk in chunks]
        self._device = device
        self._mask = sources.attention_mask(batch)
        self.count = len(self._indices)
        if data_id is not None:
            digest = hashlib.blake2b(data_id.encode(), digest_size=8).digest()
            self._hashes = np.full(self.count, np.frombuffer(digest, np.uint64)[0])
        else:
            self._hashes = sources.fingerprints(sources.tree_map(lambda leaf: leaf, batch))
        self._finite: dict[int, Tensor] = {}
        self._held: dict[int, tuple[Tensor, Tensor | None]] = {}
        if self.on_bad == "raise":
            self._plan = self._make_plan(np.ones(self.count, bool))

    def consume(self, i: int, features: Tensor, gradients: Tensor | None) -> None:
        """Take in one layer's features and gradients of the present batch."""
        if self._trial is not None:
            if gradients is not None and bool((gradients != 0).any()):
                self._trial.add(i)
            return
        shape = tuple(features.shape[1:])
        f = pooling.apply(self.pool, features, self._mask, gradient=False)
        g = (
            None
            if gradients is None
            else pooling.apply(self.pool, gradients, self._mask, gradient=True)
        )
        if i not in self.layers:
            self.layers[i] = Accumulator(self.names[i], shape, f.shape[1], self.settings)
        layer = self.layers[i]
        if f.shape[1] != layer.dim:
            raise DataError(
                f"layer {layer.name!r}: expected vectors of width {layer.dim} as in the first batch, "
                f'found {f.shape[1]}; with inputs of varying size use pool="mean", "first" or "last"'
            )
        if self.on_bad == "skip":  # a sample is left out of all layers, so all must be seen first
            finite = torch.isfinite(f).all(1)
            if g is not None:
                finite &= torch.isfinite(g).all(1)
            self._finite[i], self._held[i] = finite, (f, g)
        else:
            self._finite[i] = torch.isfinite(layer.add(f, g, self._plan))

    def end(self) -> None:
        """Finish the batch: refuse or leave out what was not finite."""
        finite = torch.stack([self._finite[i] for i in sorted(self._finite)]).cpu().numpy()
        keep = finite.all(0)
        if self.on_bad == "skip":
            self._plan = self._make_plan(keep)
            rows = torch.from_numpy(np.flatnonzero(keep))
            for i, (f, g) in sorted(self._held.items()):
                if len(rows):
                    at = rows.to(f.device)
                    self.layers[i].add(f[at], None if g is None else g[at], self._plan)
            self._held = {}
        elif not keep.all():
            row = int(np.flatnonzero(~keep)[0])
            layer = self.names[sorted(self._finite)[int(np.flatnonzero(~finite[:, row])[0])]]
            raise DataError(
                f"NaN or Inf (or a norm beyond float32) in layer {layer!r} at sample "
                f'{self._indices[row]}; repair the sample or the model, or pass on_bad="skip"'
            )
        self.samples += int(keep.sum())
        self.skipped += int((~keep).sum())
        hashes = mix(self._hashes[keep], self._indices[keep].astype(np.uint64)[:, None])
        self._sum_of_hashes = (self._sum_of_hashes + int(hashes.astype(object).sum())) % 2**64

    def _make_plan(self, keep: np.ndarray) -> Plan:
        """Rows to buckets and blocks; blocks that lost samples are shorter."""
        device = self._device or torch.device("cpu")
        spans: list[tuple[int, int]] = []
        start = done = 0
        for number, length in self._lengths:
            kept = int(keep[start : start + length].sum())
            start += length
            if number < self.settings.blocks and kept:
                spans.append((done, done + kept))
                self.sizes.append(kept)
                self.numbers.append(number)
            done += kept
        h, s = (self.sketch or CountSketch(1)).assign(self._indices[keep])
        if self.sketch:
            self.signs.index_add_(0, h.flatten(), s.flatten())
        return Plan(h.to(device), s.to(device), spans)

    @contextlib.contextmanager
    def trial(self) -> Iterator[set[int]]:
        """Consume nothing, but note which layers get a gradient that is not all zero."""
        self._trial = set()
        try:
            yield self._trial
        finally:
            self._trial = None

    def result(
        self, *, model: dict[str, Any], data: dict[str, Any], made: dict[str, Any], keep_sums: bool
    ) -> Representation:
        from . import __version__

        if not self.samples:
            raise DataError("every sample was skipped as not finite: nothing was recorded")
        rep = Representation(
            layers=tuple(
                self.layers[i].result(self.signs if self.sketch else None, self.samples)
                for i in sorted(self.layers)
            ),
            settings=self.settings,
            samples=self.samples,
            model=MappingProxyType(model),
            data=MappingProxyType(
                {
                    **data,
                    "fingerprint": f"{self._sum_of_hashes:016x}",
                    "order": "seeded" if self.ordered else "stream",
                    "skipped": self.skipped,
                }
            ),
            made=MappingProxyType(
                {
                    **made,
                    "resemblance": __version__,
                    "date": datetime.datetime.now(datetime.timezone.utc).isoformat("T", "seconds"),
                }
            ),
            block_sizes=tuple(self.sizes),
            block_numbers=tuple(self.numbers),
        )
        if not self.ordered:
            _warn_if_sorted(rep)
        return rep if keep_sums else rep.without_sums()


def _try_out(
    capture: Capture,
    state: _Pass,
    model: nn.Module,
    run: Callable[[nn.Module, Any], Any],
    losses: targets.Losses | None,
    first: Any,
    target: targets.Target,
    logits: Callable[[Any], Tensor] | None,
) -> None:
    """Two samples there and back, so that what cannot work fails now and says why."""

    def probe(outputs: Any) -> Tensor:
        assert losses is not None
        if not callable(target):
            targets.refuse_probabilities(outputs, logits)
        each = losses(outputs, first)
        if not isinstance(each, Tensor) or each.shape != (count,):
            found = tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__
            raise TargetError(f"expected one loss for each of {count} samples, found {found}")
        return each

    count = sources.size(first)
    with state.trial() as reached:
        capture.run(lambda: run(model, first), probe, count)
    if losses is not None and not reached:
        raise TargetError(
            "the gradient of the loss is zero at every layer: nothing but zeros would be recorded; "
            "check the target, or record features alone with gradients=False"
        )
    mask = sources.attention_mask(first)
    if state.pool == "flatten" and mask is not None and bool((mask == 0).any()):
        warnings.warn(
            'sequences are padded and pool="flatten" records the padding as well; use pool="mean", '
            '"first" or "last", which honour the attention mask',
            ResemblanceWarning,
            stacklevel=3,
        )


def _runner(call: Callable[[nn.Module, Any], Any] | None) -> Callable[[nn.Module, Any], Any]:
    """How a model is run on a batch: the caller's way, or by convention."""
    if call is not None:
        return call

    def run(model: nn.Module, batch: Any) -> Any:
        inputs = sources.inputs_of(batch)
        return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)

    return run


def _sketch(buckets: int, seed: int, per_sample: int) -> CountSketch | None:
    return CountSketch(buckets, seed, per_sample) if buckets else None


def _check_shard(shard: tuple[int, int] | None) -> tuple[int, int]:
    i, n = shard or (0, 1)
    if not 0 <= i < n:
        raise DataError(f"shard must be (i, n) with 0 <= i < n; found {shard}")
    return i, n


def _settings(
    seed: int,
    sketch: CountSketch | None,
    block: int,
    blocks: int,
    max_dim: int | str | None,
    pool: str,
    target: targets.Target,
    beta: float,
    gradients: bool,
    elementwise: bool,
) -> Settings:
    if block < 1 or blocks < 0:
        raise DataError(f"block must be 1 or more and blocks 0 or more; found {block}, {blocks}")
    if elementwise and not gradients:
        raise DataError("elementwise=True needs gradients; record with both or with neither")
    buckets = sketch.buckets if sketch else 0
    if max_dim == "auto":  # room for features, gradients and elementwise, so that it never varies
        room = _BUCKET_BYTES // (3 * 4 * max(buckets, 1))
        max_dim = 1 << (max(room, 1).bit_length() - 1)
    if max_dim is not None and (isinstance(max_dim, str) or max_dim < 1):
        raise DataError(f'max_dim must be "auto", None or a positive width; found {max_dim!r}')
    if not gradients:
        target_name = "none"
    else:
        target_name = f"function {target.__qualname__}" if callable(target) else target
    return Settings(
        seed=seed,
        buckets=buckets,
        per_sample=sketch.per_sample if sketch else 1,
        block=block,
        blocks=blocks,
        max_dim=max_dim if buckets else None,
        pool=pool,
        target=target_name,
        beta=beta if target_name == "tempered" else None,
        elementwise=elementwise,
    )


def _rows(array: Any, rows: np.ndarray) -> Tensor:
    """Some rows of a NumPy, torch or JAX array, or of a memory-mapped file."""
    picked = array[torch.from_numpy(rows)] if isinstance(array, Tensor) else array[rows]
    if not isinstance(picked, Tensor):
        picked = torch.from_numpy(np.array(picked))
    return picked.detach().cpu().float().flatten(1) if picked.ndim > 1 else picked.float()[:, None]


def _model_fingerprint(model: nn.Module, values: int = 4096) -> str:
    """A digest of names, shapes and evenly spaced values of the weights: cheap at any size."""
    digest = hashlib.blake2b(digest_size=8)
    for key, tensor in sorted(model.state_dict().items()):
        if not isinstance(tensor, Tensor):
            continue
        flat = tensor.detach().reshape(-1)
        flat = flat[:: max(1, -(-len(flat) // values))].cpu()
        digest.update(f"{key} {tuple(tensor.shape)}".encode())
        digest.update(flat.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _warn_if_sorted(rep: Representation) -> None:
    """A stream whose blocks differ more from each other than samples in random order would.

    In random order, the mean kernel entry inside blocks and over all pairs of samples estimate the
    same number. The share of variance between blocks is their difference over the variance.
    """
    exact = [layer for layer in rep.layers if not layer.folded]
    if not exact or not rep.settings.buckets or len(rep.block_sizes) < 4:
        return
    layer = exact[-1]
    triangles, _ = layer.triangles("features")
    sizes = torch.tensor(rep.block_sizes, dtype=torch.float64)
    inside = float(2 * triangles.sum() / (sizes * (sizes - 1)).sum())
    n = rep.samples
    trace = layer.moments["trace_features"]
    overall = (n**2 * layer.moments["mean_features"] - trace) / (n * (n - 1))
    variance = trace / n - overall
    if variance > 0 and (inside - overall) / variance > 0.02:
        share = (inside - overall) / variance
        warnings.warn(
            f"the stream looks sorted: {share:.0%} of the variance at {layer.name!r} lies between "
            "blocks of successive samples, where random order gives about none. Scores from blocks "
            "will be biased; shuffle the stream, or pass a data set, which is visited in random order",
            ResemblanceWarning,
            stacklevel=4,
        )


@contextlib.contextmanager
def _progress(
    wanted: bool | None, total: int | None, model: nn.Module
) -> Iterator[Callable[[int], None]]:
    """A bar on standard error with rate and time left; nothing in pipes unless asked."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("recording {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(type(model).__name__, total=total, rate="")

        def advance(count: int) -> None:
            bar.advance(task, count)
            speed = bar.tasks[0].finished_speed or bar.tasks[0].speed
            bar.update(task, rate=f"{speed:,.0f} samples/s" if speed else "")

        yield advance
