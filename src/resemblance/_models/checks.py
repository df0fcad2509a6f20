"""Checks on the first batches: input mismatch, determinism, zero gradients, logits, order of rows.

- `input_mismatch_error` explains why a model fails on its first samples: what its first weights
  are, what the inputs are, and what to change.
- `DeterminismCheck` finds models whose output for a sample is not fixed. Dropout left on in
  evaluation mode makes outputs random. Batch norm without running statistics, or logits of every
  sample against every other, make them depend on the batch. Both show in one more run of the trial
  batch with its last sample in place of all others. A model that draws random numbers is run more
  often, as few outputs may come out the same by chance.
- `FirstBatchChecks` watches the first batches of a recording pass for zero gradients, outputs that
  are no logits, and rows in a different order than the batch. It does not wait for a GPU that is
  still running a batch: results are read while the next batch runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._data.batches import batch_inputs, batch_leaves, num_samples, take_samples
from .._data.sources import Batch
from .._ops.devices import copy_all_to_host_async
from ..errors import DataError, TargetError, first_line, warn
from .capture import Consume, EagerRunner, Rows, See
from .eval_mode import RandomState
from .layer_outputs import floating_tensors, sample_axes, why_unreadable
from .layer_patterns import Tap
from .logits import LogitsCheck
from .trace import read_together, trace
from .wrappers import is_quantised


def input_mismatch_error(model: nn.Module, batch: Any, error: Exception) -> DataError:
    """An error that sets the model's first weights against the inputs it was given."""
    name, weight = next(iter(model.named_parameters()), ("", None))
    parts = batch_leaves(batch_inputs(batch))
    inputs = [part for part in parts if isinstance(part, Tensor)]
    shown = dict.fromkeys(f"{_dtype_name(part)} {tuple(part.shape[1:])}" for part in inputs)
    more = [f"{len(shown) - _SHOWN_INPUTS} more"] if len(shown) > _SHOWN_INPUTS else []
    found = ", ".join([*shown][:_SHOWN_INPUTS] + more) or type(batch_inputs(batch)).__name__
    wanted, remedy = "it has no weights", _MSG_CHECK_INPUTS
    if weight is not None:
        wanted = f"its first weights, {name!r}, are {_dtype_name(weight)} {tuple(weight.shape)}"
        looked_up = any(isinstance(module, nn.Embedding) for module in model.modules())
        if looked_up and any(part.ndim == 1 and not part.is_floating_point() for part in inputs):
            remedy = _MSG_TOKEN_IDS_1D
        elif any(part.dtype != weight.dtype for part in inputs) and not looked_up:
            scaled = " and divide by 255" if inputs[0].dtype == torch.uint8 else ""
            remedy = f"convert the inputs to {_dtype_name(weight)}{scaled}"
            if inputs[0].is_floating_point() and weight.is_floating_point():
                remedy += f', or record with `dtype="{_dtype_name(weight)}"`, which casts them'
    return DataError(
        f"{type(model).__name__} fails on the first samples ({first_line(error)}): {wanted}, and "
        f"an input is {found}; {remedy}"
    )


_SHOWN_INPUTS = 3  # kinds of inputs in a message
_MSG_TOKEN_IDS_1D = (
    "token ids must have the shape (sequences, length): each item of a list is a batch, so add a "
    "batch axis (ids[None]), or pass a data set of single sequences"
)
_MSG_CHECK_INPUTS = (
    "pass inputs in the form it expects, or pass `call=<function (model, batch)>`, which runs it"
)


def _dtype_name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


_VALUES_PER_OUTPUT = 1024  # looked at of an output
# differences relative to the output that mean nothing
_TOLERANCE, _LOW_PRECISION_TOLERANCE = 1e-2, 5e-2

_REPEATED_RUNS = 24  # of a model that draws: 10 % dropout of 2 outputs shows in 99.5 % of cases

# By call, what the last sample has of its output: once for each axis that may be the samples'.
SampledOutputs = dict[str, list[Tensor]]


@dataclass(frozen=True)
class NonDeterminism:
    """What is wrong with a model, where it first shows and how much: a share of the output."""

    random: bool  # else it mixes
    layer: str  # "" for the model's own output
    share: float

    def __str__(self) -> str:
        where = f"first at layer {self.layer!r}" if self.layer else "in its output"
        return (_MSG_RANDOM if self.random else _MSG_BATCH_DEPENDENT).format(
            f"{where}, by {self.share:.0%}"
        )


