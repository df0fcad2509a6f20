"""Each sample's features and gradients as they are, for those who need the vectors themselves.

`visit` is a pass that keeps nothing: it draws samples, taps layers and pools exactly as `record`
does, and calls back once a batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._data.batches import attention_mask, labels_of
from .._data.sources import Batch
from .._model import pooling
from .._model.layer_choice import select
from .._model.losses import FindLogits, Objective, are_probabilities, by_position, find_logits
from .._model.model_pass import ModelPass, RunModel, Watch, opened
from .._model.not_logits import objection
from .._ops.feature_fold import Fold
from .._whole_numbers import checked_seed, whole_number
from ..errors import DataError, TargetError
from ..representation.layer import Kind

Vectors = dict[Kind, Tensor]  # the kinds asked for, each (n, d), float32 on the CPU
Visitor = Callable[[np.ndarray, Any, dict[str, Vectors]], None]  # indices, labels, by layer
See = Callable[[Tensor], None]


def joined(parts: Sequence[Vectors]) -> Vectors:
    return {kind: torch.cat([part[kind] for part in parts]) for kind in parts[0]}


@dataclass(frozen=True)
class Pass:
    """How a model is run: what must not change between fitting and predicting."""

    kinds: tuple[Kind, ...] = ("features",)  # features, gradients or both
    pool: pooling.Pool = "flatten"
    beta: float = 0.5
    logits: FindLogits | None = None
    call: RunModel | None = None
    max_dim: int | None = None  # wider vectors are folded to this width
    seed: int = 0  # of the order and the fold
    batch_size: int = 128

    def __post_init__(self) -> None:
        checked_seed(self.seed)
        whole_number("batch_size", self.batch_size, 1)
        if self.max_dim is not None:
            whole_number("max_dim", self.max_dim, 1, also=", or None")


def visit(
    model: nn.Module,
    data: Any,
    layers: str | Sequence[str],
    how: Pass,
    visitor: Visitor,
    *,
    see: See | None = None,
) -> None:
    """Call `visitor(indices, labels, vectors)` for each batch; the model is left as it was.

    Indices (n,) are positions in the data, labels are the batch's own or None, and vectors are by
    layer in order of execution. NaN or Inf is refused with its layer and sample. `see` is shown the
    logits (n, classes) of each batch before it is visited, if the model gives one row a sample.
    """
    pooling.check(how.pool)
    objective = Objective("tempered", how.beta, how.logits) if "gradients" in how.kinds else None
    with opened(model, data, seed=how.seed, block=how.batch_size, call=how.call) as run:
        taps = select(run.model, layers, run.calls)
        consumer = _Handing([tap.name for tap in taps], how, visitor)
        watch = None if see is None else _watch(run, how, see)
        run.feed(taps, consumer, objective, batch_size=how.batch_size, watch=watch)
    if objective is not None and consumer.flat:
        raise TargetError(
            f"the gradient of the loss is zero at {sorted(consumer.flat)} for every sample; use "
            "the features kernel"
        )


def _watch(run: ModelPass, how: Pass, see: See) -> Watch | None:
    """Someone who sees logits, or nobody where the model's trial gave none."""
    find = how.logits or find_logits
    try:
        z = by_position(find(run.outputs))
    except TargetError:
        return None
    if z.shape[1] > 1:  # predictions for tokens or pixels
        return None
    if are_probabilities(z):
        return Watch(lambda outputs: by_position(find(outputs)).log(), see)
    if how.logits is None and objection(run.model, run.trial.samples, find(run.outputs), run.calls):
        return None
    return Watch(lambda outputs: by_position(find(outputs)), see)


class _Handing:
    """A consumer that hands on one batch's vectors at every layer, pooled, checked and folded."""

    def __init__(self, names: list[str], how: Pass, visitor: Visitor) -> None:
        self.names, self.how, self.visitor = names, how, visitor
        self.flat = set(names)  # layers at which no gradient but zero was seen so far
        self._found: dict[int, Vectors] = {}
        self._channels: dict[int, int] = {}  # of layers whose outputs are images, kept whole
        self._fold = functools.cache(
            lambda d, channels, device: Fold(
                d, how.max_dim or d, how.seed, device, channels=channels
            )
        )

    def begin(self, batch: Batch, samples: Any) -> None:
        self._batch, self._mask = batch, attention_mask(samples)

    def consume(self, i: int, features: Tensor, gradients: Tensor | None) -> None:
        both: dict[Kind, Any] = {"features": features, "gradients": gradients}
        self._channels[i] = pooling.channels_of(self.how.pool, features)
        self._found[i] = {}
        for kind in self.how.kinds:
            x = pooling.apply(self.how.pool, both[kind], self._mask, gradient=kind == "gradients")
            # without gradients the forward pass is under way and may write over this memory
            self._found[i][kind] = x.float() if gradients is not None else x.float().clone()

    def end(self) -> None:
        out: dict[str, Vectors] = {}
        for i, name in enumerate(self.names):
            found = self._found.pop(i)
            for kind, x in found.items():
                bad = (~torch.isfinite(x).all(1)).nonzero()
                if len(bad):
                    raise DataError(
                        f"NaN or Inf in the {kind} of layer {name!r} at sample "
                        f"{self._batch.name(int(bad[0]))}; repair the sample or the model"
                    )
            if "gradients" in found and found["gradients"].any():
                self.flat.discard(name)
            channels = self._channels[i]
            out[name] = {
                kind: self._fold(x.shape[1], channels, x.device)(x).cpu()
                for kind, x in found.items()
            }
        self.visitor(self._batch.indices, labels_of(self._batch.samples), out)
