"""The one loop: a model run over data batch by batch, for whoever wants to see what happens.

`opened` puts a model into the state it is run in, tries it on two samples, and puts it back at the
end. What it yields is a `ModelPass`: callers take its `batches` and run the model themselves, or
let it `feed` a `Consumer` the features and gradients at chosen layers.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from .._data.batches import run_by_convention, size, to_device
from .._data.sources import Batch, BlockSize, Source, source
from .._progress_bar import progress as progress_bar
from ..errors import DataError, ResemblanceError, ResemblanceWarning, TargetError
from . import batch_size as batch_sizes
from .call_trace import Call, trace
from .capture import Capture
from .changed_buffers import ChangedBuffers
from .evaluation_mode import RandomState, untouched, unwrap
from .input_misfit import misfit
from .layer_choice import Tap
from .losses import Objective
from .unsteady_outputs import copied, unsteadiness

RunModel = Callable[[nn.Module, Any], Any]


class Consumer(Protocol):
    """What sees a pass: each batch as it begins, each tapped layer of it, and its end."""

    def begin(self, batch: Batch) -> None: ...

    def consume(self, i: int, features: Tensor, gradients: Tensor | None) -> None: ...

    def end(self) -> None: ...


def runnable(model: nn.Module) -> nn.Module:
    """The model under its wrappers, or an error if it cannot be run and differentiated."""
    model = unwrap(model)
    if not isinstance(model, nn.Module):
        raise DataError(f"expected a torch.nn.Module, found {type(model).__name__}")
    if any(weight.is_meta for weight in model.parameters()):
        raise DataError("the model's weights are on the meta device, not yet loaded; load them")
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
    shard: tuple[int, int] = (0, 1),
    call: RunModel | None = None,
    frozen: bool = True,  # False where no gradient is taken
) -> Iterator[ModelPass]:
    """A model ready to be run over data, with a trace of its calls on a trial batch.

    Mode, gradients, hooks, buffers and the process's own switches are as before at the end, also
    after an error.
    """
    model = runnable(model)
    weights = itertools.chain(model.parameters(), model.buffers())
    device = next((weight.device for weight in weights), None)
    if not (call is None or callable(call)):
        raise DataError(f"call must be a function (model, batch) -> outputs; found {call!r}")
    run = call or run_by_convention
    with untouched(model, frozen=frozen):
        samples = source(data, seed=seed, block=block, shard=shard)
        first = to_device(samples.first, device)
        changed, random_state = ChangedBuffers(model), RandomState(device)
        again, unsteady = copied(first), None
        try:
            try:
                with changed:
                    calls, outputs = trace(model, lambda: run(model, first))
                unsteady = unsteadiness(model, run, again, outputs, random_state)
            except (ResemblanceError, torch.OutOfMemoryError, MemoryError):
                raise
            except Exception as error:
                raise misfit(model, first, error) from error
            if unsteady is not None:
                warnings.warn(str(unsteady), ResemblanceWarning, stacklevel=4)
            yield ModelPass(model, device, samples, first, calls, outputs, run)
        finally:
            changed.put_back()
            if unsteady is not None and unsteady.random:  # it may have drawn throughout
                random_state.put_back()


@dataclass(frozen=True)
class ModelPass:
    """A model in the state it is run in, the data to run it on, and what a trial showed."""

    model: nn.Module
    device: torch.device | None  # None for a model without weights
    source: Source
    first: Any  # the trial batch, on the device
    calls: list[Call]  # of the modules, in that trial
    outputs: Any  # of the model, in that trial
    run: RunModel

    def batches(self, batch_size: int) -> Iterator[tuple[Batch, Any]]:
        """Batches as they come, each with its samples on the model's device."""
        for batch in self.source.batches(batch_size):
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
    ) -> None:
        """Run the model over all batches and hand on every tapped layer of each.

        A trial comes first: what cannot work fails there and says why.
        """

        def one_batch(samples: Any, consume: Callable[[int, Tensor, Tensor | None], None]) -> None:
            losses = None if objective is None else partial(objective.losses, batch=samples)
            capture.run(lambda: self.run(self.model, samples), losses, size(samples), consume)

        capture = Capture(self.model, taps, gradients=objective is not None)
        with capture, progress_bar(progress, self.source.expected, what) as advance:
            before = batch_sizes.allocated(self.device)
            self._try(objective, one_batch)
            if isinstance(batch_size, str):  # "auto"
                each = (batch_sizes.allocated(self.device) - before) // size(self.first)
                batch_size = batch_sizes.chosen(self.device, self.source.block, each, deterministic)
            for batch, samples in self.batches(batch_size):
                consumer.begin(batch)
                one_batch(samples, consumer.consume)
                consumer.end()
                advance(len(batch.indices))

    def _try(self, objective: Objective | None, one_batch: Callable[..., None]) -> None:
        """One batch whose features and gradients go nowhere, to see that there are any."""
        reached: list[Tensor] = []

        def note(i: int, features: Tensor, gradients: Tensor | None) -> None:
            if gradients is not None:
                reached.append((gradients != 0).any())

        if objective is not None:
            objective.refuse_probabilities(self.outputs)
        one_batch(self.first, note)
        if objective is not None and not any(reached):
            raise TargetError(
                "the gradient of the loss is zero at every layer: nothing but zeros would be "
                "recorded; check the target, or record features alone with gradients=False"
            )
