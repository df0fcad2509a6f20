"""Per-sample feature and gradient vectors of a network's layers, batch by batch.

`visit_batches` runs a network over data and stores nothing itself: it draws samples, hooks layers
and pools exactly as `record` does, and calls back once per batch. `require_same_network` checks
by the hash of the weights that a network is the one a recording was made from.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._data.batches import attention_mask, batch_labels
from .._data.sources import Batch
from .._models.hashes import hash_all_weights, hash_sampled_weights
from .._models.layer_outputs import Pool, image_channels, pool_values, validate_pool
from .._models.layer_patterns import select_layers
from .._models.logits import LogitsReader
from .._models.losses import Objective
from .._models.run import RunModel, open_pass, unwrap_runnable
from .._ops.fold import Fold
from .._utils.validation import check_integer, check_seed
from ..errors import DataError, MismatchError, TargetError
from ..representation.layer import Kind
from ..representation.representation import Representation

Vectors = dict[Kind, Tensor]  # the kinds asked for, each (n, d), float32 on the CPU
Visitor = Callable[[np.ndarray, Any, dict[str, Vectors]], None]  # indices, labels, by layer
LogitsCallback = Callable[[Tensor], None]


def concatenate_vectors(parts: Sequence[Vectors]) -> Vectors:
    return {kind: torch.cat([part[kind] for part in parts]) for kind in parts[0]}


@dataclass(frozen=True)
class PassConfig:
    """How a model is run: what must not change between fitting and predicting."""

    kinds: tuple[Kind, ...] = ("features",)  # features, gradients or both
    pool: Pool = "flatten"
    beta: float = 0.5
    logits: LogitsReader = field(default_factory=LogitsReader)
    call: RunModel | None = None
    max_dim: int | None = None  # wider vectors are folded to this width
    seed: int = 0  # of the order and the fold
    batch_size: int = 128

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_integer("batch_size", self.batch_size, 1)
        if self.max_dim is not None:
            check_integer("max_dim", self.max_dim, 1, also=", or None")


def visit_batches(
    model: nn.Module,
    data: Any,
    layers: str | Sequence[str],
    how: PassConfig,
    visitor: Visitor,
    *,
    see: LogitsCallback | None = None,
) -> None:
    """Call `visitor(indices, labels, vectors)` for each batch; the model is left as it was.

    Indices (n,) are positions in the data, labels are the batch's own or None, and vectors are by
    layer in order of execution. NaN or Inf is refused with its layer and sample. `see` is shown the
    logits (n, classes) of each batch before it is visited, if the model gives one row a sample.
    """
    validate_pool(how.pool)
    objective = Objective("tempered", how.beta, how.logits) if "gradients" in how.kinds else None
    with open_pass(model, data, seed=how.seed, block=how.batch_size, call=how.call) as run:
        taps = select_layers(run.model, layers, run.calls)
        consumer = _VectorConsumer([tap.name for tap in taps], how, visitor, see)
        logits = None
        if see is not None:
            logits = run.predictions(how.logits, needed=objective is not None)
            if logits is not None and logits(run.outputs).shape[1] > 1:  # of tokens or pixels
                logits = None
        run.feed(taps, consumer, objective, batch_size=how.batch_size, logits=logits)
    if objective is not None and consumer.flat:
        raise TargetError(
            f"the gradient of the loss is zero at {sorted(consumer.flat)} for every sample; use "
            "the features kernel"
        )


def gather_vectors(
    model: nn.Module,
    data: Any,
    layers: str | Sequence[str],
    how: PassConfig,
    visitor: Callable[[np.ndarray, Any], None],
    *,
    see: LogitsCallback | None = None,
) -> dict[str, Vectors]:
    """The vectors of all samples by layer; `visitor(indices, labels)` is called for each batch."""
    rows: dict[str, list[Vectors]] = {}

    def take_in(indices: np.ndarray, labels: Any, layers: dict[str, Vectors]) -> None:
        visitor(indices, labels)
        for name, vectors in layers.items():
            rows.setdefault(name, []).append(vectors)

    visit_batches(model, data, layers, how, take_in, see=see)
    return {name: concatenate_vectors(rows.pop(name)) for name in list(rows)}


class _VectorConsumer:
    """A consumer that hands on one batch's vectors at every layer, pooled, checked and folded."""

    def __init__(
        self, names: list[str], how: PassConfig, visitor: Visitor, see: LogitsCallback | None
    ) -> None:
        self.names, self.how, self.visitor, self._see = names, how, visitor, see
        self.flat = set(names)  # layers at which no gradient but zero was seen so far
        self._found: dict[int, tuple[int, Vectors]] = {}  # channels of images kept whole; vectors
        self._fold = functools.cache(
            lambda d, channels, device: Fold(
                d, how.max_dim or d, how.seed, device, channels=channels
            )
        )

    def begin(self, batch: Batch, samples: Any) -> None:
        self._batch, self._mask = batch, attention_mask(samples)

    def see(self, logits: Tensor) -> None:
        if self._see is not None:
            self._see(logits)

    def consume(self, i: int, features: Tensor, gradients: Tensor | None) -> None:
        vectors: Vectors = {}
        for kind in self.how.kinds:
            values: Any = gradients if kind == "gradients" else features
            x = pool_values(self.how.pool, values, self._mask, gradient=kind == "gradients")
            # without gradients the forward pass is under way and may write over this memory
            vectors[kind] = x.float() if gradients is not None else x.float().clone()
        self._found[i] = image_channels(self.how.pool, features), vectors

    def end(self) -> None:
        out: dict[str, Vectors] = {}
        for i, name in enumerate(self.names):
            channels, vectors = self._found.pop(i)
            out[name] = {}
            for kind, x in vectors.items():
                bad = (~torch.isfinite(x).all(1)).nonzero()
                if len(bad):
                    raise DataError(
                        f"NaN or Inf in the {kind} of layer {name!r} at sample "
                        f"{self._batch.name(int(bad[0]))}; repair the sample or the model"
                    )
                if kind == "gradients" and x.any():
                    self.flat.discard(name)
                out[name][kind] = self._fold(x.shape[1], channels, x.device)(x).cpu()
        self.visitor(self._batch.indices, batch_labels(self._batch.samples), out)


def require_same_network(model: nn.Module, rep: Representation) -> None:
    """An error if the weights are known to differ; what was recorded from arrays has none."""
    model = unwrap_runnable(model)
    if rep.model.weights is not None:
        same = hash_all_weights(model) == rep.model.weights
    else:  # an older file
        same = rep.model.fingerprint in (None, hash_sampled_weights(model))
    if same:
        return
    weight = next(model.parameters(), None)
    here, there = "none" if weight is None else str(weight.dtype)[6:], rep.made.dtype
    precision = f", and are {here} now and were {there}" if here != there else ""
    raise MismatchError(
        f"this {type(model).__name__} is not the network of the recording {rep.name!r}: its "
        f"weights differ{precision}; pass that network, in the precision it was recorded in, or "
        "record this one"
    )
