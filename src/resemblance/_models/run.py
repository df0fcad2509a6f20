"""Run a model over data batch by batch: the one loop behind every recording pass.

`open_pass` puts a model into evaluation mode, tries it on two samples, and restores it at the end.
It yields a `ModelPass`. Callers iterate over its `batches` and run the model themselves, or let it
`feed` the features and gradients at chosen layers to a `Consumer`.
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

from .._data.batches import batch_leaves, batch_to_device, num_samples
from .._data.make_source import make_source
from .._data.sources import Batch, BlockSize, Piece, Share, Source
from .._ops.devices import (
    SENT_BESIDE,
    HostToDevice,
    MemoryWatch,
    require_cpu_default_device,
    retain_freed_memory,
)
from .._utils.progress import progress_bar
from ..errors import DataError, LayerError, ResemblanceError, TargetError, warn
from .batch_size import BatchSplitter, choose_batch_size, count_cells
from .capture import Capture, Consume, EagerRunner, HeldBatch, Rows, See
from .checks import DeterminismCheck, FirstBatchChecks, copy_batch, input_mismatch_error
from .compile import CompiledRunner
from .embeddings import EmbeddingsReader
from .eval_mode import ChangedBuffers, RandomState, run_in_eval_mode, run_on_cast_inputs
from .language_models import add_decoder_inputs, detect_language_model, run_function
from .layer_outputs import floating_tensors
from .layer_patterns import Tap
from .loading import to_module
from .logits import LogitsReader
from .losses import Objective
from .runtimes.runtime import Runtime
from .trace import Call, trace
from .wrappers import find_tensor_parallel_weight, find_unloaded_weight, input_device

RunModel = Callable[[nn.Module, Any], Any]
Prepare = Callable[[Batch], Batch]  # adds what a model needs, and which tokens are recorded


_RUNS_OUT = {"cuda", "xpu", "mps"}  # devices that say so when memory runs out
_MSG_OUT_OF_MEMORY = (
    "the device ran out of memory; pass a smaller batch_size (results do not depend on it), or "
    'leave it at "auto"'
)


class Runner(Protocol):
    """A model with taps at some of its layers that can run a batch: what the loop needs of it.

    Its layers are the calls that a trial traced (`ModelPass.calls`), of which `select_layers` makes
    taps. `EagerRunner` runs a PyTorch module with hooks and `CompiledRunner` one graph.
    """

    def run(self, samples: Any, rows: Rows, consume: Consume, see: See | None) -> None:
        """Hand on what each tapped layer holds of some samples, and `see` the model's logits."""


class Consumer(Protocol):
    """What sees a pass: each batch as it begins, each tapped layer of it, and its end.

    A batch begins with its samples as the model is given them, on its device, where there is less
    to wait for than on the host; or as they came from the data, if the model was given others.
    """

    def begin(self, batch: Batch, samples: Any) -> None: ...

    def see(self, logits: Tensor) -> None:
        """Take the logits (rows, classes) of a batch, after it began, where `feed` reads them."""

    def consume(self, i: int, features: Tensor, gradients: Tensor | None) -> None: ...

    def end(self) -> None: ...


def unwrap_runnable(model: nn.Module) -> nn.Module:
    """The model under its wrappers, or an error if it cannot be run and differentiated."""
    model = to_module(model)
    if not isinstance(model, nn.Module):
        raise DataError(
            f"expected a torch.nn.Module, found {type(model).__name__}; an exported network is "
            'named by its file, as "onnx:FILE"'
        )
    if name := find_unloaded_weight(model):
        raise DataError(
            f"the model's weights ({name!r}) are on the meta device, not yet loaded; load them"
        )
    if name := find_tensor_parallel_weight(model):
        raise DataError(
            f"the model uses tensor parallelism ({name!r} is split over processes), so outputs of "
            "its layers are partial; record it unsharded, or with FSDP"
        )
    return model


def require_gradients(model: nn.Module) -> None:
    """An error for a network that another engine runs, or with weights that autograd cannot use."""
    if isinstance(model, Runtime):
        raise LayerError(
            f"{model.source} runs outside of PyTorch, so there are no gradients; use the PyTorch "
            "model, or record features only with `gradients=False`"
        )
    _refuse_inference_weights(model)


def _refuse_inference_weights(model: nn.Module) -> None:
    """An error for weights that can neither be cast nor be differentiated with."""
    if any(weight.is_inference() for weight in [*model.parameters(), *model.buffers()]):
        raise DataError(
            "the model's weights were created inside torch.inference_mode, so autograd cannot use "
            "them; build or load the model outside of it, or record features only with "
            "`gradients=False` and without `dtype`"
        )


