"""One pass over a model that hands on each sample's features and gradients as they are.

`visit` is for those who need the vectors themselves: a classifier, a leave-one-out score. It draws
samples, taps layers and pools exactly as `record` does, calls back once a batch, and keeps nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._data import batches, sources
from .._model import losses as targets
from .._model import pooling
from .._model.call_trace import trace
from .._model.capture import Capture
from .._model.layer_choice import select
from .._model.left_as_found import untouched, unwrap
from .._ops.feature_fold import Fold
from ..errors import DataError, TargetError

Call = Callable[[nn.Module, Any], Any]
Vectors = dict[str, Tensor]  # the kinds asked for, each (n, d), float32 on the CPU
Consume = Callable[[np.ndarray, Any, dict[str, Vectors]], None]  # indices, labels, by layer


@dataclass(frozen=True)
class Pass:
    """How a model is run: what must not change between fitting and predicting."""

    kinds: tuple[str, ...] = ("features",)  # features, gradients or both
    pool: pooling.Pool = "flatten"
    beta: float = 0.5
    logits: Callable[[Any], Tensor] | None = None
    call: Call | None = None
    max_dim: int | None = None  # wider vectors are folded to this width
    seed: int = 0  # of the order and the fold
    batch_size: int = 128


def visit(
    model: nn.Module, data: Any, layers: str | Sequence[str], how: Pass, consume: Consume
) -> None:
    """Call `consume(indices, labels, vectors)` for each batch; the model is left as it was.

    Indices (n,) are positions in the data, labels are the batch's own or None, and vectors are by
    layer in order of execution. NaN or Inf is refused with its layer and sample.
    """
    model = unwrap(model)
    if not isinstance(model, nn.Module):
        raise DataError(f"expected a torch.nn.Module, found {type(model).__name__}")
    pooling.check(how.pool)
    gradients = "gradients" in how.kinds
    losses = targets.losses("tempered", how.beta, how.logits) if gradients else None
    device = next((p.device for p in [*model.parameters(), *model.buffers()]), None)
    run = how.call or batches.run_by_convention
    with untouched(model):
        source = sources.source(data, seed=how.seed, block=how.batch_size, shard=(0, 1))
        first = batches.to_device(source.first, device)
        taps = select(model, layers, trace(model, lambda: run(model, first)))
        vectors = _Batch([tap.name for tap in taps], how)

        def loss(outputs: Any) -> Tensor:
            assert losses is not None
            targets.refuse_probabilities(outputs, how.logits)
            return losses(outputs, batch)

        with Capture(model, taps, vectors.take_in, gradients=gradients) as capture:
            for chunks, batch in source.batches(how.batch_size):
                batch = batches.to_device(batch, device)
                vectors.mask = batches.attention_mask(batch)
                indices = np.concatenate([chunk.indices for chunk in chunks])
                capture.run(functools.partial(run, model, batch), loss, len(indices))
                consume(indices, batches.labels_of(batch), vectors.hand_on(indices))
    if gradients and vectors.flat:
        raise TargetError(
            f"the gradient of the loss is zero at {sorted(vectors.flat)} for every sample; use the "
            "features kernel"
        )


class _Batch:
    """One batch's vectors at every layer, pooled, checked and folded."""

    def __init__(self, names: list[str], how: Pass) -> None:
        self.names, self.how = names, how
        self.mask: Tensor | None = None
        self.flat = set(names)  # layers at which no gradient but zero was seen so far
        self._found: dict[int, dict[str, Tensor]] = {}
        self._folds: dict[int, Fold] = {}

    def take_in(self, i: int, features: Tensor, gradients: Tensor | None) -> None:
        found = {}
        if self.how.pool == "flatten":
            features, gradients = pooling.in_memory_order(features, gradients)
        for kind, x in (("features", features), ("gradients", gradients)):
            if kind in self.how.kinds and x is not None:
                x = pooling.apply(self.how.pool, x, self.mask, gradient=kind == "gradients")
                # without gradients the forward pass is under way and may write over this memory
                found[kind] = x.float() if gradients is not None else x.float().clone()
        self._found[i] = found

    def hand_on(self, indices: np.ndarray) -> dict[str, Vectors]:
        out: dict[str, Vectors] = {}
        for i, name in enumerate(self.names):
            found = self._found.pop(i)
            for kind, x in found.items():
                bad = ~torch.isfinite(x).all(1)
                if bool(bad.any()):
                    raise DataError(
                        f"NaN or Inf in the {kind} of layer {name!r} at sample "
                        f"{indices[int(bad.nonzero()[0])]}; repair the sample or the model"
                    )
            if "gradients" in found and bool((found["gradients"] != 0).any()):
                self.flat.discard(name)
            out[name] = {kind: self._folded(i, x).cpu() for kind, x in found.items()}
        return out

    def _folded(self, i: int, x: Tensor) -> Tensor:
        width = self.how.max_dim
        if not width or x.shape[1] <= width:
            return x
        if i not in self._folds or self._folds[i].dim != x.shape[1]:
            self._folds[i] = Fold(x.shape[1], width, self.how.seed, x.device)
        return self._folds[i](x)
