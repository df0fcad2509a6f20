"""Models that have no one output for a sample: random ones, and those that mix a batch's samples.

Dropout left on in evaluation mode makes a network unlike itself; batch norm without running
statistics, or logits of every sample against every other, make it depend on the batch size. Both
show in one more run of the trial, with its last sample in place of all others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._data.batches import size, take
from ..errors import warn
from .altered_layers import is_quantised
from .call_trace import trace
from .evaluation_mode import RandomState
from .nested_outputs import sample_axes, tensors

_VALUES = 1024  # looked at of an output
_ROUND_OFF, _HALF_ROUND_OFF = 1e-2, 5e-2  # differences relative to the output that mean nothing

# By call, what the last sample has of its output: once for each axis that may be the samples'.
Values = dict[str, list[Tensor]]


@dataclass(frozen=True)
class Unsteady:
    """What is wrong with a model, where it first shows and how much: a share of the output."""

    random: bool  # else it mixes
    layer: str  # "" for the model's own output
    share: float

    def __str__(self) -> str:
        where = f"first at layer {self.layer!r}" if self.layer else "in its output"
        return (_RANDOM if self.random else _MIXING).format(f"{where}, by {self.share:.0%}")


_RANDOM = (
    "the model gives other values when it is run again on the same samples ({}): something in it "
    "is random in evaluation mode, or changes with every call. Scores will be lower than the "
    "truth; switch it off, as F.dropout(x, training=self.training) does"
)
_MIXING = (
    "what the model gives for a sample depends on the others in its batch ({}), as with batch norm "
    "that has no running statistics or with logits across a batch. Results will depend on "
    "batch_size: compare recordings of one batch_size alone, or record layers before that one "
    "with gradients=False"
)


def copied(batch: Any) -> Any:
    """A batch that stays as it is when a model writes into the first."""
    with torch.inference_mode(False):
        return take(batch, np.arange(size(batch)))


class Steadiness:
    """Whether a model gives a sample the same whatever else is in its batch, and each time.

    `check` it with what a run on `alike` gave, made for another purpose or by `again`.
    """

    def __init__(
        self,
        model: nn.Module,
        run: Callable[[nn.Module, Any], Any],
        batch: Any,  # nobody else writes into it
        outputs: Any,  # of the model on it
        state: RandomState,  # before they were made
    ) -> None:
        self._model, self._run, self._state = model, run, state
        self._batch, self._count = batch, size(batch)
        self._first = {"": self.seen(outputs)}
        self._checked = False
        self.fault: Unsteady | None = None  # as far as is known

    @property
    def alike(self) -> Any:
        """A batch that holds the last sample in place of all others."""
        with torch.inference_mode(False):
            return take(self._batch, np.full(self._count, self._count - 1))

    def seen(self, outputs: Any) -> list[Tensor]:
        """What `check` needs of the model's outputs, which may be large."""
        return _of_last_sample(outputs, self._count)

    def again(self) -> list[Tensor]:
        """What a run on `alike` gives."""
        with torch.inference_mode(False), torch.no_grad():
            return self.seen(self._run(self._model, self.alike))

    def check(self, seen: list[Tensor] | None = None) -> None:
        """Warn, once, if something is wrong with the model; two more runs then say where."""
        if self._checked:
            return
        self._checked = True
        seen = self.again() if seen is None else seen
        with torch.inference_mode(False), torch.no_grad():
            limit = _round_off(self._model, self._first[""])
            if apart := _differences(self._first, {"": seen}, limit):
                self.fault = self._found(apart, limit)
                warn(str(self.fault))

    def _found(self, apart: dict[str, float], limit: float) -> Unsteady:
        same, others = (
            _values(self._model, self._run, samples, self._count)
            for samples in (copied(self._batch), self.alike)
        )
        # a single sample has none to be mixed with, and what is drawn may come out the same by
        # chance
        again = _differences(self._first, same, limit)
        random = bool(again) or self._count == 1 or self._state.moved()
        layer, share = next(iter((_differences(same, others, limit) or apart).items()))
        return Unsteady(random, layer, share)


def _round_off(model: nn.Module, outputs: list[Tensor]) -> float:
    """How far outputs may differ: more if anything is computed in less than single precision."""
    weights = itertools.chain(model.parameters(), outputs)
    coarse = any(x.element_size() < 4 or _is_autocast(x) for x in weights)
    coarse = coarse or any(map(is_quantised, model.modules()))
    return _HALF_ROUND_OFF if coarse else _ROUND_OFF


def _is_autocast(x: Tensor) -> bool:
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)  # meta: offloaded


def _values(
    model: nn.Module, run: Callable[[nn.Module, Any], Any], batch: Any, count: int
) -> Values:
    found: Values = {}

    def note(name: str, output: Any) -> None:
        found[name] = _of_last_sample(output, count)

    note("", trace(model, lambda: run(model, batch), note)[1])
    return found


def _of_last_sample(output: Any, count: int) -> list[Tensor]:
    for tensor in tensors(output):
        axes = sample_axes(tensor, count) if tensor.layout == torch.strided else []
        if axes:
            flat = [tensor.detach().select(axis, -1).reshape(-1) for axis in axes]
            # copies, as the memory may be written over
            return [x[:: max(1, -(-len(x) // _VALUES))].clone() for x in flat]
    return []


def _differences(one: Values, two: Values, limit: float) -> dict[str, float]:
    """The calls whose outputs differ along every axis that may be the samples', in order.

    Calls that are in one run alone, as of experts that no token went to, say nothing; nor do
    outputs of another shape.
    """
    shares: list[Tensor] = []
    names: list[str] = []
    for name, values in one.items():
        others = two.get(name, [])
        if values and [x.shape for x in values] == [x.shape for x in others]:
            names.append(name)
            pairs = zip(values, others, strict=True)
            shares.append(torch.stack([_difference(x, y) for x, y in pairs]).amin())
    together = [share.to(shares[0].device) for share in shares]  # read at once
    found = zip(names, torch.stack(together).tolist() if together else [], strict=True)
    return {name: share for name, share in found if share > limit}


def _difference(x: Tensor, y: Tensor) -> Tensor:
    """‖x − y‖ as a share of the larger of both; NaN, which is above nothing, where they hold it."""
    x, y = x.float(), y.float()
    return (x - y).norm() / torch.maximum(x.norm(), y.norm()).clamp_min(1e-30)