_MSG_RANDOM = (
    "the model returns different values when it is run again on the same samples ({}): something "
    "in it is random in eval mode, or changes with every call. Scores will be too low; disable it, "
    "as F.dropout(x, training=self.training) does"
)
_MSG_BATCH_DEPENDENT = (
    "the output for a sample depends on the rest of its batch ({}), for example by batch norm "
    "without running statistics, or by logits across a batch. Results will depend on "
    "`batch_size`: compare only recordings with equal `batch_size`, or record the layers before it "
    "with `gradients=False`"
)


def copy_batch(batch: Any) -> Any:
    """A batch that stays as it is when a model writes into the first."""
    with torch.inference_mode(False):
        return take_samples(batch, np.arange(num_samples(batch)))


class DeterminismCheck:
    """Whether a model gives a sample the same whatever else is in its batch, and each time.

    `check` it with what a run on `alike` gave, if there was one for another purpose.
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
        self._batch, self.count = batch, num_samples(batch)
        self._first = {"": self.seen(outputs)}
        self._draws = state.moved()  # whether the run drew random numbers
        self._first_values = _some_values(outputs) if self._draws else []
        self._checked = False
        self.fault: NonDeterminism | None = None  # as far as is known

    @property
    def alike(self) -> Any:
        """A batch that holds the last sample in place of all others."""
        with torch.inference_mode(False):
            return take_samples(self._batch, np.full(self.count, self.count - 1))

    @property
    def limit(self) -> float:
        """How far outputs may differ relative to their size: more in less than float32."""
        tensors = [*self._model.parameters(), *self._first[""]]
        devices = {x.device.type for x in tensors if not x.is_meta}  # meta: offloaded
        coarse = (
            any(x.element_size() < 4 for x in tensors)
            or any(map(torch.is_autocast_enabled, devices))
            or any(map(is_quantised, self._model.modules()))
        )
        return _LOW_PRECISION_TOLERANCE if coarse else _TOLERANCE

    def seen(self, outputs: Any) -> list[Tensor]:
        """What `check` needs of outputs, which may be large: some values of the last sample."""
        for tensor in floating_tensors(outputs):
            axes = [] if why_unreadable(tensor) else sample_axes(tensor, self.count)
            if axes:
                flat = [tensor.detach().select(axis, -1).reshape(-1) for axis in axes]
                # copies, as the memory may be written over
                return [x[:: max(1, -(-len(x) // _VALUES_PER_OUTPUT))].clone() for x in flat]
        return []

    def check(self, seen: list[Tensor] | None = None) -> None:
        """Warn, once, if something is wrong with the model; two more runs then say where."""
        if self._checked:
            return
        self._checked = True
        with torch.inference_mode(False), torch.no_grad():
            limit = self.limit
            if seen is None:
                seen = self.seen(self._run(self._model, self.alike))
            apart = _relative_differences(self._first, {"": seen}, limit)
            if apart or (apart := self._repeat(limit)):
                self.fault = self._locate(apart, limit)
                warn(str(self.fault))

    def _repeat(self, limit: float) -> dict[str, float]:
        """Runs of a model that draws random numbers, until its output changes.

        Dropout leaves few outputs of few samples as they are in many runs. That a model draws is no
        proof: layer drop does in evaluation mode too, to no effect.
        """
        now, apart = self._state.now(), dict[str, float]()
        for _ in range(_REPEATED_RUNS if self._draws else 0):
            again = _some_values(self._run(self._model, copy_batch(self._batch)))
            pairs = zip(self._first_values, again, strict=False)
            shares = [_relative_difference(x, y) for x, y in pairs if x.shape == y.shape]
            if moved := [x for (x,) in read_together(shares) if x > limit]:
                apart = {"": max(moved)}
                break
        now.put_back()
        return apart

    def _locate(self, apart: dict[str, float], limit: float) -> NonDeterminism:
        same, others = map(self._trace_last_sample, (copy_batch(self._batch), self.alike))
        # a single sample has none to be mixed with, and what is drawn may come out the same by
        # chance
        again = _relative_differences(self._first, same, limit)
        random = bool(again) or self.count == 1 or self._draws
        layer, share = next(iter((_relative_differences(same, others, limit) or apart).items()))
        return NonDeterminism(random, layer, share)

    def _trace_last_sample(self, batch: Any) -> SampledOutputs:
        values: SampledOutputs = {}

        def note(name: str, output: Any) -> None:
            values[name] = self.seen(output)

        note("", trace(self._model, lambda: self._run(self._model, batch), note)[1])
        return values


def _some_values(outputs: Any) -> list[Tensor]:
    """Evenly spaced values of each floating-point tensor, of all samples; copies."""
    flat = [x.detach().reshape(-1) for x in floating_tensors(outputs) if not why_unreadable(x)]
    return [x[:: max(1, -(-len(x) // _VALUES_PER_OUTPUT))].clone() for x in flat]


def _relative_differences(
    one: SampledOutputs, two: SampledOutputs, limit: float
) -> dict[str, float]:
    """The calls whose outputs differ along every axis that may be the samples', in order.

    Calls that are in one run alone, as of experts that no token went to, say nothing; nor do
    outputs of another shape.
    """
    shares: dict[str, Tensor] = {}
    for name, values in one.items():
        others = two.get(name, [])
        if values and [x.shape for x in values] == [x.shape for x in others]:
            pairs = zip(values, others, strict=True)
            shares[name] = torch.stack([_relative_difference(x, y) for x, y in pairs]).amin()
    numbers = zip(shares, read_together(list(shares.values())), strict=True)
    return {name: share for name, (share,) in numbers if share > limit}


def _relative_difference(x: Tensor, y: Tensor) -> Tensor:
    """‖x − y‖ as a share of the larger of both; NaN, which is above nothing, where they hold it."""
    x, y = x.float(), y.float()
    return (x - y).norm() / torch.maximum(x.norm(), y.norm()).clamp_min(1e-30)


_MIN_SAMPLES = 32  # samples, none of which has a gradient anywhere
_VALUES_PER_SAMPLE = 1024  # of a sample's features that are compared
_PERMUTED_RATIO = 20  # times closer to the row of a different sample than to its own


class FirstBatchChecks:
    """Watch batches with `noting`, say when each `ran`, and `end`: what is wrong is said there.

    What batches showed is read a batch later on a GPU, so that it is not waited for.
    """

    def __init__(
        self,
        determinism: DeterminismCheck,
        taps: Sequence[Tap],
        device: torch.device | None,
        *,
        gradients: bool,
        logits: LogitsCheck | None = None,  # of the outputs' values, where the trial left a doubt
    ) -> None:
        self._determinism, self._taps = determinism, taps
        self._ahead = int(device is not None and device.type == "cuda")  # batches of what is read
        self._seen: list[Tensor] | None = None  # of the outputs of a run on `determinism.alike`
        self._alike: dict[int, Tensor] = {}  # by tap, `subsample_features` of that run
        # by tap (2,): how far the sample's own row is from that of the trial, and the nearest row
        self._distances: dict[int, Tensor] = {}
        self._reached = not gradients
        self._nonzero: list[Tensor] = []  # whether gradients are anything but zeros
        self._logits = logits
        self._evidence: list[Tensor] = []  # what logits showed
        self._batches = self._samples = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()  # since which batch

    def trial(self, runner: EagerRunner, rows: Rows, look: Callable[[], None]) -> None:
        """Run a small batch of one sample, several times, there and back; it goes nowhere.

        Its outputs show if the model is steady, and its features if later batches are in order.
        `look` is called after the forward pass and at each layer of the backward pass.
        """

        def run(model: nn.Module, samples: Any) -> Any:
            outputs = runner.run_model(model, samples)
            self._seen = self._determinism.seen(outputs)
            look()
            return outputs

        def consume(i: int, features: Tensor, gradients: Tensor | None) -> None:
            look()
            if rows.drawn is None:
                self._alike[i] = subsample_features(features)[-1].clone()

        replace(runner, run_model=run).run(self._determinism.alike, rows, consume, None)

    def noting(self, batch: Batch, consume: Consume) -> Consume:
        """The same, which notes gradients until there was one, and the order of the first rows."""
        ordered = self._batches == 0 and self._begins(batch)
        self._distances = {}

        def note(i: int, features: Tensor, gradients: Tensor | None) -> None:
            if gradients is not None and not self._reached:
                self._nonzero.append((gradients != 0).any())
            if ordered and i in self._alike:
                self._note_distances(i, features)
            consume(i, features, gradients)

        return note if ordered or not self._reached else consume

    def _begins(self, batch: Batch) -> bool:
        """Whether a batch begins with the samples of the trial, none of which was masked."""
        at = self._determinism.count - 1
        if batch.drawn is not None or not 0 < at < len(batch.indices):
            return False
        one, two = (
            batch_leaves(take_samples(x, np.array([at])))
            for x in (batch.samples, self._determinism.alike)
        )
        return len(one) == len(two) and all(map(_equal_leaves, one, two))

    def _note_distances(self, i: int, features: Tensor) -> None:
        """How far the rows of the first batch are from that of the trial's last sample."""
        found, expected = subsample_features(features.detach()), self._alike[i]
        if found.shape[1:] == expected.shape:
            apart = (found - expected).norm(dim=1) / expected.norm().clamp_min(1e-30)
            self._distances[i] = torch.stack([apart[self._determinism.count - 1], apart.amin()])

    def seeing(self, see: See | None) -> See | None:
        """The same, which notes what logits show until that is clear."""
        check = self._logits
        if check is None:
            return see

        def note(logits: Tensor) -> None:
            if not check.settled:
                self._evidence = [check.evidence(logits)]  # a batch that does not fit comes again
            if see is not None:
                see(logits)

        return note

    def ran(self, samples: int) -> None:
        """A batch of so many went there and back, or is on its way."""
        self._batches += 1
        self._samples += samples
        if self._batches == 1:
            self._later([], lambda _: self._determinism.check(self._seen))
            taps = sorted(self._distances)
            self._later([self._distances[i] for i in taps], partial(self._check_order, taps))
        if not self._reached:
            self._later(self._nonzero, partial(self._check_gradients, self._samples))
            self._nonzero = []
        if self._logits is not None and self._evidence:
            self._later(self._evidence, partial(self._logits.judge, samples))
            self._evidence = []
        self._read(self._batches - self._ahead)

    def end(self) -> None:
        """There are no more batches."""
        self._read(self._batches)
        if self._samples and not self._reached:
            raise TargetError(_MSG_NO_GRADIENT)
        if self._logits is not None:
            self._logits.end()

    def _later(self, tensors: list[Tensor], judge: Callable[[list[Tensor]], None]) -> None:
        arrived = copy_all_to_host_async(tensors)
        self._waiting.append((self._batches, lambda: judge(arrived())))

    def _read(self, batches: int) -> None:
        while self._waiting and self._waiting[0][0] <= batches:
            self._waiting.popleft()[1]()

    def _check_order(self, taps: Sequence[int], distances: list[Tensor]) -> None:
        """Warn if a layer has its rows in a different order than the batch."""
        if self._determinism.fault is not None:  # whose rows say nothing
            return
        limit = self._determinism.limit  # which looks at all modules
        for i, (own, nearest) in zip(taps, map(Tensor.tolist, distances), strict=True):
            if own > limit > nearest and own > _PERMUTED_RATIO * nearest:
                warn(_MSG_PERMUTED.format(self._taps[i].name))
                return

    def _check_gradients(self, samples: int, nonzero: list[Tensor]) -> None:
        self._reached = self._reached or any(map(bool, nonzero))
        if not self._reached and samples >= _MIN_SAMPLES:
            raise TargetError(_MSG_NO_GRADIENT)


def subsample_features(x: Tensor) -> Tensor:  # (n, ...) -> (n, at most 1,024)
    """Evenly spaced values of each sample in float32, without a copy of the others."""
    while x[:1].numel() > _VALUES_PER_SAMPLE:
        axis = max(range(1, x.ndim), key=x.shape.__getitem__)
        x = x.movedim(axis, 0)[::2].movedim(0, axis)
    return x.reshape(len(x), -1).float()


def _equal_leaves(one: object, two: object) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return torch.equal(one.cpu(), two.cpu())
    return isinstance(one, list) and one == two


_MSG_PERMUTED = (
    "layer {!r} holds samples in a different order than the batch, as if the network sorted or "
    "flipped its batch inside: features there are recorded for the wrong samples. Record with "
    "`batch_size=1`, or exclude the layers between sorting and restoring the order"
)
_MSG_NO_GRADIENT = (
    "the gradient of the loss is zero at every layer; check the target, or record features only "
    "with `gradients=False`"
)
