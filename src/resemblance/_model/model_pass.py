"""The one loop: a model run over data batch by batch, for whoever wants to see what happens.

`opened` puts a model into the state it is run in, tries it on two samples, and puts it back at the
end. What it yields is a `ModelPass`: callers take its `batches` and run the model themselves, or
let it `feed` a `Consumer` the features and gradients at chosen layers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from .._data.batches import size, to_device
from .._data.shares import Share
from .._data.sources import Batch, BlockSize, Piece, Source, source
from .._ops.device_choice import refuse_other_default
from .._ops.device_memory import allocated
from .._ops.host_memory import keep_between_batches
from .._progress_bar import Advance
from .._progress_bar import progress as progress_bar
from ..errors import DataError, ResemblanceError
from . import batch_size as batch_sizes
from . import not_logits
from .batch_halves import Halving, cells
from .call_trace import Call, trace
from .capture import Capture, Consume
from .changed_buffers import ChangedBuffers
from .compiled_capture import CompiledCapture
from .compiled_program import OneBatch, See
from .evaluation_mode import RandomState, untouched, unwrap
from .first_look import FirstLook
from .input_misfit import misfit
from .language_models import language_model, runner, with_decoder_inputs
from .layer_choice import Tap
from .losses import Objective, find_logits
from .offloaded_weights import device_of, missing
from .picked_tokens import Rows
from .spread_weights import computed_in_parts
from .unsteady_outputs import Steadiness, copied

RunModel = Callable[[nn.Module, Any], Any]
Prepare = Callable[[Batch], Batch]  # adds what a model needs, and which tokens are recorded


_RUNS_OUT = {"cuda", "xpu", "mps"}  # devices that say so when memory runs out
_OUT_OF_MEMORY = (
    "the device ran out of memory; pass a smaller batch_size (results do not depend on it), or "
    'leave it at "auto"'
)


class Consumer(Protocol):
    """What sees a pass: each batch as it begins, each tapped layer of it, and its end.

    A batch begins with its samples as the model is given them, on its device, where there is less
    to wait for than on the host; or as they came from the data, if the model was given others.
    """

    def begin(self, batch: Batch, samples: Any) -> None: ...

    def consume(self, i: int, features: Tensor, gradients: Tensor | None) -> None: ...

    def end(self) -> None: ...


@dataclass(frozen=True)
class Watch:
    """Someone who sees the logits of each batch: of every sample, or of the tokens drawn."""

    logits_of: Callable[[Any], Tensor]  # of outputs: (n, positions, classes)
    see: Callable[[Tensor], None]  # (rows, classes), after the batch began

    def of(self, outputs: Any, rows: Rows) -> Tensor:
        z = self.logits_of(outputs).detach()
        found = z[:, 0] if rows.drawn is None else rows.pick(z)
        assert found is not None
        return found


class _Held:
    """What a consumer is to see of a batch, if it comes through."""

    def __init__(self) -> None:
        self._found: list[tuple[int, Tensor, Tensor | None]] = []
        self._logits: Tensor | None = None

    def see(self, logits: Tensor) -> None:
        self._logits = logits

    def consume(self, i: int, features: Tensor, gradients: Tensor | None) -> None:
        if gradients is None:  # the forward pass is under way, and may write over these
            features = features.clone()
        self._found.append((i, features, gradients))

    def hand_on(self, consumer: Consumer, watch: Watch | None) -> None:
        if watch is not None and self._logits is not None:
            watch.see(self._logits)
        while self._found:
            consumer.consume(*self._found.pop(0))


def runnable(model: nn.Module) -> nn.Module:
    """The model under its wrappers, or an error if it cannot be run and differentiated."""
    model = unwrap(model)
    if not isinstance(model, nn.Module):
        raise DataError(f"expected a torch.nn.Module, found {type(model).__name__}")
    if name := missing(model):
        raise DataError(
            f"the model's weights ({name!r}) are on the meta device, not yet loaded; load them"
        )
    if name := computed_in_parts(model):
        raise DataError(
            f"the model runs in parts, as tensor parallelism has it ({name!r} is split over "
            "processes): outputs of its layers would be parts too; record it whole, or with FSDP"
        )
    if any(weight.is_inference() for weight in [*model.parameters(), *model.buffers()]):
        raise DataError(
            "the model's weights were made inside torch.inference_mode, and autograd cannot use "
            "them; build or load the model outside of it"
        )
    return model


@contextlib.contextmanager
def opened(
    model: nn.Module,
    data: Any,
    *,
    seed: int = 0,  # of the order of samples
    block: BlockSize = "auto",
    call: RunModel | None = None,
    frozen: bool = True,  # False where no gradient is taken
    draw: Prepare | None = None,  # tokens, where these are the samples
) -> Iterator[ModelPass]:
    """A model ready to be run over data, with a trace of its calls on a trial batch.

    Mode, gradients, hooks, buffers and the process's own switches are as before at the end, also
    after an error.
    """
    refuse_other_default()
    model = runnable(model)
    device = device_of(model)
    if not (call is None or callable(call)):
        raise DataError(f"call must be a function (model, batch) -> outputs; found {call!r}")
    run = call or runner(model)
    keep_between_batches()
    with untouched(model, frozen=frozen):
        many = {} if draw is None else {"fewest": 1}  # each window of sequences makes many blocks
        prepare = _preparing(model, draw, by_convention=call is None)
        samples = source(data, seed=seed, block=block, **many)
        trial = Batch([Piece(0, np.arange(size(samples.first)))], samples.first)
        trial = prepare(trial)
        first = to_device(trial.samples, device)
        changed, random_state = ChangedBuffers(model), RandomState(device)
        again, steadiness = copied(first), None
        try:
            try:
                with changed:
                    calls, outputs = trace(model, lambda: run(model, first), count=size(first))
            except (ResemblanceError, torch.OutOfMemoryError, MemoryError):
                raise
            except Exception as error:
                raise misfit(model, first, error) from error
            trial = replace(trial, samples=first)
            steadiness = Steadiness(model, run, again, outputs, random_state)
            yield ModelPass(model, device, samples, trial, calls, outputs, steadiness, run, prepare)
        finally:
            changed.put_back()
            if steadiness is not None and (fault := steadiness.fault) and fault.random:
                random_state.put_back()  # it may have drawn throughout


def _preparing(model: nn.Module, draw: Prepare | None, *, by_convention: bool) -> Prepare:
    language = language_model(model)
    decoder = by_convention and language is not None and language.kind == "encoder-decoder"

    def prepare(batch: Batch) -> Batch:
        if decoder:
            batch = replace(batch, samples=with_decoder_inputs(model, batch.samples))
        return batch if draw is None else draw(batch)

    return prepare


@dataclass(frozen=True)
class ModelPass:
    """A model in the state it is run in, the data to run it on, and what a trial showed."""

    model: nn.Module
    device: torch.device | None  # None for a model without weights
    source: Source
    trial: Batch  # of a few samples, on the device
    calls: list[Call]  # of the modules, in that trial
    outputs: Any  # of the model, in that trial
    steadiness: Steadiness
    run: RunModel
    prepare: Prepare  # batches as they come from the source
    share: Share = field(default_factory=Share)  # of the data, that it is run on

    def batches(self, batch_size: int) -> Iterator[tuple[Batch, Any]]:
        """Batches as they come, each with its samples on the model's device."""
        self.steadiness.check()
        for batch in self.source.batches(batch_size, self.share):
            batch = self.prepare(batch)
            yield batch, to_device(batch.samples, self.device)

    def feed(
        self,
        taps: Sequence[Tap],
        consumer: Consumer,
        objective: Objective | None,  # None: features alone
        *,
        batch_size: int | Literal["auto"],
        deterministic: bool = False,
        progress: bool | None = False,
        what: str = "",
        may_drop: bool = False,
        watch: Watch | None = None,
        compile: bool = False,
    ) -> set[int]:
        """Run the model over all batches and hand on every tapped layer of each.

        What cannot work fails at the first batch and says why; one smaller than that comes before
        it where its size is open. With `may_drop`, taps that have no rows such as are recorded are
        left out instead; returns which.
        """
        self._refuse(objective)
        gradients = objective is not None
        capture = Capture(self.model, taps, gradients=gradients, may_drop=may_drop)
        expected = self.source.expected(self.share)
        as_written = one_batch = partial(self._one_batch, capture, objective, watch)
        with progress_bar(progress, expected, what) as advance:
            if compile:  # looks at the model before hooks are on it
                traced = replace(objective, compiled=True) if objective is not None else None
                compiled = CompiledCapture(
                    capture,
                    as_written,
                    partial(self._one_batch, capture, traced, watch),
                    (self.run, objective, watch and watch.logits_of),
                    advance.say,
                )
                one_batch = partial(self._checked, objective, compiled.run)
            with capture:
                limit = seen = None
                if isinstance(batch_size, str):  # "auto"
                    each, seen = self._tried(capture, objective)
                    length = cells(self.trial) // len(self.trial.indices)
                    batch_size = batch_sizes.chosen(
                        self.device, self.source.block, each, deterministic, length
                    )
                    limit = batch_size * length
                look = FirstLook(self.steadiness, seen, self.device, gradients=gradients)
                self._run_all(one_batch, consumer, batch_size, limit, advance, watch, look)
            if compile:
                compiled.finish()
        return capture.dropped

    def _run_all(
        self,
        one_batch: OneBatch,
        consumer: Consumer,
        batch_size: int,
        limit: int | None,
        advance: Advance,
        watch: Watch | None,
        look: FirstLook,
    ) -> None:
        """All batches, those for which a GPU has too little memory in halves.

        Where the size was left open, or tokens are few among many, what a batch larger than any
        before gives is held until it is through, so that a consumer sees all of it or nothing.
        """
        halving = Halving(limit, self.prepare)
        careful = self.device is not None and self.device.type in _RUNS_OUT
        careful &= limit is not None or self.trial.drawn is not None
        for batch in halving.batches(self.source.batches(batch_size, self.share)):
            held = _Held() if careful and cells(batch) > halving.proven else None
            samples = batch.samples if held is None else copied(batch.samples)
            try:
                samples = to_device(samples, self.device)
                if held is None:
                    consumer.begin(batch, samples)
                see = None if watch is None else (held or watch).see
                one_batch(samples, Rows(batch), look.noting((held or consumer).consume), see)
            except torch.OutOfMemoryError as error:
                if held is None:
                    raise DataError(_OUT_OF_MEMORY) from error
                held = samples = None
                halving.did_not_fit(batch, error)
                continue
            if held is not None:
                consumer.begin(batch, batch.samples)
                held.hand_on(consumer, watch)
            consumer.end()
            halving.ran(batch)
            look.ran(len(batch.indices))
            advance(len(batch.indices))
        look.end()

    def _checked(
        self,
        objective: Objective | None,
        one_batch: OneBatch,
        samples: Any,
        rows: Rows,
        consume: Consume,
        see: See | None,
    ) -> None:
        """One batch whose labels, which compiled code cannot look at, are looked at before."""
        if objective is not None:
            objective.check_labels(samples, self.outputs)
        one_batch(samples, rows, consume, see)

    def _one_batch(
        self,
        capture: Capture,
        objective: Objective | None,
        watch: Watch | None,
        samples: Any,  # those of the batch, on the device
        rows: Rows,
        consume: Consume,
        see: See | None,
    ) -> None:
        def forward() -> Any:
            outputs = self.run(self.model, samples)
            if watch is not None and see is not None:
                see(watch.of(outputs, rows))
            return outputs

        capture.run(
            forward,
            None if objective is None else partial(objective.start, samples),
            rows.samples,
            consume,
            rows.pick,
        )

    def _refuse(self, objective: Objective | None) -> None:
        """Say what is wrong with outputs or labels, as the trial shows, before all else."""
        if objective is None:
            return
        objective.refuse_probabilities(self.outputs)
        if objective.target == "labels":  # names those of the samples themselves
            objective.start(self.trial.samples, self.outputs)
        if objective.by_convention:
            z = find_logits(self.outputs)
            not_logits.refuse(self.model, self.trial.samples, z, self.calls)

    def _tried(self, capture: Capture, objective: Objective | None) -> tuple[int, list[Tensor]]:
        """A small batch there and back that goes nowhere: bytes that a sample took at the most.

        It is of one sample, several times, so that what the model gave shows if it is steady.
        """
        seen: list[Tensor] = []

        def run(model: nn.Module, samples: Any) -> Any:
            nonlocal seen
            outputs = self.run(model, samples)
            seen = self.steadiness.seen(outputs)
            return outputs

        def nowhere(i: int, features: Tensor, gradients: Tensor | None) -> None:
            pass

        small, before = replace(self, run=run), allocated(self.device)
        small._one_batch(
            capture, objective, None, self.steadiness.alike, Rows(self.trial), nowhere, None
        )
        took = allocated(self.device) - before
        return took // len(self.trial.indices), seen