@contextlib.contextmanager
def open_pass(
    model: nn.Module,
    data: Any,
    *,
    seed: int = 0,  # of the order of samples
    block: BlockSize = "auto",
    call: RunModel | None = None,
    frozen: bool = True,  # False where no gradient is taken
    draw: Prepare | None = None,  # tokens, where these are the samples
    dtype: torch.dtype | None = None,  # that weights and inputs are cast to for the pass
) -> Iterator[ModelPass]:
    """A model ready to be run over data, with a trace of its calls on a trial batch.

    Mode, gradients, hooks, buffers and the process's own switches are as before at the end, also
    after an error.
    """
    require_cpu_default_device()
    model = unwrap_runnable(model)
    device = input_device(model)
    if not (call is None or callable(call)):
        raise DataError(f"call must be a function (model, batch) -> outputs; found {call!r}")
    run = call or run_function(model)
    if dtype is not None:
        _refuse_inference_weights(model)
        run = partial(run_on_cast_inputs, run, dtype)
    retain_freed_memory()
    with run_in_eval_mode(model, frozen=frozen, dtype=dtype):
        fewest = {} if draw is None else {"fewest": 1}  # each window of sequences makes many blocks
        prepare = _prepare_function(model, draw, by_convention=call is None)
        sender = None
        if device is not None and device.type in SENT_BESIDE:
            sender = HostToDevice(device)
        source = make_source(data, seed=seed, block=block, pin_memory=sender is not None, **fewest)
        trial = Batch([Piece(0, np.arange(num_samples(source.first)))], source.first)
        trial = prepare(trial)
        first = batch_to_device(trial.samples, device)
        changed, random_state = ChangedBuffers(model), RandomState(device)
        again, determinism = copy_batch(first), None
        try:
            try:
                with changed:
                    calls, outputs = trace(
                        model, lambda: run(model, first), count=num_samples(first)
                    )
            except (ResemblanceError, torch.OutOfMemoryError, MemoryError):
                raise
            except Exception as error:
                raise input_mismatch_error(model, first, error) from error
            trial = replace(trial, samples=first)
            determinism = DeterminismCheck(model, run, again, outputs, random_state)
            yield ModelPass(
                model, device, source, trial, calls, outputs, determinism, run, prepare, sender
            )
        finally:
            changed.put_back()
            if determinism is not None and (fault := determinism.fault) and fault.random:
                random_state.put_back()  # it may have drawn throughout


def _prepare_function(model: nn.Module, draw: Prepare | None, *, by_convention: bool) -> Prepare:
    language = detect_language_model(model)
    decoder = by_convention and language is not None and language.kind == "encoder-decoder"

    def prepare(batch: Batch) -> Batch:
        if decoder:
            batch = replace(batch, samples=add_decoder_inputs(model, batch.samples))
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
    determinism: DeterminismCheck
    run: RunModel
    prepare: Prepare  # batches as they come from the source
    sender: HostToDevice | None = None  # of batches from the host, while the device is at others
    share: Share = field(default_factory=Share)  # of the data, that it is run on

    def batches(self, batch_size: int) -> Iterator[tuple[Batch, Any]]:
        """Batches as they come, each with its samples on the model's device."""
        self.determinism.check()
        with contextlib.closing(self.source.batches(batch_size, self.share)) as batches:
            for batch in batches:
                batch = self.prepare(batch)
                yield batch, batch_to_device(batch.samples, self.device, self.sender)
                if self.sender is not None:
                    self.sender.settle()

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
        logits: LogitsReader | EmbeddingsReader | None = None,  # what the consumer sees of outputs
        compile: bool = False,
    ) -> set[int]:
        """Run the model over all batches and hand on every tapped layer of each.

        What cannot work fails at the first batch and says why; one smaller than that comes before
        it where its size is open. With `may_drop`, taps that have no rows such as are recorded are
        left out instead; returns which.
        """
        gradients = objective is not None
        if gradients:
            require_gradients(self.model)
        reader = logits if isinstance(logits, LogitsReader) else None
        if objective is not None and not callable(objective.target):
            reader = objective.logits
            self.predictions(reader, needed=True)
            if objective.target == "labels":  # an error here names those of the samples themselves
                objective.start(self.trial.samples, self.outputs)
        capture = Capture(self.model, taps, gradients=gradients, may_drop=may_drop)
        eager = EagerRunner(capture, self.run, objective, logits or reader)
        checks = FirstBatchChecks(
            self.determinism,
            taps,
            self.device,
            gradients=gradients,
            logits=None if reader is None else reader.check(self.outputs, self.calls),
        )
        with progress_bar(progress, self.source.expected(self.share), what) as advance:
            compiled = CompiledRunner(eager, self.outputs, partial(advance, 0)) if compile else None
            with capture:
                memory = MemoryWatch(self.device)
                checks.trial(eager, Rows(self.trial), memory.look)
                splitter = BatchSplitter(None, self.prepare)
                if isinstance(batch_size, str):  # "auto"
                    batch_size, splitter.limit = self._batch_size(memory.estimate, deterministic)
                runner: Runner = compiled or eager
                sees = logits is not None
                # closed also after an error, so that worker processes end
                with contextlib.closing(self.source.batches(batch_size, self.share)) as batches:
                    for batch in splitter.batches(batches):
                        if self._feed_batch(runner, batch, consumer, splitter, checks, sees):
                            advance(len(batch.indices))
                checks.end()
            if compiled is not None:
                compiled.finish()
        return capture.dropped

    def _batch_size(self, took: int, deterministic: bool) -> tuple[int, int]:
        """Samples in a batch, and the cells they have, from the GPU memory that a trial took."""
        samples = len(self.trial.indices)
        values = max((x.numel() for x in floating_tensors(self.outputs)), default=0)
        length = count_cells(self.trial) // samples
        inputs = [x for x in batch_leaves(self.trial.samples) if isinstance(x, Tensor)]
        size = choose_batch_size(
            self.device,
            self.source.block,
            took // samples,
            deterministic,
            length=length,
            values=values // samples,
            inputs=sum(x.nbytes for x in inputs) // samples,
        )
        return size, size * length

    def _feed_batch(
        self,
        runner: Runner,
        batch: Batch,
        consumer: Consumer,
        splitter: BatchSplitter,
        checks: FirstBatchChecks,
        sees: bool,
    ) -> bool:
        """Run one batch; False if a GPU had too little memory, and its halves are next.

        Where the size was left open, or tokens are few among many, what a batch larger than any
        before gives is held until it is through, so that a consumer sees all of it or nothing.
        """
        careful = self.device is not None and self.device.type in _RUNS_OUT
        careful &= splitter.limit is not None or self.trial.drawn is not None
        held = HeldBatch() if careful and count_cells(batch) > splitter.proven else None
        receiver: HeldBatch | Consumer = consumer if held is None else held
        samples = batch.samples if held is None else copy_batch(batch.samples)
        try:
            samples = batch_to_device(samples, self.device, self.sender)
            if held is None:
                consumer.begin(batch, samples)
            see = checks.seeing(receiver.see if sees else None)
            runner.run(samples, Rows(batch), checks.noting(batch, receiver.consume), see)
        except torch.OutOfMemoryError as error:
            if held is None:
                raise DataError(_MSG_OUT_OF_MEMORY) from error
            samples = None
            held.outputs.clear()
            splitter.did_not_fit(batch, error)
            return False
        if held is not None:
            consumer.begin(batch, batch.samples)
            held.hand_on(consumer.consume, consumer.see if sees else None)
        checks.ran(len(batch.indices))  # which knows more of what is wrong than a consumer
        consumer.end()
        splitter.ran(batch)
        if self.sender is not None:  # before the data are asked for the next
            self.sender.settle()
        return True

    def predictions(
        self, logits: LogitsReader, *, needed: bool, watched: bool | None = None
    ) -> LogitsReader | None:
        """What reads logits off this model's outputs; None if they hold no predictions.

        Args:
            logits: the option of that name.
            needed: whether the caller cannot go on without them. If it can, outputs that look like
                predictions of another kind are left out with a warning.
            watched: whether `feed` checks the values of later batches too, so that a doubt can
                wait; by default if they are needed.

        Raises:
            TargetError: logits are needed, or their place was named, and outputs are none.
        """
        if logits.option == "none" and not needed:
            return None
        final = not (needed if watched is None else watched)
        needed |= logits.option != "auto"
        try:
            objection = logits.objection(
                self.model, self.trial.samples, self.outputs, self.calls, final=final
            )
            if needed and objection is not None:
                raise TargetError(objection.message)
        except TargetError:
            if needed:
                raise
            return None
        if objection is not None and objection.remedy is not None:
            warn(f"predictions are not recorded: {objection.message}")
        return logits if objection is None else None
